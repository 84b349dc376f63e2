"""Inverse focal loss for sigmoid heads: sure labels count more."""

from __future__ import annotations

from functools import partial
from typing import Literal, Unpack

import torch
from torch import Tensor

from ..evidence import Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, State, log_loss, number, weighted
from ._inverse_focal import HIGHEST_SOUND_GAMMA, warn_of_rewarded_errors
from ._powers import power_of_e
from ._sigmoid_settings import takes_indices


def sure_once(evidence: Evidence, state: State) -> Tensor:
    """1 + p."""
    return 2.0 - evidence.complement


def sure_power(evidence: Evidence, state: State, *, gamma: float) -> Tensor:
    """(1 + p)^gamma."""
    return power_of_e(gamma * torch.log1p(1.0 - evidence.complement))


@register_loss(
    "binary_inverse_focal",
    source="Wang, Feng and Zhang, Rethinking Calibration of Deep Neural Networks, NeurIPS 2021, on sigmoids",
    formula="present: -(1 + p)^gamma log p; absent: -(2 - p)^gamma log(1 - p)",
)
def binary_inverse_focal(
    *,
    gamma: float = 1.0,
    detached: bool = False,
    targets: Literal["labels", "index"] = "labels",
    **common: Unpack[Common],
) -> Loss:
    """Inverse focal loss on sigmoids: use it when probabilities stay too close to 1/2.

    Formula: (1 + p_t)^gamma (-log p_t), p_t the probability of what is true of the label; gamma 0 is binary
    cross-entropy.

    Settings:
        gamma: how much more sure decisions count, from 0 to 100 (default 1; published values 1 to 3). Above 3.5911,
            which is 1 / W(1/e), the loss rises with p_t around 0.28, so its gradient rewards errors: a warning says so.
        detached: hold the weight constant in the gradient (default false); then no gamma rewards errors.
        targets: "labels" of the logits' shape (default), or "index" for class indices, each class against the rest.

    Helps under-confident models; hurts over-confident ones and with noisy labels.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.binary_inverse_focal(gamma=1.0)
    >>> round(loss(torch.tensor([[1.0, -2.0]]), torch.tensor([[1.0, 0.0]])).item(), 4)
    0.3905
    """
    name = "binary_inverse_focal"
    gamma = number(name, "gamma", gamma, low=0.0, high=100.0)
    rewards_errors = gamma > HIGHEST_SOUND_GAMMA and not detached
    if rewards_errors:
        warn_of_rewarded_errors(name, gamma)
    weight = sure_once if gamma == 1.0 else partial(sure_power, gamma=gamma)
    rule = Rule(
        name,
        log_loss if gamma == 0.0 else weighted(weight, log_loss, detached=detached),
        needs=("log_p",) if gamma == 0.0 else ("log_p", "log_miss"),
        head="sigmoid",
        rewards_errors=rewards_errors,
        holds_constants=detached and gamma > 0,
        index_targets=takes_indices(name, targets),
    )
    return Loss(rule, **common)
