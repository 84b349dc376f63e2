"""Rules that price whole rows from two sums over the row's labels, log(1 + sum of e^z) and log(1 + sum of e^-z)."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..evidence import Evidence
from ..kernels._replay import Repeated
from ..rules import Rule, State
from ._block import Form, label_and_distance, labels_of, rows_in_block, rows_of
from ._elements import runs
from ._plain import sigmoid_cost

LOG2_E = 1.4426950408889634
MODERATE = {torch.float32: 60.0, torch.float64: 600.0}  # logits whose exponentials may be summed as they are


def serves_rows(z: Tensor, rule: Rule) -> bool:
    """Can rows be priced and differentiated in one pass?"""
    return runs(z) and z.numel() > 0 and set(rule.needs) <= {"log_sum_absent", "log_sum_present"}


class _Call(NamedTuple):
    kept: Tensor | None
    rule: Rule
    state: State


def row_costs(z: Tensor, target: Tensor, kept: Tensor | None, rule: Rule, state: State) -> Tensor:
    """The cost of every row, (n, d...)."""
    return _RowPass.apply(z, target, _Call(kept, rule, state))


class _RowPass(torch.autograd.Function):
    """Costs of rows; the forward pass keeps the derivative of each row's cost for its logits."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, target: Tensor, call: _Call) -> Tensor:
        costs, derivative = _in_blocks(z.detach(), target, call, ctx.needs_input_grad[0])
        ctx.save_for_backward(z, target)
        ctx.call, ctx.derivative = call, derivative
        return costs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        z, target = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody differentiates the gradient
            again = z.view_as(z) if z.requires_grad else z.detach().requires_grad_()
            with torch.enable_grad():
                costs = sigmoid_cost(again, target, *ctx.call)
                return torch.autograd.grad(costs, again, gradient, create_graph=True)[0], None, None
        derivative, ctx.derivative = ctx.derivative, None  # it becomes the gradient
        if derivative is None:  # a second backward pass
            derivative = _in_blocks(z, target, ctx.call, True)[1]
        return derivative.mul_(gradient.unsqueeze(1)).to(z.dtype), None, None


def _in_blocks(z: Tensor, target: Tensor, call: _Call, wanted: bool) -> tuple[Tensor, Tensor | None]:
    dtype = torch.float64 if z.dtype == torch.float64 else torch.float32
    form = Form(call.rule, call.state, dtype, z.dtype, call.kept is not None, wanted=wanted)
    derivative = torch.empty_like(z, dtype=dtype) if wanted else None
    costs = torch.empty((z.shape[0], *z.shape[2:]), dtype=dtype)
    rows = rows_in_block(z)
    moderate = Repeated(partial(_moderate, form=form), blocks=len(z) // rows)
    for start in range(0, len(z), rows):
        block = slice(start, start + rows)
        parts = [z[block], target[block], rows_of(call.kept, block)]
        given = [part for part in parts if part is not None]
        into = None if derivative is None else derivative[block]
        if labels_of(parts[1], parts[2], call.rule) == "hard" and _is_moderate(parts[0], dtype):
            found = moderate(*given, into=into)
        else:
            found = _by_composite(*given, form=form)
        costs[block] = found[0]
        if into is not None and found[1].data_ptr() != into.data_ptr():
            into.copy_(found[1])
    return costs, derivative


def _is_moderate(z: Tensor, dtype: torch.dtype) -> bool:
    low, high = torch.aminmax(z)
    return max(-low.item(), high.item()) < MODERATE[dtype]


def _moderate(z: Tensor, target: Tensor, *rest: Tensor, form: Form) -> tuple[Tensor, ...]:
    """Both sums from one exponential of each logit."""
    kept = rest[0] if form.ignores else None
    label, behind = label_and_distance(z, target, kept, form)
    terms = torch.exp2(behind * LOG2_E)  # e^-z where present, e^z where absent
    terms = terms if kept is None else torch.where(kept, terms, 0.0)
    shown = terms * label
    sums = {"log_sum_present": shown.sum(1), "log_sum_absent": (terms - shown).sum(1)}
    with torch.set_grad_enabled(form.wanted):
        leaves = {name: torch.log1p(value).requires_grad_(form.wanted) for name, value in sums.items()}
        cost = form.rule.cost(Evidence(**leaves, positive=label.bool(), label=label, kept=kept), form.state)
    if not form.wanted:
        return (cost,)
    found = torch.autograd.grad(cost, list(leaves.values()), torch.ones_like(cost))
    present, absent = (slope / (1.0 + value) for slope, value in zip(found, sums.values(), strict=True))
    return cost.detach(), terms * torch.lerp(absent.unsqueeze(1), -present.unsqueeze(1), label)


def _by_composite(z: Tensor, target: Tensor, *rest: Tensor, form: Form) -> tuple[Tensor, ...]:
    kept = rest[0] if form.ignores else None
    with torch.set_grad_enabled(form.wanted):
        leaf = z.detach().to(form.dtype).requires_grad_(form.wanted)
        cost = sigmoid_cost(leaf, target, kept, form.rule, form.state)
    if not form.wanted:
        return (cost,)
    return cost.detach(), torch.autograd.grad(cost, leaf, torch.ones_like(cost))[0]
