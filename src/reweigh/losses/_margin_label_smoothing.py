"""Margin-based label smoothing: logits may differ, but only by a margin."""

from __future__ import annotations

from functools import partial
from typing import Unpack

import torch
from torch import Tensor

from ..evidence import Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, State, log_loss, number


def margin_cost(evidence: Evidence, state: State, *, margin: float, strength: float) -> Tensor:
    """-log p + strength * mean_k max(0, max_j z_j - z_k - margin); differences of logits are those of log p."""
    log_all = evidence.log_probabilities
    distance = log_all.gather(1, evidence.top.unsqueeze(1)) - log_all
    beyond = torch.where(log_all == -torch.inf, 0.0, (distance - margin).clamp(min=0.0))  # masked classes do not count
    return log_loss(evidence, state) + strength * beyond.sum(1) / evidence.classes


@register_loss(
    "margin_label_smoothing",
    aliases=("MbLS",),
    source="Liu et al., The Devil is in the Margin: Margin-based Label Smoothing for Network Calibration, CVPR 2022",
    formula="-log p + strength * mean_k max(0, max_j z_j - z_k - margin)",
)
def margin_label_smoothing(*, margin: float = 10.0, strength: float = 0.1, **common: Unpack[Common]) -> Loss:
    """Margin-based label smoothing: use it when label smoothing helps calibration but costs accuracy.

    Formula: -log p + strength * mean_k max(0, max_j z_j - z_k - margin): no push towards equal logits as long as they
    differ by less than the margin. The mean is over the K unmasked classes, as in the authors' program.

    Settings:
        margin: in logits, at least 0 (default 10, the authors'; their tables use 6 to 10).
        strength: at least 0 (default 0.1, the authors'); 0 is cross-entropy.

    Helps over-confidence; hurts nothing while logits stay inside the margin, and then does nothing either. Needs all
    class probabilities, so it is exempt from the speed floors.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.margin_label_smoothing(margin=1.0)
    >>> round(loss(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0])).item(), 4)
    0.2698
    """
    margin = number("margin_label_smoothing", "margin", margin, low=0.0)
    strength = number("margin_label_smoothing", "strength", strength, low=0.0, high=1e6)
    rule = Rule(
        "margin_label_smoothing",
        partial(margin_cost, margin=margin, strength=strength),
        needs=("log_p", "log_probabilities", "top", "classes"),
        soft="linear",
    )
    return Loss(rule, **common)
