"""Logit adjustment: the class prior is added while training and left out when predicting."""

from __future__ import annotations

from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor

from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, State, counts, log_loss, number


def log_prior(rows: Tensor, tau: float) -> Tensor:
    """tau log(n_k / n): -inf for an empty class, which is thereby masked; 0 for all where tau is 0."""
    return tau * torch.log(rows / rows.sum()) if tau > 0.0 else torch.zeros_like(rows)


def adjusted_rule(name: str, offset: Tensor) -> Rule:
    """Cross-entropy of z + offset."""
    return Rule(
        name,
        log_loss,
        needs=("log_p",),
        init=partial(_offset_state, offset=offset),
        offset=_offset,
        soft="linear",
        num_classes=len(offset),
    )


def _offset_state(*, offset: Tensor) -> dict[str, Tensor]:
    return {"adjustment": offset}


def _offset(state: State) -> Tensor:
    return state["adjustment"]


@register_loss(
    "logit_adjusted",
    aliases=("LA",),
    source="Menon et al., Long-tail Learning via Logit Adjustment, ICLR 2021",
    formula="-log softmax(z + tau log prior)_y",
)
def logit_adjusted(*, class_counts: Any, tau: float = 1.0, **common: Unpack[Common]) -> Loss:
    """Logit-adjusted loss: use it when training data are long-tailed and every class counts alike at test time.

    Formula: cross-entropy of z_k + tau log(n_k / n). Predictions use z alone, so its softmax aims at balanced classes.

    Settings:
        class_counts: rows of each class in the training set. A class with count 0 is masked: its logit gets no
            gradient, and it cannot be a target.
        tau: at least 0 (default 1, for which the balanced error is optimal); 0 is cross-entropy.

    State: `adjustment` (K).

    Helps balanced accuracy, at no cost in time; hurts where test data are as imbalanced as training data.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.logit_adjusted(class_counts=[90, 9, 1])
    >>> round(loss(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([1])).item(), 4)
    4.3166
    """
    tau = number("logit_adjusted", "tau", tau, low=0.0, high=1e6)
    rows = counts("logit_adjusted", class_counts)
    return Loss(adjusted_rule("logit_adjusted", log_prior(rows, tau)), **common)
