"""The beta family on each class's probability: sigmoid(a log p - b log(1 - p) + c)."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn

from ..registry import register_calibrator
from ._calibrator import Calibrator
from ._logistic import Logistic
from ._maps import LogitMap, OddsColumns, buffer, log_sigmoid
from ._newton import Minimum, minimize
from ._platt_scaling import one_vs_rest
from ._softmax_regression import on_processor


@register_calibrator(
    "beta_calibration",
    aliases=("Beta",),
    role="repair",
    preserves_accuracy=False,
    heads=("softmax", "sigmoid"),
    weights=True,
    formula="sigmoid(a log p - b log(1 - p) + c) for each class, a and b at least 0, rows normalised",
)
class BetaCalibration(Calibrator):
    """The beta family for each class against the rest: q_k = sigmoid(a_k log p - b_k log(1 - p) + c_k), a, b >= 0.

    Maximum likelihood for each class under the constraints, which keep the curve rising: the best of the free fit
    and the fits with a, b or both at 0. Under softmax the q_k are scaled to sum to one; with two classes they do so
    by themselves. A class the rows never show (or always) keeps a = b = 1, c = 0. Fitted: `a_`, `b_`, `c_`, each
    (K,).

    Reference: Kull, Silva Filho and Flach, Beta calibration, AISTATS 2017.
    """

    _state = ("a_", "b_", "c_")
    _heads = ("softmax", "sigmoid")

    def __init__(self) -> None:
        pass

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit on logits (n, K) and labels, or on Predictions."""
        rows = on_processor(self._read(X, y, sample_weight))
        table = one_vs_rest(rows, fit_beta, [1.0, 1.0, 0.0], type(self).__name__)
        if rows.classes == 2 and rows.head == "softmax":
            table[0] = [table[1, 1], table[1, 0], -table[1, 2]]  # the same curve, seen from the other class
        self.a_, self.b_, self.c_ = (table[:, place].copy() for place in range(3))
        return self

    def _build(self) -> torch.nn.Module:
        return LogitMap(OddsColumns(BetaCurve(self.a_, self.b_, self.c_), self.head_), self.head_)


class BetaCurve(nn.Module):
    """a log p - b log(1 - p) + c of log-odds, a column each."""

    a: Tensor
    b: Tensor
    c: Tensor

    def __init__(self, a: object, b: object, c: object) -> None:
        super().__init__()
        self.register_buffer("a", buffer(a))
        self.register_buffer("b", buffer(b))
        self.register_buffer("c", buffer(c))

    def forward(self, odds: Tensor) -> Tensor:
        return self.a * log_sigmoid(odds) - self.b * log_sigmoid(-odds) + self.c


def fit_beta(odds: Tensor, label: Tensor, weight: Tensor | None) -> tuple[list[float], bool]:
    """([a, b, c], whether there is no finite optimum) for one class."""
    mass = torch.full_like(label, 1 / len(label)) if weight is None else weight / weight.sum()
    features = torch.stack([log_sigmoid(odds), -log_sigmoid(-odds)], 1)
    free, found = _fit(features, label, mass, (0, 1))
    if min(free[:2]) >= 0:
        return free, found.endless
    tried = [_fit(features, label, mass, chosen) for chosen in ((0,), (1,), ())]
    feasible = [(parameters, found) for parameters, found in tried if min(parameters[:2]) >= 0]
    parameters, found = min(feasible, key=lambda pair: pair[1].cost)
    return parameters, found.endless


def _fit(features: Tensor, label: Tensor, mass: Tensor, chosen: tuple[int, ...]) -> tuple[list[float], Minimum]:
    """The fit with the chosen features and an intercept; features are centred and scaled meanwhile."""
    x = features[:, list(chosen)]
    center = mass @ x
    spread = (mass @ (x - center) ** 2).sqrt()
    spread = torch.where(spread > 0, spread, 1.0)
    x = torch.cat([(x - center) / spread, torch.ones(len(x), 1).double()], 1)
    start = torch.cat([spread, center.sum(0, keepdim=True)])
    unit = max(1.0, float(spread.max()) if chosen else 1.0, float(center.abs().max()) if chosen else 1.0)
    found = minimize(Logistic(x, label, mass), start, enough=1e-9 / unit)
    factor = found.point[:-1] / spread
    parameters = [0.0, 0.0, float(found.point[-1] - factor @ center)]
    for place, value in zip(chosen, factor.tolist(), strict=True):
        parameters[place] = value
    return parameters, found
