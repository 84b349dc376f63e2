"""MDCA: cross-entropy plus the distance between mean confidence and frequency of each class."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from ..evidence import Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, State, log_loss, number, penalised


def difference_penalty(evidence: Evidence, state: State) -> Tensor:
    """mean_k |mean_i (p_ik - [y_i = k])|; at the true class -(1 - p), which does not cancel."""
    index = evidence.target.unsqueeze(1)
    excess = torch.exp(evidence.log_probabilities).scatter(1, index, -torch.exp(evidence.log_miss).unsqueeze(1))
    if evidence.kept is None:
        rows = max(len(excess), 1)
    else:
        excess, rows = torch.where(evidence.kept.unsqueeze(1), excess, 0.0), evidence.kept.sum().clamp(min=1)
    return (excess.sum(0) / rows).abs().mean()


@register_loss(
    "confidence_accuracy_difference",
    aliases=("MDCA",),
    source="Hebbalaguppe et al., A Stitch in Time Saves Nine: A Train-Time Regularizing Loss for Improved Neural Network "
    "Calibration, CVPR 2022",
    formula="-log p + strength * mean_k |mean_i p_ik - share of class k in the batch|",
)
def confidence_accuracy_difference(*, strength: float = 1.0, **common: Unpack[Common]) -> Loss:
    """MDCA loss: use it to train calibration of every class cheaply, with any batch that shows most classes.

    Formula: -log p + strength * (1/K) sum_k |mean_i p_ik - n_k / n|, the means over the batch, the penalty added to
    every row.

    Settings:
        strength: at least 0 (default 1, the authors'; their tables use up to 25).

    Helps class-wise calibration; hurts with more classes than rows in a batch, where the frequencies are noise. Needs
    all class probabilities, so it is exempt from the speed floors.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.confidence_accuracy_difference()
    >>> logits = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.5, 0.0]])
    >>> round(loss(logits, torch.tensor([0, 1, 0])).item(), 4)
    0.7162
    """
    strength = number("confidence_accuracy_difference", "strength", strength, low=0.0, high=1e6)
    rule = Rule(
        "confidence_accuracy_difference",
        penalised(log_loss, difference_penalty, strength=strength),
        needs=("log_p", "log_miss", "log_probabilities"),
        coupled=True,
        soft="refused",
        rewards_errors=strength > 5.0,  # the batch's penalty may outweigh a row's own cost
    )
    return Loss(rule, **common)
