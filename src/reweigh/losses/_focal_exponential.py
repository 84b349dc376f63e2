"""F-ECE: exponential cost where the label is present, focal cost where it is absent."""

from __future__ import annotations

from typing import Literal, Unpack

from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, choice, sided
from ._exponential_terms import SATURATION, needs_of
from ._sigmoid_settings import finite, takes_indices


@register_loss(
    "focal_exponential",
    aliases=("F-ECE", "F_ECE"),
    source="Liu, Loss Function Assessment (Bozhao-Liu/LFA-demo, 2025)",
    formula="present: 1/p - 1; absent: -p^gamma log(1 - p)",
)
def focal_exponential(
    *,
    gamma: float = 2.0,
    saturation: Literal["linear", "clamp"] = "linear",
    targets: Literal["labels", "index"] = "labels",
    **common: Unpack[Common],
) -> Loss:
    """F-ECE: use it one-versus-rest when missing a rare class is worse than a false alarm.

    Formula: y (1/p - 1) + (1 - y) p^gamma (-log(1 - p)), p = sigmoid(z). Each missed label costs exponentially,
    easy absent labels next to nothing. Its optimum for a label of probability 1/2 is p = 0.64, not 1/2: choose
    thresholds on validation data, or undo the shift with `PosteriorCorrection`.

    Settings:
        gamma: fading of easy absent labels, at least 0 (default 2, the author; 0 is `balanced_exponential`).
        saturation: "linear" (default) continues the exponential by its tangent; "clamp" reproduces the author's
            numbers, p clamped to [1e-8, 1 - 1e-8], without gradient beyond.
        targets: "labels" (default) or "index" for class indices, each class against the rest.

    Helps ranking (AUC) of rare labels; hurts calibration, and wrong labels dominate the gradient.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.focal_exponential()
    >>> round(loss(torch.tensor([[1.0, -2.0]]), torch.tensor([[1.0, 0.0]])).item(), 4)
    0.1848
    """
    name = "focal_exponential"
    gamma = finite(name, "gamma", gamma, low=0.0)
    terms = choice(name, "saturation", saturation, SATURATION)
    rule = Rule(
        name,
        sided(present=terms.exponential, absent=terms.focal(gamma)),
        needs=needs_of(("log_odds",), terms.focal_needs(gamma)),
        head="sigmoid",
        index_targets=takes_indices(name, targets),
    )
    return Loss(rule, **common)
