"""A metric with its uncertainty, and the difference between two tables of the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy
import torch

from .. import registry
from ..errors import InputError, bad_input
from ..predictions import Predictions
from ._resampling import drawn_rows, draws
from ._traits import named, traits_of

Tensor = torch.Tensor
Metric = Callable[..., Any]


class Estimate(NamedTuple):
    """A value and the interval around it; tensors where the metric has one value a class."""

    value: Any
    low: Any
    high: Any


class Difference(NamedTuple):
    """The second table's value minus the first's; `better` is the share of resamples in which the second is better."""

    value: Any
    low: Any
    high: Any
    first: Any
    second: Any
    better: Any


def metric_named(metric: str | Metric) -> Metric:
    """The function of a name, or the function itself."""
    return registry.get("metric", metric) if isinstance(metric, str) else metric


def details_of(metric: Metric) -> Mapping[str, Any]:
    """Direction and range of a registered metric."""
    for entry in registry.entries("metric"):
        if entry.thing is metric or (entry.module == metric.__module__ and entry.attribute == metric.__name__):
            return entry.details
    return {}


def _checked(interval: float, resamples: int) -> None:
    if not 0 < interval < 1:
        raise bad_input(
            "estimating a metric", came=f"interval={interval!r}", expected="a share between 0 and 1, as in 0.95"
        )
    if resamples < 2:
        raise bad_input("estimating a metric", came=f"resamples={resamples!r}", expected="at least 2")


def _flat(result: Any) -> Tensor:
    """Any result as float64 numbers in a row."""
    parts = named(result)
    if parts is not None:
        return torch.cat([_flat(part) for part in parts.values()])
    if not isinstance(result, (float, int, torch.Tensor)) or isinstance(result, bool):
        raise bad_input(
            "estimating a metric",
            came=f"a result of type {type(result).__name__}",
            expected="a number, a tensor or a mapping of them",
        )
    return torch.as_tensor(result, dtype=torch.float64).detach().cpu().reshape(-1)


def _shaped(values: Tensor, like: Any) -> Any:
    """Numbers in a row back in the shape of a result."""
    if isinstance(like, torch.Tensor):
        return values.reshape(like.shape)
    return float(values[0])


def _by_part(build: Callable[..., Any], result: Any, *rows: Tensor) -> Any:
    """`build` on each named part of a result, or on the whole."""
    parts = named(result)
    if parts is None:
        return build(result, *rows)
    found, start = {}, 0
    for name, part in parts.items():
        size = len(_flat(part))
        found[name] = _by_part(build, part, *(values[..., start : start + size] for values in rows))
        start += size
    return found


def reduced(metric: Metric, predictions: Predictions, settings: Mapping[str, Any]) -> Predictions:
    """Confidence and correctness alone where a metric needs no more: resampling them copies little."""
    if not traits_of(metric).top_label(**settings) or predictions.per_label:
        return replace(predictions, ids=None, _checked=False)
    return Predictions(
        confidence=predictions.top_confidence,
        correct=predictions.correctness,
        groups=predictions.groups,
        weights=predictions.weights,
    )


def resampled(
    metric: Metric, predictions: Predictions, counts: Iterable[Tensor], settings: Mapping[str, Any]
) -> Iterator[Tensor]:
    """The metric on every resample: as weights where it honours them, which is exact and fast, else on the rows drawn."""
    weighted = traits_of(metric).weighted(**settings)
    table = predictions if weighted else reduced(metric, predictions, settings)
    base = predictions.row_weights
    for drawn in counts:
        if weighted:
            drawn = drawn.to(predictions.scores.device)
            sample = predictions.reweighted(drawn if base is None else drawn * base)
        else:
            sample = table.take(drawn_rows(drawn))
        try:
            yield _flat(metric(sample, **settings))
        except InputError:  # a resample may lack what the metric needs: a class, an overlap
            yield torch.full((1,), torch.nan, dtype=torch.float64)


def _table(
    metric: Metric, predictions: Predictions, counts: Iterable[Tensor], settings: Mapping[str, Any], size: int
) -> Tensor:
    rows = [row.expand(size) if len(row) == 1 else row for row in resampled(metric, predictions, counts, settings)]
    if any(len(row) != size for row in rows):
        raise bad_input(
            f"estimating {metric.__name__}",
            came="results whose size depends on the rows",
            expected="as many numbers for every resample",
            mend="A curve has no single interval: compute it without one.",
        )
    table = torch.stack(rows)
    if bool(torch.isnan(table).all()):
        raise bad_input(
            "estimating a metric", came="no resample on which it is defined", expected="rows that suffice for it"
        )
    return table


def _limits(values: Tensor, table: Tensor, interval: float, bounds: Any) -> tuple[Tensor, Tensor]:
    """The basic bootstrap interval, which undoes the bias of resampling, within the range and around the value.

    Binned errors grow when rows repeat; quantiles of the resamples would lie beside the value. Reflecting them at
    the value (2 v - q) takes the same bias off, and the value itself is always included.
    """
    tail = (1 - interval) / 2
    low = 2 * values - torch.nanquantile(table, 1 - tail, dim=0)
    high = 2 * values - torch.nanquantile(table, tail, dim=0)
    least, most = (float(limit) for limit in bounds)
    low, high = torch.fmin(low.clamp(least, most), values), torch.fmax(high.clamp(least, most), values)
    undefined = torch.isnan(values)
    return low.masked_fill(undefined, torch.nan), high.masked_fill(undefined, torch.nan)


def _estimate_of(result: Any, values: Tensor, low: Tensor, high: Tensor) -> Estimate:
    return Estimate(result, _shaped(low, result), _shaped(high, result))


def estimate(
    metric: str | Metric,
    predictions: Predictions,
    *,
    interval: float = 0.95,
    resamples: int = 200,
    seed: int = 0,
    by: str | None = None,
    **settings: Any,
) -> Any:
    """A metric's value with its interval; a mapping of estimates for a metric with several named values.

    In closed form where one is known (Wilson for shares, DeLong for areas under ROC, influence functions for the
    risk-coverage area), otherwise by a seeded bootstrap over rows, or over the groups of the column `by`, when rows
    come in patients or videos. Remaining keywords are the metric's settings.

    >>> table = Predictions(confidence=[0.9] * 100, correct=[True] * 80 + [False] * 20)
    >>> [round(part, 3) for part in estimate("accuracy", table)]
    [0.8, 0.711, 0.867]
    """
    _checked(interval, resamples)
    function = metric_named(metric)
    result = function(predictions, **settings)
    known = traits_of(function).interval
    if by is None and known is not None:
        limits = known(predictions, interval, **settings)
        if limits is not None:
            return Estimate(result, *limits)
    values = _flat(result)
    table = _table(function, predictions, draws(predictions, resamples, seed, by), settings, len(values))
    low, high = _limits(values, table, interval, details_of(function).get("range", ("-inf", "inf")))
    return _by_part(_estimate_of, result, values, low, high)


def estimates(metrics: Iterable[str | Metric], predictions: Predictions, **options: Any) -> dict[str, Any]:
    """`estimate` for several metrics, by name; they share their resamples."""
    functions = [metric_named(metric) for metric in metrics]
    return {function.__name__: estimate(function, predictions, **options) for function in functions}


def aligned(first: Predictions, second: Predictions) -> Predictions:
    """The second table in the row order of the first; the rows must be the same."""
    doing = "comparing predictions pair by pair"
    if (first.ids is None) != (second.ids is None):
        raise bad_input(doing, came="ids in one table only", expected="ids in both, or in neither")
    if len(first) != len(second):
        raise bad_input(doing, came=f"{len(first)} and {len(second)} rows", expected="the same rows in both tables")
    if first.ids is not None:
        mine, theirs = (
            numpy.asarray(t.ids.cpu() if isinstance(t.ids, torch.Tensor) else t.ids) for t in (first, second)
        )
        order = numpy.argsort(theirs, kind="stable")
        place = order[numpy.minimum(numpy.searchsorted(theirs, mine, sorter=order), len(order) - 1)]
        missing = theirs[place] != mine
        if missing.any():
            example = mine[missing][0]
            raise bad_input(
                doing, came=f"the id {example.item()!r} in the first table only", expected="the same ids in both tables"
            )
        second = second.take(place)
    if first.targets is not None and second.targets is not None:
        ours, other = first.target_tensor.cpu(), second.target_tensor.cpu()
        if ours.shape != other.shape or bool((ours != other).any()):
            row = "" if ours.shape != other.shape else f" (row {int(torch.nonzero(ours != other)[0][0])})"
            raise bad_input(doing, came=f"different targets{row}", expected="one truth for both tables")
    return second


def compare_pairs(
    metric: str | Metric,
    first: Predictions,
    second: Predictions,
    *,
    interval: float = 0.95,
    resamples: int = 200,
    seed: int = 0,
    by: str | None = None,
    **settings: Any,
) -> Any:
    """The second table's value minus the first's, resampling the same rows in both, matched by id where there are ids.

    >>> import numpy
    >>> right = numpy.arange(100) < 80
    >>> one, other = (Predictions(confidence=numpy.full(100, 0.9), correct=found) for found in (right, ~right))
    >>> found = compare_pairs("accuracy", one, other)
    >>> round(found.value, 6), found.high < 0, found.better
    (-0.6, True, 0.0)
    """
    _checked(interval, resamples)
    function = metric_named(metric)
    second = aligned(first, second)
    results = [function(table, **settings) for table in (first, second)]
    values = [_flat(result) for result in results]
    counts = list(draws(first, resamples, seed, by))
    tables = [
        _table(function, table, counts, settings, len(flat))
        for table, flat in zip((first, second), values, strict=True)
    ]
    if tables[0].shape != tables[1].shape:
        raise bad_input(
            "comparing predictions pair by pair", came="results of different sizes", expected="tables of one form"
        )
    details = details_of(function)
    bounds = [float(limit) for limit in details.get("range", ("-inf", "inf"))]
    span = bounds[1] - bounds[0]
    gap, gaps = values[1] - values[0], tables[1] - tables[0]
    low, high = _limits(gap, gaps, interval, (-span, span))
    sign = {"higher": 1.0, "lower": -1.0}.get(details.get("direction", "none"), float("nan"))
    better = (
        ((gaps * sign > 0).double() + (gaps == 0).double() / 2).mean(0) if sign == sign else torch.full_like(gap, sign)
    )

    def build(result: Any, *rows: Tensor) -> Difference:
        return Difference(*(_shaped(row, result) for row in rows))

    return _by_part(build, results[0], gap, low, high, *values, better)
