"""The smooth calibration error (smECE): a kernel-smoothed gap, at the bandwidth that equals the error itself."""

from __future__ import annotations

import torch

from ..predictions import Predictions
from ..registry import register_metric
from ._traits import need_some_rows, traits

Tensor = torch.Tensor
CELLS = 4096  # cells of [0, 1] that the gaps are shared out to, linearly
STEPS = 40  # halvings of the bandwidth: 2^-40


def smoothed(gaps: Tensor, bandwidth: float) -> Tensor:
    """Mean of |smoothed gap| over [0, 1], for gaps on CELLS + 1 equally spaced points.

    The Gaussian is reflected at 0 and 1. On the even, periodic continuation of the gaps, reflection is plain
    convolution, so one cosine spectrum, damped by the Gaussian's own, serves every bandwidth.
    """
    length = 2 * (len(gaps) - 1)
    spread = gaps.clone()
    spread[1:-1] /= 2  # an inner point stands for itself and its mirror image; the ends are their own
    around = torch.cat([spread, spread[1:-1].flip(0)])
    frequency = torch.arange(length // 2 + 1, dtype=torch.float64, device=gaps.device)
    # one period is [0, 2): frequency k has k pi radians per unit
    damping = torch.exp(-0.5 * (torch.pi * frequency * bandwidth) ** 2)
    density = torch.fft.irfft(torch.fft.rfft(around) * damping, n=length)[: len(gaps)].abs()
    return density[1:-1].sum() * 2 + density[0] + density[-1]


def _on_grid(confidence: Tensor, gap: Tensor) -> Tensor:
    """(CELLS + 1,) each gap shared between the two neighbouring points, in the measure that makes sums integrals."""
    place = confidence.clamp(0, 1) * CELLS
    below = place.floor().clamp(max=CELLS - 1)
    share = place - below
    index = below.long()
    grid = torch.bincount(index, weights=gap * (1 - share), minlength=CELLS + 1)
    return grid + torch.bincount(index + 1, weights=gap * share, minlength=CELLS + 1)


@register_metric(
    "smooth_calibration_error", aliases=("smECE",), direction="lower", range=(0, 1), heads=("softmax", "sigmoid")
)
@traits(instead="expected_calibration_error")
def smooth_calibration_error(predictions: Predictions, *, bandwidth: float | None = None) -> float:
    """Integral of |mean of (a - c) K(t, c)| over t in [0, 1], K a Gaussian reflected at both ends.

    Without a bandwidth it is the fixed point: the bandwidth s at which the error at s equals s, which makes the
    measure consistent and continuous in the confidences (Blasiok and Nakkiran 2023). There are no bins to choose.

    >>> from reweigh import Predictions
    >>> table = Predictions(confidence=[0.5] * 100, correct=[True] * 60 + [False] * 40)
    >>> round(smooth_calibration_error(table), 3)
    0.1
    """
    need_some_rows(predictions, "the smooth calibration error")
    confidence = predictions.top_confidence
    weights = predictions.decision_weights
    gap = predictions.correctness - confidence
    gap = gap / len(gap) if weights is None else gap * weights / weights.sum()
    grid = _on_grid(confidence, gap)
    if bandwidth is not None:
        return float(smoothed(grid, bandwidth))
    low, high = 0.0, 1.0  # the error falls with the bandwidth, so its excess over the bandwidth changes sign once
    if float(smoothed(grid, high)) >= high:
        return high
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if float(smoothed(grid, middle)) > middle else (low, middle)
    return float(smoothed(grid, high))
