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

    def endless(self, point: Tensor, cost: float) -> bool:
        """Whether the point proves that the cost falls without end and it is as good as at its lower limit."""
        ...

    def hessian(self, point: Tensor) -> Tensor:
        """(p, p) second derivatives."""
        ...

    def curvature(self, point: Tensor) -> Callable[[Tensor], Tensor]:
        """The product of the Hessian at the point with a vector."""
        ...

    def preconditioner(self, point: Tensor) -> Callable[[Tensor], Tensor]:
        """The product of something near the inverse Hessian with a vector."""
        ...


@dataclass(frozen=True)
class Minimum:
    """The best point, its cost, the Euclidean norm of its gradient; `endless` where there is no finite optimum."""

    point: Tensor
    cost: float
    gradient_norm: float
    steps: int
    endless: bool = False


def minimize(problem: Problem, start: Tensor, *, enough: float = 1e-9, most_steps: int = 200) -> Minimum:
    """Newton's method from `start` until the gradient is zero to rounding.

    A gradient of norm `enough` ends it earlier where it no longer falls by a factor of ten a step, as it does when
    the cost has no finite optimum.
    """
    point = start.clone()
    cost, gradient = problem.evaluate(point)
    norm, before = float(gradient.norm()), math.inf
    for step in range(most_steps):
        if norm <= 1e-6 * enough or (norm <= enough and norm > 0.1 * before) or problem.endless(point, cost):
            return Minimum(point, cost, norm, step, problem.endless(point, cost))
        direction = _direction(problem, point, gradient)
        moved = _line_search(problem, point, cost, gradient, direction)
        if moved is None:
            moved = _line_search(problem, point, cost, gradient, -gradient / max(1.0, norm))
        if moved is None:
            return Minimum(point, cost, norm, step)
        point, cost, gradient = moved
        norm, before = float(gradient.norm()), norm
    return Minimum(point, cost, norm, most_steps)


def _direction(problem: Problem, point: Tensor, gradient: Tensor) -> Tensor:
    if len(point) > DENSE:
        return _conjugate_gradients(problem.curvature(point), problem.preconditioner(point), gradient)
    hessian = problem.hessian(point)
    # A ridge that fades with the gradient keeps convergence quadratic, and rounding from wandering along directions
    # that have neither curvature nor gradient (a common shift of all logits).
    ridge = 0.01 * float(gradient.norm()) + 1e-13 * float(hessian.diagonal().abs().max()) + 1e-300
    for _ in range(12):
        factor, failed = torch.linalg.cholesky_ex(hessian + ridge * torch.eye(len(point), dtype=hessian.dtype))
        if not int(failed):
            return -torch.cholesky_solve(gradient.unsqueeze(1), factor).squeeze(1)
        ridge *= 30
    return -gradient


def _conjugate_gradients(
    product: Callable[[Tensor], Tensor], near_inverse: Callable[[Tensor], Tensor], gradient: Tensor
) -> Tensor:
    """A direction d with H d near -g: exact enough for superlinear convergence."""
    norm = float(gradient.norm())
    enough = min(0.25, math.sqrt(norm)) * norm
    direction = torch.zeros_like(gradient)
    residual = -gradient
    search = near_inverse(residual)
    square = float(residual @ search)
    for _ in range(min(len(gradient), 500)):
        curved = product(search)
        bend = float(search @ curved)
        if bend <= 1e-16 * float(search @ search):
            break
        length = square / bend
        direction = direction + length * search
        residual = residual - length * curved
        if float(residual.norm()) <= enough:
            break
        pointing = near_inverse(residual)
        fresh = float(residual @ pointing)
        search = pointing + (fresh / square) * search
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
