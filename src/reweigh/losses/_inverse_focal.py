"""Inverse focal loss: sure decisions count more."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Unpack

import torch
from torch import Tensor

from ..evidence import Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, State, log_loss, number, weighted

# 1 / W(1/e), W Lambert's function: above it the loss rises with p around p = W(1/e) = 0.2785.
HIGHEST_SOUND_GAMMA = 3.591121476668622


def inverse_focal_weight(evidence: Evidence, state: State, *, gamma: float) -> Tensor:
    """(1 + p)^gamma."""
    return torch.exp(gamma * torch.log1p(torch.exp(evidence.log_p)))


def warn_of_rewarded_errors(loss: str, gamma: float) -> None:
    """Say that a gamma makes the gradient reward errors."""
    warnings.warn(
        f"{loss}: above gamma = {HIGHEST_SOUND_GAMMA:.4f} the gradient rewards errors (the loss rises with the "
        f"probability of the true class around 0.28), and gamma is {gamma:g}. Choose a smaller gamma, or detached=True.",
        stacklevel=3,
    )


@register_loss(
    "inverse_focal",
    aliases=("IFL",),
    source="Wang, Feng and Zhang, Rethinking Calibration of Deep Neural Networks, NeurIPS 2021",
    formula="-(1 + p)^gamma log p",
)
def inverse_focal(*, gamma: float = 1.0, detached: bool = False, **common: Unpack[Common]) -> Loss:
    """Inverse focal loss: use it when the model is under-confident, or will abstain on unsure rows anyway.

    Formula: (1 + p)^gamma (-log p), p the probability of the true class; gamma 0 is cross-entropy.

    Settings:
        gamma: how much more sure decisions count, from 0 to 100 (default 1; published values 1 to 3). Above 3.5911,
            which is 1 / W(1/e), the loss rises with p around 0.28, so its gradient rewards errors: a warning says so.
        detached: hold the weight constant in the gradient (default false); then no gamma rewards errors.

    Helps selective prediction and under-confident models; hurts over-confident ones and with noisy labels.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.inverse_focal(gamma=1.0)
    >>> round(loss(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0])).item(), 4)
    0.3132
    """
    gamma = number("inverse_focal", "gamma", gamma, low=0.0, high=100.0)
    rewards_errors = gamma > HIGHEST_SOUND_GAMMA and not detached
    if rewards_errors:
        warn_of_rewarded_errors("inverse_focal", gamma)
    rule = Rule(
        "inverse_focal",
        weighted(partial(inverse_focal_weight, gamma=gamma), log_loss, detached=detached),
        needs=("log_p",),
        rewards_errors=rewards_errors,
        holds_constants=detached,
    )
    return Loss(rule, **common)
