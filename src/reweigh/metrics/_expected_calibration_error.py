"""The calibration error over bins, in every published form."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..binning import calibration_error, checked_norm, debiased_calibration_error
from ..predictions import Predictions
from ..registry import register_metric
from ._binned import Binning, from_statistics, measure, statistics
from ._traits import Statistics, traits

Tensor = torch.Tensor


def _cut(settings: dict[str, Any]) -> tuple[Binning, float]:
    settings = dict(settings)
    norm = checked_norm(settings.pop("norm", 1))
    return Binning(**settings), norm


def _error(cut: Binning, norm: float):
    if cut.debias:
        return lambda sums, total: debiased_calibration_error(sums, norm=norm)
    return lambda sums, total: calibration_error(sums, norm=norm, total=total)


def combine(value: Tensor, norm: float) -> float:
    """(mean_k CE_k^norm)^(1/norm) over the classes that count; the largest for the maximum norm."""
    value = value[~torch.isnan(value)] if value.ndim else value.reshape(1)
    if norm == math.inf:
        return float(value.max())
    return float(value.mean()) if norm == 1 else float((value**norm).mean() ** (1 / norm))


def _statistics(predictions: Predictions, **settings: Any) -> Statistics:
    return statistics(predictions, _cut(settings)[0])


def _value(sums: Statistics, **settings: Any) -> float:
    cut, norm = _cut(settings)
    return combine(from_statistics(sums, cut, _error(cut, norm)), norm)


def _weighted(**settings: Any) -> bool:
    return _cut(settings)[0].adds


def _top_label(*, scope: str = "top_label", **settings: Any) -> bool:
    return scope == "top_label"


_TRAITS = traits(
    statistics=_statistics,
    value=_value,
    weighted=_weighted,
    top_label=_top_label,
    instead="expected_calibration_error with binning='width', debias=False",
)


@register_metric(
    "expected_calibration_error", aliases=("ECE",), direction="lower", range=(0, 1), heads=("softmax", "sigmoid")
)
@_TRAITS
def expected_calibration_error(
    predictions: Predictions,
    *,
    bins: int = 15,
    binning: str = "width",
    closed: str = "right",
    norm: float | str = 1,
    scope: str = "top_label",
    classes: str = "all",
    debias: bool = False,
    max_bins: int | None = None,
    parity: str | None = None,
) -> float:
    """How far confidence is from accuracy, over bins: (sum_b n_b/n |conf_b - acc_b|^norm)^(1/norm).

    Settings:
        bins: number of bins; the sweeps choose it themselves, up to `max_bins`.
        binning: "width" (edges k / bins), "mass" (rank i is in bin floor(i bins / n)), "mass_split" (chunks as
            `numpy.array_split` cuts them), "mass_interpolated" ((l, u] between interpolated quantiles), "mass_tied"
            (never parts equal confidences), "mass_order" ([l, u) between order statistics), "sweep" and "sweep_width"
            (as many bins as keep the accuracies rising), "variable" (bins that hold enough rows for their width).
        closed: "right" for (l, u], "left" for [l, u), of equal-width bins; 0 and 1 always belong to the end bins.
        norm: 1, 2, ... or "max".
        scope: "top_label" for the decisions taken, "class_wise" for every class: (mean_k CE_k^norm)^(1/norm).
        classes: "all", or "present" for the classes that occur among the targets.
        debias: subtracts what chance adds, on split bins, for norm 1 (may fall below 0) and 2.
        parity: "official" with "mass_interpolated" loses the lowest confidence, as the published programs do.

    >>> from reweigh import Predictions
    >>> table = Predictions(confidence=[0.95, 1.0], correct=[True, False])
    >>> expected_calibration_error(table, bins=10)
    0.475
    """
    cut, power = _cut({name: value for name, value in locals().items() if name != "predictions"})
    return combine(measure(predictions, cut, _error(cut, power)), power)


@register_metric(
    "maximum_calibration_error", aliases=("MCE",), direction="lower", range=(0, 1), heads=("softmax", "sigmoid")
)
@traits(
    statistics=_statistics,
    value=lambda sums, **settings: _value(sums, **{**settings, "norm": "max"}),
    weighted=_weighted,
    top_label=_top_label,
    instead="maximum_calibration_error with binning='width'",
)
def maximum_calibration_error(
    predictions: Predictions,
    *,
    bins: int = 15,
    binning: str = "width",
    closed: str = "right",
    scope: str = "top_label",
    classes: str = "all",
    max_bins: int | None = None,
    parity: str | None = None,
) -> float:
    """The largest |conf_b - acc_b| of a bin with rows; settings as in `expected_calibration_error`.

    >>> from reweigh import Predictions
    >>> maximum_calibration_error(Predictions(confidence=[0.75, 0.5], correct=[True, False]), bins=4)
    0.5
    """
    cut, power = _cut({name: value for name, value in locals().items() if name != "predictions"} | {"norm": "max"})
    return combine(measure(predictions, cut, _error(cut, power)), power)


def mean_gap(sums: Tensor, total: Any = None) -> Tensor:
    """Mean over the bins with rows of |conf_b - acc_b|, each bin counting once."""
    weight, confidence, correct = sums.unbind(-1)
    filled = weight > 0
    gap = torch.where(filled, (confidence - correct).abs() / weight.clamp(min=1e-300), torch.zeros_like(weight))
    return gap.sum(-1) / filled.sum(-1).clamp(min=1)


@register_metric(
    "average_calibration_error", aliases=("ACE",), direction="lower", range=(0, 1), heads=("softmax", "sigmoid")
)
@traits(
    statistics=_statistics,
    value=lambda sums, **settings: combine(from_statistics(sums, _cut(settings)[0], mean_gap), 1.0),
    weighted=_weighted,
    top_label=_top_label,
    instead="average_calibration_error with binning='width'",
)
def average_calibration_error(
    predictions: Predictions,
    *,
    bins: int = 15,
    binning: str = "width",
    closed: str = "right",
    scope: str = "top_label",
    classes: str = "all",
    max_bins: int | None = None,
    parity: str | None = None,
) -> float:
    """Mean over the bins with rows of |conf_b - acc_b|, each bin counting once however many rows it has.

    Not the "adaptive" calibration error, which is `expected_calibration_error(binning="mass")`.

    >>> from reweigh import Predictions
    >>> average_calibration_error(Predictions(confidence=[0.75, 0.75, 0.5], correct=[True, True, False]), bins=4)
    0.375
    """
    cut, _ = _cut({name: value for name, value in locals().items() if name != "predictions"})
    return combine(measure(predictions, cut, mean_gap), 1.0)
