"""Minimising a smooth convex cost: Newton steps with a line search, exact for few parameters, by conjugate
gradients for many."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

Tensor = torch.Tensor
# up to this many parameters the Hessian is formed and factored
DENSE = 600


class Problem(Protocol):
    """A convex cost of a flat float64 vector."""

    def evaluate(self, point: Tensor) -> tuple[float, Tensor]:
        """Cost and gradient (p,)."""
        ...

    def hessian(self, point: Tensor) -> Tensor:
        """(p, p) second derivatives."""
        ...

    def curvature(self, point: Tensor) -> Callable[[Tensor], Tensor]:
        """The product of the Hessian at the point with a vector."""
        ...


@dataclass(frozen=True)
class Minimum:
    """The best point, its cost, and the Euclidean norm of its gradient."""

    point: Tensor
    cost: float
    gradient_norm: float
    steps: int


def minimize(problem: Problem, start: Tensor, *, tolerance: float = 1e-10, most_steps: int = 200) -> Minimum:
    """Newton's method from `start` until the gradient's norm is at most `tolerance` or nothing improves any more."""
    point = start.clone()
    cost, gradient = problem.evaluate(point)
    norm = float(gradient.norm())
    for step in range(most_steps):
        if norm <= tolerance:
            return Minimum(point, cost, norm, step)
        direction = _direction(problem, point, gradient)
        moved = _line_search(problem, point, cost, gradient, direction)
        if moved is None:
            moved = _line_search(problem, point, cost, gradient, -gradient / max(1.0, norm))
        if moved is None:
            return Minimum(point, cost, norm, step)
        point, cost, gradient = moved
        norm = float(gradient.norm())
    return Minimum(point, cost, norm, most_steps)


def _direction(problem: Problem, point: Tensor, gradient: Tensor) -> Tensor:
    if len(point) > DENSE:
        return _conjugate_gradients(problem.curvature(point), gradient)
    hessian = problem.hessian(point)
    # a whisper of a ridge: directions without curvature (a common shift of all logits) have no gradient either
    ridge = 1e-13 * float(hessian.diagonal().abs().max()) + 1e-300
    for _ in range(12):
        factor, failed = torch.linalg.cholesky_ex(hessian + ridge * torch.eye(len(point), dtype=hessian.dtype))
        if not int(failed):
            return -torch.cholesky_solve(gradient.unsqueeze(1), factor).squeeze(1)
        ridge *= 30
    return -gradient


def _conjugate_gradients(product: Callable[[Tensor], Tensor], gradient: Tensor) -> Tensor:
    """A direction d with H d near -g: exact enough for superlinear convergence."""
    norm = float(gradient.norm())
    enough = min(0.5, math.sqrt(norm)) * norm
    direction = torch.zeros_like(gradient)
    residual = -gradient
    search = residual.clone()
    square = float(residual @ residual)
    for _ in range(min(len(gradient), 250)):
        curved = product(search)
        bend = float(search @ curved)
        if bend <= 1e-16 * float(search @ search):
            break
        length = square / bend
        direction = direction + length * search
        residual = residual - length * curved
        fresh = float(residual @ residual)
        if math.sqrt(fresh) <= enough:
            break
        search = residual + (fresh / square) * search
        square = fresh
    return direction if bool(direction.any()) else -gradient


def _line_search(
    problem: Problem, point: Tensor, cost: float, gradient: Tensor, direction: Tensor
) -> tuple[Tensor, float, Tensor] | None:
    """The first of the steps 1, 1/2, 1/4 ... that lowers the cost enough; None if none does."""
    slope = float(gradient @ direction)
    norm = float(gradient.norm())
    if not slope < 0:
        return None
    length = 1.0
    # rounding of the cost: below it only the gradient can tell better from worse
    noise = 1e-13 * (1 + abs(cost))
    for _ in range(40):
        there = point + length * direction
        new_cost, new_gradient = problem.evaluate(there)
        if math.isfinite(new_cost):
            if new_cost <= cost + 1e-4 * length * slope and cost - new_cost > noise:
                return there, new_cost, new_gradient
            if new_cost <= cost + noise and float(new_gradient.norm()) < 0.9 * norm:
                return there, new_cost, new_gradient
        length *= 0.5
    return None
