"""Exponential cross-entropy: a missed label costs exponentially, on both sides."""

from __future__ import annotations

from typing import Any, Literal, Unpack

from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, choice
from ._exponential_terms import SATURATION
from ._sigmoid_settings import label_weight, takes_indices, with_label_weights


@register_loss(
    "exponential_cross_entropy",
    aliases=("ECE",),
    source="Liu, Loss Function Assessment (Bozhao-Liu/LFA-demo, 2025); in the logit, AdaBoost's exponential loss",
    formula="present: 1/p - 1; absent: 1/(1 - p) - 1",
)
def exponential_cross_entropy(
    *,
    positive_weight: Any = 1.0,
    negative_weight: Any = 1.0,
    saturation: Literal["linear", "clamp"] = "linear",
    targets: Literal["labels", "index"] = "labels",
    **common: Unpack[Common],
) -> Loss:
    """Exponential cross-entropy (the loss called ECE): use it when every single mistake counts, and labels are clean.

    Formula: w+ y (1/p - 1) + w- (1 - y) (1/(1 - p) - 1), p = sigmoid(z), that is e^(-z) and e^z: exp of binary
    cross-entropy, less 1.

    Settings:
        positive_weight, negative_weight: w+ and w-, numbers or one a class, at least 0 (default 1, the author).
        saturation: "linear" (default) continues the exponential by its tangent; "clamp" reproduces the author's
            numbers, p clamped to [1e-8, 1 - 1e-8], without gradient beyond.
        targets: "labels" of the logits' shape (default), or "index" for class indices, each class against the rest.

    Its optimum for a label of probability q is sigmoid(logit(q) / 2): sigmoid(2 z) is the calibrated reading. Hurts
    with wrong labels, which soon are all of the gradient; in the author's runs it ranks worse than cross-entropy.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.exponential_cross_entropy()
    >>> round(loss(torch.tensor([[1.0, -2.0]]), torch.tensor([[1.0, 0.0]])).item(), 4)
    0.2516
    """
    name = "exponential_cross_entropy"
    cost = choice(name, "saturation", saturation, SATURATION).exponential
    index = takes_indices(name, targets)
    rule = Rule(name, cost, needs=("log_odds",), head="sigmoid", index_targets=index)
    positive = label_weight(name, "positive_weight", positive_weight)
    negative = label_weight(name, "negative_weight", negative_weight)
    if bool((positive != 1).any()) or bool((negative != 1).any()):
        rule = with_label_weights(rule, positive=positive, negative=negative)
    return Loss(rule, **common)
