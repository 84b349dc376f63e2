"""The inverse temperature that minimises a convex cost: Halley steps inside a shrinking bracket."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ._tempering import Moments

# A cubically convergent step of at most this size leaves about 1e-12 of relative error behind.
LAST_STEP = 1e-4
WIDEST = 1e12  # furthest from the start that a root is looked for


@dataclass(frozen=True)
class Root:
    """Where the derivative vanishes, and the curvature there in units of b^2."""

    inverse: float
    curvature: float
    found: bool


def find_root(moments: Callable[[float], Moments], start: float) -> Root:
    """The b > 0 at which the first derivative of a convex cost is zero.

    The bracket [low, high] has the sign change; a step that would leave it, or is no number, is replaced by its
    geometric middle, or by a factor of 8 while one end is still open.
    """
    low, high = 0.0, math.inf
    inverse = start
    for _ in range(200):
        at = moments(inverse)
        if at.first < 0:
            low = inverse
        else:
            high = inverse
        step = halley_step(at)
        if abs(step) <= LAST_STEP:
            return Root(inverse * (1 + step), at.second, True)
        proposed = inverse * (1 + step)
        if not (low < proposed < high) or not math.isfinite(proposed) or proposed > 64 * inverse:
            proposed = _middle(low, high, inverse)
        if high / max(low, 1e-320) - 1 < 1e-14:
            return Root(inverse, at.second, True)
        if not start / WIDEST < proposed < start * WIDEST:
            return Root(proposed, at.second, False)
        inverse = proposed
    return Root(inverse, at.second, True)


def halley_step(at: Moments) -> float:
    """Relative step of b towards the root, from the first three derivatives."""
    if at.second <= 0:
        return math.copysign(math.inf, -at.first) if at.first else 0.0
    newton = -at.first / at.second
    bend = 1 + 0.5 * newton * at.third / at.second
    return newton / bend if bend > 0.5 else newton


def _middle(low: float, high: float, inverse: float) -> float:
    if math.isinf(high):
        return inverse * 8
    if low == 0.0:
        return inverse / 8
    return math.sqrt(low * high)
