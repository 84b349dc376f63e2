"""Platt scaling of the top confidence, then averages over equal-mass bins."""

from __future__ import annotations

import warnings
from typing import Any, Self

import torch
from torch import nn

from ..binning import split_edges
from ..predictions import Predictions
from ..registry import register_calibrator
from ._calibrator import Calibrator
from ._columns import top_label
from ._histogram_binning import apply_curve, bin_means
from ._logistic import fit_line
from ._maps import ProbabilityMap, Steps, TopConfidence
from ._platt_scaling import Line
from ._settings import whole


@register_calibrator(
    "scaling_binning",
    aliases=("SB", "PlattBinning"),
    role="repair",
    preserves_accuracy=False,
    heads=("softmax",),
    weights=False,
    formula="mean of sigmoid(a o + b) in its bin, o the log-odds of the top confidence",
)
class ScalingBinning(Calibrator):
    """The top confidence through a fitted sigmoid, then the mean of that in its bin; the rest is spread in proportion.

    g = sigmoid(a o + b), with o the log-odds of the top confidence, is fitted to correctness by maximum likelihood.
    Bins of g have equal mass: edges midway between neighbouring chunks of the sorted g, cut as `numpy.array_split`
    does; equal edges are merged; a bin holds (lower, upper]. There is no weighted form. Fitted: `slope_`,
    `intercept_`, `edges_` (B + 1,), `values_` (B,), `counts_` (B,).

    Reference: Kumar, Liang and Ma, Verified Uncertainty Calibration, NeurIPS 2019.
    """

    _state = ("slope_", "intercept_", "edges_", "values_", "counts_")
    _top_label = True

    def __init__(self, *, bins: int = 15) -> None:
        self.bins = bins

    def fit(self, X: Any, y: Any = None, **unsupported: Any) -> Self:
        """Fit on logits (n, K) and labels, or on Predictions."""
        bins = whole(self.bins, "bins", "ScalingBinning")
        rows = self._read(X, y, unsupported=unsupported)
        top = top_label(rows)
        kept = torch.isfinite(top.odds)
        odds, correct = top.odds[kept].cpu(), top.correct[kept].cpu()
        self.slope_, self.intercept_ = _line(odds, correct)
        scaled = torch.sigmoid(self.slope_ * odds + self.intercept_)
        edges = split_edges(scaled, bins)
        self.edges_ = edges.numpy()
        self.values_, self.counts_ = bin_means(edges, scaled, scaled)
        return self

    def _build(self) -> torch.nn.Module:
        curve = nn.Sequential(
            Line(self.slope_, self.intercept_), nn.Sigmoid(), Steps([self.edges_[1:-1]], [self.values_])
        )
        return ProbabilityMap(TopConfidence(curve, of_log_odds=True))

    def _apply_confidence(self, predictions: Predictions) -> Predictions:
        return apply_curve(self._build(), predictions, of_log_odds=True)


def _line(odds: torch.Tensor, correct: torch.Tensor) -> tuple[float, float]:
    """(slope, intercept); the identity where the rows are all right or all wrong."""
    if len(correct) == 0 or float(correct.min()) == float(correct.max()):
        warnings.warn(
            "ScalingBinning: the fitted rows are all right or all wrong, so there is no sigmoid to fit; the "
            "confidence is binned as it is.",
            UserWarning,
            stacklevel=3,
        )
        return 1.0, 0.0
    slope, intercept, found = fit_line(odds, correct, None)
    if found.endless:
        warnings.warn(
            "ScalingBinning: confidence separates right from wrong rows without error, so the likelihood rises "
            "without end as the sigmoid steepens; it was stopped near its limit.",
            UserWarning,
            stacklevel=3,
        )
    return slope, intercept
