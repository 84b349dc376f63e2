"""The monotone sweep: the largest number of bins, counted up from 1, whose accuracies still rise with confidence."""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def _last(count: int, max_bins: int | None) -> int:
    return max(1, count - 1 if max_bins is None else min(count - 1, max_bins))


def _falls(accuracy: Tensor) -> bool:
    """Whether an accuracy is strictly below its predecessor."""
    return bool((accuracy[1:] < accuracy[:-1]).any())


def sweep_mass(correct: Tensor, max_bins: int | None = None) -> int:
    """Bins floor(i b / n) over `correct` in the order of confidence: b - 1 for the first b whose accuracy falls.

    Cumulative sums make one trial cost the bins it looks at. Bins that lie wholly in the leading run of wrong rows
    or in the closing run of right ones cannot fall, so only the mixed middle is looked at.
    """
    correct = correct.double().cpu()
    count = len(correct)
    sums = torch.cat([torch.zeros(1, dtype=torch.float64), correct.cumsum(0)])
    lead = int((correct != 0).long().argmax()) if bool((correct != 0).any()) else count
    tail = count - int((correct.flip(0) != 1).long().argmax()) if bool((correct != 1).any()) else 0
    last = _last(count, max_bins)
    if tail <= lead:
        return last  # all wrong rows below all right ones: no number of bins falls
    for bins in range(2, last + 1):
        low, high = max(0, lead * bins // count - 1), min(bins, tail * bins // count + 2)
        number = torch.arange(low, high + 1)
        starts = (number * count + bins - 1) // bins  # the first rank i with floor(i b / n) = number
        size = starts.diff()
        if _falls((sums[starts[1:]] - sums[starts[:-1]]) / size):
            return bins - 1
    return last


def sweep_width(values: Tensor, correct: Tensor, max_bins: int | None = None) -> int:
    """The same over bins min(b - 1, floor(c b)) of equal width, empty ones left out."""
    values, correct = values.double().cpu(), correct.double().cpu()
    last = _last(len(values), max_bins)
    for bins in range(2, last + 1):
        index = (values * bins).long().clamp(0, bins - 1)
        size = torch.bincount(index, minlength=bins)
        right = torch.bincount(index, weights=correct, minlength=bins)
        if _falls((right / size)[size > 0]):
            return bins - 1
    return last
