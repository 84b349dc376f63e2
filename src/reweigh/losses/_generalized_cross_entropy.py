"""Generalised cross-entropy: between cross-entropy and mean absolute error."""

from __future__ import annotations

from functools import partial
from typing import Unpack

import torch
from torch import Tensor

from ..evidence import Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, State, log_loss, number


def box_cox_cost(evidence: Evidence, state: State, *, r: float) -> Tensor:
    """(1 - p^r) / r from log p: by expm1 where p^r is near 1, but not where its derivative p^r would be 1 + (p^r - 1)."""
    log_power = r * evidence.log_p
    return torch.where(log_power > -0.7, -torch.expm1(log_power), 1.0 - torch.exp(log_power)) / r


@register_loss(
    "generalized_cross_entropy",
    aliases=("GCE",),
    source="Zhang and Sabuncu, Generalized Cross Entropy Loss for Training Deep Neural Networks with Noisy Labels, NeurIPS 2018",
    formula="(1 - p^r) / r",
)
def generalized_cross_entropy(*, r: float = 0.7, **common: Unpack[Common]) -> Loss:
    """Generalised cross-entropy: use it when a good part of the labels is wrong.

    Formula: (1 - p^r) / r; r = 0 is cross-entropy, r = 1 is 1 - p, the mean absolute error.

    Settings:
        r: in [0, 1] (default 0.7, the paper). Larger is more robust and slower to learn.

    Bounded by 1 / r, so wrong labels cannot dominate. Hurts with many classes or clean labels: the gradient fades
    like p^r where the model is far off.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.generalized_cross_entropy()
    >>> round(loss(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0])).item(), 4)
    0.1601
    """
    r = number("generalized_cross_entropy", "r", r, low=0.0, high=1.0)
    cost = log_loss if r == 0.0 else partial(box_cox_cost, r=r)
    return Loss(Rule("generalized_cross_entropy", cost, needs=("log_p",)), **common)
