"""An independent form of every softmax loss: formulas of probabilities in 220 digits, gradients by differences.

Nothing of the package takes part. A formula is a function `cost(p, y, held)` of the row's probabilities (mpmath
numbers, masked classes left out) and the true class's place among them; `held` are the same probabilities at the
point where the gradient is taken, for what a method holds constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import mpmath
import torch

DIGITS = 220  # at a gap of 307 log p is 1e-134
STEP = mpmath.mpf(10) ** -70  # central differences

Formula = Callable[[list, int, list], mpmath.mpf]


def probabilities(row: Sequence[mpmath.mpf]) -> list:
    """softmax of finite numbers."""
    highest = max(row)
    parts = [mpmath.exp(value - highest) for value in row]
    total = mpmath.fsum(parts)
    return [part / total for part in parts]


def cost_and_gradient(
    row: Sequence[float], target: int, formula: Formula, *, scale=None, offset=None, places: Sequence[int] | None = None
) -> tuple[float, dict[int, float]]:
    """Cost of one row and the derivative at each place (all unmasked ones by default; masked ones are 0)."""
    with mpmath.workdps(DIGITS):
        scale = [1] * len(row) if scale is None else scale
        offset = [0] * len(row) if offset is None else offset
        open_classes = [k for k, value in enumerate(row) if value > -math.inf and offset[k] > -math.inf]
        y = open_classes.index(target)
        logits = [mpmath.mpf(row[k]) for k in open_classes]
        weights = [(mpmath.mpf(scale[k]), mpmath.mpf(offset[k])) for k in open_classes]
        if len(open_classes) == 1:
            return 0.0, dict.fromkeys(range(len(row)), 0.0)

        def shares(values: list) -> list:
            return probabilities([value * s + o for value, (s, o) in zip(values, weights, strict=True)])

        held = shares(logits)
        slopes = dict.fromkeys(range(len(row)) if places is None else places, 0.0)
        for place, k in enumerate(open_classes):
            if k in slopes:
                ends = []
                for step in (STEP, -STEP):
                    moved = list(logits)
                    moved[place] += step
                    ends.append(formula(shares(moved), y, held))
                slopes[k] = float((ends[0] - ends[1]) / (2 * STEP))
        return float(formula(held, y, held)), slopes


GAPS = (0.0, 1e-12, 1e-7, 1e-3, 0.31, 1.07, 2.9, 9.3, 17.3, 29.0, 39.0, 71.0, 113.0, 307.0, 811.0, 1e4)


def grid(classes: int, *, seed: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """True class ahead of or behind its rival by every gap, with the others level, near or far; one in five masked."""
    generator = torch.Generator().manual_seed(seed)
    rows, targets = [], []
    for gap in GAPS:
        for sign in (1.0, -1.0):
            depth = (0.0, 3.0, 100.0, 0.5)[len(rows) % 4 if gap else 2]
            row = -depth * torch.rand(classes, generator=generator, dtype=torch.float64)
            true, rival = torch.randperm(classes, generator=generator)[:2].tolist()
            row[rival], row[true] = 0.0, sign * gap
            if classes > 3 and len(rows) % 5 == 4:
                row[next(k for k in range(classes) if k not in (true, rival))] = -math.inf
            rows.append(row + (512.0 if len(rows) % 7 == 6 and gap > 1e-3 else 0.0))
            targets.append(true)
    return torch.stack(rows), torch.tensor(targets)


def wide_rows(classes: int, rows: int = 6, *, seed: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """A few rows of many classes, ties among them, from calm to certain."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.logspace(-1, 2, rows, dtype=torch.float64).unsqueeze(1)
    z = torch.randn(rows, classes, generator=generator, dtype=torch.float64) * spread
    z[:, 5] = z[:, 6]
    z[0] = 0.0
    return z, torch.randint(classes, (rows,), generator=generator)


def agree(
    loss: torch.nn.Module,
    logits: torch.Tensor,
    target: torch.Tensor,
    formula: Formula,
    *,
    dtype: torch.dtype = torch.float64,
    gamma: float = 5.0,
    scale=None,
    offset=None,
    places: int | None = None,
) -> None:
    """Assert that unreduced costs and gradients of a `reduction="none"` loss are the formula's.

    float64: 1e-9 and 1e-7; float32: 1e-5 (times gamma / 5) and 1e-12. Entries of a gradient are differences of terms
    of the row's size, so each may be off by the rounding of the largest.
    """
    z = logits.to(dtype).detach().requires_grad_()
    cost = loss(z, target)
    assert cost.dtype == dtype
    (found,) = torch.autograd.grad(cost.sum(), z)
    wide = dtype == torch.float64
    growth = max(1.0, gamma / 5.0)
    value_off, slope_off = (1e-9, 1e-7) if wide else (1e-5 * growth, 1e-5 * growth)
    least, noise = (1e-180, 1e-13) if wide else (1e-12, 1e-6 * growth)
    undifferenced = max(least, 1e-120)  # smaller than what differences in 220 digits resolve
    for i, y in enumerate(target.tolist()):
        row = logits[i].to(dtype).double().tolist()
        chosen = None
        if places is not None:
            chosen = [y, *torch.randperm(len(row), generator=torch.Generator().manual_seed(i))[:places].tolist()]
        value, slopes = cost_and_gradient(row, y, formula, scale=scale, offset=offset, places=chosen)
        what = f"{loss}: row {i}, {row if len(row) < 9 else ''}, target {y}"
        assert abs(cost[i].item() - value) <= value_off * abs(value) + least, (what, cost[i].item(), value)
        largest = max(abs(slope) for slope in slopes.values())
        for k, slope in slopes.items():
            off = abs(found[i, k].item() - slope)
            assert off <= slope_off * abs(slope) + noise * largest + undifferenced, (what, k, found[i, k].item(), slope)
