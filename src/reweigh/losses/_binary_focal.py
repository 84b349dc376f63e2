"""Focal loss for sigmoid heads: easy labels count less."""

from __future__ import annotations

from typing import Literal, Unpack

import torch

from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, number
from ._powers import focal_cost, focal_needs
from ._sigmoid_settings import finite, takes_indices, with_label_weights


@register_loss(
    "binary_focal",
    source="Lin et al., Focal Loss for Dense Object Detection, ICCV 2017",
    formula="present: -alpha (1 - p)^gamma log p; absent: -(1 - alpha) p^gamma log(1 - p)",
)
def binary_focal(
    *,
    gamma: float = 2.0,
    alpha: float | None = None,
    detached: bool = False,
    targets: Literal["labels", "index"] = "labels",
    **common: Unpack[Common],
) -> Loss:
    """Focal loss on sigmoids: use it when easy absent labels, as the background of a detector, drown the rest.

    Formula: alpha y (1 - p)^gamma (-log p) + (1 - alpha) (1 - y) p^gamma (-log(1 - p)), p = sigmoid(z).

    Settings:
        gamma: how fast easy decisions fade, at least 0 (default 2, the paper; 0 is binary cross-entropy).
        alpha: weight of present labels, from 0 to 1; absent ones weigh 1 - alpha (default none: both weigh 1. The
            paper and torchvision use 0.25).
        detached: hold (1 - p)^gamma constant in the gradient (default false).
        targets: "labels" of the logits' shape (default), or "index" for class indices, each class against the rest.

    Helps with many easy labels; pulls probabilities towards 1/2 (at gamma 2 a label of probability 0.1 is best
    predicted as 0.31), so thresholds and calibration have to follow. Soft labels weigh both terms.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.binary_focal(gamma=2.0, alpha=0.25)
    >>> round(loss(torch.tensor([[1.0, -2.0]]), torch.tensor([[1.0, 0.0]])).item(), 6)
    0.003509
    """
    name = "binary_focal"
    gamma = finite(name, "gamma", gamma, low=0.0)
    rule = Rule(
        name,
        focal_cost(gamma, detached=detached),
        needs=focal_needs(gamma),
        head="sigmoid",
        holds_constants=detached and gamma > 0,
        index_targets=takes_indices(name, targets),
    )
    if alpha is not None:
        share = torch.tensor(number(name, "alpha", alpha, low=0.0, high=1.0), dtype=torch.float64)
        rule = with_label_weights(rule, positive=share, negative=1.0 - share)
    return Loss(rule, **common)
