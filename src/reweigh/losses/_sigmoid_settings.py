"""Settings that losses of sigmoid heads share: what targets are, weights of present and absent labels."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..errors import bad_input
from ..evidence import Evidence
from ..rules import Cost, Rule, State, choice, number, vector

TARGETS = {"labels": False, "index": True}
LARGEST = 1e30  # a setting that multiplies costs of up to 1e4 leaves them finite in float32


def takes_indices(loss: str, targets: Any) -> bool:
    """What `targets` means: "labels" of the logits' shape, or the "index" of the one class that is present."""
    return choice(loss, "targets", targets, TARGETS)


def finite(loss: str, name: str, value: Any, *, low: float = -LARGEST, above: bool = False) -> float:
    """A number setting that is not infinite."""
    return number(loss, name, value, low=low, high=LARGEST, above=above)


def label_weight(loss: str, name: str, value: Any) -> Tensor:
    """One number for all classes, (), or one a class, (K,); float64, at least 0."""
    try:
        found = torch.as_tensor(value, dtype=torch.float64).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        found = None
    if found is not None and found.numel() == 1:
        return torch.tensor(finite(loss, name, found.item(), low=0.0), dtype=torch.float64)
    return vector(loss, name, value)


def with_label_weights(rule: Rule, *, positive: Tensor, negative: Tensor) -> Rule:
    """The rule with its cost multiplied by one weight where the label is present, by another where it is absent."""
    state = {"positive_weight": positive, "negative_weight": negative}
    sizes = {len(weight) for weight in state.values() if weight.dim()}
    if len(sizes) > 1:
        raise bad_input(
            f"{rule.name}(negative_weight=...)",
            came=f"{len(negative)} weights beside {len(positive)} in positive_weight",
            expected="as many",
        )
    return replace(
        rule,
        cost=partial(_weighted_by_label, base=rule.cost),
        init=partial(dict, state),
        num_classes=sizes.pop() if sizes else None,
    )


def _weighted_by_label(evidence: Evidence, state: State, *, base: Cost) -> Tensor:
    cost = base(evidence, state)
    weights = [evidence.per_class(state[name]).to(cost.dtype) for name in ("positive_weight", "negative_weight")]
    return evidence.by_label(present=weights[0], absent=weights[1]) * cost
