"""How every message is built: what was being done, what came, what was expected, how to mend it.

Reweigh raises the built-in exceptions (`ValueError` for a bad value, `TypeError` for a bad type,
`KeyError` is never shown), so that callers need no import to catch them. Only two classes are our
own: `InputError` for everything that is wrong with a user's input, and `MissingExtra` for an
optional dependency. The command line turns both into one sentence without a traceback.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from types import ModuleType


class InputError(ValueError):
    """Something the user gave is wrong; the message says what, and how to mend it."""


class MissingExtra(ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


def message(doing: str, *, came: str, expected: str, mend: str = "") -> str:
    """One clear sentence or two: `doing: got CAME, expected EXPECTED. MEND`."""
    text = f"{doing}: got {came}, expected {expected}."
    return f"{text} {mend}" if mend else text


def bad_input(doing: str, *, came: str, expected: str, mend: str = "") -> InputError:
    """The error of `message`, to be raised at the boundary where the value entered."""
    return InputError(message(doing, came=came, expected=expected, mend=mend))


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` most likely meant, or None when nothing is close."""
    table = {candidate.casefold(): candidate for candidate in known}
    found = difflib.get_close_matches(name.casefold(), table, n=1, cutoff=0.5)
    return table[found[0]] if found else None


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name nobody registered: names the nearest one, else lists all."""
    known = sorted(known)
    guess = nearest(name, known)
    mend = f"Did you mean {guess!r}?" if guess else f"Known: {', '.join(known)}."
    return InputError(f"there is no {kind} called {name!r}. {mend}")


def need(module: str, extra: str, doing: str) -> ModuleType:
    """Import an optional dependency where it is used; its absence names the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(
            f"{doing} needs the package {module.split('.')[0]!r}, which is not installed "
            f"(or is broken: {error}). Install it with: pip install 'reweigh[{extra}]'"
        ) from error
