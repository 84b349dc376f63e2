"""One factor and one shift for each class: softmax(w z + b)."""

from __future__ import annotations

from typing import Any, Self

import torch

from ..registry import register_calibrator
from ._calibrator import Calibrator
from ._maps import LogitMap, Scale
from ._scaling_fit import fit_vector


@register_calibrator(
    "vector_scaling",
    aliases=("VecS", "vector"),
    role="repair",
    preserves_accuracy=False,
    heads=("softmax",),
    weights=True,
    formula="softmax(w * z + b)",
)
class VectorScaling(Calibrator):
    """One factor and one shift for each class: softmax(w z + b), element by element.

    Plain maximum likelihood by Newton's method to a gradient of norm 1e-8 or less. A common
    shift of all logits changes no probability, so b sums to zero. Fitted: `weights_` (K,), `bias_` (K,),
    `gradient_norm_`.

    >>> import numpy as np
    >>> logits, labels = np.array([[2.0, 0.0]] * 4 + [[0.0, 1.0]] * 4), np.array([0, 0, 0, 1, 0, 0, 1, 1])
    >>> fitted = VectorScaling().fit(logits, labels)
    >>> fitted.predict_proba(logits)[[0, 4]].round(6).tolist()
    [[0.75, 0.25], [0.5, 0.5]]

    Reference: Guo et al., On Calibration of Modern Neural Networks, ICML 2017.
    """

    _state = ("weights_", "bias_", "gradient_norm_")
    _soft_labels = True

    def __init__(self) -> None:
        pass

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit on logits (n, K) and labels, or on Predictions."""
        rows = self._read(X, y, sample_weight)
        self.weights_, self.bias_, self.gradient_norm_ = fit_vector(rows, "VectorScaling")
        return self

    def _build(self) -> torch.nn.Module:
        return LogitMap(Scale(self.weights_, self.bias_))
