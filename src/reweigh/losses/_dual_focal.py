"""Dual focal loss: the weight also looks at a rival of the true class."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, Unpack

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..evidence import Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, State, choice, log_loss, number, weighted


def max_other(evidence: Evidence) -> Tensor:
    """The strongest other class."""
    return evidence.log_rival


def next_lower(evidence: Evidence) -> Tensor:
    """The strongest class strictly below the true one; -inf if there is none."""
    return evidence.log_next_lower


def rival_if_beaten(evidence: Evidence) -> Tensor:
    """The strongest other class where the true one is at least as probable, else none."""
    return torch.where(evidence.log_p >= evidence.log_rival, evidence.log_rival, -torch.inf)


VARIANTS = {
    "max_other": (max_other, "log_rival"),
    "next_lower": (next_lower, "log_next_lower"),
    "seed_eq35": (rival_if_beaten, "log_rival"),
}


def dual_weight(evidence: Evidence, state: State, *, gamma: float, log_rival: Callable[[Evidence], Tensor]) -> Tensor:
    """(1 - p + p_rival)^gamma. The rival is part of 1 - p, so the sum of logarithms starts from log(1 - p)."""
    log_sum = evidence.log_miss - logsigmoid(evidence.log_miss - log_rival(evidence))
    return torch.exp(gamma * log_sum)


@register_loss(
    "dual_focal",
    aliases=("DFL",),
    source="Tao, Dong and Xu, Dual Focal Loss for Calibration, ICML 2023",
    formula="-(1 - p + p_rival)^gamma log p",
)
def dual_focal(
    *,
    gamma: float = 5.0,
    variant: Literal["max_other", "next_lower", "seed_eq35"] = "max_other",
    detached: bool = False,
    **common: Unpack[Common],
) -> Loss:
    """Dual focal loss: focal loss that also widens the gap to a rival; use it when focal makes models under-confident.

    Formula: (1 - p + p_j)^gamma (-log p). The rival j is, by `variant`, the strongest other class ("max_other"),
    the strongest strictly below the true class ("next_lower": what the authors' program computes), or the
    strongest other only where the true class is not behind it ("seed_eq35").

    Settings:
        gamma: at least 0 (default 5, the paper's value for ResNet-50 on CIFAR).
        variant: which rival (default "max_other").
        detached: hold the weight constant in the gradient (default false).

    Helps where focal loss overshoots into under-confidence; with "next_lower" the rival changes abruptly when
    classes swap places. Costs one more reduction a row than focal.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.dual_focal(gamma=2.0)
    >>> round(loss(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0])).item(), 4)
    0.0124
    """
    gamma = number("dual_focal", "gamma", gamma, low=0.0, high=1e6)
    log_rival, field = choice("dual_focal", "variant", variant, VARIANTS)
    cost = weighted(partial(dual_weight, gamma=gamma, log_rival=log_rival), log_loss, detached=detached)
    rule = Rule("dual_focal", cost, needs=("log_p", "log_miss", field), holds_constants=detached)
    return Loss(rule, **common)
