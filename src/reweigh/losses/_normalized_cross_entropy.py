"""Normalised cross-entropy: cross-entropy over the sum it would have for every label."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from ..evidence import Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, State


def normalized_cost(evidence: Evidence, state: State) -> Tensor:
    """log p_y / sum_k log p_k, in [0, 1]. The others' part of the sum is log(1 - p) where there is one other class.

    Of a / (a + b) and 1 / (1 + b / a) each has an exact gradient, and stays in range, on one side of a = b.
    """
    own = evidence.log_p
    others = torch.where(evidence.classes == 2, evidence.log_miss, evidence.sum_log_p - own)
    larger = own < others  # the larger loss
    ratio = others / torch.where(larger, own, -1.0)
    return torch.where(larger, 1.0 / (1.0 + ratio), own / torch.where(larger, -1.0, own + others))


@register_loss(
    "normalized_cross_entropy",
    aliases=("NCE",),
    source="Ma et al., Normalized Loss Functions for Deep Learning with Noisy Labels, ICML 2020",
    formula="log p_y / sum_k log p_k",
)
def normalized_cross_entropy(**common: Unpack[Common]) -> Loss:
    """Normalised cross-entropy: use it against label noise, usually added to a loss that still learns (such as MAE).

    Formula: log p_y / sum_k log p_k, between 0 and 1; the costs of the K labels sum to one, so label noise that does
    not prefer a class cannot move the optimum.

    Settings: none of its own.

    Robust in theory; hurts alone, because it under-fits: pushing down the probability of any other class lowers it too.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.normalized_cross_entropy()
    >>> round(loss(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0])).item(), 4)
    0.0308
    """
    rule = Rule(
        "normalized_cross_entropy",
        normalized_cost,
        needs=("log_p", "log_miss", "sum_log_p", "classes"),
        precise=100,  # with few classes log p_y may be nearly all of the sum, and the gradient is what is left
    )
    return Loss(rule, **common)
