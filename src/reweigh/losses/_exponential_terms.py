"""The costs 1/p - 1 of the exponential family, kept finite where the exponential is not.

"linear": beyond a bound the tangent continues, so a hopelessly wrong sample keeps a gradient.
"clamp": the author's program: p clamped to [1e-8, 1 - 1e-8] in every term, and 1e-8 once more below the bar.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..evidence import Evidence
from ..rules import Cost, State

# Where the tangent takes over, so that value and slope stay finite at |z| = 1e4 in the type of the gradient.
BOUNDS = {torch.float64: 690.0, torch.float32: 75.0}
CLAMP = 1e-8
CLAMPED_ODDS = math.log((1.0 - CLAMP) / CLAMP)


def exponential_linear(evidence: Evidence, state: State) -> Tensor:
    """1/p - 1 = e^(-log-odds), continued by its tangent."""
    distance = -evidence.log_odds
    bound = BOUNDS[distance.dtype]
    inside = torch.exp(distance.clamp(max=bound))
    return inside + math.exp(bound) * (distance - bound).clamp(min=0.0)


def clamped(log_odds: Tensor) -> tuple[Tensor, Tensor]:
    """p and 1 - p of the true label, both clamped to [1e-8, 1 - 1e-8]; no gradient beyond."""
    odds = log_odds.double().clamp(-CLAMPED_ODDS, CLAMPED_ODDS)
    return torch.sigmoid(odds), torch.sigmoid(-odds)


def exponential_clamped(evidence: Evidence, state: State) -> Tensor:
    """1/(p + 1e-8) - 1 at the clamped p."""
    p, _ = clamped(evidence.log_odds)
    return 1.0 / (p + CLAMP) - 1.0


def focal_linear(evidence: Evidence, state: State, *, gamma: float) -> Tensor:
    """(1 - p)^gamma (-log p): never saturates, so nothing to continue."""
    return torch.exp(gamma * evidence.log_miss) * -evidence.log_p


def focal_clamped(evidence: Evidence, state: State, *, gamma: float) -> Tensor:
    """(1 - p)^gamma (-log p) at the clamped p."""
    p, miss = clamped(evidence.log_odds)
    return miss**gamma * -torch.log(p)


EXPONENTIAL: dict[str, Cost] = {"linear": exponential_linear, "clamp": exponential_clamped}
FOCAL = {"linear": focal_linear, "clamp": focal_clamped}
