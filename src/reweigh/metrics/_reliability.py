"""The reliability table: what the diagram shows, with an interval for every bin."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..binning import assign, bin_sums, width_edges
from ..predictions import Predictions
from ..registry import register_metric
from ._binned import WHAT, Binning, check_binning, statistics
from ._intervals import wilson
from ._traits import Statistics, need_some_rows, refuse_weights, total, traits

Tensor = torch.Tensor


class Reliability(NamedTuple):
    """One entry a bin (a row of entries a class, if class-wise); NaN where a bin has no rows."""

    lower: Tensor
    upper: Tensor
    count: Tensor
    confidence: Tensor
    accuracy: Tensor
    low: Tensor
    high: Tensor

    @property
    def gap(self) -> Tensor:
        """Confidence minus accuracy: positive where the model is too sure."""
        return self.confidence - self.accuracy


def _cut(bins: int, binning: str, closed: str, scope: str) -> Binning:
    return Binning(bins=bins, binning=binning, closed=closed, scope=scope)


def _table(sums: Tensor, lower: Tensor, upper: Tensor, level: float) -> Reliability:
    weight, confidence, correct = sums.unbind(-1)
    low, high = wilson(correct, weight, level)
    empty = weight <= 0
    divisor = weight.masked_fill(empty, torch.nan)
    return Reliability(
        lower.expand_as(weight),
        upper.expand_as(weight),
        weight,
        confidence / divisor,
        correct / divisor,
        low.masked_fill(empty, torch.nan),
        high.masked_fill(empty, torch.nan),
    )


def _statistics(predictions: Predictions, **settings: Any) -> Statistics:
    settings = {name: value for name, value in settings.items() if name != "interval"}
    return statistics(predictions, Binning(**settings))


def _value(sums: Statistics, *, interval: float = 0.95, **settings: Any) -> Reliability:
    bins = total(sums["bins"])
    edges = width_edges(bins.shape[-2], device=bins.device)
    return _table(bins, edges[:-1], edges[1:], interval)


def _weighted(*, binning: str = "width", **settings: Any) -> bool:
    return binning == "width"


@register_metric("reliability", direction="none", range=(0, 1), heads=("softmax", "sigmoid"))
@traits(statistics=_statistics, value=_value, weighted=_weighted, instead="reliability with binning='width'")
def reliability(
    predictions: Predictions,
    *,
    bins: int = 15,
    binning: str = "width",
    closed: str = "right",
    scope: str = "top_label",
    interval: float = 0.95,
) -> Reliability:
    """Count, mean confidence and accuracy of every bin, with Wilson's interval for the accuracy.

    Equal-width bins carry their edges k / bins; the others the lowest and highest confidence they hold. Class-wise
    tables need equal widths.

    >>> from reweigh import Predictions
    >>> reliability(Predictions(confidence=[0.75, 0.875, 0.25], correct=[True, False, True]), bins=2).accuracy.tolist()
    [1.0, 0.5]
    """
    cut = check_binning(_cut(bins, binning, closed, scope))
    if cut.adds or scope == "class_wise":
        return _value(statistics(predictions, cut), interval=interval)
    need_some_rows(predictions, WHAT)
    refuse_weights(predictions, f"a reliability table with binning={binning!r}", "binning='width' honours weights.")
    confidence, correct = predictions.top_confidence, predictions.correctness
    index, count = assign(confidence, bins=bins, binning=binning, closed=closed, correct=correct)
    ends = torch.full((2, count), torch.nan, dtype=torch.float64, device=confidence.device)
    ends[0] = ends[0].scatter_reduce(0, index, confidence, "amin", include_self=False)
    ends[1] = ends[1].scatter_reduce(0, index, confidence, "amax", include_self=False)
    return _table(total(bin_sums(index, count, confidence, correct)), ends[0], ends[1], interval)
