"""One temperature for all logits: softmax(z / T)."""

from __future__ import annotations

import math
import warnings
from typing import Any, Self

import torch

from ..errors import bad_input
from ..registry import register_calibrator
from ._calibrator import Calibrator
from ._inverse_temperature import Root, find_root, halley_step
from ._maps import LogitMap, Scale
from ._parallel import ELEMENTS, over_slices
from ._rows import Rows
from ._tempering import logit_scale, sigmoid_moments, softmax_moments, top_confidence, true_gap

# The first, rough fit looks at so many numbers, in no fewer and no more than so many rows.
ROUGH, FEWEST, MOST = 1 << 21, 1024, 4096
# Where no finite temperature is best, T is this many times below or above the spread of the logits.
BOUND_BELOW, BOUND_ABOVE = 100.0, 1000.0
STANDARD_NORMAL_975 = 1.959963984540054


@register_calibrator(
    "temperature_scaling",
    aliases=("TS", "temperature"),
    role="repair",
    preserves_accuracy=True,
    heads=("softmax", "sigmoid"),
    weights=True,
    formula="softmax(z / T)",
)
class TemperatureScaling(Calibrator):
    """One temperature T for all logits: softmax(z / T), or sigmoid(z / T) for independent labels.

    `objective="nll"` minimises the negative log-likelihood. It is convex in b = 1 / T; the root of its derivative,
    the weighted sum of E_p[z] - z_true, is found to 1e-10 relative in float64, whatever the scale of the logits.
    `objective="ece"` is the papers' grid: T = 0.1, 0.2, ..., 10.0, the calibration error of the top class with
    `bins` and `binning`, the smallest T among equals.

    Fitted: `temperature_`, `temperature_interval_` (95 %, from the observed information on log T; None where there
    is none), `at_bound_` (whether no finite temperature was best, in which case a warning says why).

    >>> import numpy as np
    >>> logits, labels = np.array([[4.0, 0.0]] * 4), np.array([0, 0, 0, 1])
    >>> round(TemperatureScaling().fit(logits, labels).temperature_, 6)
    3.640957

    Reference: Guo et al., On Calibration of Modern Neural Networks, ICML 2017.
    """

    _state = ("temperature_", "temperature_interval_", "at_bound_")
    _heads = ("softmax", "sigmoid")
    _soft_labels = True

    def __init__(self, *, objective: str = "nll", bins: int = 15, binning: str = "width") -> None:
        self.objective = objective
        self.bins = bins
        self.binning = binning

    @property
    def preserves_accuracy(self) -> bool:
        """True: a positive temperature orders the classes as before."""
        return True

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit T on logits (n, K) and labels, or on Predictions."""
        if self.objective not in ("nll", "ece"):
            raise bad_input(
                "fitting TemperatureScaling", came=f"objective={self.objective!r}", expected="'nll' or 'ece'"
            )
        rows = self._read(X, y, sample_weight)
        if self.objective == "ece":
            self.temperature_ = best_on_grid(rows, self.bins, self.binning)
            self.temperature_interval_, self.at_bound_ = None, False
            return self
        found = most_likely(rows)
        if found.warning:
            warnings.warn(f"TemperatureScaling: {found.warning}", UserWarning, stacklevel=2)
        self.temperature_, self.at_bound_ = found.temperature, bool(found.warning)
        self.temperature_interval_ = found.interval
        return self

    def _build(self) -> torch.nn.Module:
        return LogitMap(Scale(1.0 / self.temperature_), self.head_)


class Found:
    """A temperature with its interval, or the reason why it is a bound."""

    def __init__(self, temperature: float, curvature: float = 0.0, warning: str = "") -> None:
        self.temperature = temperature
        self.warning = warning
        self.interval: list[float] | None = None
        if curvature > 0 and not warning:
            width = STANDARD_NORMAL_975 / math.sqrt(curvature)
            self.interval = [temperature * math.exp(-width), temperature * math.exp(width)]


def most_likely(rows: Rows) -> Found:
    """The maximum-likelihood temperature of rows of either head."""
    few = every(rows, FEWEST)
    scale = logit_scale(rows if few is None else rows.take(few)) or logit_scale(rows)
    if scale == 0.0:
        return Found(1.0, warning="all logits of every row are equal, so any temperature gives the same; T = 1.")
    if rows.head == "sigmoid":
        return _settle(rows, find_root(lambda b: sigmoid_moments(rows, b), 1.0 / scale), scale)
    gap = true_gap(rows)
    if not bool((gap < 0).any()):
        return Found(
            scale / BOUND_BELOW,
            warning="every fitted row is classified correctly, so the likelihood rises without end as T falls to 0 "
            f"and no finite temperature is best. T = {scale / BOUND_BELOW:.4g} is a bound, 1/{BOUND_BELOW:.0f} of the "
            "logits' spread. Fit on rows that the model was not trained on.",
        )
    start = 1.0 / scale
    few = every(rows, max(FEWEST, min(MOST, ROUGH // rows.classes)))
    if few is not None:
        some, some_gap = rows.take(few), gap[few]
        rough = find_root(lambda b: softmax_moments(some, some_gap, b), start)
        if rough.found and 1e-3 < rough.inverse * scale < 1e3:
            step = halley_step(softmax_moments(rows, gap, rough.inverse, single=rows.logits.dtype != torch.float64))
            start = rough.inverse * (1 + step) if abs(step) < 0.5 else rough.inverse
    return _settle(rows, find_root(lambda b: softmax_moments(rows, gap, b), start), scale)


def every(rows: Rows, count: int) -> slice | None:
    """About `count` rows at even distances; None where that is not much less than all."""
    return slice(None, None, rows.count // count) if rows.count > 8 * count else None


def _settle(rows: Rows, root: Root, scale: float) -> Found:
    """The temperature of a root, or the bound of the side on which there is none."""
    if root.found:
        return Found(1.0 / root.inverse, root.curvature)
    if root.inverse * scale > 1:
        return Found(
            scale / BOUND_BELOW,
            warning="every fitted label is on the right side, so the likelihood rises without end as T falls to 0 and "
            f"no finite temperature is best. T = {scale / BOUND_BELOW:.4g} is a bound, 1/{BOUND_BELOW:.0f} of the "
            "logits' spread.",
        )
    return Found(
        scale * BOUND_ABOVE,
        warning="the labels run against the logits: the true class has on average no larger logit than the others, "
        f"and the likelihood rises as T grows without end. T = {scale * BOUND_ABOVE:.4g} is a bound, "
        f"{BOUND_ABOVE:.0f} times the logits' spread. Check the order of the classes and of the rows.",
    )


def best_on_grid(rows: Rows, bins: int, binning: str) -> float:
    """The smallest of T = 0.1, ..., 10.0 with the least calibration error of the top class."""
    from ._grid_error import grid_error

    if rows.head != "softmax":
        raise bad_input(
            "fitting TemperatureScaling with objective='ece'",
            came="a sigmoid head",
            expected="a softmax head",
            mend="Use objective='nll'.",
        )
    error = grid_error(rows, bins, binning)

    def at(part: slice) -> list[tuple[float, float]]:
        temperatures = [tenth / 10 for tenth in range(1 + part.start, 1 + part.stop)]
        return [(error(top_confidence(rows, 1.0 / temperature)), temperature) for temperature in temperatures]

    device = rows.logits.device  # type: ignore[union-attr]
    tried = [pair for pairs in over_slices(100, ELEMENTS, device, at) for pair in pairs]
    return min(tried)[1]  # of equal errors the smallest temperature
