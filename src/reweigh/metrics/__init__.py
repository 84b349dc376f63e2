"""Metrics, one file a family: pure functions `Predictions -> number`, registered by their decorator.

May import `predictions`, `binning`, `density`, `ranks`, `registry`, `errors`; never files, losses or calibrators.
To add one, copy `_accuracy.py`: what adds up, its value, the function; `reweigh.metrics.NAME` finds it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .. import registry

if TYPE_CHECKING:
    from ._estimate import Difference, Estimate, compare_pairs, estimate, estimates
    from ._stream import Stream, stream
    from ._torchmetrics import torchmetrics_class

# what serves all metrics, by the file that holds it
_SERVICES = {
    "Difference": "_estimate",
    "Estimate": "_estimate",
    "Stream": "_stream",
    "bayes_decision": "_expected_cost",
    "best_thresholds": "_class_report",
    "class_report_from_counts": "_class_report",
    "compare_pairs": "_estimate",
    "estimate": "_estimate",
    "estimates": "_estimate",
    "stream": "_stream",
    "torchmetrics_class": "_torchmetrics",
}


def __getattr__(name: str) -> Any:
    if name in _SERVICES:
        value = getattr(importlib.import_module(f".{_SERVICES[name]}", __name__), name)
        globals()[name] = value
        return value
    for entry in registry.entries("metric"):
        if entry.name == name:
            value = entry.load()
            globals()[name] = value
            return value
    raise AttributeError(f"there is no metric {name!r} in reweigh.metrics")


def __dir__() -> list[str]:
    return sorted([*_SERVICES, *registry.names("metric")])
