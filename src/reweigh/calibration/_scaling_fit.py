"""Maximum-likelihood vector and matrix scaling: units, gauge, and what to say when there is no finite optimum."""

from __future__ import annotations

import warnings

import numpy as np
import torch

from ._newton import Minimum
from ._rows import Rows
from ._softmax_regression import Diagonal, Full, SoftmaxRegression, on_processor, unmasked
from ._temperature_scaling import most_likely
from ._tempering import logit_scale

Tensor = torch.Tensor
ENOUGH = 1e-8


def fit_vector(rows: Rows, name: str) -> tuple[np.ndarray, np.ndarray, float]:
    """(w, b, gradient norm) of softmax(w z + b). Logits are divided by their spread, so that any scale converges."""
    rows = on_processor(rows)
    scale = logit_scale(rows) or 1.0
    inverse = start_inverse(rows)

    def features(z: Tensor) -> tuple[Tensor, Tensor]:
        plain, mask = unmasked(z)
        return plain / scale, plain * inverse + mask

    found = SoftmaxRegression(rows, Diagonal(rows.classes), features).solve(enough=5e-9 / max(1.0, scale))
    warn_unfinished(found, scale, rows, name)
    weight, bias = found.point[: rows.classes], found.point[rows.classes :]
    return (inverse + weight / scale).numpy(), (bias - bias.mean()).numpy(), found.gradient_norm * max(1.0, scale)


def fit_matrix(rows: Rows, name: str, base=None) -> tuple[np.ndarray, np.ndarray, float]:
    """(W, b, gradient norm) of softmax(W x + b), with x the logits or what `base` makes of them.

    Features are whitened: correlated logits would make the search long. Directions that the rows do not show keep
    the best temperature's. Adding one row to every row of W changes no probability: W - I has columns that sum to 0.
    """
    rows = on_processor(rows)
    base = base or (lambda z: z)
    center, whiten, spread = _whitening(rows, base)
    inverse = start_inverse(rows)

    def features(z: Tensor) -> tuple[Tensor, Tensor]:
        plain, mask = unmasked(base(z))
        return (plain - center) @ whiten, plain * inverse + mask

    problem = SoftmaxRegression(rows, Full(rows.classes, whiten.shape[1]), features)
    found = problem.solve(enough=5e-9 / max(1.0, spread))
    warn_unfinished(found, spread, rows, name)
    departure, bias = problem.form.parts(found.point)
    departure = departure @ whiten.T
    bias = bias - departure @ center
    identity = torch.eye(rows.classes).double()
    weight = inverse * identity + departure
    weight = weight - (weight - identity).mean(0)
    return weight.numpy(), (bias - bias.mean()).numpy(), found.gradient_norm * max(1.0, spread)


def start_inverse(rows: Rows) -> float:
    """The inverse of the best temperature, from which the search sets out: saturated rows would show no way."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return 1.0 / most_likely(rows).temperature


def _whitening(rows: Rows, base) -> tuple[Tensor, Tensor, float]:
    """(mean (K,), directions (K, r) over their deviations, the largest deviation)."""
    count = 0.0
    first = torch.zeros(rows.classes, dtype=torch.float64)
    second = torch.zeros(rows.classes, rows.classes, dtype=torch.float64)
    for block in rows.blocks():
        x, _ = unmasked(base(rows.logits[block].double()))  # type: ignore[index]
        weight = torch.ones(len(x)).to(x) if rows.weight is None else rows.weight[block]
        count += float(weight.sum())
        first = first + (x * weight.unsqueeze(1)).sum(0)
    center = first / count
    for block in rows.blocks():
        x, _ = unmasked(base(rows.logits[block].double()))  # type: ignore[index]
        weight = torch.ones(len(x)).to(x) if rows.weight is None else rows.weight[block]
        x = x - center
        second = second + (x * weight.unsqueeze(1)).T @ x
    values, vectors = torch.linalg.eigh(second / count)
    kept = values > 1e-13 * float(values[-1].clamp(min=1e-300))
    deviation = values[kept].sqrt()
    return center, vectors[:, kept] / deviation, float(deviation.max()) if len(deviation) else 1.0


def warn_unfinished(found: Minimum, unit: float, rows: Rows, name: str) -> None:
    """Warn when an unpenalised likelihood has no finite optimum, or the optimum was not reached."""
    norm = found.gradient_norm * max(1.0, unit)
    absent = [] if rows.target is None else sorted(set(range(rows.classes)) - set(torch.unique(rows.target).tolist()))
    if found.endless:
        text = (
            "the fitted rows can be separated without error, so the likelihood rises without end as the weights grow; "
            "they were stopped at a mean cost below 1e-3. More rows or a penalty help."
        )
    elif absent:
        text = (
            f"class {absent[0]} ({len(absent)} in all) never occurs in the fitted rows, so the likelihood drives its "
            "probability towards 0 without end; it was stopped where the gradient vanished. Fit on rows of every "
            "class, or use TemperatureScaling."
        )
    elif norm > ENOUGH:
        text = (
            f"stopped with a gradient of norm {norm:.1e} after {found.steps} steps, above {ENOUGH:.0e}: the fit is "
            "near its optimum, not at it. More rows or a penalty help."
        )
    else:
        return
    warnings.warn(f"{name}: {text}", UserWarning, stacklevel=4)
