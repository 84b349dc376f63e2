"""Order, ties and the weights that depend on rank alone.

Keys are float64 numbers of log-odds grade: confidences near 1 stay distinct. Two keys are tied when
they differ by at most 1e-12 max(1, |key|), which is what the order of a sum can do to equal numbers.
Rows that do not count are sent to the end; every shape is that of the input, whatever the data.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TIE = 1e-12


@dataclass(frozen=True)
class Ranking:
    """Rows in ascending order of their key. All fields (n,)."""

    order: Tensor  # row at each place
    counts: Tensor  # bool, by place: does the row count?
    block: Tensor  # number of the block of tied rows, by place
    size: Tensor  # how many rows count, a float64 number

    def back(self, by_place: Tensor) -> Tensor:
        """Numbers given by place, put back to the rows."""
        return torch.empty_like(by_place).scatter(0, self.order, by_place)

    def mean_in_blocks(self, by_place: Tensor) -> Tensor:
        """Each number replaced by the mean over its block of tied rows."""
        total = torch.zeros_like(by_place).index_add(0, self.block, by_place)
        number = torch.zeros_like(by_place).index_add(0, self.block, torch.ones_like(by_place))
        return (total / number.clamp(min=1))[self.block]


def rank(keys: Tensor, kept: Tensor | None = None) -> Ranking:
    """Ascending, stable; rows with `kept` false come last, in blocks of their own."""
    keys = keys.detach().double()
    kept = torch.ones_like(keys, dtype=torch.bool) if kept is None else kept
    keys = torch.where(kept, keys, torch.inf)
    ordered, order = keys.sort(stable=True)
    counts = kept[order]
    apart = torch.diff(ordered) > TIE * ordered[1:].abs().clamp(min=1.0)
    first = counts.new_zeros(min(1, len(counts)))
    block = torch.cat([first, apart | (counts[1:] != counts[:-1])]).cumsum(0)
    return Ranking(order, counts, block, kept.sum().double())


def harmonic_parts(ranking: Ranking) -> Tensor:
    """1 / (n - r + 1) at ascending rank r of n counted rows, 0 for the others; by place, float64."""
    place = torch.arange(len(ranking.order), device=ranking.order.device, dtype=torch.float64)
    return torch.where(ranking.counts, 1.0 / (ranking.size - place).clamp(min=1.0), 0.0)


def selective_weights(ranking: Ranking, coverage: float, *, tied_mean: bool = True) -> Tensor:
    """(n / k)(H_n - H_{n - min(r, k)}) with k = ceil(coverage n): mean one; k = n is AURC, k = 1 all ones. By row.

    The average of the selective risk over the k lowest thresholds, seen as a weight of each row.
    """
    place = torch.arange(len(ranking.order), device=ranking.order.device, dtype=torch.float64)
    # coverage * n in floating point may exceed the integer it means: 0.07 * 100 = 7.000000000000001
    highest = torch.ceil(coverage * ranking.size - 1e-9).clamp(min=1.0)
    parts = torch.where(place < highest, harmonic_parts(ranking), 0.0)
    weights = torch.where(ranking.counts, ranking.size / highest * parts.cumsum(0), 0.0)
    return ranking.back(ranking.mean_in_blocks(weights) if tied_mean else weights)


def midpoint_fractions(ranking: Ranking, *, tied_mean: bool = True) -> Tensor:
    """(r - 1/2) / n at ascending rank r, by row, float64; 0 for rows that do not count."""
    place = torch.arange(len(ranking.order), device=ranking.order.device, dtype=torch.float64)
    fraction = torch.where(ranking.counts, (place + 0.5) / ranking.size.clamp(min=1.0), 0.0)
    return ranking.back(ranking.mean_in_blocks(fraction) if tied_mean else fraction)
