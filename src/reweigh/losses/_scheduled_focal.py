"""Focal loss whose gamma depends on the probability of the true class, in steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Unpack

import torch
from torch import Tensor

from ..errors import bad_input
from ..evidence import Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, State, choice, log_loss, number, weighted

Steps = tuple[tuple[float, float], ...]  # (bound, gamma): gamma serves below the bound; the last bound is 1

SCHEDULES: dict[str, Steps] = {
    "53": ((0.2, 5.0), (1.0, 3.0)),
    "52": ((0.2, 5.0), (0.5, 3.0), (1.0, 2.0)),
    "51": ((0.2, 5.0), (0.5, 3.0), (1.0, 1.0)),
}


def scheduled_weight(evidence: Evidence, state: State, *, steps: Steps) -> Tensor:
    """(1 - p)^gamma(p), gamma a step function of p."""
    log_odds = evidence.log_odds.detach()
    slack = 4 * torch.finfo(log_odds.dtype).eps  # p = 0.2 in exact arithmetic is not below 0.2
    gamma = torch.full_like(log_odds, steps[-1][1])
    for bound, value in reversed(steps[:-1]):
        gamma = torch.where(log_odds < math.log(bound / (1.0 - bound)) - slack, value, gamma)
    return torch.exp(gamma * evidence.log_miss)


def _steps(schedule: str | Sequence[Sequence[float]]) -> Steps:
    """The steps of a named schedule, or checked ones of the user's."""
    name = "scheduled_focal"
    if isinstance(schedule, str):
        return choice(name, "schedule", schedule, SCHEDULES)
    try:
        pairs = tuple((float(bound), float(gamma)) for bound, gamma in schedule)
    except (TypeError, ValueError):
        pairs = ()
    bounds = [bound for bound, _ in pairs]
    if not pairs or bounds != sorted(set(bounds)) or not 0.0 < bounds[0] or bounds[-1] != 1.0:
        raise bad_input(
            f"{name}(schedule=...)",
            came=repr(schedule),
            expected=f"one of {', '.join(map(repr, SCHEDULES))}, or pairs (bound, gamma) with rising bounds, the last 1",
            mend="For example ((0.2, 5), (1, 3)): gamma 5 below p = 0.2, else 3.",
        )
    return tuple((bound, number(name, "schedule", gamma, low=0.0, high=1e6)) for bound, gamma in pairs)


@register_loss(
    "scheduled_focal",
    aliases=("FL-53", "FLSD-53"),
    source="Mukhoti et al., Calibrating Deep Neural Networks using Focal Loss, NeurIPS 2020 (FLSD-53)",
    formula="-(1 - p)^gamma(p) log p, gamma = 5 where p < 0.2, else 3",
)
def scheduled_focal(
    *, schedule: str | Sequence[Sequence[float]] = "53", detached: bool = False, **common: Unpack[Common]
) -> Loss:
    """Sample-dependent focal loss: use it for calibrated training without searching for gamma.

    Formula: (1 - p)^gamma(p) (-log p) with gamma 5 where p < 0.2 and 3 elsewhere. Gamma is a constant of the gradient.

    Settings:
        schedule: "53" (default, the paper's FLSD-53 and FL-53); "52" and "51" have three levels, 5 below 0.2, 3 below
            0.5, then 2 or 1 (FLSD-52 and FLSD-51 of the authors' program); or pairs (bound, gamma) with rising bounds,
            gamma serving below its bound, the last bound 1: ((0.2, 5), (1, 3)) is the default.
        detached: hold the weight constant in the gradient (default false).

    Helps calibration of networks that memorise their training set; hurts where models are under-confident already,
    as on ImageNet. The cost jumps where gamma does.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.scheduled_focal()
    >>> round(loss(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([1])).item(), 4)
    1.1834
    """
    cost = weighted(partial(scheduled_weight, steps=_steps(schedule)), log_loss, detached=detached)
    rule = Rule("scheduled_focal", cost, needs=("log_p", "log_miss", "log_odds"), holds_constants=detached)
    return Loss(rule, **common)
