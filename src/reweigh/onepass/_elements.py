"""Rules that price every label: one node, whose forward pass computes the derivative as well."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..kernels._replay import Repeated
from ..rules import Rule, State
from ._block import Form, labels_of, priced, rows_in_block, rows_of
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
) -> Tensor:
    """factor * sum(weight * cost), or with `reduce` false weight * cost in the shape of the logits."""
    call = {"kept": kept, "rule": rule, "state": state, "factor": factor, "reduce": reduce}
    return _OnePass.apply(z, target, weight, call)


class _OnePass(torch.autograd.Function):
    """weight * cost, summed or not; the forward pass keeps the derivative."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, target: Tensor, weight: Tensor | None, call: Mapping[str, Any]) -> Tensor:
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


def _plain(z: Tensor, target: Tensor, weight: Tensor | None, call: Mapping[str, Any]) -> Tensor:
    cost = sigmoid_cost(z, target, call["kept"], call["rule"], call["state"])
    cost = cost if weight is None else cost * weight
    return cost.sum() * call["factor"] if call["reduce"] else cost


def _in_blocks(
    z: Tensor, target: Tensor, weight: Tensor | None, call: Mapping[str, Any], wanted: bool
) -> tuple[Tensor, Tensor | None]:
    dtype = torch.float64 if z.dtype == torch.float64 else torch.float32
    kept, reduce, rule = call["kept"], call["reduce"], call["rule"]
    form = Form(
        rule, call["state"], dtype, z.dtype, kept is not None, weight is not None, wanted, reduce,
        float(call["factor"]) if reduce else 1.0,
    )  # fmt: skip
    derivative = torch.empty_like(z, dtype=dtype) if wanted else None
    costs = None if reduce else torch.empty_like(z, dtype=dtype)
    rows = rows_in_block(z)
    prices: dict[str, Repeated] = {}
    total = 0.0
    for start in range(0, len(z), rows):
        block = slice(start, start + rows)
        parts = [z[block], target[block], rows_of(kept, block), rows_of(weight, block)]
        labels = labels_of(parts[1], parts[2], rule)
        if labels not in prices:
            price = partial(priced, form=form._replace(labels=labels))
            prices[labels] = Repeated(price, blocks=len(z) // rows)
        given = [part for part in parts if part is not None]
        into = None if derivative is None else derivative[block]
        if costs is None:
            found = prices[labels](*given, into=into)
            total += _finite_total(found[0].item(), given, form._replace(labels=labels))
        else:
            found = prices[labels](*given, into=costs[block] if into is None else into)
            _store(found[0], costs[block])
        if into is not None:
            _store(found[1], into)
    return (torch.tensor(total * form.factor, dtype=dtype) if costs is None else costs), derivative


def _store(result: Tensor, place: Tensor) -> None:
    if result.data_ptr() != place.data_ptr():  # else it was written there
        place.copy_(result)


def _finite_total(total: float, parts: list[Tensor], form: Form) -> float:
    """The sum of a block, in float64 where its own type overflows."""
    if math.isfinite(total):
        return total
    return priced(*parts, form=form._replace(wanted=False, reduce=False))[0].sum(dtype=torch.float64).item()
