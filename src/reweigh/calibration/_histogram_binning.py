"""The share of right rows in equal-mass bins of the top confidence."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch

from ..binning import split_edges
from ..predictions import Predictions
from ..registry import register_calibrator
from ._calibrator import Calibrator
from ._columns import top_label
from ._maps import ProbabilityMap, Steps, TopConfidence
from ._settings import whole


@register_calibrator(
    "histogram_binning",
    aliases=("HB", "histogram"),
    role="repair",
    preserves_accuracy=False,
    heads=("softmax",),
    weights=False,
    formula="share of right rows in the bin of the top confidence",
)
class HistogramBinning(Calibrator):
    """The top confidence becomes the share of right rows in its bin; the rest is spread in proportion.

    Bins have equal mass: their edges lie midway between neighbouring chunks of the sorted confidences, cut as
    `numpy.array_split` does; equal edges are merged; a bin holds (lower, upper]. A bin without rows says its middle.
    There is no weighted form. Fitted: `edges_` (B + 1,), `values_` (B,), `counts_` (B,).

    Reference: Zadrozny and Elkan, Obtaining calibrated probability estimates, ICML 2001; edges as in Kumar, Liang
    and Ma, Verified Uncertainty Calibration, NeurIPS 2019.
    """

    _state = ("edges_", "values_", "counts_")
    _top_label = True

    def __init__(self, *, bins: int = 15) -> None:
        self.bins = bins

    def fit(self, X: Any, y: Any = None, **unsupported: Any) -> Self:
        """Fit on logits (n, K) and labels, or on Predictions."""
        bins = whole(self.bins, "bins", "HistogramBinning")
        rows = self._read(X, y, unsupported=unsupported)
        top = top_label(rows)
        confidence = top.confidence.cpu()
        edges = split_edges(confidence, bins)
        self.edges_ = edges.numpy()
        self.values_, self.counts_ = bin_means(edges, confidence, top.correct.cpu())
        return self

    def _build(self) -> torch.nn.Module:
        return ProbabilityMap(TopConfidence(Steps([self.edges_[1:-1]], [self.values_])))

    def _apply_confidence(self, predictions: Predictions) -> Predictions:
        return apply_curve(self._build(), predictions, of_log_odds=False)


def bin_means(edges: torch.Tensor, values: torch.Tensor, what: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """(mean of `what` in each bin (lower, upper], counts); the middle of a bin without rows."""
    index = torch.searchsorted(edges[1:-1].contiguous(), values.contiguous())
    count = torch.bincount(index, minlength=len(edges) - 1)
    total = torch.bincount(index, weights=what, minlength=len(edges) - 1)
    middle = (edges[1:] + edges[:-1]) / 2
    return torch.where(count > 0, total / count.clamp(min=1), middle).numpy(), count.numpy()


def apply_curve(module: torch.nn.Module, predictions: Predictions, *, of_log_odds: bool) -> Predictions:
    """Confidences alone through the curve of the top confidence; correctness stays."""
    from ._columns import odds_of_confidence

    confidence = predictions.scores.double()
    with torch.no_grad():
        curve = module.to(confidence.device).piece.curve  # type: ignore[union-attr]
        column = (odds_of_confidence(confidence) if of_log_odds else confidence).unsqueeze(1)
        values: Any = curve(column).squeeze(1)  # type: ignore[operator]
    if not isinstance(predictions.confidence, torch.Tensor):
        values = values.cpu().numpy()
    return predictions.with_scores(confidence=values, correct=predictions.correct)
