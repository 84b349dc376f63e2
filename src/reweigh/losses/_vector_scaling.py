"""Vector-scaling loss: logits of rare classes are scaled up while training as well as shifted."""

from __future__ import annotations

from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor

from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, State, counts, log_loss, number
from ._logit_adjusted import log_prior


def _state(*, scale: Tensor, offset: Tensor) -> dict[str, Tensor]:
    return {"scales": scale, "adjustment": offset}


def _scales(state: State) -> Tensor:
    return state["scales"]


def _offset(state: State) -> Tensor:
    return state["adjustment"]


@register_loss(
    "vector_scaling",
    aliases=("VS",),
    source="Kini et al., Label-Imbalanced and Group-Sensitive Classification under Overparameterization, NeurIPS 2021",
    formula="-log softmax(z / Delta + tau log prior)_y, Delta_k = (n_max / n_k)^gamma",
)
def vector_scaling(*, class_counts: Any, gamma: float = 0.3, tau: float = 1.0, **common: Unpack[Common]) -> Loss:
    """Vector-scaling loss: use it for long tails when training goes on to zero error, where shifts alone stop working.

    Formula: cross-entropy of z_k / Delta_k + tau log(n_k / n), Delta_k = (n_max / n_k)^gamma. Predictions use z alone.
    Unlike cross-entropy it changes when a constant is added to all logits.

    Settings:
        class_counts: rows of each class in the training set. With tau above 0 a class with count 0 is masked: its
            logit gets no gradient, and it cannot be a target; with tau = 0 all counts must be above 0.
        gamma: of the scaling, at least 0 (default 0.3); 0 is logit adjustment.
        tau: of the shift, at least 0 (default 1).

    State: `scales` (K), which are 1 / Delta, and `adjustment` (K).

    Helps rare classes late in training; hurts with a large gamma, which makes the margins of frequent classes vanish.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.vector_scaling(class_counts=[90, 9, 1])
    >>> round(loss(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([1])).item(), 4)
    4.3172
    """
    name = "vector_scaling"
    gamma = number(name, "gamma", gamma, low=0.0, high=1e3)
    tau = number(name, "tau", tau, low=0.0, high=1e6)
    rows = counts(name, class_counts, zero=tau > 0.0, why="without tau an empty class is not masked but scaled to 0")
    # An empty class is closed by its offset of -inf; any finite scale will do, but not 0, which -inf cannot be times.
    scale = torch.where(rows > 0, (rows / rows.max()) ** gamma, 1.0)
    rule = Rule(
        name,
        log_loss,
        needs=("log_p",),
        init=partial(_state, scale=scale, offset=log_prior(rows, tau)),
        scale=_scales,
        offset=_offset,
        soft="linear",
        num_classes=len(rows),
    )
    return Loss(rule, **common)
