"""Symmetric cross-entropy: cross-entropy plus its mirror image."""

from __future__ import annotations

import math
from functools import partial
from typing import Unpack

import torch
from torch import Tensor

from ..evidence import Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, State, log_loss, number

MINUS_LOG_ZERO = -math.log(1e-4)  # what log 0 of the one-hot target is replaced by, as in the authors' program


def symmetric_cost(evidence: Evidence, state: State, *, alpha: float, beta: float) -> Tensor:
    """alpha (-log p) + beta A (1 - p): reverse cross-entropy is A per unit of probability off the true class."""
    return alpha * log_loss(evidence, state) + (beta * MINUS_LOG_ZERO) * torch.exp(evidence.log_miss)


@register_loss(
    "symmetric_cross_entropy",
    aliases=("SCE",),
    source="Wang et al., Symmetric Cross Entropy for Robust Learning with Noisy Labels, ICCV 2019",
    formula="alpha (-log p) + beta (-log 1e-4) (1 - p)",
)
def symmetric_cross_entropy(*, alpha: float = 0.1, beta: float = 1.0, **common: Unpack[Common]) -> Loss:
    """Symmetric cross-entropy: use it when labels are noisy and cross-entropy over-fits them.

    Formula: alpha (-log p) + beta (-log 1e-4) (1 - p). The second term is cross-entropy with target and prediction
    exchanged, log 0 replaced by log 1e-4 as in the authors' program (the paper writes -4 for CIFAR).

    Settings:
        alpha: of cross-entropy, at least 0 (default 0.1; the paper takes 6 for CIFAR-100).
        beta: of the reverse term, at least 0 (default 1; the paper takes 0.1 for CIFAR-100).

    Helps with symmetric label noise; on clean data it only rescales the learning rate and saturates earlier.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.symmetric_cross_entropy()
    >>> round(loss(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0])).item(), 4)
    1.4557
    """
    alpha = number("symmetric_cross_entropy", "alpha", alpha, low=0.0, high=1e6)
    beta = number("symmetric_cross_entropy", "beta", beta, low=0.0, high=1e6)
    cost = partial(symmetric_cost, alpha=alpha, beta=beta)
    return Loss(Rule("symmetric_cross_entropy", cost, needs=("log_p", "log_miss")), **common)
