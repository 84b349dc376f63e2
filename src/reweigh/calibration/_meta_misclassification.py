"""Meta-calibration under a miscoverage constraint (MetaMis): flag what is likely wrong, temper the rest."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
import torch

from ..errors import bad_input
from ..registry import register_calibrator
from ._calibrator import Calibrator
from ._grid_error import top_correct
from ._maps import ProbabilityMap
from ._meta_fit import Meta, base_temperature, entropy, entropy_of_rows
from ._rows import Rows
from ._settings import draw, row_numbers, share


@register_calibrator(
    "meta_misclassification",
    aliases=("MetaMis",),
    role="decision",
    preserves_accuracy=False,
    heads=("softmax",),
    weights=False,
    formula="softmax(z / T) where the entropy is below a threshold, else uniform",
)
class MetaMisclassification(Calibrator):
    """softmax(z / T) where the entropy is below a threshold, else uniform: at most a share alpha of right rows is lost.

    Of the right rows, min(500, a tenth) are set apart; the threshold is the 1 - alpha quantile of their entropies
    (nats; the higher order statistic). T is the maximum-likelihood temperature of all other rows below it.
    `threshold_rows` in `fit` names the rows set apart, all right; else they are drawn by `random_state`: a seed, a
    NumPy or torch generator, None for fresh entropy. Rejected rows are uniform, so that their predicted class is 0:
    report `abstains` beside the accuracy. There is no weighted form. Fitted: `threshold_`, `temperature_`,
    `threshold_rows_`.

    Reference: Ma and Blaschko, Meta-Cal: Well-controlled Post-hoc Calibration by Ranking, ICML 2021.
    """

    _state = ("threshold_", "temperature_", "threshold_rows_")

    def __init__(self, *, alpha: float = 0.05, random_state: Any = None) -> None:
        self.alpha = alpha
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, threshold_rows: Any = None, **unsupported: Any) -> Self:
        """Fit on logits (n, K) and labels, or on Predictions."""
        alpha = share(self.alpha, "alpha", "MetaMisclassification")
        rows = self._read(X, y, unsupported=unsupported)
        right = (top_correct(rows) > 0).cpu().numpy()
        if not right.any():
            raise bad_input(
                "fitting MetaMisclassification",
                came="rows whose predicted class is wrong in every one",
                expected="right rows to take a threshold from",
                mend="Check the order of the classes and of the rows.",
            )
        apart = self._rows_apart(rows, right, threshold_rows)
        if len(apart) * alpha < 1:
            warnings.warn(
                f"MetaMisclassification: the threshold comes from {len(apart)} row(s), too few for a quantile at "
                f"{1 - alpha:g}: it is the largest entropy among them. About {int(np.ceil(10 / alpha))} right rows or "
                "more are wanted.",
                UserWarning,
                stacklevel=2,
            )
        uncertain = entropy_of_rows(rows)
        self.threshold_ = float(np.quantile(uncertain.cpu().numpy()[apart], 1 - alpha, method="higher"))
        rest = torch.ones(rows.count, dtype=torch.bool)
        rest[apart] = False
        below = rest.to(uncertain.device) & (uncertain < self.threshold_)
        self.temperature_ = base_temperature(rows, below, "MetaMisclassification")
        self.threshold_rows_ = apart
        return self

    def _rows_apart(self, rows: Rows, right: np.ndarray, given: Any) -> np.ndarray:
        doing = "fitting MetaMisclassification"
        if given is None:
            candidates = np.flatnonzero(right)
            return candidates[draw(self.random_state, len(candidates), max(1, min(500, len(candidates) // 10)))]
        apart = row_numbers(given, rows.count, "threshold_rows", doing)
        if not right[apart].all():
            raise bad_input(
                doing,
                came=f"row {int(apart[~right[apart]][0])} in threshold_rows, whose predicted class is wrong",
                expected="rows that are classified correctly",
            )
        return apart

    def abstains(self, X: Any) -> np.ndarray:
        """(n,) whether a row is rejected: its entropy is not below the threshold."""
        return (entropy(self._to_use(X).double()) >= self.threshold_).cpu().numpy()

    def _build(self) -> torch.nn.Module:
        return ProbabilityMap(Meta(self.temperature_, self.threshold_))
