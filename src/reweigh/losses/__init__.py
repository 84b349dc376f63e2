"""Losses, one file each: a function that returns a `Loss`, registered by its decorator.

May import `rules`, `module`, `evidence`, `scores`, `binning`, `ranks`, `density`, `registry`, `errors`.
To add one, copy `_focal.py`, write its rule, run `reweigh.testing.check_loss` on it.
"""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any

from .. import registry
from ..errors import nearest, unknown_name

if TYPE_CHECKING:
    from ..module import Loss


def loss(name: str, **settings: Any) -> Loss:
    """Build a loss by its name or a paper's abbreviation: `loss("F-ECE", gamma=1)`."""
    entry = registry.find("loss", name)
    function = entry.load()
    known = _settings(function)
    for setting in settings:
        if known and setting not in known:
            raise unknown_name(f"setting of {entry.name}", setting, known)
    return function(**settings)


def _settings(function: Any) -> list[str]:
    """Every keyword the function takes; none when it takes whatever comes."""
    from ..module import Common

    parameters = inspect.signature(function).parameters.values()
    own = [one.name for one in parameters if one.kind is not one.VAR_KEYWORD]
    return [*own, *Common.__annotations__] if any(one.kind is one.VAR_KEYWORD for one in parameters) else own


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
    guess = nearest(name, registry.names("loss"))
    hint = f"; did you mean {guess!r}?" if guess and not name.startswith("_") else ""
    raise AttributeError(f"there is no loss {name!r} in reweigh.losses{hint}")


def __dir__() -> list[str]:
    return ["loss", *_BESIDE, *registry.names("loss")]
