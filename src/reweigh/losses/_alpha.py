"""One explicit factor per class on any softmax rule: `alpha`, never renormalised."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from ..evidence import Evidence
from ..rules import Cost, Rule, State, vector


def _times_alpha(evidence: Evidence, state: State, *, base: Cost) -> Tensor:
    return state["alpha"][evidence.target].to(evidence.log_p.dtype) * base(evidence, state)


def _with_alpha_state(*, alpha: Tensor, init: Any) -> dict[str, Tensor]:
    return {**init(), "alpha": alpha}


def with_alpha(rule: Rule, alpha: Any) -> Rule:
    """The rule with its cost multiplied by alpha of the true class; None changes nothing."""
    if alpha is None:
        return rule
    factors = vector(rule.name, "alpha", alpha)
    return replace(
        rule,
        cost=partial(_times_alpha, base=rule.cost),
        init=partial(_with_alpha_state, alpha=factors, init=rule.init),
        num_classes=len(factors),
    )
