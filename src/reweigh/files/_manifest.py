"""What a file of ours says of itself: schema version, what the columns mean, and a SHA-256 that covers it.

A manifest is JSON. Its own digest makes a flipped bit in it an error; the columns it lists make a flipped bit in
a name, a type or a count one. The formats add what covers the rows: page checksums, CRCs, or digests of columns.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ..errors import InputError
from ..predictions import Predictions

KEY = "reweigh"
SCHEMA = 1


def describe(predictions: Predictions, columns: Mapping[str, str], extra: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest of a table whose file has these columns (name -> type in words); `rows` is added when known."""
    return {
        "schema": SCHEMA,
        "score": predictions.kind,
        "head": predictions.head,
        "classes": None if predictions.kind == "confidence" else predictions.classes,
        "targets": predictions.target_form,
        "class_names": None if predictions.class_names is None else list(predictions.class_names),
        "about": predictions.about,
        "columns": dict(columns),
        **extra,
    }


def _digest(manifest: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in manifest.items() if name != "sha256"}
    text = json.dumps(rest, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def dumps(manifest: Mapping[str, Any]) -> str:
    """The manifest as text, sealed by its digest."""
    try:
        plain = json.loads(json.dumps(dict(manifest)))  # keys become text before they are digested
        return json.dumps({**plain, "sha256": _digest(plain)}, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise InputError(f"writing predictions: `about` must hold plain values that JSON knows ({error}).") from error


def loads(text: str | bytes, label: str) -> dict[str, Any]:
    """A manifest whose digest holds; a newer schema is refused by its number."""
    try:
        found = json.loads(text)
        sound = isinstance(found, dict) and found.get("sha256") == _digest(found)
    except (ValueError, RecursionError):
        sound = False
    if not sound:
        raise damaged(label, "its manifest does not match its checksum")
    if found["schema"] != SCHEMA:
        raise InputError(
            f"opening {label}: it is written in schema {found['schema']}, this version of Reweigh reads schema {SCHEMA}. "
            "Update Reweigh to read it."
        )
    return found


def damaged(label: str, why: str) -> InputError:
    """The error for a file of ours that is not as it was written."""
    return InputError(f"opening {label}: the file is damaged ({why}). Take it from a copy, or write it again.")


def check_columns(manifest: Mapping[str, Any], found: Mapping[str, str], rows: int | None, label: str) -> None:
    """The columns and rows in the file are those the manifest lists."""
    listed = manifest["columns"]
    for name in {**listed, **found}:
        if listed.get(name) != found.get(name):
            wanted, came = listed.get(name, "absent"), found.get(name, "absent")
            raise damaged(label, f"column {name!r} is {came}, its manifest says {wanted}")
    if rows is not None and rows != manifest["rows"]:
        raise damaged(label, f"it holds {rows} rows, its manifest says {manifest['rows']}")
