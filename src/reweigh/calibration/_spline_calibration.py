"""The top confidence plus the slope of a natural cubic spline through the cumulative gap."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch

from ..errors import need
from ..predictions import Predictions
from ..registry import register_calibrator
from ._calibrator import Calibrator
from ._columns import top_label
from ._histogram_binning import apply_curve
from ._maps import Lines, ProbabilityMap, TopConfidence
from ._settings import whole


@register_calibrator(
    "spline_calibration",
    aliases=("Spline",),
    role="repair",
    preserves_accuracy=False,
    heads=("softmax",),
    weights=False,
    formula="c + h'(t(c)), h a natural cubic spline through the cumulative mean of correct - c",
)
class SplineCalibration(Calibrator):
    """The top confidence c becomes c + h'(t), h a spline through the cumulative gap; the rest is spread in proportion.

    With the rows sorted by c, h_i = (1 / n) sum over j <= i of (correct_j - c_j) at t_i = i / (n - 1) is fitted by
    least squares with a natural cubic spline on `knots` uniform knots. New confidences are interpolated linearly
    between the fitted rows, take the end values outside, and are clipped to [0, 1]. Rows of equal c share their mean
    correctness, so that the order of rows does not matter. `monotone=True` replaces the values by their isotonic
    regression. There is no weighted form. Fitted: `points_`, `heights_`.

    Reference: Gupta et al., Calibration of Neural Networks using Splines, ICLR 2021.
    """

    _state = ("points_", "heights_")
    _top_label = True

    def __init__(self, *, knots: int = 6, monotone: bool = False) -> None:
        self.knots = knots
        self.monotone = monotone

    def fit(self, X: Any, y: Any = None, **unsupported: Any) -> Self:
        """Fit on logits (n, K) and labels, or on Predictions."""
        knots = whole(self.knots, "knots", "SplineCalibration", lowest=3)
        rows = self._read(X, y, unsupported=unsupported)
        top = top_label(rows)
        self.points_, self.heights_ = spline_curve(
            top.confidence.cpu().numpy(), top.correct.cpu().numpy(), knots, bool(self.monotone)
        )
        return self

    def _build(self) -> torch.nn.Module:
        return ProbabilityMap(TopConfidence(Lines([self.points_], [self.heights_])))

    def _apply_confidence(self, predictions: Predictions) -> Predictions:
        return apply_curve(self._build(), predictions, of_log_odds=False)


def spline_curve(confidence: np.ndarray, correct: np.ndarray, knots: int, monotone: bool) -> tuple[np.ndarray, ...]:
    """(distinct confidences, recalibrated values)."""
    points, place, count = np.unique(confidence, return_inverse=True, return_counts=True)
    share = np.bincount(place, weights=correct) / count
    gap = np.repeat(share - points, count)  # sorted by confidence
    t = np.linspace(0, 1, len(gap))
    slope = natural_spline_slope(t, np.cumsum(gap) / len(gap), knots)
    value = points + np.bincount(np.repeat(np.arange(len(points)), count), weights=slope) / count
    if monotone:
        isotonic = need("sklearn.isotonic", "calibration", "fitting SplineCalibration")
        value = isotonic.isotonic_regression(value, sample_weight=count.astype(float))
    return points, np.clip(value, 0.0, 1.0)


def natural_spline_slope(t: np.ndarray, height: np.ndarray, knots: int) -> np.ndarray:
    """(n,) slope at t of the natural cubic spline on uniform knots that fits the heights best."""
    interpolate = need("scipy.interpolate", "calibration", "fitting SplineCalibration")
    # column k is the spline that is 1 at knot k and 0 at the others
    basis = interpolate.CubicSpline(np.linspace(0, 1, knots), np.eye(knots), bc_type="natural")
    at_knots = np.linalg.lstsq(basis(t), height, rcond=None)[0]
    return basis(t, 1) @ at_knots
