"""Sums over the batch that a rule must know before it can price a single label, as the recall of each class."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ..evidence import Evidence, sigmoid_evidence
from ..kernels._replay import Repeated
from ..rules import Rule, State
from ._block import Form, label_and_distance, rows_in_block, rows_of


def batch_sums(z: Tensor, target: Tensor, kept: Tensor | None, rule: Rule, state: State) -> dict[str, Tensor]:
    """`rule.sums` over the batch, block by block. Labels are hard."""
    if z.numel() == 0:
        return dict(rule.sums(sigmoid_evidence(z, target == 1, needs=("log_odds",), kept=kept), state))
    dtype = torch.float64 if z.dtype == torch.float64 else torch.float32
    form = Form(rule, state, dtype, z.dtype, kept is not None)
    names: list[str] = []
    rows = rows_in_block(z)
    counted = Repeated(partial(_counted, form=form, names=names), blocks=len(z) // rows)
    total: dict[str, Tensor] = {}
    with torch.no_grad():
        for start in range(0, len(z), rows):
            block = slice(start, start + rows)
            parts = [part for part in (z[block], target[block], rows_of(kept, block)) if part is not None]
            found = counted(*parts, into=None)
            for name, value in zip(names, found, strict=True):
                total[name] = total[name] + value if name in total else value.clone()
    return total


def _counted(z: Tensor, target: Tensor, *rest: Tensor, form: Form, names: list[str]) -> tuple[Tensor, ...]:
    kept = rest[0] if form.ignores else None
    label, behind = label_and_distance(z, target, kept, form)
    sums = form.rule.sums(Evidence(log_odds=-behind, positive=label.bool(), label=label, kept=kept), form.state)
    names[:] = list(sums)
    return tuple(sums.values())
