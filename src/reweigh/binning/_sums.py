"""Sums that do not depend on the order, the batches or the number of threads.

A float64 is cut into a multiple of 2^-26 and a small remainder. Sums of the multiples are exact as long as they stay
below 2^27, and the remainders' rounding is far below the last digit of the total.
"""

from __future__ import annotations

import torch

Tensor = torch.Tensor

_GRID = 1.5 * 2.0**26  # adding it leaves no digit finer than 2^-26


def halves(values: Tensor) -> Tensor:
    """(..., 2) float64: a coarse multiple and the remainder, which add up to the value exactly."""
    values = values.double()
    coarse = (values + _GRID) - _GRID
    # infinities stay in the first half, so that their sum is infinite and not NaN
    return torch.stack([torch.where(torch.isfinite(values), coarse, values), (values - coarse).nan_to_num(0.0)], -1)


def exact_sum(values: Tensor) -> Tensor:
    """(2,) the halves of the sum of (n,) values."""
    values = values.double()
    coarse = (values + _GRID) - _GRID
    parts = torch.stack([coarse.sum(), (values - coarse).sum()])
    return parts if bool(torch.isfinite(parts).all()) else torch.stack([values.sum(), torch.zeros_like(parts[0])])


def add_up(index: Tensor, values: Tensor, bins: int) -> Tensor:
    """(bins, 2) sums of `values` by `index`, in the two halves that keep them exact."""
    values = values.double()
    coarse = (values + _GRID) - _GRID
    fine = values - coarse
    sums = torch.bincount(index, weights=coarse, minlength=bins)
    rest = torch.bincount(index, weights=fine, minlength=bins) if bool(fine.any()) else torch.zeros_like(sums)
    return torch.stack([sums, rest], -1)


def bin_sums(index: Tensor, bins: int, confidence: Tensor, correct: Tensor, weights: Tensor | None = None) -> Tensor:
    """(bins, 3, 2) weight (the number of rows without weights), confidence and correctness of each bin, in halves."""
    if len(index) and int(index.min()) < 0:
        kept = index >= 0
        index, confidence, correct = index[kept], confidence[kept], correct[kept]
        weights = None if weights is None else weights[kept]
    if weights is not None:
        columns = (weights, weights * confidence, weights * correct)
        return torch.stack([add_up(index, column, bins) for column in columns], 1)
    count = torch.bincount(index, minlength=bins).double()
    right = add_up(index, correct, bins)
    return torch.stack([torch.stack([count, torch.zeros_like(count)], -1), add_up(index, confidence, bins), right], 1)
