"""Cost and derivative in one pass, for sigmoid heads.

A sigmoid head has as many pieces of evidence as logits, so there is nothing to save by pricing first and
differentiating later: it would read and write everything several times. Instead the rule is priced and
differentiated block by block, while the block is in the cache; what is kept for the backward pass is the
derivative alone. Rules are the same pure functions as everywhere; nobody writing one needs to know.

The plain form, `sigmoid_cost`, is the truth: it runs under torch.compile and torch.func, on devices
without a kernel, for rules whose rows depend on each other, and for the second derivative.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .evidence import SURE, Evidence, sigmoid_evidence
from .rules import Rule, State

BLOCK = 262_144  # elements at a time, in whole rows


def sigmoid_cost(z: Tensor, target: Tensor, kept: Tensor | None, rule: Rule, state: State) -> Tensor:
    """The unreduced cost by ordinary differentiable operations; labels boolean, integer or soft."""
    offset = None if rule.offset is None else rule.offset(state)
    z = z if kept is None else torch.where(kept, z, 0.0)  # an ignored place may hold anything
    if not target.is_floating_point():
        return rule.cost(sigmoid_evidence(z, target == 1, needs=rule.needs, offset=offset, kept=kept), state)
    share = target if kept is None else torch.where(kept, target, 0)
    present = torch.ones((), dtype=torch.bool, device=z.device).expand(z.shape)
    if rule.soft == "own":
        evidence = sigmoid_evidence(z, present, needs=rule.soft_needs, offset=offset, kept=kept)
        return rule.soft_cost(_with_soft(evidence, share.to(evidence.log_odds.dtype)), state)
    if rule.soft == "refused":
        return rule.cost(sigmoid_evidence(z, share > 0.5, needs=rule.needs, offset=offset, kept=kept), state)
    if_present = rule.cost(sigmoid_evidence(z, present, needs=rule.needs, offset=offset, kept=kept), state)
    if_absent = rule.cost(sigmoid_evidence(z, ~present, needs=rule.needs, offset=offset, kept=kept), state)
    share = share.to(if_present.dtype)
    return share * if_present + (1 - share) * if_absent


def _with_soft(evidence: Evidence, share: Tensor) -> Evidence:
    return Evidence(**{**vars(evidence), "soft_target": share})


def serves(z: Tensor, rule: Rule) -> bool:
    """Can this call be priced and differentiated in one pass on this device?"""
    if rule.coupled or rule.per_row or z.numel() == 0:
        return False
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return z.device.type == "cpu" and z.dim() > 0


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
        if torch.is_grad_enabled():
            again = z.view_as(z) if z.requires_grad else z.detach().requires_grad_()
            with torch.enable_grad():
                value = _plain(again, target, weight, ctx.call)
                return torch.autograd.grad(value, again, gradient, create_graph=True)[0], None, None, None
        derivative, ctx.derivative = ctx.derivative, None
        if derivative is None:
            derivative = _in_blocks(z, target, weight, ctx.call, True)[1]
        if gradient.dim() == 0 and gradient.item() == 1.0:
            return derivative.to(z.dtype), None, None, None
        return derivative.mul_(gradient).to(z.dtype), None, None, None


def _plain(z: Tensor, target: Tensor, weight: Tensor | None, call: Mapping[str, Any]) -> Tensor:
    cost = sigmoid_cost(z, target, call["kept"], call["rule"], call["state"])
    cost = cost if weight is None else cost * weight
    return cost.sum() * call["factor"] if call["reduce"] else cost


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


def _rows(value: Tensor | None, block: slice) -> Tensor | None:
    if value is None:
        return None
    return value[block] if value.dim() and value.shape[0] != 1 else value


def _in_blocks(
    z: Tensor, target: Tensor, weight: Tensor | None, call: Mapping[str, Any], wanted: bool
) -> tuple[Tensor, Tensor | None]:
    rule, state, reduce = call["rule"], call["state"], call["reduce"]
    dtype = torch.float64 if z.dtype == torch.float64 else torch.float32
    derivative = torch.empty(z.shape, dtype=dtype) if wanted else None
    costs = None if reduce else torch.empty(z.shape, dtype=dtype)
    sums = []
    rows = max(1, BLOCK // max(1, z[0].numel())) if len(z) else 1
    for start in range(0, len(z), rows):
        block = slice(start, start + rows)
        scale = _rows(weight, block)
        cost, slope = _block(z[block].to(dtype), target[block], _rows(call["kept"], block), scale, rule, state, wanted)
        if reduce:
            sums.append((cost if scale is None else cost * scale).sum(dtype=torch.float64))
        else:
            torch.mul(cost, 1.0 if scale is None else scale, out=costs[block])
        if wanted:
            factor = call["factor"] if reduce else 1.0
            torch.mul(slope, factor if scale is None else scale * factor, out=derivative[block])
    value = (torch.stack(sums).sum() * call["factor"]).to(dtype) if reduce else costs
    return value, derivative


def _block(
    z: Tensor, target: Tensor, kept: Tensor | None, scale: Any, rule: Rule, state: State, wanted: bool
) -> tuple[Tensor, Tensor | None]:
    """Cost of a block and its derivative for the logits."""
    z = z if kept is None else torch.where(kept, z, 0.0)
    if target.is_floating_point():
        positive = target > 0.5
        hard = target == positive
        if kept is not None:
            hard = hard | ~kept
        if not bool(hard.all()):
            return _soft_block(z, target, kept, rule, state, wanted)
    else:
        positive = target if target.dtype == torch.bool else target == 1
    if rule.offset is not None:
        z = z + rule.offset(state).to(z.dtype).view(-1, *[1] * (z.dim() - 2))
    margin = torch.where(positive, z, -z).clamp_(min=-SURE, max=SURE)
    small = torch.exp(margin.abs().neg_())  # exp(-|margin|), in (0, 1]
    tail = torch.log1p(small)
    fields = {"log_odds": margin}
    if "log_p" in rule.needs:
        fields["log_p"] = margin.clamp(max=0.0).sub_(tail)
    if "log_miss" in rule.needs:
        fields["log_miss"] = margin.clamp(min=0.0).neg_().sub_(tail)
    leaves = [name for name in rule.needs if name in fields]
    with torch.set_grad_enabled(wanted):
        if wanted:
            fields = {name: value.detach().requires_grad_(name in leaves) for name, value in fields.items()}
        cost = rule.cost(Evidence(**fields, positive=positive, kept=kept), state)
        if not wanted:
            return cost, None
        inputs = [fields[name] for name in leaves]
        found = (
            torch.autograd.grad(cost, inputs, torch.ones_like(cost), allow_unused=True)
            if cost.requires_grad
            else [None] * len(inputs)
        )
    return cost.detach(), _chain(dict(zip(leaves, found, strict=True)), margin, small, positive)


def _chain(found: Mapping[str, Tensor | None], margin: Tensor, small: Tensor, positive: Tensor) -> Tensor:
    """Derivative for the logits from those for the fields: d log_p = 1 - p, d log_miss = -p, d margin = sign."""
    odds, right, wrong = found.get("log_odds"), found.get("log_p"), found.get("log_miss")
    larger = torch.reciprocal(1.0 + small)  # of p and 1 - p
    smaller = small.mul_(larger)
    ahead = margin > 0
    slope = odds
    if right is not None:
        part = right * torch.where(ahead, smaller, larger)
        slope = part if slope is None else slope + part
    if wrong is not None:
        part = wrong * torch.where(ahead, larger, smaller)
        slope = part.neg_() if slope is None else slope - part
    if slope is None:
        return torch.zeros_like(margin)
    return torch.where(positive, slope, -slope)


def _soft_block(
    z: Tensor, target: Tensor, kept: Tensor | None, rule: Rule, state: State, wanted: bool
) -> tuple[Tensor, Tensor | None]:
    with torch.set_grad_enabled(wanted):
        leaf = z.detach().requires_grad_(wanted)
        cost = sigmoid_cost(leaf, target, kept, rule, state)
        if not wanted:
            return cost, None
        slope = torch.autograd.grad(cost, leaf, torch.ones_like(cost))[0]
    return cost.detach(), slope
