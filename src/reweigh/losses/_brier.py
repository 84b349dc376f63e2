"""Brier loss: squared distance between probabilities and the truth."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from ..evidence import Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, State


def brier_cost(evidence: Evidence, state: State) -> Tensor:
    """(1 - p_y)^2 + sum over the other classes of p_k^2."""
    return torch.exp(2.0 * evidence.log_miss) + evidence.sum_other_p_squared


def brier_soft_cost(evidence: Evidence, state: State) -> Tensor:
    """sum_k (p_k - t_k)^2. `target` is the first choice here, whose p - t is (1 - t) - (1 - p) where both are near 1."""
    share, top = evidence.soft_target, evidence.target.unsqueeze(1)
    apart = torch.exp(evidence.log_probabilities) - share
    share_top = share.gather(1, top)
    near_one = (1.0 - share_top) - torch.exp(evidence.log_miss).unsqueeze(1)
    apart = apart.scatter(1, top, torch.where(share_top > 0.5, near_one, apart.gather(1, top)))
    return (apart * apart).sum(1)


@register_loss(
    "brier",
    source="Brier, Verification of Forecasts Expressed in Terms of Probability, 1950 (sum over classes)",
    formula="sum_k (p_k - t_k)^2",
)
def brier(**common: Unpack[Common]) -> Loss:
    """Brier loss: use it when labels are noisy, or when the Brier score is what will be judged.

    Formula: sum over classes of (p_k - t_k)^2, between 0 and 2 with class indices. Some programs divide by K.

    Settings: none of its own. With soft targets and class_weight a row counts sum_k t_k w_k.

    Bounded, so no single row dominates, and proper: its optimum are the true probabilities. Hurts when a network
    starts far from the truth, because the gradient vanishes where the model is sure and wrong.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.brier()
    >>> round(loss(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0])).item(), 4)
    0.0392
    """
    rule = Rule(
        "brier",
        brier_cost,
        needs=("log_miss", "sum_other_p_squared"),
        soft="own",
        soft_cost=brier_soft_cost,
        soft_needs=("log_probabilities", "log_miss"),
    )
    return Loss(rule, **common)
