"""A sigmoid of each class's log-odds: sigmoid(a o + b)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from ..registry import register_calibrator
from ._calibrator import Calibrator
from ._columns import Columns
from ._logistic import fit_line
from ._maps import LogitMap, OddsColumns, buffer
from ._rows import Rows
from ._softmax_regression import on_processor


@register_calibrator(
    "platt_scaling",
    aliases=("Platt", "logistic"),
    role="repair",
    preserves_accuracy=False,
    heads=("softmax", "sigmoid"),
    weights=True,
    formula="sigmoid(a log(p / (1 - p)) + b) for each class, rows normalised",
)
class PlattScaling(Calibrator):
    """A sigmoid of each class's log-odds against the rest: q_k = sigmoid(a_k o_k + b_k), o = log(p / (1 - p)).

    Plain maximum likelihood (no smoothed labels) for each class, by Newton's method to a gradient of norm 1e-8 or
    less. Under softmax the q_k are scaled to sum to one; with two classes they do so by themselves, and o_1 = z_1 -
    z_0. Under a sigmoid head o is the logit. A class the rows never show (or always) keeps a = 1, b = 0. Fitted:
    `slope_` (K,), `intercept_` (K,).

    >>> import numpy as np
    >>> logits, labels = np.array([[0.0, 1.0]] * 4 + [[0.0, -1.0]] * 4), np.array([1, 1, 1, 0, 0, 0, 0, 1])
    >>> PlattScaling().fit(logits, labels).predict_proba(logits)[[0, 4], 1].round(6).tolist()
    [0.75, 0.25]

    Reference: Platt, Probabilistic Outputs for Support Vector Machines, 1999.
    """

    _state = ("slope_", "intercept_")
    _heads = ("softmax", "sigmoid")

    def __init__(self) -> None:
        pass

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit on logits (n, K) and labels, or on Predictions."""
        rows = on_processor(self._read(X, y, sample_weight))
        table = one_vs_rest(rows, _line, [1.0, 0.0], type(self).__name__)
        if rows.classes == 2 and rows.head == "softmax":
            table[0] = [table[1, 0], -table[1, 1]]  # the same curve, seen from the other class
        self.slope_, self.intercept_ = table[:, 0].copy(), table[:, 1].copy()
        return self

    def _build(self) -> torch.nn.Module:
        return LogitMap(OddsColumns(Line(self.slope_, self.intercept_), self.head_), self.head_)


class Line(nn.Module):
    """a o + b, a column each."""

    slope: Tensor
    intercept: Tensor

    def __init__(self, slope: object, intercept: object) -> None:
        super().__init__()
        self.register_buffer("slope", buffer(slope))
        self.register_buffer("intercept", buffer(intercept))

    def forward(self, odds: Tensor) -> Tensor:
        return odds * self.slope + self.intercept


def _line(odds: Tensor, label: Tensor, weight: Tensor | None) -> tuple[list[float], bool]:
    slope, intercept, found = fit_line(odds, label, weight)
    return [slope, intercept], found.endless


Curve = Callable[[Tensor, Tensor, Tensor | None], tuple[list[float], bool]]


def one_vs_rest(rows: Rows, fit: Curve, identity: list[float], name: str) -> np.ndarray:
    """(K, parameters) of a curve fitted to each class's log-odds; says which classes gave nothing to fit."""
    columns = Columns.of(rows)
    table = np.array([identity] * rows.classes)
    one_sided, separable = [], []
    for k in range(rows.classes):
        kept = columns.kept(k)
        label = columns.label(k)[kept]
        if len(label) == 0 or float(label.min()) == float(label.max()):
            one_sided.append(k)
            continue
        weight = None if rows.weight is None else rows.weight[kept]
        table[k], endless = fit(columns.log_odds(k)[kept], label, weight)
        if endless:
            separable.append(k)
    if one_sided:
        _warn(f"{name}: the fitted rows show class {one_sided[0]} ({len(one_sided)} in all) never or always; its curve "
              "is left as it was.")  # fmt: skip
    if separable:
        _warn(f"{name}: the log-odds of class {separable[0]} ({len(separable)} in all) separate its rows without error,"
              " so the likelihood rises without end as the curve steepens; it was stopped near its limit.")  # fmt: skip
    return table


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=4)
