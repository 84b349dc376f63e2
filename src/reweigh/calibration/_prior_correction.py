"""Predictions for a population whose classes have other shares than the one the model was trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch

from ..errors import bad_input
from ..predictions import Predictions
from ..registry import register_calibrator
from ._calibrator import Calibrator
from ._maps import LogitMap, Scale
from ._rows import Rows, highest_logit, read_logits
from ._simplex import mixture_shares
from ._table_rows import rows_of

NORMAL_975 = 1.959963984540054
SMALLEST = 1e-300  # stands for a share of 0, so that logits stay finite


@register_calibrator(
    "prior_correction",
    aliases=("prior", "Saerens"),
    role="shift",
    preserves_accuracy=False,
    heads=("softmax",),
    weights=True,
    formula="softmax(z + log(target / source))",
)
class PriorCorrection(Calibrator):
    """softmax(z + log(target / source)): class shares of the target population in place of those trained on.

    `source_shares` are the shares the model was trained on; where None, those of the labels given to `fit`.
    `target_shares` are given, or estimated by maximum likelihood (the fixed point of expectation-maximisation) from
    the unlabelled rows of the target population: `unlabelled` in `fit`, or X itself. The model's probabilities must
    be calibrated for the source. Fitted: `source_shares_`, `target_shares_`, `target_interval_` (K, 2): 95 %, from
    the observed information of the estimated shares and, where the source shares come from labels, their sampling
    error too, clipped to [0, 1]; None where the target shares were given. The model is taken as known: weakly
    separated classes have wide intervals, and source shares that are known exactly narrow them most.

    >>> import numpy as np
    >>> correct = PriorCorrection(source_shares=[0.5, 0.5], target_shares=[0.9, 0.1]).fit(np.zeros((1, 2)))
    >>> correct.predict_proba(np.zeros((1, 2))).round(6).tolist()
    [[0.9, 0.1]]

    Reference: Saerens, Latinne and Decaestecker, Adjusting the Outputs of a Classifier to New a Priori
    Probabilities, Neural Computation 2002.
    """

    _state = ("source_shares_", "target_shares_", "target_interval_")
    _needs_labels = False

    def __init__(
        self, *, target_shares: Sequence[float] | None = None, source_shares: Sequence[float] | None = None
    ) -> None:
        self.target_shares = target_shares
        self.source_shares = source_shares

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, *, unlabelled: Any = None) -> Self:
        """Fit on logits (n, K) and labels (none where `source_shares` are given), or on Predictions."""
        rows = self._read(X, y, sample_weight)
        self.source_shares_ = self._source(rows)
        if self.target_shares is not None:
            if unlabelled is not None:
                raise bad_input(
                    "fitting PriorCorrection", came="unlabelled rows beside target_shares", expected="one of the two"
                )
            self.target_shares_ = checked_shares(self.target_shares, rows.classes, "target_shares")
            self.target_interval_ = None
            self._check_support()
            return self
        target = rows if unlabelled is None else self._target_rows(unlabelled)
        labelled = rows.total if self.source_shares is None else math.inf
        self.target_shares_, self.target_interval_ = estimated_shares(target, self.source_shares_, labelled)
        return self

    def _source(self, rows: Rows) -> np.ndarray:
        if self.source_shares is not None:
            return checked_shares(self.source_shares, rows.classes, "source_shares")
        if rows.target is None:
            raise bad_input(
                "fitting PriorCorrection",
                came="neither labels nor source_shares (requires y to be passed, but the target y is None)",
                expected="one of them",
            )
        weight = None if rows.weight is None else rows.weight.cpu()
        counts = torch.bincount(rows.target.cpu(), weights=weight, minlength=rows.classes).double()
        return (counts / counts.sum()).numpy()

    def _check_support(self) -> None:
        missing = (self.target_shares_ > 0) & (self.source_shares_ == 0)
        if missing.any():
            raise bad_input(
                "fitting PriorCorrection",
                came=f"class {int(np.flatnonzero(missing)[0])} with a target share but a source share of 0",
                expected="a positive source share",
                mend="Give source_shares= of the data the model was trained on.",
            )

    def _target_rows(self, unlabelled: Any) -> Rows:
        doing = "fitting PriorCorrection on unlabelled rows"
        if isinstance(unlabelled, Predictions):
            rows = rows_of(unlabelled, doing)
            if rows.logits is None or rows.head != "softmax" or rows.classes != self.n_features_in_:
                raise bad_input(doing, came=repr(unlabelled), expected=f"{self.n_features_in_} softmax classes")
            return rows
        logits = read_logits(self, unlabelled, reset=False)
        return Rows(logits=logits, highest=highest_logit(logits, doing))

    def _build(self) -> torch.nn.Module:
        source, target = np.maximum(self.source_shares_, SMALLEST), np.maximum(self.target_shares_, SMALLEST)
        return LogitMap(Scale(np.ones(len(source)), np.log(target) - np.log(source)))


def checked_shares(values: Any, classes: int, name: str) -> np.ndarray:
    """(K,) shares of at least 0 that sum to 1."""
    array = np.asarray(values.cpu() if isinstance(values, torch.Tensor) else values, dtype=np.float64)
    if array.shape != (classes,) or not (array >= 0).all() or not abs(array.sum() - 1) <= 1e-6:
        raise bad_input(
            "fitting PriorCorrection",
            came=f"{name} of shape {array.shape} that sum to {array.sum():.6g}",
            expected=f"{classes} shares of at least 0 that sum to 1",
        )
    return array / array.sum()


def estimated_shares(rows: Rows, source: np.ndarray, labelled: float) -> tuple[np.ndarray, np.ndarray]:
    """((K,) shares of maximum likelihood, (K, 2) intervals). A class without a source share is left out, at 0."""
    known = np.flatnonzero(source > 0)
    parts = []
    for block in rows.blocks():
        p = torch.softmax(rows.logits[block].double(), dim=1)  # type: ignore[index]
        parts.append(p.cpu().numpy()[:, known] / source[known])
    ratios = np.concatenate(parts)
    weight = np.ones(len(ratios)) if rows.weight is None else rows.weight.cpu().numpy()
    found = mixture_shares(ratios, weight)
    deviation = share_deviations(ratios, found, weight, source[known], labelled)
    shares, interval = np.zeros(len(source)), np.zeros((len(source), 2))
    shares[known] = found
    interval[known] = np.clip(found[:, None] + NORMAL_975 * deviation[:, None] * np.array([-1.0, 1.0]), 0.0, 1.0)
    return shares, interval


def share_deviations(
    ratios: np.ndarray, shares: np.ndarray, weight: np.ndarray, source: np.ndarray, labelled: float
) -> np.ndarray:
    """(K,) standard deviations: the observed information along the simplex, plus what the source shares' error adds.

    With rho = target / source the estimate solves mean of p_k / (rho p) = source_k, so that a change of the source
    shares moves rho by minus the inverse of H = mean of p p' / (rho p)^2 times it.
    """
    k = len(shares)
    scaled = ratios / (ratios @ shares)[:, None]
    information = (scaled * weight[:, None]).T @ scaled
    # an orthonormal basis of the directions along which shares still sum to 1
    basis = np.linalg.svd(np.ones((1, k)))[2][1:].T  # (K, K - 1)
    covariance = basis @ np.linalg.pinv(basis.T @ information @ basis, rcond=1e-12, hermitian=True) @ basis.T
    if math.isfinite(labelled):
        bend = information / weight.sum() * np.outer(source, source)  # H
        change = np.diag(shares / source) - source[:, None] * np.linalg.pinv(bend, rcond=1e-12, hermitian=True)
        error = (np.diag(source) - np.outer(source, source)) / labelled
        covariance = covariance + change @ error @ change.T
    return np.sqrt(np.maximum(covariance.diagonal(), 0.0))
