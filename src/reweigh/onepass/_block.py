"""One block of labels: from logits to cost and derivative, while it is in the cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ..evidence import SURE, Evidence
from ..rules import Rule, State
from ._plain import sigmoid_cost

BLOCK = 262_144  # elements at a time, in whole rows
SWAPPED = {"log_p": "log_miss", "log_miss": "log_p", "miss": "p"}  # what it is of the opposite outcome


class Form(NamedTuple):
    """What all blocks of a call have in common."""

    rule: Rule
    state: State
    dtype: torch.dtype  # of costs and derivative
    gradient_type: torch.dtype  # of the logits
    ignores: bool  # is there a `kept`?
    weighs: bool = False  # is there a weight?
    wanted: bool = False  # the derivative
    reduce: bool = False
    factor: float = 1.0
    labels: str = "hard"  # of a block: "hard", "soft", or "own" to the rule


def rows_in_block(z: Tensor) -> int:
    """Whole rows of about BLOCK elements."""
    return max(1, BLOCK // max(1, z[0].numel()))


def rows_of(value: Tensor | None, block: slice) -> Tensor | None:
    """A block's part of what is broadcast to the logits."""
    if value is None:
        return None
    return value[block] if value.dim() and value.shape[0] != 1 else value


def labels_of(target: Tensor, kept: Tensor | None, rule: Rule) -> str:
    """How a block is labelled: soft if any label is neither 0 nor 1."""
    if not target.is_floating_point() or rule.soft == "refused":
        return "hard"
    target = target if kept is None else torch.where(kept, target, 0)
    between = torch.addcmul(target, target, target, value=-1).sum().item()  # y - y^2
    return "hard" if between == 0.0 else "own" if rule.soft == "own" else "soft"


def priced(z: Tensor, target: Tensor, *rest: Tensor, form: Form) -> tuple[Tensor, ...]:
    """Cost of a block, summed or not, and its derivative for the logits if it is wanted."""
    kept = rest[0] if form.ignores else None
    scale = rest[-1] if form.weighs else None
    if form.labels == "own":
        return _priced_by_soft_cost(z, target, kept, scale, form)
    label, behind = label_and_distance(z, target, kept, form)
    p, miss = torch.sigmoid(-behind), torch.sigmoid(behind)
    with torch.set_grad_enabled(form.wanted):
        leaves = _leaves(behind, p, miss, form)
        cost = _cost(leaves, label, kept, form)
    weighed = _weighed(cost.detach(), scale, form)
    if not form.wanted:
        return (weighed,)
    if not cost.requires_grad:
        return weighed, torch.zeros_like(behind)
    # What one unit of the outcome's log-odds counts: the derivative for z has the sign of the label.
    push = (label - 0.5) * (2 * form.factor) if form.labels == "hard" else torch.full_like(label, form.factor)
    push = push if scale is None else push * scale
    found = torch.autograd.grad(cost, list(leaves.values()), push.to(cost.dtype), allow_unused=True)
    return weighed, _chained(dict(zip(leaves, found, strict=True)), p, miss)


def label_and_distance(z: Tensor, target: Tensor, kept: Tensor | None, form: Form) -> tuple[Tensor, Tensor]:
    """Labels as numbers, and how far each outcome is behind: minus its log-odds, -z where present, z where absent.

    Soft labels: as if all were present.
    """
    label = _as_number(target, form)
    z = z.to(form.dtype)
    if kept is not None:
        z, label = torch.where(kept, z, 0.0), torch.where(kept, label, 0.0)
    if form.rule.offset is not None:
        z = z + form.rule.offset(form.state).to(form.dtype).view(-1, *[1] * (z.dim() - 2))
    z = z.clamp(-SURE, SURE)
    return label, torch.addcmul(z, label, z, value=-2) if form.labels == "hard" else -z


def _as_number(target: Tensor, form: Form) -> Tensor:
    if target.is_floating_point() and form.rule.soft != "refused":
        return target.to(form.dtype)
    positive = target > 0.5 if target.is_floating_point() else target == 1 if target.dtype != torch.bool else target
    return positive.view(torch.uint8).to(form.dtype)  # several times faster than from truth values


def _leaves(behind: Tensor, p: Tensor, miss: Tensor, form: Form) -> dict[str, Tensor]:
    """The numbers that costs are made of, as leaves of the block's own graph."""
    names = {*form.rule.needs, "miss"}
    if form.labels == "soft":
        names |= {SWAPPED[name] for name in names if name in SWAPPED}
    numbers = {"miss": miss, "p": p, "log_odds": -behind}
    if {"log_p", "log_miss"} & names:
        tail = torch.log1p(-torch.minimum(p, miss))  # -log(1 + e^-|log-odds|)
        numbers["log_p"] = tail - behind.clamp(min=0.0)
        numbers["log_miss"] = tail + behind.clamp(max=0.0)
    return {name: numbers[name].detach().requires_grad_(form.wanted) for name in sorted(names)}


def _cost(leaves: dict[str, Tensor], label: Tensor, kept: Tensor | None, form: Form) -> Tensor:
    rule, state = form.rule, form.state
    own = {name: leaves[name] for name in (*rule.needs, "miss")}

    def known(numbers: dict[str, Tensor], labels: Tensor) -> Evidence:
        return Evidence(**numbers, positive=labels.bool(), label=labels, kept=kept, gradient_type=form.gradient_type)

    if form.labels == "hard":
        return rule.cost(known(own, label), state)
    # As if every label were present, and as if every label were absent: the same numbers, p and 1 - p exchanged.
    other = {name: leaves[SWAPPED[name]] if name in SWAPPED else -leaves[name] for name in own}
    present = rule.cost(known(own, torch.ones_like(label)), state)
    absent = rule.cost(known(other, torch.zeros_like(label)), state)
    return torch.lerp(absent, present, label.to(absent.dtype))


def _weighed(cost: Tensor, scale: Tensor | None, form: Form) -> Tensor:
    cost = cost if scale is None else cost * scale
    return cost.sum() if form.reduce else cost.to(form.dtype)


def _chained(found: Mapping[str, Tensor | None], p: Tensor, miss: Tensor) -> Tensor:
    """Derivative for the log-odds: d log p = 1 - p, d log (1 - p) = -p, dp = p (1 - p)."""
    slope = torch.zeros_like(p)
    for name, factor, sign in (("log_p", miss, 1), ("log_miss", p, -1), ("miss", p * miss, -1), ("p", p * miss, 1)):
        if found.get(name) is not None:
            slope = torch.addcmul(slope, found[name], factor, value=sign)
    return slope if found.get("log_odds") is None else slope + found["log_odds"]


def _priced_by_soft_cost(
    z: Tensor, target: Tensor, kept: Tensor | None, scale: Tensor | None, form: Form
) -> tuple[Tensor, ...]:
    with torch.set_grad_enabled(form.wanted):
        leaf = z.detach().to(form.dtype).requires_grad_(form.wanted)
        cost = sigmoid_cost(leaf, target, kept, form.rule, form.state)
    weighed = _weighed(cost.detach(), scale, form)
    if not form.wanted:
        return (weighed,)
    push = torch.full_like(cost, form.factor)
    push = push if scale is None else push * scale
    return weighed, torch.autograd.grad(cost, leaf, push)[0]
