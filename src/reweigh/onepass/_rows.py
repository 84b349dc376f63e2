"""Rules that price whole rows from two sums over the row's labels, log(1 + sum of e^z) and log(1 + sum of e^-z)."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..evidence import Evidence
from ..kernels._replay import Programs
from ..rules import Rule, State
from ._block import LOG2_E, Block, Form, label_and_distance, labels_of, rows_in_block, rows_of
from ._elements import runs
from ._plain import sigmoid_cost

MODERATE = {torch.float32: 60.0, torch.float64: 600.0}  # logits whose exponentials may be summed as they are


def serves_rows(z: Tensor, rule: Rule) -> bool:
    """Can rows be priced and differentiated in one pass?"""
    return runs(z) and z.numel() > 0 and set(rule.needs) <= {"log_sum_absent", "log_sum_present"}


class _Call(NamedTuple):
    kept: Tensor | None
    rule: Rule
    state: State
    programs: Programs


def row_costs(
    z: Tensor, target: Tensor, kept: Tensor | None, rule: Rule, state: State, programs: Programs | None = None
) -> Tensor:
    """The cost of every row, (n, d...). `programs`: of earlier calls of this loss."""
    return _RowPass.apply(z, target, _Call(kept, rule, state, programs or Programs()))


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
                costs = sigmoid_cost(again, target, *ctx.call[:3])
                return torch.autograd.grad(costs, again, gradient, create_graph=True)[0], None, None
        derivative, ctx.derivative = ctx.derivative, None  # it becomes the gradient
        if derivative is None:  # a second backward pass
            derivative = _in_blocks(z, target, ctx.call, True)[1]
        return derivative.mul_(gradient.unsqueeze(1)).to(z.dtype), None, None


def _in_blocks(z: Tensor, target: Tensor, call: _Call, wanted: bool) -> tuple[Tensor, Tensor | None]:
    dtype = torch.float64 if z.dtype == torch.float64 else torch.float32
    form = Form(
        call.rule, tuple(call.state), dtype, z.dtype, call.kept is not None, wanted=wanted, largest=MODERATE[dtype]
    )
    derivative = torch.empty_like(z, dtype=dtype) if wanted else None
    costs = torch.empty((z.shape[0], *z.shape[2:]), dtype=dtype)
    rows = rows_in_block(z)
    moderate = call.programs.take(form.key(), partial(_moderate, form=form), blocks=len(z) // rows)
    one = torch.ones((), dtype=dtype)
    for start in range(0, len(z), rows):
        part = slice(start, start + rows)
        block = Block(z[part], target[part], rows_of(call.kept, part), None, one, call.state)
        into = None if derivative is None else derivative[part]
        if labels_of(block.target, block.kept, call.rule) == "hard" and _is_moderate(block.z, dtype):
            found = moderate(*block.tensors(), into=into)
        else:
            found = _by_composite(block, form)
        costs[part] = found[0]
        if into is not None and found[1].data_ptr() != into.data_ptr():
            into.copy_(found[1])
    call.programs.put(form.key(), moderate)
    return costs, derivative


def _is_moderate(z: Tensor, dtype: torch.dtype) -> bool:
    low, high = torch.aminmax(z)
    return max(-low.item(), high.item()) < MODERATE[dtype]


def _moderate(*tensors: Tensor, form: Form) -> tuple[Tensor, ...]:
    """Both sums from one exponential of each logit."""
    block = Block.of(tensors, form)
    kept = block.kept
    label, behind = label_and_distance(block, form)
    terms = torch.exp2(behind * LOG2_E)  # e^-z where present, e^z where absent
    terms = terms if kept is None else torch.where(kept, terms, 0.0)
    shown = terms * label
    sums = {"log_sum_present": shown.sum(1), "log_sum_absent": (terms - shown).sum(1)}
    with torch.set_grad_enabled(form.wanted):
        leaves = {name: torch.log1p(value).requires_grad_(form.wanted) for name, value in sums.items()}
        cost = form.rule.cost(Evidence(**leaves, positive=label.bool(), label=label, kept=kept), block.state)
    if not form.wanted:
        return (cost,)
    found = torch.autograd.grad(cost, list(leaves.values()), torch.ones_like(cost))
    present, absent = (slope / (1.0 + value) for slope, value in zip(found, sums.values(), strict=True))
    return cost.detach(), terms * torch.lerp(absent.unsqueeze(1), -present.unsqueeze(1), label)


def _by_composite(block: Block, form: Form) -> tuple[Tensor, ...]:
    with torch.set_grad_enabled(form.wanted):
        leaf = block.z.detach().to(form.dtype).requires_grad_(form.wanted)
        cost = sigmoid_cost(leaf, block.target, block.kept, form.rule, block.state)
    if not form.wanted:
        return (cost,)
    return cost.detach(), torch.autograd.grad(cost, leaf, torch.ones_like(cost))[0]
