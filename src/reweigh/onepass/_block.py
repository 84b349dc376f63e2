"""One block of labels: from logits to cost and derivative, while it is in the cache."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..evidence import SURE, Evidence
from ..rules import Rule, State
from ._plain import sigmoid_cost

BLOCK = 262_144  # elements at a time, in whole rows
LOG2_E = 1.4426950408889634
SWAPPED = {"log_p": "log_miss", "log_miss": "log_p", "miss": "p"}  # what it is of the opposite outcome


class Form(NamedTuple):
    """What all blocks of a call have in common, but for tensors: calls of one form repeat one recording."""

    rule: Rule
    names: tuple[str, ...]  # of the state's tensors
    dtype: torch.dtype  # of costs and derivative
    gradient_type: torch.dtype  # of the logits
    ignores: bool  # is there a `kept`?
    weighs: bool = False  # is there a weight?
    wanted: bool = False  # the derivative
    reduce: bool = False
    largest: float = math.inf  # no logit is farther from 0
    labels: str = "hard"  # of a block: "hard", "soft", "own" to the rule, or to be "halved" at 1/2

    def key(self) -> tuple:
        """Tells recordings of one loss apart."""
        return (id(self.rule), *self[1:])


class Block(NamedTuple):
    """The tensors of a block, as they go into a recording and come out of it."""

    z: Tensor
    target: Tensor
    kept: Tensor | None
    scale: Tensor | None
    factor: Tensor  # (): what a unit of cost counts
    state: State

    def tensors(self) -> list[Tensor]:
        """In order, without what is missing."""
        return [one for one in (*self[:5], *self.state.values()) if one is not None]

    @staticmethod
    def of(tensors: Sequence[Tensor], form: Form) -> Block:
        """The block whose tensors these are."""
        left = iter(tensors)
        z, target = next(left), next(left)
        kept = next(left) if form.ignores else None
        scale = next(left) if form.weighs else None
        return Block(z, target, kept, scale, next(left), dict(zip(form.names, left, strict=True)))


def rounded_up(largest: float) -> float:
    """To a power of two, so that calls on similar logits have one form."""
    return 2.0 ** math.ceil(math.log2(largest)) if 0 < largest < math.inf else largest


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
    if not target.is_floating_point() or is_hard(target, kept):
        return "hard"
    return {"own": "own", "refused": "halved"}.get(rule.soft, "soft")


def is_hard(target: Tensor, kept: Tensor | None) -> bool:
    """Is every floating-point label that counts 0 or 1? The quick way: y - y^2 is 0 there, above it between them."""
    target = target if kept is None else torch.where(kept, target, 0)
    return torch.addcmul(target, target, target, value=-1).sum().item() == 0.0


def priced(*tensors: Tensor, form: Form) -> tuple[Tensor, ...]:
    """Cost of a block, summed or not, and its derivative for the logits if it is wanted."""
    block = Block.of(tensors, form)
    if form.labels == "own":
        return _priced_by_soft_cost(block, form)
    label, behind = label_and_distance(block, form)
    with torch.set_grad_enabled(form.wanted):
        leaves, p, miss = _leaves(behind, form)
        cost = _cost(leaves, label, block, form)
    weighed = _weighed(cost.detach(), block.scale, form)
    if not form.wanted:
        return (weighed,)
    if not cost.requires_grad:
        return weighed, torch.zeros_like(behind)
    # What one unit of the outcome's log-odds counts: the derivative for z has the sign of the label.
    push = (label * 2.0 - 1.0) * block.factor if form.labels != "soft" else torch.ones_like(label) * block.factor
    push = push if block.scale is None else push * block.scale
    found = torch.autograd.grad(cost, list(leaves.values()), push.to(cost.dtype), allow_unused=True)
    return weighed, _chained(dict(zip(leaves, found, strict=True)), p, miss)


def label_and_distance(block: Block, form: Form) -> tuple[Tensor, Tensor]:
    """Labels as numbers, and how far each outcome is behind: minus its log-odds, -z where present, z where absent.

    Soft labels: as if all were present.
    """
    label, z = _as_number(block.target, form), block.z.to(form.dtype)
    if block.kept is not None:
        z, label = torch.where(block.kept, z, 0.0), torch.where(block.kept, label, 0.0)
    if form.rule.offset is not None:
        z = z + form.rule.offset(block.state).to(form.dtype).view(-1, *[1] * (z.dim() - 2))
    if form.largest > SURE:
        z = z.clamp(-SURE, SURE)
    return label, torch.addcmul(z, label, z, value=-2) if form.labels != "soft" else -z


def _as_number(target: Tensor, form: Form) -> Tensor:
    if target.is_floating_point() and form.labels != "halved":
        return target.to(form.dtype)
    positive = target > 0.5 if target.is_floating_point() else target == 1 if target.dtype != torch.bool else target
    return positive.view(torch.uint8).to(form.dtype)  # several times faster than from truth values


def _leaves(behind: Tensor, form: Form) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """The numbers that costs are made of, as leaves of the block's own graph; p and 1 - p."""
    names = {*form.rule.needs, "miss"}
    if form.labels == "soft":
        names |= {SWAPPED[name] for name in names if name in SWAPPED}
    numbers = {"log_odds": -behind, "miss": torch.sigmoid(behind)}  # steps that nothing needs are not repeated
    if {"log_p", "log_miss"} & names:
        tail = torch.log1p(torch.exp2(behind.abs() * -LOG2_E))  # log(1 + e^-|log-odds|)
        numbers["log_p"] = -(behind.clamp(min=0.0) + tail)
        numbers["log_miss"] = behind.clamp(max=0.0) - tail
    # The quicker of two ways
    p = torch.exp2(numbers["log_p"] * LOG2_E) if "log_p" in names else torch.sigmoid(-behind)
    leaves = {**numbers, "p": p}
    return {name: leaves[name].detach().requires_grad_(form.wanted) for name in sorted(names)}, p, numbers["miss"]


def _cost(leaves: dict[str, Tensor], label: Tensor, block: Block, form: Form) -> Tensor:
    rule = form.rule
    own = {name: leaves[name] for name in (*rule.needs, "miss")}

    def cost_of(numbers: dict[str, Tensor], labels: Tensor) -> Tensor:
        evidence = Evidence(
            **numbers, positive=labels.bool(), label=labels, kept=block.kept, gradient_type=form.gradient_type,
            largest=form.largest,
        )  # fmt: skip
        return rule.cost(evidence, block.state)

    if form.labels != "soft":
        return cost_of(own, label)
    # As if every label were present, and as if every label were absent: the same numbers, p and 1 - p exchanged.
    other = {name: leaves[SWAPPED[name]] if name in SWAPPED else -leaves[name] for name in own}
    present, absent = cost_of(own, torch.ones_like(label)), cost_of(other, torch.zeros_like(label))
    return torch.lerp(absent, present, label.to(absent.dtype))


def _weighed(cost: Tensor, scale: Tensor | None, form: Form) -> Tensor:
    cost = cost if scale is None else cost * scale
    return cost.sum() if form.reduce else cost.to(form.dtype)


def _chained(found: Mapping[str, Tensor | None], p: Tensor, miss: Tensor) -> Tensor:
    """Derivative for the log-odds: d log p = 1 - p, d log (1 - p) = -p, dp = p (1 - p)."""
    slope: Any = found.get("log_odds")
    for name, factor, sign in (("log_p", miss, 1), ("log_miss", p, -1), ("miss", p * miss, -1), ("p", p * miss, 1)):
        part = found.get(name)
        if part is not None and slope is None:
            slope = part * factor if sign > 0 else -part * factor
        elif part is not None:
            slope = torch.addcmul(slope, part, factor, value=sign)
    return torch.zeros_like(p) if slope is None else slope


def _priced_by_soft_cost(block: Block, form: Form) -> tuple[Tensor, ...]:
    with torch.set_grad_enabled(form.wanted):
        leaf = block.z.detach().to(form.dtype).requires_grad_(form.wanted)
        cost = sigmoid_cost(leaf, block.target, block.kept, form.rule, block.state)
    weighed = _weighed(cost.detach(), block.scale, form)
    if not form.wanted:
        return (weighed,)
    push = torch.ones_like(cost) * block.factor
    push = push if block.scale is None else push * block.scale
    return weighed, torch.autograd.grad(cost, leaf, push)[0]
