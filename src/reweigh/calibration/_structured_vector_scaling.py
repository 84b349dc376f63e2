"""Vector scaling whose departure from one temperature is penalised (SVS)."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import nn

from ..registry import register_calibrator
from ._calibrator import Calibrator
from ._maps import LogitMap, Scale
from ._softmax_regression import Diagonal
from ._structured_fit import fit_structured, tempered_mixture


@register_calibrator(
    "structured_vector_scaling",
    aliases=("SVS",),
    role="repair",
    preserves_accuracy=False,
    heads=("softmax",),
    weights=True,
    formula="softmax((1 + v) * x + b), x = log((1 - e) softmax(z / T) + e / K), ridge on v and b",
)
class StructuredVectorScaling(Calibrator):
    """Vector scaling that departs from one temperature only as far as the rows support it (SVS).

    softmax((1 + v) x + b) with x = log((1 - e) softmax(z / T) + e / K), T the maximum-likelihood temperature and
    e = 1 / (n + 1), minimising

        mean cross-entropy + regularization (K / n) (sum of v^2 + sum of b^2).

    n is the number of rows (the sum of the weights). Fitted: `temperature_`, `smoothing_` (e), `weights_` (1 + v),
    `bias_`, `gradient_norm_`.

    Reference: Berta, Holzmüller, Jordan and Bach, Structured Matrix Scaling for Multi-Class Calibration, 2025
    (arXiv 2511.03685), with the ridge penalty and the unit strengths of its published implementation.
    """

    _state = ("temperature_", "smoothing_", "weights_", "bias_", "gradient_norm_")
    _soft_labels = True

    def __init__(self, *, regularization: float = 1.0) -> None:
        self.regularization = regularization

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit on logits (n, K) and labels, or on Predictions."""
        rows = self._read(X, y, sample_weight)
        found = fit_structured(rows, Diagonal(rows.classes), self.regularization, type(self).__name__)
        self.temperature_, self.smoothing_ = found.temperature, found.share
        self.weights_, self.bias_ = found.weight.numpy(), found.bias.numpy()
        self.gradient_norm_ = found.gradient_norm
        return self

    def _build(self) -> torch.nn.Module:
        base = tempered_mixture(self.temperature_, self.smoothing_)
        return LogitMap(nn.Sequential(base, Scale(self.weights_, self.bias_)))
