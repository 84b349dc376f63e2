"""The mean negative log-likelihood."""

from __future__ import annotations

from typing import Any

from ..predictions import Predictions
from ..registry import register_metric
from ._means import mean_statistics, mean_value
from ._traits import Statistics, traits


def _statistics(predictions: Predictions, **settings: Any) -> Statistics:
    return mean_statistics(predictions, -predictions.log_likelihood, "the likelihood")


@register_metric(
    "negative_log_likelihood",
    aliases=("NLL", "log_loss"),
    direction="lower",
    range=(0, "inf"),
    heads=("softmax", "sigmoid"),
)
@traits(statistics=_statistics, value=mean_value)
def negative_log_likelihood(predictions: Predictions) -> float:
    """Mean of -log p of what happened, in nats: over rows under softmax, over (row, label) under sigmoid.

    Computed from logits where there are logits, so that it is exact at any gap; a probability of 0 for what happened
    is infinite. Soft targets t count as - sum_k t_k log p_k.

    >>> from reweigh import Predictions
    >>> round(negative_log_likelihood(Predictions(logits=[[0.0, 0.0]], targets=[1])), 6)
    0.693147
    """
    return mean_value(_statistics(predictions))
