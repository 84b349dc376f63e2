"""ECE-F: focal cost where the label is present, exponential cost where it is absent."""

from __future__ import annotations

from typing import Literal, Unpack

from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, choice, sided
from ._exponential_terms import SATURATION, needs_of
from ._sigmoid_settings import finite, takes_indices


@register_loss(
    "exponential_focal",
    aliases=("ECE-F", "ECE_F"),
    source="Liu, CoSTaR (Bozhao-Liu/CoSTaR, 2026): F-ECE with its sides exchanged",
    formula="present: -(1 - p)^gamma log p; absent: 1/(1 - p) - 1",
)
def exponential_focal(
    *,
    gamma: float = 2.0,
    saturation: Literal["linear", "clamp"] = "linear",
    targets: Literal["labels", "index"] = "labels",
    **common: Unpack[Common],
) -> Loss:
    """ECE-F: use it when a false alarm is worse than a miss.

    Formula: y (1 - p)^gamma (-log p) + (1 - y) (1/(1 - p) - 1), p = sigmoid(z): the mirror of F-ECE. Its optimum
    for a label of probability 1/2 is p = 0.36.

    Settings:
        gamma: fading of easy present labels, at least 0 (default 2, the author).
        saturation: "linear" (default) continues the exponential by its tangent; "clamp" reproduces the author's
            numbers, p clamped to [1e-8, 1 - 1e-8], without gradient beyond.
        targets: "labels" (default) or "index" for class indices, each class against the rest.

    Helps precision; hurts recall of rare labels, and labels that were forgotten dominate the gradient.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.exponential_focal()
    >>> round(loss(torch.tensor([[1.0, -2.0]]), torch.tensor([[1.0, 0.0]])).item(), 4)
    0.079
    """
    name = "exponential_focal"
    gamma = finite(name, "gamma", gamma, low=0.0)
    terms = choice(name, "saturation", saturation, SATURATION)
    rule = Rule(
        name,
        sided(present=terms.focal(gamma), absent=terms.exponential),
        needs=needs_of(("log_odds",), terms.focal_needs(gamma)),
        head="sigmoid",
        index_targets=takes_indices(name, targets),
    )
    return Loss(rule, **common)
