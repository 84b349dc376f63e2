"""Probabilities in a column named logits."""

from __future__ import annotations

import torch

from ...registry import register_check
from .._checking import Context

ROWS = 4096  # looked at
SLACK = 1e-3


@register_check(
    "probabilities_as_logits",
    code="RW106",
    severity="error",
    why="a softmax over probabilities flattens them, so that every confidence and every error of it is wrong",
    mend="name the column as what it is: probabilities=... (--probabilities) instead of logits=",
)
def probabilities_as_logits(context: Context) -> str | None:
    """Scores named logits look like probabilities."""
    table = context.table
    if table.kind != "logits" or not len(table):
        return None
    scores = table.scores[:ROWS].double()
    if not bool(((scores >= 0) & (scores <= 1)).all()):
        return None
    if table.head == "sigmoid":
        return (
            f"all logits of {context.label} lie between 0 and 1, as probabilities of labels do."
            if len(scores) >= 50
            else None
        )
    if bool(((scores.sum(1) - 1).abs() <= SLACK).all()) and bool(torch.isfinite(scores).all()):
        return f"the logits of {context.label} lie between 0 and 1, and every row sums to 1."
    return None
