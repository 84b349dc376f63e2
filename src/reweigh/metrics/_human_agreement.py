"""Agreement with the distribution of labels that several people gave."""

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
WHAT = "the agreement with human labels"
NAMES = ("cross_entropy", "divergence", "total_variation", "top_agreement")


def _per_row(predictions: Predictions) -> Tensor:
    """(n, 4) the four measures of each row."""
    targets = outcomes(predictions, WHAT)
    if predictions.head != "softmax" or predictions.target_form != "soft":
        raise bad_input(
            f"computing {WHAT}",
            came=f"{predictions.target_form} targets under {predictions.head}",
            expected="shares of labels (a floating-point matrix whose rows sum to 1) under softmax",
        )
    parts = [torch.zeros(0, 4, dtype=torch.float64, device=targets.device)]
    for rows, probability in predictions.probability_blocks():
        share = outcome_block(predictions, targets, rows)
        cross_entropy = -predictions.log_likelihood[rows]
        entropy = -torch.special.xlogy(share, share).sum(1)
        variation = (probability - share).abs().sum(1) / 2
        agreed = (share.argmax(1) == predictions.predicted[rows]).double()
        parts.append(torch.stack([cross_entropy, cross_entropy - entropy, variation, agreed], 1))
    return torch.cat(parts)


def _statistics(predictions: Predictions, **settings: Any) -> Statistics:
    table = predictions.remember("human agreement", lambda: _per_row(predictions))
    means = [mean_statistics(predictions, table[:, column], WHAT) for column in range(len(NAMES))]
    return {"sum": torch.stack([part["sum"] for part in means]), "weight": means[0]["weight"]}


def _value(statistics: Statistics, **settings: Any) -> dict[str, float]:
    return {
        name: mean_value({"sum": part, "weight": statistics["weight"]})
        for name, part in zip(NAMES, statistics["sum"], strict=True)
    }


@register_metric("human_agreement", direction="none", range=(0, "inf"), heads=("softmax",))
@traits(statistics=_statistics, value=_value)
def human_agreement(predictions: Predictions) -> dict[str, float]:
    """Cross-entropy to the label shares, its excess over their entropy, total variation, and how often the tops agree.

    The targets are soft: the share of people who gave each label.

    >>> from reweigh import Predictions
    >>> found = human_agreement(Predictions(probabilities=[[0.5, 0.5]], targets=[[0.75, 0.25]]))
    >>> found["total_variation"], found["top_agreement"]
    (0.25, 1.0)
    """
    return _value(_statistics(predictions))
