"""A rising step-and-line curve on probabilities, by isotonic regression."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch

from ..errors import need
from ..registry import register_calibrator
from ._calibrator import Calibrator
from ._columns import Columns
from ._maps import Lines, NormalizedColumns, ProbabilityMap
from ._settings import one_of

# what keeps a pooled curve strictly rising
TIE_BREAKER = 1e-9


@register_calibrator(
    "isotonic_calibration",
    aliases=("isotonic", "IR", "IROvA", "IRM"),
    role="repair",
    preserves_accuracy=False,  # mode="pooled" does
    heads=("softmax", "sigmoid"),
    weights=True,
    formula="isotonic(p) for each class or for all, rows normalised",
)
class IsotonicCalibration(Calibrator):
    """Isotonic regression of the labels on the probabilities, linear between its points, flat beyond them.

    `mode="one_vs_rest"` fits one curve a class; `mode="pooled"` one curve for all classes together, plus 1e-9 p so
    that it rises strictly and the order of the classes stays. Under softmax rows are scaled to sum to one; a row
    whose curves all say zero keeps its uncalibrated probabilities. Fitted: `points_` and `heights_`, one curve a
    class (one in all when pooled).

    Reference: Zadrozny and Elkan, Transforming classifier scores, KDD 2002; pooled: Zhang, Kailkhura and Han,
    Mix-n-Match, ICML 2020.
    """

    _state = ("points_", "heights_")
    _heads = ("softmax", "sigmoid")

    def __init__(self, *, mode: str = "one_vs_rest") -> None:
        self.mode = mode

    @property
    def preserves_accuracy(self) -> bool:
        """With one strictly rising curve for all classes."""
        return self.mode == "pooled"

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit on logits (n, K) and labels, or on Predictions."""
        one_of(self.mode, "mode", "IsotonicCalibration", ("one_vs_rest", "pooled"))
        rows = self._read(X, y, sample_weight)
        columns = Columns.of(rows)
        parts = []
        for k in range(rows.classes):
            kept = columns.kept(k)
            weight = torch.ones(int(kept.sum())) if rows.weight is None else rows.weight[kept].cpu()
            p, label = columns.probability(k)[kept], columns.label(k)[kept]
            parts.append(tuple(values.double().cpu().numpy() for values in (p, label, weight)))
        if self.mode == "pooled":
            points, heights = isotonic_curve(*(np.concatenate(column) for column in zip(*parts, strict=True)))
            points, heights = (
                np.append(np.append(0.0, points), 1.0),
                np.append(np.append(heights[0], heights), heights[-1]),
            )
            curves = [(points, heights + TIE_BREAKER * points)]
        else:
            curves = [isotonic_curve(*part) for part in parts]
        self.points_ = [points for points, _ in curves]
        self.heights_ = [heights for _, heights in curves]
        return self

    def _build(self) -> torch.nn.Module:
        return ProbabilityMap(NormalizedColumns(Lines(self.points_, self.heights_), self.head_))


def isotonic_curve(p: np.ndarray, label: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(points, heights) of the weighted isotonic regression; equal probabilities count as one point."""
    if len(p) == 0:
        return np.array([0.0]), np.array([0.0])
    isotonic = need("sklearn.isotonic", "calibration", "fitting IsotonicCalibration")
    points, place = np.unique(p, return_inverse=True)
    mass = np.bincount(place, weights=weight)
    mean = np.bincount(place, weights=weight * label) / mass
    heights = isotonic.isotonic_regression(mean, sample_weight=mass, y_min=0.0, y_max=1.0)
    # of a run of equal heights only the ends matter
    inner = np.zeros(len(points), bool)
    inner[1:-1] = (heights[1:-1] == heights[:-2]) & (heights[1:-1] == heights[2:])
    return points[~inner], heights[~inner]
