"""The cost of the decisions that minimise the expected cost, and those decisions."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import bad_input
from ..predictions import Predictions
from ..registry import register_metric
from ._means import mean_statistics, mean_value
from ._outcomes import outcome_block, outcomes
from ._traits import Statistics, traits

Tensor = torch.Tensor
ABSTAINED = -1


def _matrix(predictions: Predictions, matrix: Any) -> Tensor:
    costs = torch.as_tensor(matrix, dtype=torch.float64, device=predictions.scores.device)
    if predictions.head != "softmax" or predictions.kind == "confidence":
        raise bad_input(
            "deciding by cost",
            came=f"{predictions.head} {predictions.kind}",
            expected="class probabilities under softmax",
        )
    if costs.ndim != 2 or costs.shape[0] != predictions.classes or not bool(torch.isfinite(costs).all()):
        raise bad_input(
            "deciding by cost",
            came=f"a cost matrix of shape {tuple(costs.shape)}",
            expected=f"finite costs, one row for each of the {predictions.classes} true classes, one column a decision",
        )
    return costs


def bayes_decision(predictions: Predictions, matrix: Any, *, abstain: float | None = None) -> Tensor:
    """(n,) the decision d with the lowest expected cost sum_k p_k matrix[k, d], ties to the lowest.

    With `abstain`, the cost of not deciding, rows whose every decision is expected to cost more are -1.

    >>> bayes_decision(Predictions(probabilities=[[0.9, 0.1]]), [[0, 1], [20, 0]]).tolist()
    [1]
    """
    costs = _matrix(predictions, matrix)
    if abstain is not None and not abstain >= 0:
        raise bad_input("deciding by cost", came=f"abstain={abstain!r}", expected="a cost of at least 0, or None")
    parts = [torch.zeros(0, dtype=torch.long, device=costs.device)]
    for _, probability in predictions.probability_blocks():
        expected = probability @ costs
        decision = expected.argmin(1)
        if abstain is not None:
            decision = decision.masked_fill(expected.amin(1) > abstain, ABSTAINED)
        parts.append(decision)
    return torch.cat(parts)


def _statistics(predictions: Predictions, *, matrix: Any, abstain: float | None = None) -> Statistics:
    costs = _matrix(predictions, matrix)
    targets = outcomes(predictions, "the expected cost")
    decisions = bayes_decision(predictions, matrix, abstain=abstain)
    paid = costs[:, decisions.clamp(min=0)].T  # (n, K) cost of the decision under each true class
    if predictions.target_form == "index":
        cost = paid.gather(1, targets.long().unsqueeze(1)).squeeze(1)
    else:
        cost = (paid * outcome_block(predictions, targets, slice(None))).sum(1)
    if abstain is not None:
        cost = torch.where(decisions == ABSTAINED, torch.full_like(cost, abstain), cost)
    return mean_statistics(predictions, cost, "the expected cost")


@register_metric("expected_cost", direction="lower", range=("-inf", "inf"), heads=("softmax",))
@traits(statistics=_statistics, value=mean_value)
def expected_cost(predictions: Predictions, matrix: Any, abstain: float | None = None) -> float:
    """Mean cost that the Bayes decisions incur: matrix[true class, decision], or `abstain` where they abstain.

    The matrix has a row for each true class and a column for each decision.

    >>> from reweigh import Predictions
    >>> expected_cost(Predictions(probabilities=[[0.9, 0.1], [0.4, 0.6]], targets=[0, 0]), [[0, 1], [1, 0]])
    0.5
    """
    return mean_value(_statistics(predictions, matrix=matrix, abstain=abstain))
