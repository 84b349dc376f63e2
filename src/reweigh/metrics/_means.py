"""Metrics that are one weighted mean over decisions: their sums and their value."""

from __future__ import annotations

import torch

from ..binning import exact_sum
from ..errors import bad_input
from ..predictions import Predictions
from ._traits import Statistics, need_some_rows, total


def mean_statistics(predictions: Predictions, values: torch.Tensor, what: str) -> Statistics:
    """Sum and weight of one number a decision (or a row), order-free."""
    need_some_rows(predictions, what)
    weights = predictions.row_weights
    if weights is None:
        count = torch.tensor([float(len(values)), 0.0], dtype=torch.float64, device=values.device)
        return {"sum": exact_sum(values), "weight": count}
    if len(values) != len(weights):
        weights = weights.repeat_interleave(len(values) // len(weights))
    sums = exact_sum(weights * values)
    if not bool(torch.isfinite(sums).all()):  # a weight of 0 hides even an infinite cost
        sums = exact_sum((weights * values).masked_fill(weights == 0, 0.0))
    return {"sum": sums, "weight": exact_sum(weights)}


def mean_value(statistics: Statistics, **settings: object) -> float:
    """The weighted mean."""
    weight = float(total(statistics["weight"]))
    if not weight > 0:
        raise bad_input("averaging over rows", came="weights that sum to 0", expected="a positive sum")
    return float(total(statistics["sum"])) / weight
