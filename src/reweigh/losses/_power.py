"""The power family (1 - p^r) / r: cross-entropy, exponential and absolute error are members of it."""

from __future__ import annotations

import math
from functools import partial
from typing import Literal, Unpack

import torch
from torch import Tensor
from torch.nn.functional import hardtanh, threshold

from ..evidence import Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Cost, Rule, State, log_loss, number
from ._exponential_terms import beyond, bound_of, exponential_linear, up_to
from ._powers import minus_log_sigmoid, power_of_e
from ._sigmoid_settings import takes_indices

NEARLY_ZERO = 1e-20  # below it r (log p)^2 / 2 is below the last digit of log p
HALF = 0.5


def missed(evidence: Evidence, state: State) -> Tensor:
    """1 - p: r = 1."""
    return evidence.complement


def power_cost(evidence: Evidence, state: State, *, r: float) -> Tensor:
    """(1 - p^r) / r for r > 0.

    With x = -r log p cut in two, x = a + b and a at most 1/2, it is (1 - e^-a) + e^-a (1 - e^-b): the first
    difference does not cancel, and the second, whose derivative stays exact where p^r is tiny, need not.
    """
    x = -r * evidence.log_p
    first = -torch.expm1(hardtanh(-x, -HALF, 1.0))
    second = 1.0 - power_of_e(-threshold(x - HALF, 0.0, 0.0))
    return (first + (1.0 - first) * second) / r


def power_cost_below_zero(evidence: Evidence, state: State, *, r: float) -> Tensor:
    """(p^r - 1) / |r| for r < 0, continued by its tangent in the log-odds where |r| times them passes the bound."""
    behind, bound = -evidence.log_odds, bound_of(evidence) / -r
    deepest = bound + math.log1p(math.exp(-bound))  # -log p there
    slope = math.exp(-r * deepest) / (1.0 + math.exp(-bound))
    if evidence.largest < bound:
        return torch.expm1(-r * minus_log_sigmoid(evidence.log_odds)) / -r
    # -log p as a function of the bounded log-odds: the two pieces must meet at the same number
    inside = torch.expm1(-r * minus_log_sigmoid(-up_to(behind, bound))) / -r
    return inside + slope * beyond(behind, bound)


def form_of(r: float) -> tuple[Cost, tuple[str, ...]]:
    """The cost for r, and what it reads."""
    if abs(r) < NEARLY_ZERO:
        return log_loss, ("log_p",)
    if r == 1.0:
        return missed, ("log_miss",)
    if r == -1.0:
        return exponential_linear, ("log_odds",)
    if r > 0:
        return partial(power_cost, r=r), ("log_p",)
    return partial(power_cost_below_zero, r=r), ("log_odds",)


@register_loss(
    "power",
    source="Zhang and Sabuncu, Generalized Cross Entropy Loss, NeurIPS 2018, on sigmoids; r = -1: Bozhao-Liu/LFA-demo, 2025",
    formula="present: (1 - p^r) / r; absent: (1 - (1 - p)^r) / r",
)
def power(*, r: float = 0.7, targets: Literal["labels", "index"] = "labels", **common: Unpack[Common]) -> Loss:
    """Power loss: use it to choose how much mistakes count, from robust to wrong labels to severe on every miss.

    Formula: (1 - p_t^r) / r, p_t the probability of what is true of the label. r = 1 is the absolute error 1 - p_t,
    r = 0 binary cross-entropy, r = -1 the exponential cost 1/p_t - 1. The gradient is that of cross-entropy times
    p_t^r.

    Settings:
        r: from -100 to 100 (default 0.7, Zhang and Sabuncu). Below 0 the cost continues by its tangent before it
            leaves the range of the gradient's type, so a hopelessly wrong sample keeps a finite gradient.
        targets: "labels" of the logits' shape (default), or "index" for class indices, each class against the rest.

    Above 0 it helps with wrong labels and learns slowly where the model is far off; below 0 it is the reverse.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.power(r=-0.5)
    >>> round(loss(torch.tensor([[1.0, -2.0]]), torch.tensor([[1.0, 0.0]])).item(), 4)
    0.2351
    """
    r = number("power", "r", r, low=-100.0, high=100.0)
    cost, needs = form_of(r)
    rule = Rule("power", cost, needs=needs, head="sigmoid", index_targets=takes_indices("power", targets))
    return Loss(rule, **common)
