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


def polynomial_cost(evidence: Evidence, state: State, *, epsilon: float) -> Tensor:
    """-log p + epsilon (1 - p)."""
    return log_loss(evidence, state) + epsilon * torch.exp(evidence.log_miss)


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
    0.3260
    """
    epsilon = number("polynomial", "epsilon", epsilon, low=-1.0, high=1e6)
    return Loss(Rule("polynomial", partial(polynomial_cost, epsilon=epsilon), needs=("log_p", "log_miss")), **common)
