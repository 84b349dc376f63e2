"""B-ECE: exponential cost where the label is present, logarithmic cost where it is absent."""

from __future__ import annotations

from typing import Literal, Unpack

from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, choice, sided
from ._exponential_terms import SATURATION, needs_of
from ._sigmoid_settings import takes_indices


@register_loss(
    "balanced_exponential",
    aliases=("B-ECE", "B_ECE"),
    source="Liu, Master thesis (Bozhao-Liu/Master_thesis, 2020), there B-EXPBCE",
    formula="present: 1/p - 1; absent: -log(1 - p)",
)
def balanced_exponential(
    *,
    saturation: Literal["linear", "clamp"] = "linear",
    targets: Literal["labels", "index"] = "labels",
    **common: Unpack[Common],
) -> Loss:
    """B-ECE: use it as F-ECE, where easy absent labels should keep their full weight.

    Formula: y (1/p - 1) + (1 - y) (-log(1 - p)), p = sigmoid(z): F-ECE with gamma 0. Its optimum for a label of
    probability 1/2 is p = 0.618, the golden ratio.

    Settings:
        saturation: "linear" (default) continues the exponential by its tangent; "clamp" reproduces the author's
            numbers, p clamped to [1e-8, 1 - 1e-8], without gradient beyond.
        targets: "labels" (default) or "index" for class indices, each class against the rest.

    Helps recall of rare labels; hurts calibration, and wrong labels dominate the gradient.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.balanced_exponential()
    >>> round(loss(torch.tensor([[1.0, -2.0]]), torch.tensor([[1.0, 0.0]])).item(), 4)
    0.2474
    """
    name = "balanced_exponential"
    terms = choice(name, "saturation", saturation, SATURATION)
    rule = Rule(
        name,
        sided(present=terms.exponential, absent=terms.focal(0.0)),
        needs=needs_of(("log_odds",), terms.focal_needs(0.0)),
        head="sigmoid",
        index_targets=takes_indices(name, targets),
    )
    return Loss(rule, **common)
