"""Cross-entropy: the base of most losses, with label smoothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, Unpack

from torch import Tensor

from ..evidence import Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, State, choice, log_loss, number


def uniform(classes: Tensor, strength: float) -> tuple[Tensor | float, Tensor]:
    """Shares of the true class and of every class: 1 - eps, and eps / K."""
    return 1.0 - strength, strength / classes


def others(classes: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """The same where eps goes to the other K - 1 classes only: what every class gets, the true one gives back."""
    every = strength / (classes - 1.0).clamp(min=1.0)
    return 1.0 - strength - every, every


def smoothed_cost(evidence: Evidence, state: State, *, strength: float, shares: Callable) -> Tensor:
    """-(a w_y log p_y + b sum_k w_k log p_k): class weights multiply each class's own term, as in PyTorch."""
    true, every = shares(evidence.classes.to(evidence.log_p.dtype), strength)
    own = evidence.log_p if evidence.class_weight is None else evidence.class_weight * evidence.log_p
    return -(true * own + every * evidence.sum_log_p)


@register_loss(
    "cross_entropy",
    aliases=("CE",),
    source="torch.nn.CrossEntropyLoss; label smoothing: Szegedy et al., Rethinking the Inception Architecture, CVPR 2016",
    formula="-sum_k t_k log p_k, t = (1 - eps) onehot(y) + eps / K",
)
def cross_entropy(
    *, label_smoothing: float = 0.0, smoothing: Literal["uniform", "others"] = "uniform", **common: Unpack[Common]
) -> Loss:
    """Cross-entropy: use it as the reference that every reweighted loss has to beat.

    Formula: -sum_k w_k t_k log p_k with t = (1 - eps) onehot(y) + eps / K. Equal to `nn.CrossEntropyLoss` with weight,
    ignore_index, label_smoothing and soft targets, except that masked classes (logits of -inf) take no part in
    smoothing (PyTorch returns infinity) and that a batch without a counting row costs 0 (PyTorch returns NaN).

    Settings:
        label_smoothing: eps, in [0, 1] (default 0).
        smoothing: "uniform" spreads eps over all K classes (default, as PyTorch); "others" over the K - 1 that are
            not the true one, as many older programs do.

    Smoothing helps against over-confidence and wrong labels; it hurts where small probabilities matter, and when
    the model is distilled or calibrated afterwards, because it erases what the other classes have in common.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.cross_entropy(label_smoothing=0.1)
    >>> round(loss(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0])).item(), 4)
    0.3365
    """
    strength = number("cross_entropy", "label_smoothing", label_smoothing, low=0.0, high=1.0)
    shares = choice("cross_entropy", "smoothing", smoothing, {"uniform": uniform, "others": others})
    if strength == 0.0:
        return Loss(Rule("cross_entropy", log_loss, needs=("log_p",), soft="linear"), **common)
    rule = Rule(
        "cross_entropy",
        partial(smoothed_cost, strength=strength, shares=shares),
        needs=("log_p", "sum_log_p", "classes"),
        weighs_classes=True,
        soft="linear",
        rewards_errors=strength > 0.5,  # then the true class's share may be below that of the first choice
    )
    return Loss(rule, **common)
