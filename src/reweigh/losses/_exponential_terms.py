"""The terms of the exponential family, 1/p - 1 beside (1 - p)^gamma (-log p), at both ends of their range.

"linear": the exponential continues by its tangent before it leaves the range of the gradient's type, so a
hopelessly wrong sample keeps a finite cost and a gradient.
"clamp": the author's program: p clamped to [1e-8, 1 - 1e-8] in every term, the logarithmic ones too, no gradient
beyond, and 1e-8 added once more below the bar of the exponential.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import hardtanh, threshold

from ..evidence import SURE, Evidence
from ..rules import Cost, State
from ._powers import focal_cost, focal_needs, minus_log_sigmoid, power_of_e

# The exponent at which the tangent takes over, so that value and slope stay finite at |z| = 1e4.
BOUNDS = {torch.float64: 690.0, torch.float32: 75.0, torch.bfloat16: 75.0, torch.float16: 5.0}
STEEPEST_HALF = 10.0  # beyond e^10 the clamped form has no gradient for float16 logits
CLAMP = 1e-8
CLAMPED_ODDS = math.log((1.0 - CLAMP) / CLAMP)


def bound_of(evidence: Evidence) -> float:
    """Where exponentials turn into their tangent: the type of the gradient decides."""
    return BOUNDS[evidence.gradient_type or evidence.log_odds.dtype]


def up_to(behind: Tensor, bound: float) -> Tensor:
    """The smaller of both; its derivative is 0 from the bound on. A clamp whose derivative is vectorised."""
    return hardtanh(behind, -SURE, bound)


def beyond(behind: Tensor, bound: float) -> Tensor:
    """How far beyond the bound, else 0; its derivative is 1 from the bound on, the bound itself included."""
    return threshold(behind - bound, -1e-20, 0.0)


def exponential_linear(evidence: Evidence, state: State) -> Tensor:
    """1/p - 1 = e^(-log-odds), continued by its tangent."""
    behind, bound = -evidence.log_odds, bound_of(evidence)
    if evidence.largest < bound:
        return power_of_e(behind)
    return power_of_e(up_to(behind, bound)) + math.exp(bound) * beyond(behind, bound)


def clamped_odds(evidence: Evidence) -> Tensor:
    """Log-odds of the clamped p, in float64 as in the author's program; no gradient beyond."""
    return hardtanh(evidence.log_odds.double(), -CLAMPED_ODDS, CLAMPED_ODDS)


def exponential_clamped(evidence: Evidence, state: State) -> Tensor:
    """1/(p + 1e-8) - 1 at the clamped p, as (1 - p - 1e-8) / (p + 1e-8), which does not cancel."""
    odds = clamped_odds(evidence)
    if evidence.gradient_type == torch.float16:  # which cannot hold the author's gradients of up to 5e7
        felt = hardtanh(odds, -STEEPEST_HALF, STEEPEST_HALF)
        odds = odds.detach() + (felt - felt.detach())
    return threshold(torch.sigmoid(-odds) - CLAMP, 0.0, 0.0) / (torch.sigmoid(odds) + CLAMP)


def focal_clamped(evidence: Evidence, state: State, *, gamma: float) -> Tensor:
    """(1 - p)^gamma (-log p) at the clamped p."""
    odds = clamped_odds(evidence)
    return torch.exp(-gamma * minus_log_sigmoid(-odds)) * minus_log_sigmoid(odds)


@dataclass(frozen=True)
class Terms:
    """Both terms in one way of saturating, and what they read."""

    exponential: Cost
    focal: Callable[[float], Cost]
    focal_needs: Callable[[float], tuple[str, ...]]


def _focal_clamped(gamma: float) -> Cost:
    return partial(focal_clamped, gamma=gamma)


def _only_odds(gamma: float) -> tuple[str, ...]:
    return ("log_odds",)


SATURATION = {
    "linear": Terms(exponential_linear, focal_cost, focal_needs),
    "clamp": Terms(exponential_clamped, _focal_clamped, _only_odds),
}


def needs_of(*parts: tuple[str, ...]) -> tuple[str, ...]:
    """Fields that several terms read, each once."""
    return tuple(dict.fromkeys(name for part in parts for name in part))
