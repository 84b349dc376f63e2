"""Bayesian binning into quantiles (BBQ): an average over numbers of bins, weighted by their evidence."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch

from ..errors import need
from ..registry import register_calibrator
from ._calibrator import Calibrator
from ._columns import Columns
from ._maps import NormalizedColumns, ProbabilityMap, Steps

# Weight of the prior in rows, and the factor around the cube root of n that bounds the number of bins.
PRIOR = 2.0
SPAN = 10.0
# Models with less than this share of the best one's evidence are left out.
NEGLIGIBLE = 1e-12


@register_calibrator(
    "bayesian_binning",
    aliases=("BBQ",),
    role="repair",
    preserves_accuracy=False,
    heads=("softmax", "sigmoid"),
    weights=False,
    formula="sum over numbers of bins B of P(B | rows) E[share of the class in its bin | B], rows normalised",
)
class BayesianBinning(Calibrator):
    """Each class's probability through an average of equal-mass histograms, weighted by their evidence (BBQ).

    For every number of bins B from floor(n^(1/3) / 10) (at least 1) to min(ceil(10 n^(1/3)), ceil(n / 5)), edges lie
    midway between neighbouring chunks of the sorted probabilities. A bin with n_b rows, m_b of the class, has the
    prior Beta(2 c / B, 2 (1 - c) / B), c its middle; its value is the posterior mean (m_b + 2 c / B) / (n_b + 2 / B),
    and the evidence of B is the product of the bins' beta-binomial likelihoods. Under softmax the rows are scaled to
    sum to one. There is no weighted form. Fitted: `edges_` and `values_`, one step function a class.

    Reference: Naeini, Cooper and Hauskrecht, Obtaining Well Calibrated Probabilities Using Bayesian Binning, AAAI
    2015.
    """

    _state = ("edges_", "values_")
    _heads = ("softmax", "sigmoid")

    def __init__(self) -> None:
        pass

    def fit(self, X: Any, y: Any = None, **unsupported: Any) -> Self:
        """Fit on logits (n, K) and labels, or on Predictions."""
        rows = self._read(X, y, unsupported=unsupported)
        columns = Columns.of(rows)
        curves = []
        for k in range(rows.classes):
            kept = columns.kept(k)
            p, label = columns.probability(k)[kept].cpu().numpy(), columns.label(k)[kept].cpu().numpy()
            curves.append(average_histogram(p, label))
        self.edges_ = [edges for edges, _ in curves]
        self.values_ = [values for _, values in curves]
        return self

    def _build(self) -> torch.nn.Module:
        return ProbabilityMap(NormalizedColumns(Steps(self.edges_, self.values_), self.head_))


def average_histogram(p: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(inner edges (m,), values (m + 1,)) of the averaged step function of one class."""
    if len(p) == 0:
        return np.array([]), np.array([0.0])
    order = np.argsort(p, kind="stable")
    p = p[order]
    hits = np.concatenate([[0.0], np.cumsum(label[order])])
    root = len(p) ** (1 / 3)
    least = max(1, int(np.floor(root / SPAN)))
    most = max(least, min(int(np.ceil(SPAN * root)), int(np.ceil(len(p) / 5))))
    models = [_histogram(p, hits, bins) for bins in range(least, most + 1)]
    evidence = np.array([model[2] for model in models])
    weight = np.exp(evidence - evidence.max())
    kept = weight >= NEGLIGIBLE
    weight = np.where(kept, weight, 0.0) / weight[kept].sum()
    chosen = [(edges, values, w) for (edges, values, _), w in zip(models, weight, strict=True) if w > 0]
    union = np.unique(np.concatenate([edges for edges, _, _ in chosen]))
    # a value inside each interval (lower, upper] of the union: its upper end, and anything beyond the last edge
    probes = np.append(union, np.inf)
    total = np.zeros(len(probes))
    for edges, values, w in chosen:
        total += w * values[np.searchsorted(edges, probes, side="left")]
    return union, total


def _histogram(p: np.ndarray, hits: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray, float]:
    """(inner edges, posterior means, log evidence) of one number of bins over sorted probabilities."""
    special = need("scipy.special", "calibration", "fitting BayesianBinning")
    size, longer = divmod(len(p), bins)
    number = np.arange(1, bins)
    starts = number * size + np.minimum(number, longer)
    edges = np.unique((p[starts - 1] + p[starts]) / 2)
    edges = edges[(edges > 0) & (edges < 1)]
    ends = np.concatenate([[0], np.searchsorted(p, edges, side="right"), [len(p)]])
    count, hit = np.diff(ends), np.diff(hits[ends])
    bounds = np.concatenate([[0.0], edges, [1.0]])
    middle = (bounds[1:] + bounds[:-1]) / 2
    strength = PRIOR / len(count)
    alpha, beta = strength * middle, strength * (1 - middle)
    gammaln = special.gammaln
    evidence = gammaln(strength) - gammaln(count + strength) + gammaln(hit + alpha) - gammaln(alpha)
    evidence += gammaln(count - hit + beta) - gammaln(beta)
    return edges, (hit + alpha) / (count + strength), float(evidence.sum())
