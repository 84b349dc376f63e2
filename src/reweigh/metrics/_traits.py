"""What a metric says about itself beside its value: the sums behind it, weights, an interval known in closed form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from ..errors import bad_input
from ..predictions import Predictions

Statistics = dict[str, torch.Tensor]
Metric = TypeVar("Metric", bound=Callable[..., Any])


def _never(**settings: Any) -> bool:
    return False


def _always(**settings: Any) -> bool:
    return True


@dataclass(frozen=True)
class Traits:
    """Attached to a metric as `metric.traits`; one without is taken to have no sums and no weighted form."""

    # statistics(predictions, **settings) -> tensors that add; value(statistics, **settings) -> the metric
    statistics: Callable[..., Statistics] | None = None
    value: Callable[..., Any] | None = None
    # settings -> whether weighted rows have a meaning
    weighted: Callable[..., bool] = _never
    # interval(predictions, level, **settings) -> (low, high), or None where it does not apply
    interval: Callable[..., tuple[Any, Any] | None] | None = None
    # settings -> whether confidence and correctness are all it needs
    top_label: Callable[..., bool] = _never
    # what to stream instead, in words
    instead: str = ""


def traits(
    *,
    statistics: Callable[..., Statistics] | None = None,
    value: Callable[..., Any] | None = None,
    weighted: bool | Callable[..., bool] = True,
    interval: Callable[..., tuple[Any, Any] | None] | None = None,
    top_label: bool | Callable[..., bool] = False,
    instead: str = "",
) -> Callable[[Metric], Metric]:
    """Attach traits to a metric; the function itself is returned unchanged."""

    def answer(given: bool | Callable[..., bool]) -> Callable[..., bool]:
        return given if callable(given) else (_always if given else _never)

    def decorate(metric: Metric) -> Metric:
        metric.traits = Traits(  # type: ignore[attr-defined]
            statistics, value, answer(weighted), interval, answer(top_label), instead
        )
        return metric

    return decorate


def traits_of(metric: Callable[..., Any]) -> Traits:
    """The traits of a metric, also of a user's plain function, which has none."""
    return getattr(metric, "traits", Traits())


def total(sums: torch.Tensor) -> torch.Tensor:
    """The two halves of an order-free sum, put together."""
    return sums.sum(-1)


def refuse_weights(predictions: Predictions, what: str, mend: str) -> None:
    """An error for a form that has no meaning for weighted rows."""
    if predictions.weights is not None:
        raise bad_input(f"computing {what}", came="Predictions with weights", expected="unweighted rows", mend=mend)


def need_some_rows(predictions: Predictions, what: str) -> None:
    """An error where there is nothing to measure."""
    if len(predictions) == 0:
        raise bad_input(f"computing {what}", came="Predictions without rows", expected="at least one row")


def as_number(value: torch.Tensor | float) -> Any:
    """A Python float for a single number, the tensor itself for one a class."""
    return float(value) if not isinstance(value, torch.Tensor) or value.ndim == 0 else value


def named(result: Any) -> Mapping[str, Any] | None:
    """The parts of a result that has several, by name; None for a number or a tensor."""
    if isinstance(result, Mapping):
        return result
    if hasattr(result, "keys"):  # a report of columns
        return {name: result[name] for name in result.keys()}
    return result._asdict() if hasattr(result, "_asdict") else None
