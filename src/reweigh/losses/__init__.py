"""Losses, one file each: a function that returns a `Loss`, registered by its decorator.

May import `rules`, `module`, `evidence`, `scores`, `binning`, `ranks`, `density`, `registry`, `errors`.
To add one, copy `_focal.py`, write its rule, run `reweigh.testing.check_loss` on it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .. import registry

if TYPE_CHECKING:
    from ..module import Loss


def loss(name: str, **settings: Any) -> Loss:
    """Build a loss by its name or a paper's abbreviation: `loss("F-ECE", gamma=1)`."""
    return registry.get("loss", name)(**settings)


# public beside the losses themselves: name -> the file that holds it
_BESIDE = {"selective_weighing": "_selective_risk"}


def __getattr__(name: str) -> Any:
    if name in _BESIDE:
        return getattr(importlib.import_module(f".{_BESIDE[name]}", __name__), name)
    for entry in registry.entries("loss"):
        if entry.name == name:
            value = entry.load()
            globals()[name] = value
            return value
    raise AttributeError(f"there is no loss {name!r} in reweigh.losses")


def __dir__() -> list[str]:
    return ["loss", *_BESIDE, *registry.names("loss")]
