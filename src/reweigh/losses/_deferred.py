"""Deferred reweighting (DRW): train plainly first, balance the classes late."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor

from ..module import Common, Loss, inner_rule
from ..registry import register_loss
from ..rules import State, whole
from ._class_balanced import balanced_weights, reweighted


def deferred_weight(state: State) -> Tensor:
    """One for every class until the switch, then the class-balanced weights."""
    return torch.where(state["balancing"], state["deferred_balance"], 1.0)


def switch(epoch: int, state: State, *, start: int, inner: Callable[[int, State], State] | None) -> dict[str, Tensor]:
    """Balancing is on from epoch `start` on; the inner loss's schedule goes on as well."""
    own = {"balancing": torch.tensor(epoch >= start)}
    return own if inner is None else {**inner(epoch, state), **own}


@register_loss(
    "deferred",
    aliases=("DRW",),
    source="Cao et al., Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss, NeurIPS 2019",
    formula="the inner loss before epoch `start`, w_y times it from then on, w as in class_balanced",
)
def deferred(
    *, loss: Loss, class_counts: Any, start: int = 160, beta: float = 0.9999, **common: Unpack[Common]
) -> Loss:
    """Deferred reweighting: use it when balancing from the start spoils the features; usually around `margin_aware`.

    Formula: the inner loss until `advance(epoch)` is told an epoch of at least `start`; from then on class-balanced,
    with weights w_k proportional to (1 - beta) / (1 - beta^n_k) that sum to K and behave as class_weight.

    Settings:
        loss: the inner loss, built without common keywords.
        class_counts: rows of each class in the training set, all above 0.
        start: first epoch with weights, counted from 0 (default 160, of the authors' 200).
        beta: in [0, 1] (default 0.9999, the authors').

    State: `deferred_balance` (K), `balancing` (true or false), and the inner loss's. Without calls of
    `loss.advance(epoch)` nothing is ever weighed.

    Helps rare classes at little cost of features; hurts if the learning rate is not lowered at the switch, because
    the loss changes abruptly.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.deferred(loss=reweigh.losses.cross_entropy(), class_counts=[90, 10], start=2)
    >>> logits, target = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1])
    >>> before = loss(logits, target).item()
    >>> loss.advance(2)
    >>> round(before, 4), round(loss(logits, target).item(), 4)
    (0.8133, 1.2129)
    """
    name = "deferred"
    inner = inner_rule(name, loss)
    weights = balanced_weights(name, class_counts, beta)
    advance = partial(switch, start=whole(name, "start", start, low=0), inner=inner.advance)
    state = {"deferred_balance": weights, "balancing": torch.tensor(False)}
    return Loss(reweighted(name, inner, state, deferred_weight, advance=advance), **common)
