"""Intervals known in closed form."""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def normal_quantile(level: float) -> float:
    """The z for which a normal variable lies in [-z, z] with probability `level`."""
    return float(torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64)))


def wilson(right: Tensor, count: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """Wilson's score interval of a proportion; the whole of [0, 1] where nothing was counted."""
    z = normal_quantile(level)
    right, count = right.double(), count.double()
    share = torch.where(count > 0, right / count.clamp(min=1e-300), torch.full_like(count, 0.5))
    spread = z * torch.sqrt(count * share * (1 - share) + z * z / 4)
    low, high = ((count * share + z * z / 2 + sign * spread) / (count + z * z) for sign in (-1, 1))
    low = torch.where(share == 0, torch.zeros_like(low), low)
    high = torch.where(share == 1, torch.ones_like(high), high)
    empty = count <= 0
    return low.clamp(0, 1).masked_fill(empty, 0.0), high.clamp(0, 1).masked_fill(empty, 1.0)
