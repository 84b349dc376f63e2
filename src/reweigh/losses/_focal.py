"""Focal loss: easy decisions count less."""

from __future__ import annotations

from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor

from ..evidence import Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, State, log_loss, number, weighted
from ._alpha import with_alpha


def focal_weight(evidence: Evidence, state: State, *, gamma: float) -> Tensor:
    """(1 - p)^gamma, from log(1 - p): right and differentiable where p rounds to 1."""
    return torch.exp(gamma * evidence.log_miss)


@register_loss(
    "focal",
    aliases=("FL",),
    source="Lin et al., Focal Loss for Dense Object Detection, ICCV 2017 (softmax form: Mukhoti et al., NeurIPS 2020)",
    formula="-(1 - p)^gamma log p",
)
def focal(*, gamma: float = 2.0, alpha: Any = None, detached: bool = False, **common: Unpack[Common]) -> Loss:
    """Focal loss on softmax: use it when easy samples drown the hard ones, or confidences come out too high.

    Formula: alpha_y (1 - p)^gamma (-log p), p the probability of the true class; gamma 0 is cross-entropy.

    Settings:
        gamma: how fast easy decisions fade, at least 0 (default 2, Lin et al. section 4).
        alpha: one factor per class, never renormalised and not part of the mean's denominator (default none).
        detached: hold the weight constant in the gradient (default false).

    Helps against over-confidence on balanced data; hurts where the model is under-confident already, and with
    noisy labels, which stay hard for ever.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.focal(gamma=2.0)
    >>> round(loss(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0])).item(), 4)
    0.0041
    """
    gamma = number("focal", "gamma", gamma, low=0.0, high=1e6)
    cost = weighted(partial(focal_weight, gamma=gamma), log_loss, detached=detached)
    rule = Rule("focal", cost, needs=("log_p", "log_miss"), holds_constants=detached)
    return Loss(with_alpha(rule, alpha), **common)
