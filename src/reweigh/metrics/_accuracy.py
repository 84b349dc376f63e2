"""The share of decisions that are right."""

from __future__ import annotations

from typing import Any

from ..predictions import Predictions
from ..registry import register_metric
from ._intervals import wilson
from ._means import mean_statistics, mean_value
from ._traits import Statistics, traits


def _statistics(predictions: Predictions, **settings: Any) -> Statistics:
    return mean_statistics(predictions, predictions.correctness, "the accuracy")


def _interval(predictions: Predictions, level: float, **settings: Any) -> tuple[float, float] | None:
    """Wilson's, for independent decisions that are right or wrong."""
    correct = predictions.correctness
    if predictions.weights is not None or predictions.per_label or not bool(((correct == 0) | (correct == 1)).all()):
        return None
    low, high = wilson(correct.sum(), correct.new_tensor(len(correct)), level)
    return float(low), float(high)


@register_metric("accuracy", direction="higher", range=(0, 1), heads=("softmax", "sigmoid"))
@traits(statistics=_statistics, value=mean_value, interval=_interval)
def accuracy(predictions: Predictions) -> float:
    """Share of right decisions: rows under softmax and for class numbers, every (row, label) for label matrices.

    Soft targets count with the share of the predicted class.

    >>> from reweigh import Predictions
    >>> accuracy(Predictions(probabilities=[[0.9, 0.1], [0.4, 0.6]], targets=[0, 0]))
    0.5
    """
    return mean_value(_statistics(predictions))
