"""Label-distribution-aware margin loss (LDAM): rare classes must win by more."""

from __future__ import annotations

from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..evidence import Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, State, counts, number


def margin_cost(evidence: Evidence, state: State) -> Tensor:
    """Cross-entropy after the true class's scaled logit has been lowered by its margin."""
    return -logsigmoid(evidence.log_odds - state["margins"][evidence.target].to(evidence.log_odds.dtype))


def _margins(*, margins: Tensor, scale: float) -> dict[str, Tensor]:
    return {"margins": margins * scale, "scales": torch.full_like(margins, scale)}


def _scales(state: State) -> Tensor:
    return state["scales"]


@register_loss(
    "margin_aware",
    aliases=("LDAM",),
    source="Cao et al., Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss, NeurIPS 2019",
    formula="-log softmax(s z')_y, z'_y = z_y - m (n_min / n_y)^(1/4)",
)
def margin_aware(*, class_counts: Any, margin: float = 0.5, scale: float = 30.0, **common: Unpack[Common]) -> Loss:
    """LDAM loss: use it for long tails when the last layer gives cosines; with `deferred` it is LDAM-DRW.

    Formula: cross-entropy of s z' with z'_y = z_y - m (n_min / n_y)^(1/4) for the true class, z' = z elsewhere. The
    logits must be cosines (normalised features and weights), or the margin means nothing beside their size.

    Settings:
        class_counts: rows of each class in the training set, all above 0 (an empty class has no margin).
        margin: m, of the rarest class, at least 0 (default 0.5, the authors').
        scale: s, above 0 (default 30, the authors').

    State: `margins` (K), times s, and `scales` (K).

    Helps rare classes to generalise; hurts with ordinary unbounded logits, whose scale it fixes wrongly.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.margin_aware(class_counts=[81, 16, 1], scale=10.0)
    >>> round(loss(torch.tensor([[0.5, 0.1, -0.2]]), torch.tensor([0])).item(), 4)
    0.0969
    """
    name = "margin_aware"
    rows = counts(name, class_counts, zero=False, why="the margin of an empty class would be infinite")
    largest = number(name, "margin", margin, low=0.0, high=1e6)
    scale = number(name, "scale", scale, low=0.0, high=1e6, above=True)
    margins = largest * (rows.min() / rows) ** 0.25
    rule = Rule(
        name,
        margin_cost,
        needs=("log_odds",),
        init=partial(_margins, margins=margins, scale=scale),
        scale=_scales,
        num_classes=len(rows),
    )
    return Loss(rule, **common)
