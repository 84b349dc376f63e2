"""A linear map of log-probabilities with off-diagonal and intercept regularisation (ODIR)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from ..errors import bad_input
from ..registry import register_calibrator
from ._calibrator import Calibrator
from ._maps import Affine, LogitMap, LogSoftmax
from ._rows import Rows
from ._scaling_fit import fit_matrix, start_inverse
from ._softmax_regression import Full, SoftmaxRegression, on_processor, unmasked

Tensor = torch.Tensor
# the logarithm of the smallest normal float64: log p is not taken below it
LOWEST = float(np.log(np.finfo(np.float64).tiny))
GRID = tuple(10.0**power for power in range(-6, 4))


@register_calibrator(
    "dirichlet_calibration",
    aliases=("Dirichlet", "DirODIR"),
    role="repair",
    preserves_accuracy=False,
    heads=("softmax",),
    weights=True,
    formula="softmax(W log p + b)",
)
class DirichletCalibration(Calibrator):
    """A linear map of the log-probabilities: softmax(W log p + b), p = softmax(z), fitted by Newton's method.

    `regularization` is the strength lambda of the off-diagonal and intercept penalty (ODIR), divided by the number
    of parameters it touches:

        mean cross-entropy + lambda / (K (K - 1)) sum over i != j of W_ij^2 + mu / K sum of b_j^2,

    mu = `intercept_regularization`, lambda where it is None. 0 is plain maximum likelihood. "cv" chooses lambda from
    `grid` by the mean log-likelihood of `folds` stratified folds (a fixed shuffle of the rows, seed 0). Strengths of
    other packages carry other divisors. Fitted: `weights_`, `bias_`, `regularization_` (the lambda used),
    `gradient_norm_`.

    Reference: Kull et al., Beyond Temperature Scaling, NeurIPS 2019.
    """

    _state = ("weights_", "bias_", "regularization_", "gradient_norm_")
    _soft_labels = True

    def __init__(
        self,
        *,
        regularization: float | str = 0,
        intercept_regularization: float | None = None,
        grid: Sequence[float] = GRID,
        folds: int = 5,
    ) -> None:
        self.regularization = regularization
        self.intercept_regularization = intercept_regularization
        self.grid = grid
        self.folds = folds

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit on logits (n, K) and labels, or on Predictions."""
        self._check_settings()
        rows = self._read(X, y, sample_weight)
        strength = self._chosen(rows) if self.regularization == "cv" else float(self.regularization)
        bias_strength = strength if self.intercept_regularization is None else self.intercept_regularization
        if strength == 0 and bias_strength == 0:
            weight, bias, norm = fit_matrix(rows, type(self).__name__, base=LogSoftmax(LOWEST))
        else:
            point, norm = penalised(rows, strength, bias_strength)
            weight, bias = matrix_of(point, rows.classes)
        self.weights_, self.bias_, self.gradient_norm_ = weight, bias, norm
        self.regularization_ = strength
        return self

    def _check_settings(self) -> None:
        doing = "fitting DirichletCalibration"
        for name in ("regularization", "intercept_regularization"):
            value = getattr(self, name)
            if value is None or (name == "regularization" and value == "cv"):
                continue
            if isinstance(value, (str, bool)) or not 0 <= value < float("inf"):
                raise bad_input(doing, came=f"{name}={value!r}", expected="a number of at least 0, or 'cv'")
        if self.regularization == "cv" and (len(self.grid) == 0 or self.folds < 2):
            raise bad_input(
                doing, came=f"grid={self.grid!r}, folds={self.folds!r}", expected="a grid and at least 2 folds"
            )

    def _chosen(self, rows: Rows) -> float:
        """The strength of the grid with the least cross-validated cost; of equals the largest."""
        cost = np.zeros(len(self.grid))
        strengths = sorted(self.grid, reverse=True)
        fold_of = torch.from_numpy(stratified_folds(rows, self.folds))
        for fold in range(self.folds):
            kept, held = rows.take(fold_of != fold), rows.take(fold_of == fold)
            if kept.count == 0 or held.count == 0:
                continue
            point = None
            for number, strength in enumerate(strengths):
                other = strength if self.intercept_regularization is None else self.intercept_regularization
                point, _ = penalised(kept, strength, other, start=point)
                cost[number] += regression(held).evaluate(point)[0] * held.total
        return float(strengths[int(np.argmin(cost))])

    def _build(self) -> torch.nn.Module:
        return LogitMap(nn.Sequential(LogSoftmax(LOWEST), Affine(self.weights_, self.bias_)))


def regression(rows: Rows, penalty: Tensor | None = None) -> SoftmaxRegression:
    """Softmax regression on log-probabilities, as a departure from the identity."""
    base = LogSoftmax(LOWEST)

    def features(z: Tensor) -> tuple[Tensor, Tensor]:
        plain, mask = unmasked(base(z))
        return plain, plain + mask

    return SoftmaxRegression(on_processor(rows), Full(rows.classes, rows.classes), features, penalty)


def penalised(rows: Rows, strength: float, bias_strength: float, start: Tensor | None = None) -> tuple[Tensor, float]:
    """(departure from the identity, gradient norm) under the off-diagonal and intercept penalty."""
    classes = rows.classes
    off = torch.full((classes, classes), strength / (classes * (classes - 1)), dtype=torch.float64)
    off.fill_diagonal_(0.0)
    bias = torch.full((classes,), bias_strength / classes, dtype=torch.float64)
    if start is None:  # the best temperature: saturated rows would show no way from the identity
        tempered = (start_inverse(rows) - 1) * torch.eye(classes, dtype=torch.float64)
        start = Full(classes, classes).flat(tempered, torch.zeros(classes, dtype=torch.float64))
    found = regression(rows, Full(classes, classes).flat(off, bias)).solve(start)
    return found.point, found.gradient_norm


def matrix_of(point: Tensor, classes: int) -> tuple[np.ndarray, np.ndarray]:
    departure, bias = Full(classes, classes).parts(point)
    return (torch.eye(classes).double() + departure).numpy(), bias.numpy().copy()


def stratified_folds(rows: Rows, folds: int) -> np.ndarray:
    """(n,) fold of each row: the rows of each class, shuffled with seed 0, dealt out in turn."""
    generator = np.random.default_rng(0)
    order = generator.permutation(rows.count)
    if rows.target is None:
        fold = np.empty(rows.count, np.int64)
        fold[order] = np.arange(rows.count) % folds
        return fold
    target = rows.target.cpu().numpy()
    order = order[np.argsort(target[order], kind="stable")]
    fold = np.empty(rows.count, np.int64)
    fold[order] = np.arange(rows.count) % folds
    return fold
