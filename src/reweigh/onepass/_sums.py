"""Sums over the batch that a rule must know before it can price a single label, as the recall of each class."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from ..evidence import Evidence, sigmoid_evidence
from ..kernels._replay import Programs
from ..rules import Rule, State
from ._block import Block, Form, is_hard, label_and_distance, rounded_up, rows_in_block, rows_of


def all_hard(target: Tensor, kept: Tensor | None) -> bool:
    """Is every label that counts 0 or 1, looked at block by block?"""
    if not target.is_floating_point() or target.numel() == 0:
        return True
    if target.dim() == 0:
        return is_hard(target, kept)
    rows = rows_in_block(target)
    parts = (slice(start, start + rows) for start in range(0, len(target), rows))
    return all(is_hard(target[part], rows_of(kept, part)) for part in parts)


def batch_sums(
    z: Tensor,
    target: Tensor,
    *,
    kept: Tensor | None,
    rule: Rule,
    state: State,
    largest: float = math.inf,
    programs: Programs | None = None,
) -> dict[str, Tensor]:
    """`rule.sums` over the batch, block by block. Labels are hard; the other arguments as in `sigmoid_total`."""
    if z.numel() == 0:
        return dict(rule.sums(sigmoid_evidence(z, target == 1, needs=("log_odds",), kept=kept), state))
    dtype = torch.float64 if z.dtype == torch.float64 else torch.float32
    largest = math.inf if rule.offset is not None else rounded_up(largest)
    labels = "halved" if target.is_floating_point() and not all_hard(target, kept) else "hard"
    form = Form(rule, tuple(state), dtype, z.dtype, kept is not None, largest=largest, labels=labels)
    names: list[str] = []
    rows = rows_in_block(z)
    programs = programs or Programs()
    key = ("sums", *form.key())
    counted = programs.take(key, partial(_counted, form=form, names=names), blocks=len(z) // rows)
    total: dict[str, Tensor] = {}
    one = torch.ones((), dtype=dtype)
    with torch.no_grad():
        for start in range(0, len(z), rows):
            part = slice(start, start + rows)
            block = Block(z[part], target[part], rows_of(kept, part), None, one, state)
            found = counted(*block.tensors(), into=None)
            for name, value in zip(names, found, strict=True):
                total[name] = total[name] + value if name in total else value.clone()
    programs.put(key, counted)
    return total


def _counted(*tensors: Tensor, form: Form, names: list[str]) -> tuple[Tensor, ...]:
    block = Block.of(tensors, form)
    label, behind = label_and_distance(block, form)
    evidence = Evidence(log_odds=-behind, positive=label.bool(), label=label, kept=block.kept, largest=form.largest)
    sums = form.rule.sums(evidence, block.state)
    names[:] = list(sums)
    return tuple(sums.values())
