"""Rules that price every label: one node, whose forward pass computes the derivative as well."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..kernels._replay import Programs, Repeated
from ..rules import Rule, State
from ._block import Block, Form, labels_of, priced, rounded_up, rows_in_block, rows_of
from ._plain import sigmoid_cost


def runs(z: Tensor) -> bool:
    """Does this device have these forms, and is the call a plain one?"""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return z.device.type == "cpu" and z.dim() > 0


def serves(z: Tensor, rule: Rule) -> bool:
    """Can this call be priced and differentiated in one pass?"""
    return runs(z) and z.numel() > 0 and not rule.coupled and not rule.per_row


def sigmoid_total(
    z: Tensor,
    target: Tensor,
    *,
    kept: Tensor | None,
    weight: Tensor | None,
    rule: Rule,
    state: State,
    factor: float,
    reduce: bool,
    largest: float = math.inf,
    programs: Programs | None = None,
) -> Tensor:
    """factor * sum(weight * cost), or with `reduce` false weight * cost in the shape of the logits.

    `largest`: no logit is farther from 0, as far as the caller knows. `programs`: of earlier calls of this loss.
    """
    largest = math.inf if rule.offset is not None else rounded_up(largest)
    return _OnePass.apply(z, target, weight, _Call(kept, rule, state, factor, reduce, largest, programs or Programs()))


class _Call(NamedTuple):
    kept: Tensor | None
    rule: Rule
    state: State
    factor: float
    reduce: bool
    largest: float
    programs: Programs


class _OnePass(torch.autograd.Function):
    """weight * cost, summed or not; the forward pass keeps the derivative."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, target: Tensor, weight: Tensor | None, call: _Call) -> Tensor:
        wanted = ctx.needs_input_grad[0]
        value, derivative = _in_blocks(z.detach(), target, weight, call, wanted)
        ctx.save_for_backward(z, target, weight)
        ctx.call, ctx.derivative = call, derivative
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        z, target, weight = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody differentiates the gradient
            again = z.view_as(z) if z.requires_grad else z.detach().requires_grad_()
            with torch.enable_grad():
                value = _plain(again, target, weight, ctx.call)
                return torch.autograd.grad(value, again, gradient, create_graph=True)[0], None, None, None
        derivative, ctx.derivative = ctx.derivative, None  # it becomes the gradient
        if derivative is None:  # a second backward pass
            derivative = _in_blocks(z, target, weight, ctx.call, True)[1]
        if gradient.dim() == 0 and gradient.item() == 1.0:
            return derivative.to(z.dtype), None, None, None
        return derivative.mul_(gradient).to(z.dtype), None, None, None


def _plain(z: Tensor, target: Tensor, weight: Tensor | None, call: _Call) -> Tensor:
    cost = sigmoid_cost(z, target, call.kept, call.rule, call.state)
    cost = cost if weight is None else cost * weight
    return cost.sum() * call.factor if call.reduce else cost


def _in_blocks(
    z: Tensor, target: Tensor, weight: Tensor | None, call: _Call, wanted: bool
) -> tuple[Tensor, Tensor | None]:
    dtype = torch.float64 if z.dtype == torch.float64 else torch.float32
    form = Form(
        call.rule, tuple(call.state), dtype, z.dtype, call.kept is not None, weight is not None, wanted, call.reduce,
        call.largest,
    )  # fmt: skip
    factor = torch.tensor(float(call.factor) if call.reduce else 1.0, dtype=dtype)
    derivative = torch.empty_like(z, dtype=dtype) if wanted else None
    costs = None if call.reduce else torch.empty_like(z, dtype=dtype)
    rows = rows_in_block(z)
    prices: dict[str, Repeated] = {}
    total = 0.0
    for start in range(0, len(z), rows):
        part = slice(start, start + rows)
        block = Block(z[part], target[part], rows_of(call.kept, part), rows_of(weight, part), factor, call.state)
        own = form._replace(labels=labels_of(block.target, block.kept, call.rule))
        if own.labels not in prices:
            price = partial(priced, form=own)
            prices[own.labels] = call.programs.take(own.key(), price, blocks=len(z) // rows)
        tensors = block.tensors()
        into = None if derivative is None else derivative[part]
        if costs is None:
            found = prices[own.labels](*tensors, into=into)
            total += _finite_total(found[0].item(), tensors, own)
        else:
            found = prices[own.labels](*tensors, into=costs[part] if into is None else into)
            _store(found[0], costs[part])
        if into is not None:
            _store(found[1], into)
    for labels, repeated in prices.items():
        call.programs.put(form._replace(labels=labels).key(), repeated)
    return (torch.tensor(total * float(call.factor), dtype=dtype) if costs is None else costs), derivative


def _store(result: Tensor, place: Tensor) -> None:
    if result.data_ptr() != place.data_ptr():  # else it was written there
        place.copy_(result)


def _finite_total(total: float, tensors: list[Tensor], form: Form) -> float:
    """The sum of a block, in float64 where its own type overflows."""
    if math.isfinite(total):
        return total
    return priced(*tensors, form=form._replace(wanted=False, reduce=False))[0].sum(dtype=torch.float64).item()
