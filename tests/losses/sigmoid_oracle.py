"""Sigmoid losses in 400 digits: costs of a present and of an absent label as functions of the logit.

A formula is given the probability p of the label, q = 1 - p (each to all digits, also where it is 1e-4343), and the
logit z. Derivatives are central differences with a step of 1e-40; the digits carry them down to 1e-340.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mpmath
import torch

mpf, log, exp = mpmath.mpf, mpmath.log, mpmath.exp
DIGITS = 400
STEP = mpf(2) ** -133  # about 1e-40

LOGITS = [0.0] + [
    sign * size for size in (1e-12, 1e-6, 0.5, 3.0, 20.0, 75.0, 90.0, 700.0, 1e3, 1e4) for sign in (1, -1)
]
BOUNDS = {torch.float64: 690, torch.float32: 75, torch.bfloat16: 75, torch.float16: 5}


@dataclass(frozen=True)
class Point:
    """A logit and what follows from it."""

    z: mpf
    p: mpf
    q: mpf
    bound: int  # where exponentials turn into their tangent

    @property
    def log_p(self):
        return mpmath.log1p(-self.q) if self.z > 0 else log(self.p)

    @property
    def log_q(self):
        return mpmath.log1p(-self.p) if self.z < 0 else log(self.q)

    def flipped(self) -> Point:
        return Point(-self.z, self.q, self.p, self.bound)


def point(z, bound: int) -> Point:
    return Point(z, 1 / (1 + exp(-z)), 1 / (1 + exp(z)), bound)


Formula = Callable[[Point], mpf]


def values(formula: Formula, z: float, dtype: torch.dtype) -> tuple[mpf, mpf]:
    """Cost and derivative at the logit as `dtype` holds it."""
    with mpmath.workdps(DIGITS):
        at = mpf(torch.tensor(z, dtype=torch.float64).to(dtype).double().item())
        bound = BOUNDS[dtype]
        slope = (formula(point(at + STEP, bound)) - formula(point(at - STEP, bound))) / (2 * STEP)
        return formula(point(at, bound)), slope


def tensors(present: Formula, absent: Formula, logits: list[float], dtype: torch.dtype, label: float):
    """Costs and derivatives of label * present + (1 - label) * absent, float64."""
    costs, slopes = [], []
    for z in logits:
        found = [(mpf(label), values(present, z, dtype))] if label else []
        found += [(1 - mpf(label), values(absent, z, dtype))] if label != 1 else []
        costs.append(float(mpmath.fsum(share * one[0] for share, one in found)))
        slopes.append(float(mpmath.fsum(share * one[1] for share, one in found)))
    return torch.tensor(costs, dtype=torch.float64), torch.tensor(slopes, dtype=torch.float64)


# What float32 and float64 owe: relative, absolute.
VALUES = {torch.float64: (1e-9, 1e-300), torch.float32: (1e-5, 1e-12)}
GRADIENTS = {torch.float64: (1e-7, 1e-300), torch.float32: (1e-5, 1e-12)}


def agree(found, right, tolerance, what: str, *, times: float = 1.0) -> None:
    """Every entry within its tolerance, none NaN or infinite where the truth is finite."""
    relative, absolute = tolerance
    found, right = found.detach().double().reshape(-1), right.reshape(-1)
    allowed = times * relative * right.abs() + absolute
    wrong = ~((found - right).abs() <= allowed)
    assert not bool(wrong.any()), (what, wrong.nonzero().flatten().tolist(), found[wrong][:5], right[wrong][:5])


def costs_and_gradient(loss, logits: list[float], dtype: torch.dtype, label: float):
    """Unreduced costs of one column of labels, and their gradient."""
    z = torch.tensor(logits, dtype=torch.float64).to(dtype).requires_grad_()
    target = torch.full_like(z, label) if label not in (0.0, 1.0) else torch.full(z.shape, int(label))
    cost = loss(z, target)
    (gradient,) = torch.autograd.grad(cost.sum(), z)
    return cost, gradient
