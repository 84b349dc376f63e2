"""What structured vector and matrix scaling share: tempered, smoothed log-probabilities and a penalised departure."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import nn

from ..errors import bad_input
from ._maps import MINUS_INFINITY, Scale, buffer
from ._rows import Rows
from ._softmax_regression import Diagonal, Full, SoftmaxRegression, on_processor, unmasked
from ._temperature_scaling import most_likely

Tensor = torch.Tensor


class LogMixture(nn.Module):
    """log((1 - e) softmax(z) + e / K), K without masked classes, which stay masked."""

    share: Tensor

    def __init__(self, share: float) -> None:
        super().__init__()
        self.register_buffer("share", buffer(share))

    def forward(self, logits: Tensor) -> Tensor:
        masked = logits == MINUS_INFINITY
        classes = (~masked).to(logits.dtype).sum(1, keepdim=True)
        p = (1 - self.share) * torch.softmax(logits, dim=1) + self.share / classes
        return torch.where(masked, MINUS_INFINITY, p.log())


def tempered_mixture(temperature: float, share: float) -> nn.Sequential:
    """The features of structured scaling: logits of a tempered softmax mixed with the uniform distribution."""
    return nn.Sequential(Scale(1.0 / temperature), LogMixture(share))


@dataclass(frozen=True)
class Structured:
    """Temperature, smoothing share, weight ((K,) or (K, K)) and bias (K,)."""

    temperature: float
    share: float
    weight: Tensor
    bias: Tensor
    gradient_norm: float


def fit_structured(rows: Rows, form: Diagonal | Full, regularization: float, name: str) -> Structured:
    """Minimise mean cross-entropy plus (regularization / n) (K |b|^2 + K |v|^2 + K (K - 1) |M off the diagonal|^2)."""
    if not (isinstance(regularization, (int, float)) and regularization > 0):
        raise bad_input(f"fitting {name}", came=f"regularization={regularization!r}", expected="a positive number")
    rows = on_processor(rows)
    found = most_likely(rows)
    if found.warning:
        warnings.warn(f"{name}, its first temperature: {found.warning}", UserWarning, stacklevel=3)
    share = 1.0 / (rows.total + 1.0)
    base = tempered_mixture(found.temperature, share)

    def features(z: Tensor) -> tuple[Tensor, Tensor]:
        plain, mask = unmasked(base(z))
        return plain, plain + mask

    classes, count = rows.classes, rows.total
    strength = torch.full((classes, classes), classes * (classes - 1) / count, dtype=torch.float64)
    strength.fill_diagonal_(classes / count)
    one = torch.full((classes,), classes / count, dtype=torch.float64)
    penalty = regularization * form.flat(one if isinstance(form, Diagonal) else strength, one)
    minimum = SoftmaxRegression(rows, form, features, penalty).solve()
    departure, bias = form.parts(minimum.point)
    start = torch.ones(classes).double() if isinstance(form, Diagonal) else torch.eye(classes).double()
    return Structured(found.temperature, share, start + departure, bias, minimum.gradient_norm)
