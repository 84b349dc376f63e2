"""Balanced softmax: logit adjustment by the class counts themselves."""

from __future__ import annotations

from typing import Any, Unpack

from ..module import Common, Loss
from ..registry import register_loss
from ..rules import counts
from ._logit_adjusted import adjusted_rule, log_prior


@register_loss(
    "balanced_softmax",
    aliases=("BS",),
    source="Ren et al., Balanced Meta-Softmax for Long-Tailed Visual Recognition, NeurIPS 2020",
    formula="-log (n_y e^z_y / sum_k n_k e^z_k)",
)
def balanced_softmax(*, class_counts: Any, **common: Unpack[Common]) -> Loss:
    """Balanced softmax: use it as logit adjustment without a knob.

    Formula: -log of n_y e^(z_y) over the sum of n_k e^(z_k); equal to `logit_adjusted` with tau = 1, because a common
    factor of the counts cancels.

    Settings:
        class_counts: rows of each class in the training set. A class with count 0 is masked: its logit gets no
            gradient, and it cannot be a target.

    State: `adjustment` (K).

    Helps balanced accuracy; hurts where test data are as imbalanced as training data.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.balanced_softmax(class_counts=[90, 9, 1])
    >>> round(loss(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([1])).item(), 4)
    4.3166
    """
    # Shares instead of counts: a common shift that changes nothing and keeps the numbers small.
    return Loss(adjusted_rule("balanced_softmax", log_prior(counts("balanced_softmax", class_counts), 1.0)), **common)
