"""A full linear map of the logits: softmax(W z + b)."""

from __future__ import annotations

from typing import Any, Self

import torch

from ..registry import register_calibrator
from ._calibrator import Calibrator
from ._maps import Affine, LogitMap
from ._scaling_fit import fit_matrix


@register_calibrator(
    "matrix_scaling",
    aliases=("MatS", "matrix"),
    role="repair",
    preserves_accuracy=False,
    heads=("softmax",),
    weights=True,
    formula="softmax(W z + b)",
)
class MatrixScaling(Calibrator):
    """A full linear map of the logits: softmax(W z + b).

    Plain maximum likelihood by Newton's method to a gradient of norm 1e-8 or less; K^2 + K
    parameters want many rows (`StructuredMatrixScaling` is the regularised form). One row added to all rows of W, or
    one number to b, changes no probability: W - I has columns that sum to zero, and so has b. Masked classes add
    nothing to the others. Fitted: `weights_` (K, K), `bias_` (K,), `gradient_norm_`.

    Reference: Guo et al., On Calibration of Modern Neural Networks, ICML 2017.
    """

    _state = ("weights_", "bias_", "gradient_norm_")
    _soft_labels = True

    def __init__(self) -> None:
        pass

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit on logits (n, K) and labels, or on Predictions."""
        rows = self._read(X, y, sample_weight)
        self.weights_, self.bias_, self.gradient_norm_ = fit_matrix(rows, "MatrixScaling")
        return self

    def _build(self) -> torch.nn.Module:
        return LogitMap(Affine(self.weights_, self.bias_))
