"""The plain form: ordinary differentiable operations, one call of the rule's cost for each way labels may be."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..evidence import sigmoid_evidence
from ..rules import Rule, State


def sigmoid_cost(z: Tensor, target: Tensor, kept: Tensor | None, rule: Rule, state: State) -> Tensor:
    """The unreduced cost by ordinary differentiable operations; labels boolean, integer or soft."""
    offset = None if rule.offset is None else rule.offset(state)
    if not target.is_floating_point():
        return rule.cost(sigmoid_evidence(z, target == 1, needs=rule.needs, offset=offset, kept=kept), state)
    share = target if kept is None else torch.where(kept, target, 0)
    present = torch.ones((), dtype=torch.bool, device=z.device).expand(z.shape)
    if rule.soft == "own":
        evidence = sigmoid_evidence(z, present, needs=rule.soft_needs, offset=offset, kept=kept)
        return rule.soft_cost(replace(evidence, soft_target=share.to(evidence.log_odds.dtype)), state)
    if rule.soft == "refused":
        return rule.cost(sigmoid_evidence(z, share > 0.5, needs=rule.needs, offset=offset, kept=kept), state)
    if_present = rule.cost(sigmoid_evidence(z, present, needs=rule.needs, offset=offset, kept=kept), state)
    if_absent = rule.cost(sigmoid_evidence(z, ~present, needs=rule.needs, offset=offset, kept=kept), state)
    share = share.to(if_present.dtype)
    return share * if_present + (1 - share) * if_absent
