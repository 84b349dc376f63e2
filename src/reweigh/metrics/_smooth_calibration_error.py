"""The smooth calibration error (smECE): a kernel-smoothed gap, at the bandwidth that equals the error itself."""

from __future__ import annotations

import torch

from ..errors import bad_input
from ..predictions import Predictions
from ..registry import register_metric
from ._traits import need_some_rows, traits

Tensor = torch.Tensor
CELLS = 4096  # cells of [0, 1] that the gaps are shared out to, linearly
STEPS = 60
CLOSE = 1e-13


def spectrum(gaps: Tensor) -> tuple[Tensor, Tensor]:
    """Fourier coefficients of the even continuation of the gaps to a period of length 2, and their frequencies squared.

    The Gaussian is reflected at 0 and 1. On the even, periodic continuation reflection is plain convolution, so one
    spectrum, damped by the Gaussian's own, serves every bandwidth.
    """
    spread = gaps.clone()
    spread[1:-1] /= 2  # an inner point stands for itself and its mirror image; the ends are their own
    waves = torch.fft.rfft(torch.cat([spread, spread[1:-1].flip(0)]))
    number = torch.arange(len(waves), dtype=torch.float64, device=gaps.device)
    return waves, (torch.pi * number) ** 2  # a period of length 2: wave k has k pi radians per unit


def smoothed(waves: Tensor, squares: Tensor, bandwidth: float) -> float:
    """Integral over [0, 1] of |smoothed gap|."""
    circle = torch.fft.irfft(waves * torch.exp(-0.5 * bandwidth**2 * squares), n=2 * (len(waves) - 1))
    return float(circle.abs().sum())


def fixed_point(waves: Tensor, squares: Tensor) -> float:
    """The error at the bandwidth that equals it: it falls with the bandwidth, so their difference changes sign once.

    Regula falsi with the stale end's value halved (Illinois), which stays bracketed and converges superlinearly.
    """
    low, high = 0.0, 1.0
    above, below = smoothed(waves, squares, low) - low, smoothed(waves, squares, high) - high
    if below >= 0:
        return high + below
    if above <= 0:
        return 0.0
    side, middle, gap = 0, low, above
    for _ in range(STEPS):
        middle = (low * below - high * above) / (below - above)
        gap = smoothed(waves, squares, middle) - middle
        if abs(gap) <= CLOSE:
            return middle + gap
        if gap > 0:
            low, above = middle, gap
            below, side = (below / 2 if side == 1 else below), 1
        else:
            high, below = middle, gap
            above, side = (above / 2 if side == -1 else above), -1
    return middle + gap


def _on_grid(confidence: Tensor, gap: Tensor) -> Tensor:
    """(CELLS + 1,) each gap shared between the two neighbouring points."""
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
    what = "the smooth calibration error"
    if bandwidth is not None and not 0 <= bandwidth < float("inf"):
        raise bad_input(
            f"computing {what}", came=f"bandwidth={bandwidth!r}", expected="a number of at least 0, or None"
        )
    need_some_rows(predictions, what)
    confidence = predictions.top_confidence
    weights = predictions.decision_weights
    gap = predictions.correctness - confidence
    gap = gap / len(gap) if weights is None else gap * weights / weights.sum()
    waves, squares = spectrum(_on_grid(confidence, gap))
    return fixed_point(waves, squares) if bandwidth is None else smoothed(waves, squares, bandwidth)
