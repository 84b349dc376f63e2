"""Uncertainty-weighted cross-entropy (BSCE-GRA): weighed by the distance of the prediction from the truth."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Unpack

import torch
from torch import Tensor

from ..evidence import Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, State, choice, log_loss, number, weighted


def absolute_norm(evidence: Evidence) -> Tensor:
    """sum_k |p_k - e_k| = 2 (1 - p)."""
    return 2.0 * torch.exp(evidence.log_miss)


def euclidean_norm(evidence: Evidence) -> Tensor:
    """sqrt(sum_k (p_k - e_k)^2)."""
    return torch.sqrt(torch.exp(2.0 * evidence.log_miss) + evidence.sum_other_p_squared)


def largest_norm(evidence: Evidence) -> Tensor:
    """max_k |p_k - e_k| = 1 - p: no other class has more than all of them together."""
    return torch.exp(evidence.log_miss)


NORMS = {
    1: (absolute_norm, ("log_miss",)),
    2: (euclidean_norm, ("log_miss", "sum_other_p_squared")),
    float("inf"): (largest_norm, ("log_miss",)),
}


def uncertainty_weight(evidence: Evidence, state: State, *, gamma: float, norm: Callable[[Evidence], Tensor]) -> Tensor:
    """||p - e_y||^gamma."""
    return norm(evidence) ** gamma


@register_loss(
    "uncertainty_weighted",
    aliases=("BSCE-GRA",),
    source="Uncertainty Weighted Gradients for Model Calibration, CVPR 2025 (arXiv 2503.22725), norms as in its program",
    formula="||p - e_y||^gamma (-log p), the weight held constant in the gradient",
)
def uncertainty_weighted(*, gamma: float = 1.0, norm: float = 2, **common: Unpack[Common]) -> Loss:
    """Uncertainty-weighted cross-entropy: use it for calibrated training with a gradient simpler than focal loss's.

    Formula: ||p - e_y||_norm^gamma (-log p). The weight is a constant of the gradient, so each row's gradient is that
    of cross-entropy times its own uncertainty; focal loss's extra term, which over-weights hard rows, is gone.

    Settings:
        gamma: at least 0 (default 1); 0 is cross-entropy.
        norm: 1, 2 or infinity (default 2, the root of the Brier score).

    Helps calibration of networks that memorise; hurts, as focal loss does, where models are under-confident.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.uncertainty_weighted()
    >>> round(loss(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0])).item(), 4)
    0.0336
    """
    gamma = number("uncertainty_weighted", "gamma", gamma, low=0.0, high=1e6)
    distance, fields = choice("uncertainty_weighted", "norm", norm, NORMS)
    rule = Rule(
        "uncertainty_weighted",
        weighted(partial(uncertainty_weight, gamma=gamma, norm=distance), log_loss, detached=True),
        needs=("log_p", *fields),
        holds_constants=True,
    )
    return Loss(rule, **common)
