"""A mixture of the tempered, the plain and the uniform distribution (ETS)."""

from __future__ import annotations

import itertools
import math
import warnings
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import bad_input
from ..registry import register_calibrator
from ._calibrator import Calibrator
from ._maps import MINUS_INFINITY, ProbabilityMap, buffer
from ._rows import Rows
from ._simplex import mixture_shares
from ._temperature_scaling import most_likely
from ._tempering import logit_scale

# Squared error is looked at over this range of temperatures around a typical one, in steps of a quarter.
GRID = np.exp(np.arange(-16, 17) / 4)
LEAST = 1e-9


@register_calibrator(
    "ensemble_temperature_scaling",
    aliases=("ETS",),
    role="repair",
    preserves_accuracy=True,
    heads=("softmax",),
    weights=True,
    formula="w1 softmax(z / t) + w2 softmax(z) + w3 / K",
)
class EnsembleTemperatureScaling(Calibrator):
    """w1 softmax(z / t) + w2 softmax(z) + w3 / K, w at least 0 and of sum 1 (ETS).

    First t, then w, both minimise the mean squared error (`objective="mse"`, summed over classes) or the negative
    log-likelihood ("nll"). Given t both are convex in w and solved exactly: the quadratic one by going through the
    seven faces of the simplex, the likelihood by Newton steps on it. 1 / K counts unmasked classes; where the uniform
    distribution alone is best, w1 = 1e-9 keeps the order of the classes. Fitted: `temperature_`, `weights_` (3,).

    Reference: Zhang, Kailkhura and Han, Mix-n-Match, ICML 2020.
    """

    _state = ("temperature_", "weights_")

    def __init__(self, *, objective: str = "mse") -> None:
        self.objective = objective

    @property
    def preserves_accuracy(self) -> bool:
        """True: the three distributions order the classes alike."""
        return True

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit on logits (n, K) and labels, or on Predictions."""
        if self.objective not in ("mse", "nll"):
            raise bad_input(
                "fitting EnsembleTemperatureScaling", came=f"objective={self.objective!r}", expected="'mse' or 'nll'"
            )
        rows = self._read(X, y, sample_weight)
        if self.objective == "nll":
            found = most_likely(rows)
            if found.warning:
                warnings.warn(f"EnsembleTemperatureScaling: {found.warning}", UserWarning, stacklevel=2)
            self.temperature_ = found.temperature
            self.weights_ = likelihood_weights(rows, self.temperature_)
        else:
            self.temperature_ = least_squares_temperature(rows)
            self.weights_ = least_squares_weights(rows, self.temperature_)
        if self.weights_[2] > 1 - LEAST:  # the uniform distribution alone would forget the order of the classes
            self.weights_ = np.array([LEAST, 0.0, 1 - LEAST])
        return self

    def _build(self) -> torch.nn.Module:
        return ProbabilityMap(Mixture(1.0 / self.temperature_, self.weights_))


class Mixture(nn.Module):
    """The three distributions, weighted."""

    inverse: Tensor
    weights: Tensor

    def __init__(self, inverse: float, weights: np.ndarray) -> None:
        super().__init__()
        self.register_buffer("inverse", buffer(inverse))
        self.register_buffer("weights", buffer(weights))

    def forward(self, logits: Tensor) -> Tensor:
        tempered, plain, uniform = three(logits, self.inverse)
        return self.weights[0] * tempered + self.weights[1] * plain + self.weights[2] * uniform


def three(logits: Tensor, inverse: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(n, K) each: tempered, plain and uniform probabilities over the unmasked classes."""
    kept = (logits != MINUS_INFINITY).to(logits.dtype)
    moved = logits - logits.amax(1, keepdim=True)
    return torch.softmax(moved * inverse, dim=1), torch.softmax(moved, dim=1), kept / kept.sum(1, keepdim=True)


def _weight(rows: Rows, block: slice) -> Tensor:
    return torch.ones(block.stop - block.start).to(rows.highest).double() if rows.weight is None else rows.weight[block]  # type: ignore[arg-type]


# ---- squared error


def squared_error(rows: Rows, inverse: float) -> tuple[float, float]:
    """(sum over rows of sum_k (p_k - t_k)^2, its derivative with respect to log b)."""
    total = torch.zeros(2, dtype=torch.float64, device=rows.highest.device)  # type: ignore[union-attr]
    for block in rows.blocks():
        v = (rows.logits[block].double() - rows.highest[block].double().unsqueeze(1)) * inverse  # type: ignore[index]
        p = torch.softmax(v, dim=1)
        v = v.clamp(min=-1e300)
        away = p.scatter_add(
            1, rows.target[block].unsqueeze(1), torch.full((len(p), 1), -1.0, dtype=p.dtype, device=p.device)  # type: ignore[index]
        )  # fmt: skip
        change = p * (v - (p * v).sum(1, keepdim=True))
        parts = torch.stack([(away * away).sum(1), 2 * (away * change).sum(1)])
        total += parts @ _weight(rows, block)
    return float(total[0]), float(total[1])


def least_squares_temperature(rows: Rows) -> float:
    """The temperature of least squared error: the best of a coarse grid, then the root of the derivative beside it."""
    from scipy.optimize import brentq

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        typical = most_likely(rows)
    scale = logit_scale(rows)
    if scale == 0.0:
        warnings.warn(
            "EnsembleTemperatureScaling: all logits of every row are equal, so any temperature gives the same; T = 1.",
            UserWarning,
            stacklevel=3,
        )
        return 1.0
    center = math.log((1.0 / scale) if typical.warning else (1.0 / typical.temperature))
    places = center + np.log(GRID)
    few = rows if rows.count <= 1 << 16 else rows.take(slice(None, None, rows.count >> 16))
    best = int(np.argmin([squared_error(few, math.exp(place))[0] for place in places]))
    for low, high in ((best - 1, best + 1), (best - 3, best + 3)):
        ends = places[max(low, 0)], places[min(high, len(places) - 1)]
        slopes = [squared_error(rows, math.exp(place))[1] for place in ends]
        if slopes[0] < 0 < slopes[1]:
            root: Any = brentq(lambda place: squared_error(rows, math.exp(place))[1], *ends, xtol=1e-13)
            return math.exp(-float(root))
    warnings.warn(
        f"EnsembleTemperatureScaling: squared error has no minimum between T = {math.exp(-places[-1]):.3g} and "
        f"{math.exp(-places[0]):.3g}; the better end is taken.",
        UserWarning,
        stacklevel=3,
    )
    return math.exp(-places[best])


def least_squares_weights(rows: Rows, temperature: float) -> np.ndarray:
    """(3,) weights of least squared error: the best of the seven faces of the simplex."""
    gram, cross = np.zeros((3, 3)), np.zeros(3)
    for block in rows.blocks():
        weight = _weight(rows, block)
        parts = torch.stack(three(rows.logits[block].double(), 1.0 / temperature))  # type: ignore[index]
        gram += torch.einsum("ank,bnk,n->ab", parts, parts, weight).cpu().numpy()
        true = rows.target[block].view(1, -1, 1).expand(3, -1, 1)  # type: ignore[index]
        cross += (parts.gather(2, true).squeeze(2) @ weight).cpu().numpy()
    candidates = [_on_face(gram, cross, face) for size in (1, 2, 3) for face in itertools.combinations(range(3), size)]
    kept = [weights for weights in candidates if weights is not None]
    return min(kept, key=lambda weights: weights @ gram @ weights - 2 * cross @ weights)


def _on_face(gram: np.ndarray, cross: np.ndarray, face: tuple[int, ...]) -> np.ndarray | None:
    """The minimum with the face's weights alone and their sum 1; None where it leaves the simplex."""
    corner = np.zeros(3)
    corner[face[0]] = 1.0
    if len(face) == 1:
        return corner
    ways = np.stack([np.eye(3)[k] - corner for k in face[1:]])  # (m - 1, 3)
    bend = ways @ gram @ ways.T
    length = np.linalg.lstsq(bend, ways @ (cross - gram @ corner), rcond=1e-14)[0]
    weights = corner + length @ ways
    return weights if (weights >= 0).all() else None


# ---- likelihood


def likelihood_weights(rows: Rows, temperature: float) -> np.ndarray:
    """(3,) weights of the largest likelihood."""
    columns = []
    for block in rows.blocks():
        true = rows.target[block].unsqueeze(1)  # type: ignore[index]
        parts = three(rows.logits[block].double(), 1.0 / temperature)  # type: ignore[index]
        columns.append(torch.cat([part.gather(1, true) for part in parts], dim=1).cpu().numpy())
    weight = None if rows.weight is None else rows.weight.cpu().numpy()
    return mixture_shares(np.concatenate(columns), weight)
