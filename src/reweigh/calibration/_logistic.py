"""Logistic regression on one, two or three numbers a row, by Newton's method to rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ._maps import softplus
from ._newton import Minimum, minimize

Tensor = torch.Tensor


@dataclass(frozen=True)
class Logistic:
    """Mean cost of sigmoid(x point) against labels in [0, 1]; x is (n, f)."""

    x: Tensor
    label: Tensor
    weight: Tensor  # (n,), sum 1

    def evaluate(self, point: Tensor) -> tuple[float, Tensor]:
        z = self.x @ point
        cost = softplus(z) - self.label * z
        return float(cost @ self.weight), self.x.T @ ((torch.sigmoid(z) - self.label) * self.weight)

    def hessian(self, point: Tensor) -> Tensor:
        z = self.x @ point
        return (self.x * (torch.sigmoid(z) * torch.sigmoid(-z) * self.weight).unsqueeze(1)).T @ self.x

    def curvature(self, point: Tensor) -> Callable[[Tensor], Tensor]:
        hessian = self.hessian(point)
        return lambda vector: hessian @ vector

    def preconditioner(self, point: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda vector: vector

    def endless(self, point: Tensor, cost: float) -> bool:
        """Once every row is on its side and the mean cost is below 1e-6."""
        return cost < 1e-6 and bool((((self.x @ point) > 0) == (self.label > 0.5)).all())


def fit_line(odds: Tensor, label: Tensor, weight: Tensor | None) -> tuple[float, float, Minimum]:
    """(slope, intercept, minimum) of sigmoid(slope odds + intercept) by maximum likelihood.

    The odds are centred and scaled while fitting; the minimum's gradient is in those units.
    """
    mass = torch.full_like(label, 1 / len(label)) if weight is None else weight / weight.sum()
    center = float(odds @ mass)
    spread = float(((odds - center) ** 2 @ mass) ** 0.5) or 1.0
    x = torch.stack([(odds - center) / spread, torch.ones_like(odds)], 1)
    start = torch.tensor([spread, center], dtype=torch.float64)  # the identity
    found = minimize(Logistic(x, label, mass), start, enough=1e-9 / max(1.0, spread, abs(center)))
    slope = float(found.point[0]) / spread
    return slope, float(found.point[1]) - slope * center, found
