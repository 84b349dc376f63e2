"""Metrics that are one weighted mean over decisions: their sums and their value."""

from __future__ import annotations

import torch

from ..binning import halves
from ..errors import bad_input
from ..predictions import Predictions
from ._traits import Statistics, need_some_rows, total


def mean_statistics(predictions: Predictions, values: torch.Tensor, what: str) -> Statistics:
    """Sum and weight of one number a decision (or a row), order-free."""
    need_some_rows(predictions, what)
    weights = predictions.row_weights
    if weights is None:
        count = torch.tensor([float(len(values)), 0.0], dtype=torch.float64, device=values.device)
        return {"sum": halves(values).sum(0), "weight": count}
    if len(values) != len(weights):
        weights = weights.repeat_interleave(len(values) // len(weights))
    # a weight of 0 hides even an infinite cost
    weighted = torch.where(weights > 0, weights * values, torch.zeros_like(values))
    return {"sum": halves(weighted).sum(0), "weight": halves(weights).sum(0)}


def mean_value(statistics: Statistics, **settings: object) -> float:
    """The weighted mean."""
    weight = float(total(statistics["weight"]))
    if not weight > 0:
        raise bad_input("averaging over rows", came="weights that sum to 0", expected="a positive sum")
    return float(total(statistics["sum"])) / weight
