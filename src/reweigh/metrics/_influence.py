"""An interval for the area under the risk-coverage curve from the influence of each row."""

from __future__ import annotations

from typing import Any

import numpy

from ..predictions import Predictions
from ._intervals import normal_quantile
from ._ranking import ranked_by
from ._risk import area, blocks_of, costs

Array = numpy.ndarray


def area_influence(predictions: Predictions, score: Any, loss: str) -> Array:
    """(decisions,) how much each row moves the area, by place of confidence; their mean is 0.

    The area is E[r(S)], r(s) = E[L | S >= s]. A row with score s and loss l moves it by
    r(s) - area + sum over places k at or below s of (l - r_k) / k; tied rows share their places.
    """
    ranked = ranked_by(predictions, score)
    cost = costs(predictions, loss)[ranked.order]
    count = len(cost)
    starts = ranked.starts
    size = numpy.diff(starts, append=count)
    block = numpy.cumsum(ranked.first) - 1
    place = numpy.arange(1, count + 1)
    inside = place - starts[block]
    own = numpy.add.reduceat(cost, starts)
    risk = ((numpy.cumsum(own) - own)[block] + (own / size)[block] * inside) / place
    below = numpy.cumsum((1 / place)[::-1])[::-1]  # sum of 1 / k over the places from here down
    rest = numpy.cumsum((risk / place)[::-1])[::-1]

    def mean(values: Array) -> Array:
        return (numpy.add.reduceat(values, starts) / size)[block]

    return cost * mean(below) + mean(risk - rest) - risk.mean()


def area_interval(
    predictions: Predictions, level: float, *, score: Any = "max_probability", loss: str = "error", ties: str = "mean"
) -> tuple[float, float] | None:
    """Normal interval; None for weights, label matrices and ties that are not averaged, which are left to resampling."""
    if predictions.weights is not None or predictions.per_label or ties != "mean" or len(predictions) < 2:
        return None
    if not numpy.isfinite(costs(predictions, loss)).all():
        return None
    value = area(blocks_of(predictions, score, loss), "mean", True)
    influence = area_influence(predictions, score, loss)
    spread = normal_quantile(level) * float(numpy.sqrt((influence**2).mean() / len(influence)))
    high = value + spread
    return max(0.0, value - spread), min(1.0, high) if loss == "error" else high
