"""Calibrators on the command line: built from NAME:key=value, shown by what they have fitted."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from .. import registry
from ..errors import InputError, nearest
from ..grammar import Named, parse_one

MOST_SHOWN = 12  # numbers of an array


def build(text: str) -> tuple[Named, Any]:
    """The calibrator of a text, not yet fitted; a wrong setting is an error that names the nearest."""
    from ._signature import REQUIRED, settings

    named = parse_one(text)
    entry = registry.find("calibrator", named.name)
    known = [one.name for one in settings(entry)]
    for key in named.settings:
        if key not in known:
            guess = nearest(key, known)
            mend = f"Did you mean {guess!r}?" if guess else f"Its settings: {', '.join(known) or 'none'}."
            raise InputError(f"the calibrator {entry.name!r} has no setting {key!r}. {mend}")
    for one in settings(entry):
        if one.default == REQUIRED and one.name not in named.settings:
            raise InputError(
                f"the calibrator {entry.name!r} needs the setting {one.name!r}. Write {named.name}:{one.name}=VALUE."
            )
    return named, entry.load()(**named.settings)


def fitted_values(calibrator: Any) -> dict[str, Any]:
    """Name -> what was fitted, small arrays whole, large ones by their shape."""
    return {name.rstrip("_"): _shown(getattr(calibrator, name)) for name in getattr(calibrator, "_state", ())}


def _shown(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return f"{len(value)} arrays" if any(hasattr(one, "shape") for one in value) else value
    if hasattr(value, "shape") and value.size > MOST_SHOWN:
        return f"{' x '.join(map(str, value.shape))} numbers"
    return value.tolist() if hasattr(value, "tolist") else value


def in_words(value: Any) -> str:
    """A fitted value for people."""
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else str(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(in_words, value)) + "]"
    return str(value)


def check_target(path: str) -> None:
    """Refuse to write over a folder or a device."""
    target = Path(path)
    if target.exists() and not target.is_file():
        raise InputError(
            f"writing {path}: it is {'a folder' if target.is_dir() else 'not a regular file'}. Choose another name."
        )
    if not target.parent.is_dir():
        raise InputError(f"writing {path}: there is no folder {target.parent}.")
