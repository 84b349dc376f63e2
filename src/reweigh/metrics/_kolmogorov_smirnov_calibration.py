"""The Kolmogorov-Smirnov calibration error: the largest gap between cumulative confidence and cumulative accuracy."""

from __future__ import annotations

import torch

from ..predictions import Predictions
from ..registry import register_metric
from ._traits import need_some_rows, traits


@register_metric(
    "kolmogorov_smirnov_calibration", aliases=("KS",), direction="lower", range=(0, 1), heads=("softmax", "sigmoid")
)
@traits(instead="expected_calibration_error")
def kolmogorov_smirnov_calibration(predictions: Predictions) -> float:
    """max_t |(1/n) sum of (c_i - a_i) over c_i <= t|: no bins, and equal confidences stay together.

    >>> from reweigh import Predictions
    >>> kolmogorov_smirnov_calibration(Predictions(confidence=[0.5, 1.0], correct=[False, True]))
    0.25
    """
    need_some_rows(predictions, "the Kolmogorov-Smirnov calibration error")
    confidence = predictions.top_confidence
    ordered, order = predictions.remember("confidence order", lambda: torch.sort(confidence))
    gap = (confidence - predictions.correctness)[order]
    weights = predictions.decision_weights
    weight = torch.ones_like(gap) if weights is None else weights[order]
    sums = (weight * gap).cumsum(0)
    last = torch.ones_like(sums, dtype=torch.bool)
    last[:-1] = ordered[1:] != ordered[:-1]
    return float(sums[last].abs().max() / weight.sum())
