"""Which metrics to compute: by name with settings, as functions, or those that suit the table."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .. import registry
from ..errors import InputError, nearest
from ..grammar import Named, parse_list
from ..predictions import Predictions

# what is worth knowing of any classifier, and what a confidence alone can tell
OF_SCORES = (
    "accuracy",
    "negative_log_likelihood",
    "brier_score",
    "expected_calibration_error",
    "area_under_risk_coverage",
)
OF_CONFIDENCE = ("accuracy", "expected_calibration_error", "area_under_risk_coverage")
ADDABLE = ("accuracy", "negative_log_likelihood", "brier_score", "expected_calibration_error")


@dataclass(frozen=True)
class Asked:
    """A metric with its settings, under the name that results show."""

    name: str
    function: Callable[..., Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    direction: str = "none"
    bounds: tuple[float, float] = (-math.inf, math.inf)


def asked(metrics: Any) -> list[Asked]:
    """Metrics from a text (`"accuracy,expected_calibration_error:bins=10"`), a list of texts or functions, or a mapping."""
    if isinstance(metrics, str):
        return [_named(one) for one in parse_list(metrics)]
    if isinstance(metrics, Mapping):
        return [_labelled(str(name), one) for name, one in metrics.items()]
    if callable(metrics):
        metrics = [metrics]
    found = [one for item in metrics for one in ([_function(item)] if callable(item) else asked(_text(item)))]
    twice = [one.name for one in found if [other.name for other in found].count(one.name) > 1]
    if twice:
        raise InputError(f"choosing metrics: {twice[0]!r} is asked for twice.")
    return found


def _text(item: Any) -> str:
    if not isinstance(item, str):
        raise InputError(f"choosing metrics: got {item!r}, expected a name with settings ('accuracy') or a function.")
    return item


def _named(one: Named) -> Asked:
    entry = registry.find("metric", one.name)
    check_settings(f"the metric {entry.name!r}", entry.load(), one)
    words = ",".join(f"{key}={value}" for key, value in one.settings.items())
    label = f"{entry.name}:{words}" if words else entry.name
    return _registered(label, entry, entry.load(), one.settings)


def check_settings(what: str, function: Callable[..., Any], one: Named) -> None:
    """An unknown setting is an error that names the nearest, a missing one an error that says how to give it."""
    known = list(inspect.signature(function).parameters.values())[1:]  # the first is the predictions
    names = [parameter.name for parameter in known]
    free = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known)
    for name in one.settings:
        if name not in names and not free:
            guess = nearest(name, names)
            mend = f"Did you mean {guess!r}?" if guess else f"Its settings: {', '.join(names) or 'none'}."
            raise InputError(f"{what} has no setting {name!r}. {mend}")
    bound = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    for parameter in known:
        if parameter.default is parameter.empty and parameter.kind not in bound and parameter.name not in one.settings:
            raise InputError(
                f"{what} needs the setting {parameter.name!r}. Write {one.name}:{parameter.name}=VALUE, or "
                f"{parameter.name}=@file.yaml for a list."
            )


def _registered(label: str, entry: registry.Entry, function: Callable[..., Any], settings: Mapping[str, Any]) -> Asked:
    low, high = entry.details.get("range", ("-inf", "inf"))
    return Asked(label, function, settings, str(entry.details.get("direction", "none")), (float(low), float(high)))


def _labelled(label: str, one: Any) -> Asked:
    """A metric under a name of the user's own."""
    found = _function(one) if callable(one) else asked(_text(one))[0]
    return replace(found, name=label)


def _function(function: Callable[..., Any]) -> Asked:
    """A function; registered or not."""
    for entry in registry.entries("metric"):
        if entry.thing is function or (
            entry.module == getattr(function, "__module__", "") and entry.attribute == getattr(function, "__name__", "")
        ):
            return _registered(entry.name, entry, function, {})
    return Asked(getattr(function, "__name__", str(function)), function)


def suitable(table: Predictions) -> list[Asked]:
    """The metrics of a table when none are asked for."""
    if table.kind != "confidence" and table.targets is None:
        raise InputError(
            "evaluating predictions: there are no targets, so nothing can be judged. Name their column: target='NAME' "
            "(--target NAME); or give outside predictions to tell from these (--outside FILE)."
        )
    return asked(OF_CONFIDENCE if table.kind == "confidence" else OF_SCORES)


def addable(table: Predictions) -> list[Asked]:
    """The same of a stream: metrics that are sums."""
    return [one for one in suitable(table) if one.name in ADDABLE]


def part_of(text: str) -> tuple[list[Asked], str]:
    """The metric that a name like `AUROC[cat]` or `class_report.recall` belongs to, and the full name of the part.

    Without such a metric: none, and the name as it is.
    """
    for mark in ("", "[", "."):
        base = text.partition(mark)[0] if mark else text
        try:
            found = asked(base)
        except InputError:
            continue
        if len(found) == 1:
            return found, found[0].name + text[len(base) :]
    return [], text
