"""p_m = max(p - m, 0), the probability of a present label less a margin, and log(1 - p_m): what asymmetric losses add.

p - m cancels where p is near m, so its value is taken from the distance of the logits,

    p - m = (1 - m) p (1 - e^-(z - logit m)),

and its derivative, which is that of p, from p.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

SMALL_MARGIN = 0.01  # below it, log1p(-p_m) loses digits where p is near 1, in float32


class Margin(NamedTuple):
    """A margin, and its logit in two float32 parts."""

    m: float
    logit: float
    remainder: float


def margin_of(m: float) -> Margin:
    """m in (0, 1)."""
    logit = math.log(m) - math.log1p(-m)
    leading = float(torch.tensor(logit, dtype=torch.float32))
    return Margin(m, leading, logit - leading)


def shifted(z: Tensor, p: Tensor, margin: Margin) -> tuple[Tensor, Tensor]:
    """p_m, and 1 where it is above 0, else 0; z the logit and p the probability of the label."""
    beyond = (z.detach() - margin.logit - margin.remainder).clamp(min=0.0)
    above = torch.sign(beyond)
    value = torch.expm1(-beyond) * p.detach() * (margin.m - 1.0)
    return value + above * (p - p.detach()), above


def log_rest(p_m: Tensor, log_absent: Tensor, margin: Margin) -> Tensor:
    """log(1 - p_m)."""
    return torch.log1p(-p_m)


def log_rest_of_small(p_m: Tensor, log_absent: Tensor, margin: Margin) -> Tensor:
    """The same for a small margin: from (1 - p) + m where p is large. `log_absent` is log(1 - p)."""
    large = p_m > 0.5
    from_rest = torch.log(torch.exp(torch.where(large, log_absent, 0.0)) + margin.m)
    return torch.where(large, from_rest, torch.log1p(-torch.where(large, 0.0, p_m)))


def log_rest_form(margin: Margin) -> Callable[[Tensor, Tensor, Margin], Tensor]:
    """The form that is right for a margin."""
    return log_rest_of_small if margin.m < SMALL_MARGIN else log_rest
