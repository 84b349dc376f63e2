"""Binary cross-entropy: every label is a decision of its own."""

from __future__ import annotations

from typing import Any, Literal, Unpack

import torch

from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, log_loss
from ._sigmoid_settings import label_weight, takes_indices, with_label_weights


@register_loss(
    "binary_cross_entropy",
    aliases=("BCE",),
    source="torch.nn.BCEWithLogitsLoss",
    formula="present: -log p; absent: -log(1 - p)",
)
def binary_cross_entropy(
    *,
    positive_weight: Any = None,
    targets: Literal["labels", "index"] = "labels",
    **common: Unpack[Common],
) -> Loss:
    """Binary cross-entropy: use it for several labels at once, or for classes each against the rest.

    Formula: w y (-log p) + (1 - y) (-log(1 - p)), p = sigmoid(z), w the positive weight.

    Settings:
        positive_weight: factor of present labels, a number or one a class, at least 0 (default none, which is 1;
            `pos_weight` of PyTorch). It enters no denominator.
        targets: "labels" of the logits' shape (default), or "index" for class indices, each class against the rest.

    The only loss with a sigmoid whose optimum is the probability itself. Hurts where absent labels outnumber
    present ones by far: their many small gradients add up.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.binary_cross_entropy(positive_weight=2.0)
    >>> round(loss(torch.tensor([[1.0, -2.0]]), torch.tensor([[1.0, 0.0]])).item(), 4)
    0.3767
    """
    index = takes_indices("binary_cross_entropy", targets)
    rule = Rule("binary_cross_entropy", log_loss, needs=("log_p",), head="sigmoid", index_targets=index)
    if positive_weight is not None:
        weight = label_weight("binary_cross_entropy", "positive_weight", positive_weight)
        rule = with_label_weights(rule, positive=weight, negative=torch.ones_like(weight))
    return Loss(rule, **common)
