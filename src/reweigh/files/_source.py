"""What every format offers: a `Source` to read columns from, and a way to write a table, if it has one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ..predictions import Predictions

# What a column is for, so that formats without types (CSV, JSON lines) know how to read it:
# "number" (scores, weights), "label" (targets, correctness), "text" (ids, groups).
Wanted = Mapping[str, str]
Columns = dict[str, Any]


@dataclass(frozen=True)
class Source:
    """One file or open table, its columns known and its rows not yet read."""

    label: str  # what messages call it
    columns: Mapping[str, str]  # name -> type and shape in words
    rows: int | None  # None where only reading tells
    read: Callable[[Wanted], Columns]
    batches: Callable[[Wanted, int], Iterator[Columns]]
    manifest: Mapping[str, Any] | None = None  # what our own files say of themselves


@dataclass(frozen=True)
class Format:
    """How files of one kind are opened, and written if that can be done so that damage is noticed."""

    open: Callable[[Path, Mapping[str, Any]], Source]  # the options are those of `Choice`
    write: Callable[[BinaryIO, Iterable[Predictions], Mapping[str, Any]], None] | None = None


def slices(columns: Columns, rows: int) -> Iterator[Columns]:
    """Columns in memory, cut into batches."""
    count = len(next(iter(columns.values()))) if columns else 0
    for start in range(0, count, rows):
        yield {name: values[start : start + rows] for name, values in columns.items()}
