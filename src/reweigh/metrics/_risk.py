"""Risk among the most confident: costs in the order of a score, and the areas under their cumulative means."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy
import torch

from ..errors import bad_input, unknown_name
from ..predictions import Predictions
from ._ranking import Ranked, in_row_order, ranked_by
from ._traits import need_some_rows

Array = numpy.ndarray
FEW = 16  # places of a block that are summed over all blocks at once
TIES = ("mean", "threshold", "stable")
LOSSES = ("error", "cross_entropy")


class Blocks(NamedTuple):
    """Blocks of tied decisions from the most confident down: weight and cost before each block, and its own."""

    weight_before: Array
    cost_before: Array
    weight: Array
    cost: Array

    @property
    def total(self) -> float:
        """The weight of all rows."""
        return float(self.weight_before[-1] + self.weight[-1])

    @property
    def risk(self) -> Array:
        """Mean cost of everything accepted once the block is in."""
        return (self.cost_before + self.cost) / (self.weight_before + self.weight)

    @property
    def coverage(self) -> Array:
        """Share of the weight accepted once the block is in."""
        return (self.weight_before + self.weight) / self.total


def costs(predictions: Predictions, loss: str) -> Array:
    """(decisions,) the cost of accepting each: 1 for an error, or its negative log-likelihood."""
    if loss not in LOSSES:
        raise unknown_name("loss of a risk metric", str(loss), LOSSES)
    if loss == "error":
        return predictions.remember("error", lambda: (1 - predictions.correctness).cpu().numpy())
    return predictions.remember("cross entropy", lambda: _row_likelihood(predictions).neg().cpu().numpy())


def _row_likelihood(predictions: Predictions) -> torch.Tensor:
    value = predictions.log_likelihood
    count = len(predictions.top_confidence)
    return value if len(value) == count else value.view(count, -1).mean(1)  # one-vs-rest heads: mean over heads


def decision_weights(predictions: Predictions) -> Array | None:
    """The weights as an array, or None."""
    weights = predictions.decision_weights
    return None if weights is None else weights.cpu().numpy()


def blocks(ranked: Ranked, cost: Array, weights: Array | None) -> Blocks:
    """Sums over blocks of tied decisions; blocks without weight drop out."""
    order, starts = ranked.order, ranked.starts
    cost = cost[order]
    if weights is None:
        size = numpy.diff(starts, append=len(order)).astype(numpy.float64)
        sums = cost if len(starts) == len(order) else numpy.add.reduceat(cost, starts)
    else:
        weight = weights[order]
        with numpy.errstate(invalid="ignore"):
            cost = numpy.where(weight > 0, weight * cost, 0.0)
        size = weight if len(starts) == len(order) else numpy.add.reduceat(weight, starts)
        sums = cost if len(starts) == len(order) else numpy.add.reduceat(cost, starts)
        size, sums = size[size > 0], sums[size > 0]
        if not len(size):
            raise bad_input("averaging over rows", came="weights that sum to 0", expected="a positive sum")
    with numpy.errstate(invalid="ignore"):
        weight_before = numpy.concatenate([[0.0], numpy.cumsum(size)[:-1]])
        cost_before = numpy.concatenate([[0.0], numpy.cumsum(sums)[:-1]])
    return Blocks(weight_before, cost_before, size, sums)


def blocks_of(predictions: Predictions, score: Any, loss: str, ties: str = "mean") -> Blocks:
    """The blocks of a table by a score; "stable" leaves every row its own block, the earlier tied row first."""
    need_some_rows(predictions, "a risk metric")
    if ties not in TIES:
        raise unknown_name("rule for ties", str(ties), TIES)
    ranked = ranked_by(predictions, score)
    return blocks(
        in_row_order(ranked) if ties == "stable" else ranked, costs(predictions, loss), decision_weights(predictions)
    )


def area(parts: Blocks, ties: str, whole: bool) -> float:
    """Mean over all rows of the risk at their place.

    "threshold" accepts a block at once. Otherwise ("mean", "stable") the rows of a block enter in random order: with
    A before and m inside, the mean cost of the first A + j is (R + S j / m) / (A + j). `whole` says that weights are
    counts of rows; other weights continue the sums of 1 / (A + j) by the digamma function.
    """
    before, cost_before, weight, cost = parts
    if not numpy.isfinite(cost).all():
        return float("inf")
    if ties == "threshold":
        return float((weight * parts.risk).sum() / parts.total)
    if len(weight) == round(parts.total) and (weight == 1).all():
        return float(numpy.mean(parts.risk))
    harmonic, rising = place_sums(before, weight, whole)
    return float((cost_before * harmonic + cost / weight * rising).sum() / parts.total)


def place_sums(before: Array, weight: Array, whole: bool) -> tuple[Array, Array]:
    """Of each block: the sums over its places j = 1 ... m of 1 / (A + j) and of j / (A + j).

    Whole sizes up to 16 are summed place by place over all blocks at once, larger ones block by block; fractional ones
    continue 1 / (A + j) by psi(A + m + 1) - psi(A + 1), and the other sum is m - A times that.
    """
    if not whole:
        digamma = torch.special.digamma(torch.from_numpy(numpy.stack([before + weight + 1, before + 1]))).numpy()
        harmonic = digamma[0] - digamma[1]
        return harmonic, weight - before * harmonic
    harmonic, rising = numpy.zeros_like(weight), numpy.zeros_like(weight)
    rows = numpy.flatnonzero(weight <= FEW)
    for place in range(1, FEW + 1):
        rows = rows[weight[rows] >= place]
        if not len(rows):
            break
        shares = 1 / (before[rows] + place)
        harmonic[rows] += shares
        rising[rows] += place * shares
    for row in numpy.flatnonzero(weight > FEW):
        places = numpy.arange(1, int(weight[row]) + 1)
        shares = 1 / (before[row] + places)
        harmonic[row], rising[row] = shares.sum(), (places * shares).sum()
    return harmonic, rising


def generalized_area(parts: Blocks) -> float:
    """Area under coverage x risk, by the trapezoid from 0: exact for ties in random order."""
    if not numpy.isfinite(parts.cost).all():
        return float("inf")
    return float((parts.weight * (parts.cost_before + parts.cost / 2)).sum() / parts.total**2)


def whole_weights(predictions: Predictions) -> bool:
    """Whether the weights count rows."""
    weights = predictions.row_weights
    if weights is None:
        return True
    return bool((weights == weights.round()).all()) and float(weights.sum()) <= 16 * len(weights) + 1024


def ideal(predictions: Predictions, loss: str) -> Blocks:
    """The blocks of the perfect score, which accepts rows in the order of their cost."""
    cost = costs(predictions, loss)

    def compute() -> Ranked:
        order = numpy.argsort(cost, kind="stable")
        return Ranked(order, numpy.concatenate([[True], cost[order][1:] != cost[order][:-1]]))

    return blocks(predictions.remember(("ideal", loss), compute), cost, decision_weights(predictions))
