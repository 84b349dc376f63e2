"""Seesaw loss: the gradient on rare classes from samples of frequent ones is held down."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor

from ..errors import bad_input
from ..evidence import Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, State, counts, number, whole

SMALLEST_TRUE = 0.01  # p_y in the compensation's denominator is at least this (mmdetection)


def seesaw_cost(evidence: Evidence, state: State, *, p: float, q: float) -> Tensor:
    """-log softmax(z_j + log S_yj)_y with S = mitigation * compensation, both constants of the gradient."""
    log_all, index = evidence.log_probabilities, evidence.target.unsqueeze(1)
    with torch.no_grad():
        log_count = state["class_counts"].clamp(min=1).double().log()
        log_mitigation = p * (log_count.unsqueeze(0) - log_count[evidence.target].unsqueeze(1)).clamp(max=0.0)
        true = log_all.gather(1, index).clamp(min=math.log(SMALLEST_TRUE))
        log_factor = (log_all - true).clamp(min=0.0).mul(q).add(log_mitigation.to(log_all.dtype))
    others = (log_all + log_factor).scatter(1, index, -torch.inf)
    return -torch.nn.functional.logsigmoid(log_all.gather(1, index).squeeze(1) - others.logsumexp(1))


def _static(*, class_counts: Tensor) -> dict[str, Tensor]:
    return {"class_counts": class_counts}


def _none_yet(*, num_classes: int) -> dict[str, Tensor]:
    return {"class_counts": torch.zeros(num_classes, dtype=torch.int64)}


def count_targets(evidence: Evidence, state: State) -> dict[str, Tensor]:
    """Add the batch's targets to the running counts."""
    number_of = state["class_counts"]
    ones = torch.ones_like(evidence.target) if evidence.kept is None else evidence.kept.to(torch.int64)
    return {"class_counts": number_of.index_add(0, evidence.target, ones)}


@register_loss(
    "seesaw",
    source="Wang et al., Seesaw Loss for Long-Tailed Instance Segmentation, CVPR 2021 (as in mmdetection)",
    formula="-log softmax(z_j + ln S_yj)_y, S_yj = min(1, n_j/n_y)^p * max(1, p_j/max(p_y, 0.01))^q, detached",
)
def seesaw(
    *,
    p: float = 0.8,
    q: float = 2.0,
    class_counts: Any = None,
    num_classes: int | None = None,
    **common: Unpack[Common],
) -> Loss:
    """Seesaw loss: use it for long tails when class frequencies are unknown or change while training.

    Formula: cross-entropy of z_j + ln S_yj, S_yj = min(1, n_j / n_y)^p max(1, p_j / max(p_y, 0.01))^q, S_yy = 1, the
    factors held constant in the gradient. Counts below 1 are taken as 1.

    Settings:
        p: mitigation, at least 0 (default 0.8). q: compensation, at least 0 (default 2).
        class_counts: fixed counts; or
        num_classes: running counts, that `loss.observe(logits, target)` adds to at every training step.

    Helps rare classes at some cost of the frequent ones; with running counts the first steps are cross-entropy
    with compensation only. Needs all class probabilities, so it is exempt from the speed floors.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.seesaw(class_counts=[100, 10, 1])
    >>> round(loss(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0])).item(), 4)
    0.0224
    """
    if (class_counts is None) == (num_classes is None):
        came = "neither" if class_counts is None else "both"
        raise bad_input("seesaw(...)", came=came, expected="either class_counts (fixed) or num_classes (running)")
    p, q = number("seesaw", "p", p, low=0.0, high=1e6), number("seesaw", "q", q, low=0.0, high=1e6)
    if class_counts is None:
        size = whole("seesaw", "num_classes", num_classes, low=2)
        init = partial(_none_yet, num_classes=size)
    else:
        fixed = counts("seesaw", class_counts)
        size, init = len(fixed), partial(_static, class_counts=fixed)
    running = class_counts is None
    rule = Rule(
        "seesaw",
        partial(seesaw_cost, p=p, q=q),
        needs=("log_probabilities",),
        soft="refused",
        init=init,
        observes="training" if running else "nothing",
        observe=count_targets if running else None,
        observe_needs=("classes",) if running else (),
        num_classes=size,
        holds_constants=True,
    )
    return Loss(rule, **common)
