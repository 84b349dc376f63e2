"""The table of checks: a check is a function of a `Subject` that breaks, does not apply, or passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ._report import NotApplicable
from ._subject import Subject


@dataclass(frozen=True)
class Check:
    """One named property; `summary` says it in a sentence."""

    name: str
    summary: str
    run: Callable[[Subject], None]


TABLE: dict[str, Check] = {}


def check(name: str) -> Callable[[Callable[[Subject], None]], Callable[[Subject], None]]:
    """Enter a function in the table; its docstring is the sentence."""

    def enter(function: Callable[[Subject], None]) -> Callable[[Subject], None]:
        TABLE[name] = Check(name, (function.__doc__ or "").split("\n")[0], function)
        return function

    return enter


def apply_if(condition: object, otherwise: str) -> None:
    """Leave the check, with the reason, unless the condition holds."""
    if not condition:
        raise NotApplicable(otherwise)
