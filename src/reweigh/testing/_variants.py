"""The forms of a loss that its signature offers: every word of a `Literal`, both values of a switch, optional counts.

No table of losses: settings without which a loss cannot be built are recognised by their names, which mean the
same in every loss (`class_counts`, `num_classes`, `loss` or `base` for another loss).
"""

from __future__ import annotations

import inspect
import itertools
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from .. import registry
from ..errors import InputError
from ..module import Common, Loss

CLASSES = 7


@dataclass(frozen=True)
class Variant:
    """A loss and what it was built with; `label` is how the command line would write it."""

    label: str
    loss: Loss


def variants(what: str | Callable[..., Loss], *, classes: int = CLASSES, full: bool = False) -> list[Variant]:
    """The default form of a registered name or a function, then one form for each word and switch of a setting.

    `classes` sizes whatever is sized by classes. `full` adds numbers halved and doubled, and pairs of words.
    """
    function = registry.get("loss", what) if isinstance(what, str) else what
    name = what if isinstance(what, str) else getattr(function, "__name__", type(function).__name__)
    parameters = _settings(function)
    base = _required(function, parameters, classes)
    found: dict[str, Variant] = {}
    for settings in _choices(parameters, base, classes, full):
        try:
            loss = function(**settings)
        except InputError:
            if not settings or settings in base:
                raise
            continue  # the loss refuses this combination, in words
        label = _label(name, settings)
        found.setdefault(label, Variant(label, loss))
    return list(found.values())


def _settings(function: Callable[..., Loss]) -> dict[str, inspect.Parameter]:
    """Keyword-only settings with their types resolved; the keywords common to every loss left out."""
    try:
        types = typing.get_type_hints(function)
    except NameError:
        types = {}
    own = inspect.signature(function).parameters.values()
    return {
        one.name: one.replace(annotation=types.get(one.name, one.annotation))
        for one in own
        if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD) and one.name not in Common.__annotations__
    }


def _candidates(name: str, classes: int) -> list[Any]:
    """Values that a setting of this name may take, the first that builds is used."""
    if name in ("loss", "base"):
        known = [word for word in ("cross_entropy", "binary_cross_entropy") if word in registry.names("loss")]
        return [registry.get("loss", word) for word in known]
    if name == "num_classes":
        return [lambda: classes]
    if name == "class_counts":
        return [lambda: [max(1, 400 // 3**k) for k in range(classes)]]
    return [lambda: [0.5 + 0.25 * (k % 4) for k in range(classes)], lambda: 0.4]


def _builds(function: Callable[..., Loss], settings: dict[str, Any]) -> bool:
    try:
        function(**settings)
    except (InputError, TypeError):
        return False
    return True


def _required(function: Callable[..., Loss], parameters: dict[str, inspect.Parameter], classes: int) -> list[dict]:
    """The smallest sets of settings with which the loss can be built; several where it needs one of two."""
    needed = {one.name: one for one in parameters.values() if one.default is one.empty}
    known = {name: _candidates(name, classes) for name in needed}
    for values in itertools.product(*known.values()):
        settings = {name: value() for name, value in zip(known, values, strict=True)}
        if _builds(function, settings):
            return [settings]
    found = []
    for name, one in parameters.items():
        if one.default is not None:
            continue
        for value in _candidates(name, classes):
            settings = {name: value()}
            if _builds(function, settings):
                found.append(settings)
                break
    if not found:
        function()  # raises the loss's own sentence about what it needs
    return found


def _choices(
    parameters: dict[str, inspect.Parameter], base: list[dict], classes: int, full: bool
) -> Iterator[dict[str, Any]]:
    """Settings worth checking: each base, then one departure at a time (two with `full`)."""
    yield from base
    others = {name: _others(one, classes, full) for name, one in parameters.items()}
    for start in base:
        taken = set().union(*base)
        single = [(name, value) for name, values in others.items() if name not in taken for value in values]
        for name, value in single:
            yield {**start, name: value}
        if full:
            words = [(name, value) for name, value in single if isinstance(value, (str, bool))]
            for (one, first), (two, second) in itertools.combinations(words, 2):
                if one != two:
                    yield {**start, one: first, two: second}


def _others(one: inspect.Parameter, classes: int, full: bool) -> list[Any]:
    """Values of a setting beside its default."""
    words = _words(one.annotation)
    if words:
        return [word for word in words if word != one.default]
    if isinstance(one.default, bool):
        return [not one.default]
    if one.default is None:
        return [value() for value in _candidates(one.name, classes)]
    if full and isinstance(one.default, float) and one.default:
        return [one.default / 2, one.default * 2]
    return []


def _words(annotation: Any) -> list[Any]:
    """The words of a Literal, also inside a union."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    if get_origin(annotation) in (Union, UnionType):
        return [word for part in get_args(annotation) for word in _words(part)]
    return []


def _label(name: str, settings: dict[str, Any]) -> str:
    parts = [f"{key}={_value(value)}" for key, value in settings.items()]
    return f"{name}:{','.join(parts)}" if parts else name


def _value(value: Any) -> str:
    if isinstance(value, Loss):
        return value.rule.name
    if isinstance(value, list):
        return f"[{len(value)}]"
    return str(value).lower() if isinstance(value, bool) else str(value)
