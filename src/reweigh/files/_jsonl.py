"""JSON lines: one object a row, scores as a list or one key a class."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy

from ..errors import InputError, need
from ..registry import register_format
from ._arrow import to_numpy
from ._failures import reading, stepwise
from ._limits import check_expansion
from ._source import Format, Source, Wanted, slices

WHAT = "a file of JSON lines"
CHUNK = 8 << 20  # bytes parsed at a time; a single row may not be longer
DEEPEST = 16  # rows are objects of numbers and lists; deeper nesting would overflow the parser's stack
_LEVELS = numpy.zeros(256, numpy.int8)
_LEVELS[[ord("["), ord("{")]], _LEVELS[[ord("]"), ord("}")]] = 1, -1


@register_format("jsonl", endings=(".jsonl", ".ndjson"))
def jsonl() -> Format:
    """One JSON object a line; read only, because text cannot tell when it is damaged."""
    return Format(open=_open)


def _open(path: Path, options: Mapping[str, Any]) -> Source:
    label = str(path)
    with reading(label, WHAT):
        first = _first(path, label)
    return Source(
        label=label,
        columns={name: _in_words(value) for name, value in first.items()},
        rows=None,
        read=lambda wanted: _read(path, wanted, first),
        batches=lambda wanted, rows: stepwise(lambda: _batches(path, wanted, first, rows), label, WHAT),
    )


def _first(path: Path, label: str) -> dict[str, Any]:
    """The first row, which tells the names."""
    with open(path, "rb") as file:
        line = file.readline(CHUNK)
    if not line.strip():
        raise InputError(f"opening {label}: its first line is empty, expected a JSON object a line.")
    _check_depth(line, label)
    found = json.loads(line)
    if not isinstance(found, dict):
        raise InputError(
            f'opening {label}: its first line is {type(found).__name__}, expected an object such as {{"logits": [...]}}.'
        )
    return found


def _in_words(value: Any) -> str:
    return (
        f"lists of {len(value)}" if isinstance(value, list) else {str: "text", bool: "bool"}.get(type(value), "number")
    )


def _check_depth(chunk: bytes, label: str) -> None:
    """Refuse deep nesting, on which pyarrow's parser ends the process; brackets inside text count as well."""
    depth = numpy.cumsum(_LEVELS[numpy.frombuffer(chunk, numpy.uint8)], dtype=numpy.int32)
    if len(depth) and depth.max() > DEEPEST:
        raise InputError(
            f"opening {label}: it nests {int(depth.max())} brackets, expected an object of numbers, text and lists a line."
        )


def _chunks(file: BinaryIO, label: str) -> Iterator[bytes]:
    """Pieces of whole lines."""
    kept = b""
    while piece := file.read(CHUNK):
        head, end, tail = (kept + piece).rpartition(b"\n")
        if not end and len(tail) > CHUNK:
            raise InputError(f"opening {label}: it has a line longer than {CHUNK:,} bytes, expected a row a line.")
        if end:
            yield head + end
        kept = tail
    if kept.strip():
        yield kept


def _schema(wanted: Wanted, first: Mapping[str, Any]) -> Any:
    """Types that do not depend on the rows: numbers are float64 though the first may look whole, text stays text."""
    pyarrow = need("pyarrow", "files", "reading JSON lines")
    kinds = {}
    for name, kind in wanted.items():
        value = first.get(name)
        if kind == "number":
            kinds[name] = pyarrow.list_(pyarrow.float64()) if isinstance(value, list) else pyarrow.float64()
        elif isinstance(value, str):
            kinds[name] = pyarrow.string()
    return pyarrow.schema(list(kinds.items()))


def _parsed(path: Path, wanted: Wanted, first: Mapping[str, Any]) -> Iterator[Any]:
    """Arrow tables, one a chunk."""
    label, library = str(path), need("pyarrow.json", "files", "reading JSON lines")
    schema = _schema(wanted, first)
    known = set(schema.names) >= set(wanted)
    options = library.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore" if known else "infer")
    with open(path, "rb") as file:
        for chunk in _chunks(file, label):
            _check_depth(chunk, label)
            yield library.read_json(io.BytesIO(chunk), library.ReadOptions(block_size=len(chunk) + 1), options)


def _read(path: Path, wanted: Wanted, first: Mapping[str, Any]) -> dict[str, numpy.ndarray]:
    label, pyarrow = str(path), need("pyarrow", "files", "reading JSON lines")
    check_expansion(label, path.stat().st_size, path.stat().st_size)
    with reading(label, WHAT):
        parts = [table.select(list(wanted)) for table in _complete(_parsed(path, wanted, first), wanted, label)]
        table = pyarrow.concat_tables(parts, promote_options="permissive")
        return {name: to_numpy(table.column(name), name, label) for name in wanted}


def _complete(tables: Iterator[Any], wanted: Wanted, label: str) -> Iterator[Any]:
    """The tables, each of which has all columns."""
    rows = 0
    for table in tables:
        for name in wanted:
            if name not in table.column_names:
                raise InputError(
                    f"opening {label}: column {name!r} is empty in row {rows}, expected a value in every row."
                )
        rows += table.num_rows
        yield table


def _batches(path: Path, wanted: Wanted, first: Mapping[str, Any], rows: int) -> Iterator[dict[str, numpy.ndarray]]:
    label = str(path)
    for table in _complete(_parsed(path, wanted, first), wanted, label):
        yield from slices({name: to_numpy(table.column(name), name, label) for name in wanted}, rows)
