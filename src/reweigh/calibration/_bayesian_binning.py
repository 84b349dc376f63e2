"""Bayesian binning into quantiles (BBQ): an average over numbers of bins, weighted by their evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

from ..errors import need
from ..registry import register_calibrator
from ._calibrator import Calibrator
from ._columns import Columns
from ._maps import NormalizedColumns, ProbabilityMap, SecondOfTwo, Steps

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
    sum to one; of two classes only the second has a curve, and the first is the rest. There is no weighted form.
    Fitted: `edges_` and `values_`, one step function a curve.

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
        for k in range(1, 2) if rows.classes == 2 and rows.head == "softmax" else range(rows.classes):
            kept = columns.kept(k)
            p, label = columns.probability(k)[kept].cpu().numpy(), columns.label(k)[kept].cpu().numpy()
            curves.append(average_histogram(p, label))
        self.edges_ = [edges for edges, _ in curves]
        self.values_ = [values for _, values in curves]
        return self

    def _build(self) -> torch.nn.Module:
        curves = Steps(self.edges_, self.values_)
        if self.n_features_in_ == 2 and self.head_ == "softmax":
            return ProbabilityMap(SecondOfTwo(curves))
        return ProbabilityMap(NormalizedColumns(curves, self.head_))


def average_histogram(p: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(inner edges (m,), values (m + 1,)) of the averaged step function of one class."""
    if len(p) == 0:
        return np.array([]), np.array([0.0])
    order = np.argsort(p, kind="stable")
    models = Histograms.of(p[order], np.concatenate([[0.0], np.cumsum(label[order])]))
    weight = np.exp(models.evidence - models.evidence.max())
    weight = np.where(weight >= NEGLIGIBLE, weight, 0.0)
    weight /= weight.sum()
    # the average of step functions steps where any of them does, by its weighted step
    share = np.repeat(weight, np.diff(models.starts))
    inner = np.ones(len(share), bool)
    inner[models.starts[1:] - 1] = False
    inner &= share > 0
    jump = share * (np.roll(models.mean, -1) - models.mean)
    union, place = np.unique(models.upper[inner], return_inverse=True)
    first = float(weight @ models.mean[models.starts[:-1]])
    steps = np.bincount(place, weights=jump[inner], minlength=len(union))
    return union, np.clip(np.concatenate([[first], first + np.cumsum(steps)]), 0.0, 1.0)


@dataclass(frozen=True)
class Histograms:
    """Histograms with every number of bins, their bins laid end to end."""

    starts: np.ndarray  # (models + 1,) where each model's bins begin
    upper: np.ndarray  # (all bins,) upper edge; 1 for a model's last bin
    mean: np.ndarray  # (all bins,) posterior mean
    evidence: np.ndarray  # (models,)

    @staticmethod
    def of(p: np.ndarray, hits: np.ndarray) -> Histograms:
        """From ascending probabilities and the running count of hits (n + 1,)."""
        asked = numbers_of_bins(len(p))
        upper, model = _upper_edges(p, asked)
        bins = np.bincount(model, minlength=len(asked))
        starts = np.concatenate([[0], np.cumsum(bins)])
        first = np.zeros(len(upper), bool)
        first[starts[:-1]] = True
        last = np.zeros(len(upper), bool)
        last[starts[1:] - 1] = True
        end = np.where(last, len(p), np.searchsorted(p, upper, side="right"))
        begin = np.where(first, 0, np.roll(end, 1))
        lower = np.where(first, 0.0, np.roll(upper, 1))
        strength = PRIOR / bins[model]
        mean, evidence = beta_binomial(end - begin, hits[end] - hits[begin], (lower + upper) / 2, strength)
        return Histograms(starts, upper, mean, np.bincount(model, weights=evidence, minlength=len(asked)))


def numbers_of_bins(count: int) -> np.ndarray:
    """The numbers of bins that are averaged over."""
    root = count ** (1 / 3)
    least = max(1, int(np.floor(root / SPAN)))
    return np.arange(least, max(least, min(int(np.ceil(SPAN * root)), int(np.ceil(count / 5)))) + 1)


def _upper_edges(p: np.ndarray, asked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(upper edge of every bin, its model): midpoints between chunks, equal ones merged, and 1 at each model's end."""
    model = np.repeat(np.arange(len(asked)), asked)
    number = np.arange(len(model)) - np.repeat(np.cumsum(asked) - asked, asked) + 1  # 1 ... B
    size, longer = np.divmod(len(p), asked)
    start = number * size[model] + np.minimum(number, longer[model])
    last = number == asked[model]
    start = np.where(last, 1, start)
    upper = np.where(last, 1.0, (p[start - 1] + p[start % len(p)]) / 2)
    before = np.where(number == 1, 0.0, np.roll(upper, 1))
    kept = last | ((upper > before) & (upper < 1))
    return upper[kept], model[kept]


def beta_binomial(
    count: np.ndarray, hit: np.ndarray, middle: np.ndarray, strength: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(posterior mean, log evidence) of bins with hits among their rows, under Beta(s c, s (1 - c))."""
    gammaln = need("scipy.special", "calibration", "fitting BayesianBinning").gammaln
    alpha, beta = strength * middle, strength * (1 - middle)
    evidence = gammaln(strength) - gammaln(count + strength) + gammaln(hit + alpha) - gammaln(alpha)
    evidence += gammaln(count - hit + beta) - gammaln(beta)
    return (hit + alpha) / (count + strength), evidence
