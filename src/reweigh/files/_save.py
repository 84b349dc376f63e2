"""`save`: predictions into a file whose damage would be noticed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .. import registry
from ..errors import InputError
from ..predictions import Predictions
from ._places import format_of
from ._replace import replacing
from ._source import Format


def save(predictions: Predictions | Iterable[Predictions], path: str | os.PathLike[str]) -> None:
    """Write predictions as Parquet, safetensors or NPZ, by the ending of `path`.

    The file appears whole or not at all, and carries what notices a flipped bit. An iterable of tables of one form
    (what `reweigh.files.batches` gives) is written below one another, Parquet without holding them in memory.
    """
    write(tables_of(predictions), Path(os.path.expanduser(os.fspath(path))), {})


def tables_of(predictions: Predictions | Iterable[Predictions]) -> Iterator[Predictions]:
    """One table or several, each of which is one."""
    for table in [predictions] if isinstance(predictions, Predictions) else predictions:
        if not isinstance(table, Predictions):
            raise InputError(
                f"saving predictions: got {type(table).__name__}, expected Predictions. Make them by reweigh.open(...)."
            )
        yield table


def writer_of(path: Path) -> Format:
    """The format to write a file in; one that cannot notice damage is refused."""
    known = [
        ending
        for entry in registry.entries("format")
        if entry.details.get("writes")
        for ending in entry.details["endings"]
    ]
    found = (
        format_of(path)
        if path.suffix.casefold() in {end for one in registry.entries("format") for end in one.details["endings"]}
        else None
    )
    if found is None or found.write is None:
        raise InputError(
            f"writing {path}: files ending in {path.suffix or 'nothing'!r} are not written, expected one of "
            f"{', '.join(sorted(known))}. These carry checksums, so that a damaged file is noticed."
        )
    return found


def write(tables: Iterable[Predictions], path: Path, extra: Mapping[str, Any]) -> None:
    """The tables below one another into one file; `extra` goes into its manifest."""
    format = writer_of(path)
    with replacing(path) as handle:
        format.write(handle, tables, extra)  # type: ignore[misc]
