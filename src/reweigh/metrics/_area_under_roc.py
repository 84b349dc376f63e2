"""The area under the ROC curve, with DeLong's interval."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from ..errors import unknown_name
from ..predictions import Predictions
from ..registry import register_metric
from ._classes import chosen_class, each_class, summarised
from ._intervals import normal_quantile
from ._ranking import Ordered, ordered, ranked_by
from ._risk import decision_weights
from ._traits import need_some_rows, traits

Array = numpy.ndarray


def block_sums(of: Ordered, weights: Array | None) -> tuple[Array, Array]:
    """Positive and negative weight of each block of ties, from the highest key down; weights in the ranking's order."""
    positive = of.happened if weights is None else weights * of.happened
    negative = 1 - of.happened if weights is None else weights - positive
    if of.ranked.first.all():
        return positive, negative
    return numpy.add.reduceat(positive, of.ranked.starts), numpy.add.reduceat(negative, of.ranked.starts)


def roc_area(of: Ordered, weights: Array | None = None) -> float:
    """Chance that a positive ranks above a negative, ties counting half; NaN without either."""
    positive, negative = block_sums(of, weights)
    all_positive, all_negative = positive.sum(), negative.sum()
    if not (all_positive > 0 and all_negative > 0):
        return float("nan")
    below = all_negative - numpy.cumsum(negative)
    return float((positive * (below + negative / 2)).sum() / (all_positive * all_negative))


def delong_variance(of: Ordered) -> float:
    """Variance of the area from how each positive and each negative ranks among the others."""
    positive, negative = block_sums(of, None)
    m, n = positive.sum(), negative.sum()
    if m < 2 or n < 2:
        return float("nan")
    of_positive = (n - numpy.cumsum(negative) + negative / 2) / n  # negatives below a positive of this block
    of_negative = (numpy.cumsum(positive) - positive / 2) / m  # positives above a negative of this block
    area = float((positive * of_positive).sum() / m)
    over_positives = (positive * (of_positive - area) ** 2).sum() / (m - 1)
    over_negatives = (negative * (of_negative - area) ** 2).sum() / (n - 1)
    return float(over_positives / m + over_negatives / n)


def _interval(
    predictions: Predictions,
    level: float,
    *,
    scope: str = "class_wise",
    average: str | None = None,
    positive: int | str | None = None,
) -> tuple[Any, Any] | None:
    if predictions.weights is not None or average is not None or scope != "class_wise":
        return None
    if predictions.target_form == "soft":
        return None
    chosen = chosen_class(predictions, positive)
    pairs, _ = each_class(
        predictions,
        lambda of, _: (roc_area(of), delong_variance(of)),
        "the area under the ROC curve",
        chosen,
    )
    pairs = [pair if isinstance(pair, tuple) else (pair, pair) for pair in pairs]
    area, variance = torch.tensor(pairs, dtype=torch.float64).unbind(1)
    spread = normal_quantile(level) * variance.sqrt()
    low, high = (area - spread).clamp(0, 1), (area + spread).clamp(0, 1)
    return (low, high) if chosen is None else (float(low[chosen]), float(high[chosen]))


@register_metric(
    "area_under_roc", aliases=("AUROC", "AUC"), direction="higher", range=(0, 1), heads=("softmax", "sigmoid")
)
@traits(interval=_interval, instead="accuracy")
def area_under_roc(
    predictions: Predictions,
    *,
    scope: str = "class_wise",
    average: str | None = None,
    positive: int | str | None = None,
) -> Any:
    """Area under the ROC curve of each class's probability against the rest, (K,); NaN for a class never or always there.

    Settings:
        scope: "class_wise", or "top_label" for how well confidence tells right decisions from wrong ones, one number.
        average: None, "macro" (mean over the defined classes) or "weighted" (by their rows).
        positive: one class, by number or name, as a number.

    >>> from reweigh import Predictions
    >>> area_under_roc(Predictions(probabilities=[[0.1, 0.9], [0.6, 0.4], [0.3, 0.7]], targets=[1, 0, 0]), positive=1)
    1.0
    """
    if scope not in ("class_wise", "top_label"):
        raise unknown_name("scope", str(scope), ("class_wise", "top_label"))
    if scope == "top_label":
        need_some_rows(predictions, "the area under the ROC curve")
        ranked, weights = ranked_by(predictions, "max_probability"), decision_weights(predictions)
        of = ordered(ranked, predictions.correctness.cpu().numpy())
        return roc_area(of, None if weights is None else weights[ranked.order])
    chosen = chosen_class(predictions, positive)
    values, support = each_class(predictions, roc_area, "the area under the ROC curve", chosen)
    return summarised(torch.tensor(values, dtype=torch.float64), support, average, chosen)
