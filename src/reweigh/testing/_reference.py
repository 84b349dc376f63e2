"""The independent form the suite compares with: the rule's own cost, on the composite evidence, in float64, by loops.

Nothing of the module takes part: neither the fused kernels nor the one-pass form, the reductions or the weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ..evidence import Evidence, box_evidence, forced_rows, shifted, sigmoid_evidence, softmax_fields
from ..module import Loss
from ..rules import Cost, Rule, State


@dataclass(frozen=True)
class Priced:
    """Costs by definition: of rows, or of elements under a sigmoid head; with what multiplies and what divides them."""

    cost: Tensor  # float64, 0 where ignored
    factor: Tensor  # multiplies the cost
    share: Tensor  # what the decision adds to the denominator of "mean"

    def sum(self) -> Tensor:
        """One after the other, in float64."""
        total = self.cost.reshape(-1)[:0].sum()  # 0, and part of the graph
        for cost, factor in zip(self.cost.reshape(-1), self.factor.reshape(-1), strict=True):
            total = total + cost * factor
        return total

    def mean(self) -> Tensor:
        """The sum over what counts; 0 where nothing does."""
        number = sum(float(share) for share in self.share.reshape(-1))
        return self.sum() / (number if number > 0 else 1.0)

    def none(self) -> Tensor:
        """Every decision's."""
        return self.cost * self.factor


def priced(
    loss: Loss,
    logits: Tensor,
    target: Tensor,
    *,
    class_weight: Tensor | None = None,
    sample_weight: Tensor | None = None,
    ignore_index: int = -100,
    one_by_one: bool = False,
    jitter: float = 0.0,
    gradient_type: torch.dtype | None = None,
) -> Priced:
    """What the loss says about a batch, by definition. logits float64 (n, K), or any shape under a sigmoid head.

    `one_by_one` prices every row in a batch of its own; only for rules whose rows do not depend on each other.
    `jitter` moves every field of hard-label evidence by up to that share, as rounding does: what it changes much is
    a decision that a coarser type cannot take. `gradient_type` is the type of the logits that the loss was given:
    rules that grow without bounds look at it.
    """
    if one_by_one and len(logits) > 1:
        weights = [None] * len(logits) if sample_weight is None else sample_weight.split(1)
        parts = [
            priced(
                loss,
                z,
                y,
                class_weight=class_weight,
                sample_weight=w,
                ignore_index=ignore_index,
                gradient_type=gradient_type,
            )
            for z, y, w in zip(logits.split(1), target.split(1), weights, strict=True)
        ]
        return Priced(*(torch.cat([getattr(part, name) for part in parts]) for name in ("cost", "factor", "share")))
    rule = loss.rule
    if jitter or gradient_type is not None:
        rule = replace(rule, cost=partial(_retold, cost=rule.cost, share=jitter, gradient_type=gradient_type))
    state = {name: value.cpu() for name, value in loss.state().items()}
    if rule.class_weight is not None:
        own = rule.class_weight(state).double()
        class_weight = own if class_weight is None else own * class_weight
    if rule.head == "boxes":
        return _boxes(rule, state, logits, target, sample_weight)
    if rule.head == "sigmoid":
        return _sigmoid(rule, state, logits, target, class_weight, sample_weight, ignore_index)
    if target.is_floating_point():
        return _soft_softmax(rule, state, logits, target, class_weight, sample_weight)
    return _softmax(rule, state, logits, target, class_weight, sample_weight, ignore_index)


def _retold(evidence: Evidence, state: State, *, cost: Cost, share: float, gradient_type: torch.dtype | None) -> Tensor:
    """The cost of evidence that is a little different."""
    if gradient_type is not None and evidence.gradient_type is not None:
        evidence = replace(evidence, gradient_type=gradient_type)
    if not share:
        return cost(evidence, state)
    generator = torch.Generator().manual_seed(12)
    moved = {}
    for name, value in vars(evidence).items():
        if isinstance(value, Tensor) and value.is_floating_point() and name not in ("target", "class_weight"):
            off = 2 * torch.rand(value.shape, generator=generator, dtype=torch.float64) - 1
            moved[name] = torch.where(torch.isfinite(value), value * (1 + share * off), value)
    return cost(replace(evidence, **moved), state)


def _ones(cost: Tensor, weight: Tensor | None) -> Tensor:
    return torch.ones_like(cost).detach() if weight is None else weight.double().expand(cost.shape)


def softmax_cost(
    rule: Rule,
    state: State,
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor | None = None,
    kept: Tensor | None = None,
) -> tuple[Tensor, Evidence]:
    """cost(evidence) on the composite evidence, and the evidence. logits (n, K) float64, target (n,) legal indices."""
    scale = None if rule.scale is None else rule.scale(state)
    offset = None if rule.offset is None else rule.offset(state)
    z = logits if kept is None else torch.where(kept.unsqueeze(1), logits, 0.0)
    u = shifted(z, scale, offset)
    forced = forced_rows(u, target)
    fields = softmax_fields(u, target, rule.needs, class_weight if rule.weighs_classes else None)
    weight = None if class_weight is None else class_weight[target]
    evidence = Evidence(**fields, target=target, kept=kept, forced=forced, class_weight=weight)
    cost = rule.cost(evidence, state).double()
    return torch.where(forced, 0.0, cost), evidence


def _softmax(
    rule: Rule,
    state: State,
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    sample_weight: Tensor | None,
    ignore_index: int,
) -> Priced:
    kept = target != ignore_index
    legal = torch.where(kept, target, 0).long()
    cost, evidence = softmax_cost(rule, state, logits, legal, class_weight, kept)
    share = _ones(cost, None if class_weight is None else class_weight[legal])
    if rule.normalize_rows is not None:
        share = factor = share * rule.normalize_rows(evidence, state).double()
    else:
        factor = torch.ones_like(share) if rule.weighs_classes else share
    weight = _ones(cost, sample_weight)
    return Priced(torch.where(kept, cost, 0.0), factor * weight, torch.where(kept, share * weight, 0.0))


def _soft_softmax(
    rule: Rule,
    state: State,
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    sample_weight: Tensor | None,
) -> Priced:
    """Every class in turn the outcome, n K calls by definition; or the rule's own soft form."""
    target = target.double()
    weight = _ones(target[:, 0], sample_weight)
    if rule.soft == "own":
        scale = None if rule.scale is None else rule.scale(state)
        offset = None if rule.offset is None else rule.offset(state)
        u = shifted(logits, scale, offset)
        first = u.argmax(1)
        fields = softmax_fields(u, first, rule.soft_needs, class_weight if rule.weighs_classes else None)
        evidence = Evidence(**fields, target=first, soft_target=target)
        cost = torch.where(forced_rows(u, first), 0.0, rule.soft_cost(evidence, state).double())
        if class_weight is not None:
            cost = cost * (target * class_weight).sum(1)
        return Priced(cost, weight, weight)
    rows = []
    for z, shares in zip(logits.split(1), target, strict=True):
        row = z.new_zeros(1)
        for k, part in enumerate(shares):
            if part > 0:
                cost, _ = softmax_cost(rule, state, z, torch.tensor([k]), class_weight)
                once = 1.0 if class_weight is None or rule.weighs_classes else class_weight[k]
                row = row + part * once * cost
        rows.append(row)
    return Priced(torch.cat(rows), weight, weight)


def _sigmoid(
    rule: Rule,
    state: State,
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    sample_weight: Tensor | None,
    ignore_index: int,
) -> Priced:
    if rule.index_targets:
        kept = (target != ignore_index).unsqueeze(1).expand(logits.shape)
        legal = torch.where(target == ignore_index, 0, target).long()
        target = torch.zeros(logits.shape, dtype=torch.int64).scatter(1, legal.unsqueeze(1), 1)
    else:
        kept = target != ignore_index
    z = torch.where(kept, logits, 0.0)
    offset = None if rule.offset is None else rule.offset(state)
    cost = _sigmoid_cost(rule, state, z, torch.where(kept, target, 0), kept, offset)
    if rule.per_row:
        kept = kept.any(1)
    weight = _ones(cost, sample_weight)
    if class_weight is not None:
        weight = weight * class_weight.view(-1, *[1] * (logits.dim() - 2))
    return Priced(torch.where(kept, cost, 0.0), weight, kept.double())


def _sigmoid_cost(
    rule: Rule, state: State, z: Tensor, target: Tensor, kept: Tensor | None, offset: Tensor | None
) -> Tensor:
    def labelled(positive: Tensor, needs: tuple[str, ...]) -> Evidence:
        return sigmoid_evidence(z, positive, needs=needs, offset=offset, kept=kept)

    if not target.is_floating_point():
        return rule.cost(labelled(target == 1, rule.needs), state).double()
    present = torch.ones_like(z, dtype=torch.bool)
    if rule.soft == "own":
        evidence = labelled(present, rule.soft_needs)
        return rule.soft_cost(Evidence(**{**vars(evidence), "soft_target": target.double()}), state).double()
    if rule.soft == "refused":
        return rule.cost(labelled(target > 0.5, rule.needs), state).double()
    if_present = rule.cost(labelled(present, rule.needs), state).double()
    if_absent = rule.cost(labelled(~present, rule.needs), state).double()
    return target.double() * if_present + (1.0 - target.double()) * if_absent


def _boxes(rule: Rule, state: State, boxes: Tensor, target: Tensor, sample_weight: Tensor | None) -> Priced:
    evidence = box_evidence(boxes, target, needs=rule.needs)
    cost = rule.cost(evidence, state).double()
    weight = _ones(cost, sample_weight)
    if rule.normalize_rows is not None:
        weight = weight * rule.normalize_rows(evidence, state).double()
    return Priced(cost, weight, weight)
