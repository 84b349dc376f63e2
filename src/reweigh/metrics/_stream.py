"""Metrics of more rows than memory holds: the sums of `metric.traits`, added part by part, merged by addition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import bad_input
from ..predictions import Predictions
from ._estimate import Metric, metric_named
from ._traits import Statistics, traits_of


def check_streams(metric: Metric, settings: Mapping[str, Any]) -> None:
    """An error for metrics whose value needs all rows at once; it names what can be added up."""
    known = traits_of(metric)
    if known.statistics is None or known.value is None or not known.weighted(**settings):
        words = ", ".join(f"{name}={value!r}" for name, value in settings.items())
        raise bad_input(
            f"streaming {metric.__name__}{f' with {words}' if words else ''}",
            came="a metric that needs all rows at once",
            expected="one made of sums",
            mend=f"The nearest that is: {known.instead}." if known.instead else "",
        )


def merged(first: Statistics | None, second: Statistics) -> Statistics:
    """Two sums added."""
    if first is None:
        return second
    for name, value in second.items():
        if first[name].shape != value.shape:
            raise bad_input(
                "adding up parts of a metric",
                came=f"sums of shape {tuple(value.shape)} and {tuple(first[name].shape)}",
                expected="parts with the same classes and settings",
            )
    return {name: first[name] + value.to(first[name].device) for name, value in second.items()}


class Stream:
    """One metric over parts of the rows; its state has a fixed size.

    >>> from reweigh.metrics import stream
    >>> seen = stream("accuracy")
    >>> for correct in ([True, True], [False]):
    ...     seen.add(Predictions(confidence=[0.9] * len(correct), correct=correct))
    >>> round(seen.value(), 6)
    0.666667
    """

    def __init__(self, metric: Metric, settings: Mapping[str, Any], sums: Statistics | None = None) -> None:
        check_streams(metric, settings)
        self.metric, self.settings, self.sums = metric, dict(settings), sums

    def add(self, predictions: Predictions) -> None:
        """Take in some rows; none are no rows."""
        if len(predictions):
            self.sums = merged(self.sums, traits_of(self.metric).statistics(predictions, **self.settings))  # type: ignore[misc]

    def merge(self, other: Stream) -> None:
        """Take in what another stream of the same metric saw."""
        if other.metric is not self.metric or other.settings != self.settings:
            raise bad_input(
                "merging streams",
                came=f"{other.metric.__name__} {other.settings}",
                expected=f"{self.metric.__name__} {self.settings}",
            )
        if other.sums is not None:
            self.sums = merged(self.sums, other.sums)

    def value(self) -> Any:
        """The metric of everything seen so far."""
        if self.sums is None:
            raise bad_input(f"computing {self.metric.__name__} of a stream", came="no rows", expected="at least one")
        return traits_of(self.metric).value(self.sums, **self.settings)  # type: ignore[misc]


def stream(metric: str | Metric, **settings: Any) -> Stream:
    """A `Stream` of a metric by name or function; metrics that do not add up refuse, naming the nearest that does."""
    return Stream(metric_named(metric), settings)
