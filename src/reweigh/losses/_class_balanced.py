"""Class-balanced loss: classes weighed by the inverse of their effective number of samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor

from ..errors import bad_input
from ..module import Common, Loss, inner_rule
from ..registry import register_loss
from ..rules import Rule, State, counts, log_loss, number


def balanced_weights(loss: str, class_counts: Any, beta: Any) -> Tensor:
    """(1 - beta) / (1 - beta^n_k), scaled to sum to K; beta = 1 is the limit 1 / n_k. (K,) float64."""
    beta = number(loss, "beta", beta, low=0.0, high=1.0)
    rows = counts(loss, class_counts, zero=False, why="the weight of an empty class would be infinite")
    if beta == 1.0:
        inverse = 1.0 / rows
    else:
        log_beta = math.log(beta) if beta > 0.0 else -math.inf
        inverse = -(1.0 - beta) / torch.expm1(rows * log_beta)  # 1 - beta^n without cancellation
    return inverse * (len(rows) / inverse.sum())


def reweighted(
    loss: str, base: Rule, state: dict[str, Tensor], weight: Callable[[State], Tensor], **changes: Any
) -> Rule:
    """The base rule with state of our own beside its own, and class weights that multiply its own."""
    classes = len(next(iter(state.values())))
    if base.head == "boxes" or base.per_row:
        raise bad_input(f"{loss}(...)", came=f"an inner {base.name}", expected="a loss that prices classes")
    if base.num_classes not in (None, classes):
        came = f"{classes} class_counts around a {base.name} for {base.num_classes} classes"
        raise bad_input(f"{loss}(class_counts=...)", came=came, expected="the same number of classes")
    if set(base.init()) & set(state):
        raise bad_input(
            f"{loss}(...)", came=f"an inner {base.name} that is {loss} itself", expected="another loss inside"
        )
    return replace(
        base,
        name=loss,
        init=partial(_both_states, own=state, inner=base.init),
        class_weight=partial(_both_weights, own=weight, inner=base.class_weight),
        num_classes=classes,
        **changes,
    )


def _both_states(*, own: dict[str, Tensor], inner: Callable[[], State]) -> dict[str, Tensor]:
    return {**inner(), **own}


def _both_weights(state: State, *, own: Callable[[State], Tensor], inner: Callable[[State], Tensor] | None) -> Tensor:
    return own(state) if inner is None else own(state) * inner(state)


def _class_balance(state: State) -> Tensor:
    return state["class_balance"]


@register_loss(
    "class_balanced",
    aliases=("CB",),
    source="Cui et al., Class-Balanced Loss Based on Effective Number of Samples, CVPR 2019",
    formula="w_y * base, w_k proportional to (1 - beta) / (1 - beta^n_k), sum of w = K",
)
def class_balanced(
    *, class_counts: Any, beta: float = 0.9999, base: Loss | None = None, **common: Unpack[Common]
) -> Loss:
    """Class-balanced loss: use it when rare classes are drowned and their rows are not too few to learn from.

    Formula: w_y times the base loss, w_k proportional to (1 - beta) / (1 - beta^n_k) and scaled to sum to K. The
    weights behave as class_weight: the mean divides by their sum over the rows.

    Settings:
        class_counts: rows of each class in the training set, all above 0 (an empty class would weigh infinitely).
        beta: in [0, 1] (default 0.9999, the authors'); 0 weighs all classes alike, 1 by 1 / n_k.
        base: the loss to weigh (default cross-entropy), such as `focal(gamma=1)` or `binary_focal()`.

    State: `class_balance` (K).

    Helps recall of rare classes; hurts overall accuracy and calibration, and from the first epoch on it also
    unbalances the features: see `deferred`.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.class_balanced(class_counts=[100, 10, 1], beta=0.9)
    >>> [round(weight, 4) for weight in loss.class_balance.tolist()]
    [0.2393, 0.3674, 2.3932]
    """
    name = "class_balanced"
    weights = balanced_weights(name, class_counts, beta)
    inner = Rule(name, log_loss, needs=("log_p",), soft="linear") if base is None else inner_rule(name, base)
    return Loss(reweighted(name, inner, {"class_balance": weights}, _class_balance), **common)
