"""Polynomial loss (Poly-1): cross-entropy with another weight on its first term."""

from __future__ import annotations

from functools import partial
from typing import Unpack

import torch
from torch import Tensor

from ..evidence import Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, State, log_loss, number

SMALL = 0.1  # below it the series is summed, to the last digit of float64
TERMS = 16


def polynomial_cost(evidence: Evidence, state: State, *, epsilon: float) -> Tensor:
    """-log p + epsilon (1 - p)."""
    return log_loss(evidence, state) + epsilon * torch.exp(evidence.log_miss)


def lowered_cost(evidence: Evidence, state: State, *, epsilon: float) -> Tensor:
    """The same for a negative epsilon, where the two terms cancel: (1 + epsilon) (-log p) - epsilon (-log p - (1 - p)).

    The last bracket is sum_(k >= 2) (1 - p)^k / k.
    """
    miss = torch.exp(evidence.log_miss)
    small = miss < SMALL
    x = torch.where(small, miss, 0.0)
    series = torch.zeros_like(x)
    for k in range(TERMS, 1, -1):
        series = (series + 1.0 / k) * x
    beyond = torch.where(small, series * x, log_loss(evidence, state) - miss)
    return (1.0 + epsilon) * log_loss(evidence, state) - epsilon * beyond


@register_loss(
    "polynomial",
    aliases=("Poly-1",),
    source="Leng et al., PolyLoss: A Polynomial Expansion Perspective of Classification Loss Functions, ICLR 2022",
    formula="-log p + epsilon (1 - p)",
)
def polynomial(*, epsilon: float = 1.0, **common: Unpack[Common]) -> Loss:
    """Poly-1 loss: use it when one knob on cross-entropy is all you want to tune.

    Formula: -log p + epsilon (1 - p): the first coefficient of cross-entropy's series in (1 - p) becomes 1 + epsilon.

    Settings:
        epsilon: at least -1 (default 1; the paper finds 1 to 2 for balanced, -1 for ImageNet-21K pre-training).

    A positive epsilon sharpens the last steps towards certainty, which helps accuracy a little and makes confidences
    higher; a negative one does the opposite.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.polynomial(epsilon=1.0)
    >>> round(loss(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0])).item(), 4)
    0.3261
    """
    epsilon = number("polynomial", "epsilon", epsilon, low=-1.0, high=1e6)
    cost = polynomial_cost if epsilon >= 0.0 else lowered_cost
    return Loss(Rule("polynomial", partial(cost, epsilon=epsilon), needs=("log_p", "log_miss")), **common)
