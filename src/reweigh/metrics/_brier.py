"""The Brier score, summed over classes."""

from __future__ import annotations

from typing import Any

import torch

from ..predictions import Predictions
from ..registry import register_metric
from ._means import mean_statistics, mean_value
from ._outcomes import outcome_block, outcomes
from ._traits import Statistics, traits


def squared_distances(predictions: Predictions) -> torch.Tensor:
    """(n,) sum_k (p_k - t_k)^2 of each row."""
    targets = outcomes(predictions, "the Brier score")
    exact = predictions.target_form == "index" and predictions.head == "softmax"
    parts = []
    for rows, block in predictions.probability_blocks():
        truth = outcome_block(predictions, targets, rows)
        if exact:  # (1 - p_y)^2 from log p_y: p_y - 1 has no digits left where p_y is near 1
            rest = torch.expm1(predictions.log_likelihood[rows])
            parts.append((block.masked_fill(truth > 0, 0.0) ** 2).sum(1) + rest**2)
        else:
            parts.append(((block - truth) ** 2).sum(1))
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


def _statistics(predictions: Predictions, **settings: Any) -> Statistics:
    distances = predictions.remember("squared_distances", lambda: squared_distances(predictions))
    return mean_statistics(predictions, distances, "the Brier score")


@register_metric("brier_score", aliases=("Brier",), direction="lower", range=(0, "inf"), heads=("softmax", "sigmoid"))
@traits(statistics=_statistics, value=mean_value)
def brier_score(predictions: Predictions) -> float:
    """Mean over rows of sum_k (p_k - t_k)^2: over all classes, not divided by their number.

    >>> from reweigh import Predictions
    >>> round(brier_score(Predictions(probabilities=[[0.9, 0.1]], targets=[0])), 6)
    0.02
    """
    return mean_value(_statistics(predictions))
