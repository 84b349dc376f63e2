"""Bins of variable width (Ding et al. 2020): a bin is full when it holds enough rows to pin an accuracy to its width."""

from __future__ import annotations

import torch

Tensor = torch.Tensor

NORMAL_90 = 1.645  # two-sided 90 % quantile of the normal distribution
LEAST_REMAINDER = 40  # a new bin is begun only with more rows left than this,
LEAST_GAP = 0.05  # and this far above the lowest confidence


def variable_starts(ordered: Tensor) -> Tensor:
    """(bins,) first rank of each bin over confidences in falling order.

    A bin [s, i) is closed before rank i when its i - s rows exceed (1.645 / width)^2 / 4, as in the published
    program; so is the borrowing of rows for a last bin that stayed too small.
    """
    values = ordered.double().cpu()
    count = len(values)
    ranks = torch.arange(count)
    may_close = torch.zeros(count, dtype=torch.bool)
    may_close[1:] = (count - ranks[1:] > LEAST_REMAINDER) & (values[:-1] - values[-1] > LEAST_GAP)
    starts = [0]
    while True:
        begin = starts[-1]
        later = ranks[begin + 1 :]
        wanted = _wanted(values[begin] - values[begin:-1])
        full = torch.nonzero(may_close[begin + 1 :] & ((later - begin).double() > wanted))
        if not len(full):
            break
        starts.append(int(later[full[0, 0]]))
    return _borrow(values, starts)


def _wanted(width: Tensor) -> Tensor:
    """Rows that a bin of this width needs; without width there can never be enough."""
    return torch.where(width > 0, (NORMAL_90 / width) ** 2 * 0.25, torch.full_like(width, float("inf")))


def _borrow(values: Tensor, starts: list[int]) -> Tensor:
    """If the last bin lacks rows, every earlier one gives int(lack x last size / n): the published program's share."""
    count = len(values)
    sizes = torch.tensor([*starts, count]).diff()
    lack = float(_wanted(values[starts[-1]] - values[-1])) - int(sizes[-1])
    if len(starts) == 1 or not 0 < lack < float("inf"):
        return torch.tensor(starts)
    given = int(lack * int(sizes[-1]) / count)
    if bool((sizes[:-1] <= given).any()):
        return torch.tensor(starts)  # a bin would be emptied; the published program fails here
    sizes[:-1] -= given
    return torch.cat([torch.zeros(1, dtype=torch.long), sizes[:-1].cumsum(0)])
