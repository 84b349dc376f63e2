"""Meta-calibration under an accuracy constraint (MetaAcc): accept only what keeps a target accuracy."""

from __future__ import annotations

import itertools
import warnings
from typing import Any, Self

import numpy as np
import torch

from ..errors import bad_input, need
from ..registry import register_calibrator
from ._calibrator import Calibrator
from ._grid_error import top_correct
from ._maps import ProbabilityMap
from ._meta_fit import Meta, base_temperature, entropy, entropy_of_rows
from ._settings import draw, row_numbers, share

BINS = 20


@register_calibrator(
    "meta_accuracy",
    aliases=("MetaAcc",),
    role="decision",
    preserves_accuracy=False,
    heads=("softmax",),
    weights=False,
    formula="softmax(z / T) where the entropy is below a threshold, else uniform",
)
class MetaAccuracy(Calibrator):
    """softmax(z / T) where the entropy is below a threshold chosen for a target accuracy of what is accepted, else uniform.

    min(500, a tenth) of the rows are set apart and cut into 20 bins by the quantiles of their entropy (nats), each
    (lower, upper], so that the lowest row is in none. The running mean over bins of their accuracies (0 for an empty
    bin) and the bins' mean entropies are joined by a falling isotonic regression; the threshold is its entropy at
    `target`. T is the maximum-likelihood temperature of all other rows below it. `threshold_rows` in `fit` names the
    rows set apart; else they are drawn by `random_state`: a seed, a NumPy or torch generator, None for fresh
    entropy. A target that the running means do not span is an error; with fewer than 20 rows set apart, which say
    little, it is a warning, and every row is rejected (accepted, where the target lies below them). There is no
    weighted form. Fitted: `threshold_`, `temperature_`, `threshold_rows_`.

    Reference: Ma and Blaschko, Meta-Cal: Well-controlled Post-hoc Calibration by Ranking, ICML 2021.
    """

    _state = ("threshold_", "temperature_", "threshold_rows_")

    def __init__(self, target: float, *, random_state: Any = None) -> None:
        self.target = target
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, threshold_rows: Any = None, **unsupported: Any) -> Self:
        """Fit on logits (n, K) and labels, or on Predictions."""
        target = share(self.target, "target", "MetaAccuracy")
        rows = self._read(X, y, unsupported=unsupported)
        if threshold_rows is None:
            apart = draw(self.random_state, rows.count, max(1, min(500, rows.count // 10)))
        else:
            apart = row_numbers(threshold_rows, rows.count, "threshold_rows", "fitting MetaAccuracy")
        if len(apart) < BINS:
            warnings.warn(
                f"MetaAccuracy: the threshold comes from {len(apart)} row(s) in {BINS} bins; 200 fitted rows or more "
                "are wanted.",
                UserWarning,
                stacklevel=2,
            )
        uncertain = entropy_of_rows(rows)
        right = top_correct(rows).cpu().numpy()
        self.threshold_ = threshold_for(target, uncertain.cpu().numpy()[apart], right[apart])
        rest = torch.ones(rows.count, dtype=torch.bool)
        rest[apart] = False
        below = rest.to(uncertain.device) & (uncertain < self.threshold_)
        self.temperature_ = base_temperature(rows, below, "MetaAccuracy")
        self.threshold_rows_ = apart
        return self

    def abstains(self, X: Any) -> np.ndarray:
        """(n,) whether a row is rejected: its entropy is not below the threshold."""
        return (entropy(self._to_use(X).double()) >= self.threshold_).cpu().numpy()

    def _build(self) -> torch.nn.Module:
        return ProbabilityMap(Meta(self.temperature_, self.threshold_))


def threshold_for(target: float, uncertain: np.ndarray, right: np.ndarray) -> float:
    """The entropy at which the running accuracy falls to the target."""
    isotonic = need("sklearn.isotonic", "calibration", "fitting MetaAccuracy")
    edges = np.quantile(uncertain, np.linspace(0, 1, BINS + 1))
    accuracy, middle = np.zeros(BINS), np.zeros(BINS)
    for number, (low, high) in enumerate(itertools.pairwise(edges)):
        inside = (uncertain > low) & (uncertain <= high)
        if inside.any():
            accuracy[number], middle[number] = right[inside].mean(), uncertain[inside].mean()
    running = np.cumsum(accuracy) / np.arange(1, BINS + 1)
    if not running.min() <= target <= running.max():
        return out_of_reach(target, float(running.min()), float(running.max()), len(uncertain))
    curve = isotonic.IsotonicRegression(increasing=False).fit(running, middle)
    return float(curve.predict([target])[0])


def out_of_reach(target: float, lowest: float, highest: float, count: int) -> float:
    """The error for a target outside the running means; from few rows a warning and an infinite threshold."""
    what = "every row keeps it already" if target < lowest else "no row keeps it"
    problem = bad_input(
        "fitting MetaAccuracy",
        came=f"an unreachable target={target:g}",
        expected=f"an accuracy from {lowest:.4g} to {highest:.4g}, which the rows set apart show",
        mend="Raise it." if target < lowest else "Lower it.",
    )
    if count >= BINS:
        raise problem
    warnings.warn(f"MetaAccuracy: by the {count} row(s) set apart, {what}. {problem}", UserWarning, stacklevel=4)
    return float("inf") if target < lowest else float("-inf")
