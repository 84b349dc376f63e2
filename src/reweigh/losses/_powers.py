"""Powers of 1 - p and of e for sigmoid heads, which price as many decisions as there are logits."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ..evidence import Evidence
from ..rules import Cost, State, log_loss, weighted

LOG2_E = 1.4426950408889634
WHOLE = (1.0, 2.0, 3.0, 4.0)


def power_of_e(exponent: Tensor) -> Tensor:
    """e^x. A power of two takes PyTorch a fraction of the time on many CPUs; the product rounds by half a place of x."""
    return torch.exp2(exponent * LOG2_E)


def minus_log_sigmoid(x: Tensor) -> Tensor:
    """-log sigmoid(x), right at both ends: log(1 + e^-x), which is -x below -50 to the last digit of float64."""
    return softplus(-x, threshold=50.0)


def miss_power(evidence: Evidence, state: State, *, gamma: float) -> Tensor:
    """(1 - p)^gamma from log(1 - p): right and differentiable where p rounds to 1, for any gamma."""
    return power_of_e(gamma * evidence.log_miss)


def product(base: Tensor, times: int) -> Tensor:
    """base^times for a small whole number: faster than a power, and exact to a place or two."""
    if times == 1:
        return base
    half = product(base, times // 2)
    return half * half if times % 2 == 0 else half * half * base


def miss_product(evidence: Evidence, state: State, *, times: int) -> Tensor:
    """(1 - p)^times."""
    return product(evidence.complement, times)


def miss_weight(gamma: float) -> Cost:
    """(1 - p)^gamma by the fastest form there is; gamma above 0."""
    return partial(miss_product, times=int(gamma)) if gamma in WHOLE else partial(miss_power, gamma=gamma)


def focal_cost(gamma: float, *, detached: bool = False) -> Cost:
    """(1 - p)^gamma (-log p)."""
    return log_loss if gamma == 0.0 else weighted(miss_weight(gamma), log_loss, detached=detached)


def focal_needs(gamma: float) -> tuple[str, ...]:
    """What `focal_cost` reads."""
    return ("log_p",) if gamma == 0.0 else ("log_p", "log_miss")
