"""`describe`: what a source holds, from its headers alone."""

from __future__ import annotations

from typing import Any, Unpack

from ..errors import InputError
from ._names import ColumnNames, resolve
from ._open import prepared


def describe(source: Any, **columns: Unpack[ColumnNames]) -> dict[str, Any]:
    """Files, rows and columns of a source; `unresolved` where no column is known to hold the scores."""
    found, chosen = prepared(source, columns)
    first = found.sources[0]
    rows = [one.rows for one in found.sources]
    try:
        resolve(first.columns, chosen, first.label)
        unresolved = False
    except InputError:
        unresolved = True
    return {
        "file": found.label,
        "shards": len(found.sources) if len(found.sources) > 1 else None,
        "rows": None if None in rows else sum(count or 0 for count in rows),
        "written_by_reweigh": first.manifest is not None,
        "columns": dict(first.columns),
        "unresolved": unresolved,
    }
