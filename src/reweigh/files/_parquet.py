"""Parquet, the format of choice: scores as FixedSizeList[K], every page with a checksum that reading verifies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy

from ..errors import InputError, need
from ..predictions import Predictions
from ..registry import register_format
from . import _manifest
from ._arrow import in_words, to_numpy
from ._failures import reading, stepwise
from ._limits import check_expansion
from ._source import Format, Source, Wanted
from ._table_columns import as_numpy, columns_of

WHAT = "a Parquet file"
# Also says that a file is ours, in a place of its own, so that no flipped bit can make the file look foreign:
# the number that Parquet's schema keeps for a field.
FIELD_KEY, FIELD_MARK = b"PARQUET:field_id", b"726569"
ROW_GROUP_BYTES = 64 << 20
BUFFER_BYTES = 1 << 20
LARGE_GROUP = 256 << 20


def _library() -> Any:
    return need("pyarrow.parquet", "files", "reading and writing Parquet")


@register_format("parquet", endings=(".parquet", ".pq"), writes=True)
def parquet() -> Format:
    """Parquet with page checksums; what Reweigh writes unless asked otherwise."""
    return Format(open=_open, write=_write)


def _file(path: Path, **settings: Any) -> Any:
    size = path.stat().st_size  # no name or list in a sound footer is longer than the file
    return _library().ParquetFile(
        path,
        page_checksum_verification=True,
        thrift_string_size_limit=max(size, 1024),
        thrift_container_size_limit=max(size, 1024),
        **settings,
    )


def _open(path: Path, options: Mapping[str, Any]) -> Source:
    label = str(path)
    _library()
    with reading(label, WHAT), _file(path) as file:
        schema, footer = file.schema_arrow, file.metadata
        columns = {name: in_words(kind) for name, kind in zip(schema.names, schema.types, strict=True)}
        twice = (
            {name for name in schema.names if schema.names.count(name) > 1}
            if len(columns) < len(schema.names)
            else set()
        )
        if twice:
            raise InputError(f"opening {label}: it has two columns called {min(twice)!r}.")
        manifest = _own_manifest(footer, schema, label)
        if manifest is not None and "rows" in manifest:
            _manifest.check_columns(manifest, columns, footer.num_rows, label)
        _check_size(footer, schema, path.stat().st_size, label)
    return Source(
        label=label,
        columns=columns,
        rows=footer.num_rows,
        manifest=manifest,
        read=lambda wanted: _read(path, footer, wanted),
        batches=lambda wanted, rows: stepwise(lambda: _batches(path, footer, wanted, rows), label, WHAT),
    )


def _own_manifest(footer: Any, schema: Any, label: str) -> dict[str, Any] | None:
    """The manifest of a file of ours; a file that only partly says it is ours is damaged.

    Another program that rewrites a file of ours may keep the manifest without the number of rows, which was added
    last: head and names in it hold, checksums do not. It may also drop the manifest, schema and all, and keep the marks.
    """
    facts = footer.metadata or {}
    key = _manifest.KEY.encode()
    if key in facts:
        return _manifest.loads(facts[key], label)
    marked = any((field.metadata or {}).get(FIELD_KEY) == FIELD_MARK for field in schema)
    if marked and (b"ARROW:schema" not in facts or key in (schema.metadata or {})):
        raise _manifest.damaged(label, "its manifest is missing")
    return None


def _check_size(footer: Any, schema: Any, stored: int, label: str) -> None:
    """What the footer promises must be possible for a file of this size.

    Only counts and types are asked for: on a damaged footer pyarrow's description of a column chunk ends the process.
    """
    if footer.num_rows < 0:
        raise _manifest.damaged(label, "its footer counts a negative number of rows")
    written = sum(footer.row_group(group).total_byte_size for group in range(footer.num_row_groups))
    check_expansion(label, max(written, footer.num_rows * sum(map(_width, schema.types))), stored)


def _width(kind: Any) -> int:
    """Bytes of one row of a column, as far as its type tells."""
    types = need("pyarrow", "files", "reading Parquet").types
    if types.is_fixed_size_list(kind):
        return kind.list_size * _width(kind.value_type)
    return kind.bit_width // 8 if types.is_primitive(kind) else 1


def _read(path: Path, footer: Any, wanted: Wanted) -> dict[str, numpy.ndarray]:
    with reading(str(path), WHAT), _file(path, metadata=footer, pre_buffer=True) as file:
        table = file.read(columns=list(wanted), use_threads=True)
        if table.num_rows != footer.num_rows:
            raise InputError(f"opening {path}: it holds {table.num_rows} rows, its footer says {footer.num_rows}.")
        return {name: to_numpy(table.column(name), name, str(path)) for name in wanted}


def _batches(path: Path, footer: Any, wanted: Wanted, rows: int) -> Iterator[dict[str, numpy.ndarray]]:
    seen = 0
    # a buffered page is allocated by the size it claims, a group is read as it is: the former only where groups are large
    large = any(footer.row_group(group).total_byte_size > LARGE_GROUP for group in range(footer.num_row_groups))
    with _file(path, metadata=footer, pre_buffer=False, buffer_size=BUFFER_BYTES if large else 0) as file:
        for batch in file.iter_batches(batch_size=rows, columns=list(wanted), use_threads=False):
            seen += batch.num_rows
            yield {name: to_numpy(batch.column(name), name, str(path)) for name in wanted}
    if seen != footer.num_rows:
        raise InputError(f"opening {path}: it holds {seen} rows, its footer says {footer.num_rows}.")


def _arrow(values: numpy.ndarray) -> tuple[Any, Any]:
    """The Arrow array and its field type; a matrix becomes lists of one length without gaps."""
    pyarrow = need("pyarrow", "files", "writing Parquet")
    if values.ndim == 1:
        array = pyarrow.array(values.tolist(), pyarrow.string()) if values.dtype.kind in "UT" else pyarrow.array(values)
        return array, array.type
    flat = pyarrow.array(numpy.ascontiguousarray(values).reshape(-1))
    kind = pyarrow.list_(pyarrow.field("element", flat.type, nullable=False), values.shape[1])
    return pyarrow.FixedSizeListArray.from_arrays(flat, type=kind), kind


def _arrow_table(predictions: Predictions) -> Any:
    pyarrow = need("pyarrow", "files", "writing Parquet")
    arrays, members = [], []
    for name, values in columns_of(predictions).items():
        array, kind = _arrow(as_numpy(values))
        arrays.append(array)
        members.append(pyarrow.field(name, kind, nullable=False, metadata={FIELD_KEY: FIELD_MARK}))
    return pyarrow.Table.from_arrays(arrays, schema=pyarrow.schema(members))


def _write(handle: BinaryIO, tables: Iterable[Predictions], extra: Mapping[str, Any]) -> None:
    first, rest = _split_first(tables)
    table = _arrow_table(first)
    words = {name: in_words(kind) for name, kind in zip(table.schema.names, table.schema.types, strict=True)}
    manifest = _manifest.describe(first, words, extra)
    begun = {_manifest.KEY: _manifest.dumps(manifest)}  # the rows are counted when all are written
    with _writing(handle, table.schema.with_metadata(begun), words) as writer:
        rows = _write_group(writer, table)
        for predictions in rest:
            rows += _write_group(writer, _arrow_table(predictions))
        writer.add_key_value_metadata({_manifest.KEY: _manifest.dumps({**manifest, "rows": rows})})


def _split_first(tables: Iterable[Predictions]) -> tuple[Predictions, Iterator[Predictions]]:
    steps = iter(tables)
    first = next(steps, None)
    if first is None:
        raise InputError("writing Parquet: there are no predictions to write.")
    return first, steps


def _write_group(writer: Any, table: Any) -> int:
    writer.write_table(table, row_group_size=max(1, ROW_GROUP_BYTES * max(table.num_rows, 1) // max(table.nbytes, 1)))
    return table.num_rows


@contextmanager
def _writing(handle: BinaryIO, schema: Any, words: Mapping[str, str]) -> Iterator[Any]:
    """A writer that is closed for good also when the disk is full, where closing fails once more."""
    writer = _writer(handle, schema, words)
    try:
        yield writer
        writer.close()
    finally:
        with suppress(Exception):
            writer.close()
        writer.is_open = False


def _writer(handle: BinaryIO, schema: Any, words: Mapping[str, str]) -> Any:
    return _library().ParquetWriter(
        handle,
        schema,
        compression="none",  # scores hardly shrink, and reading uncompressed pages is three times as fast
        use_dictionary=[name for name, kind in words.items() if kind == "text"],
        write_page_checksum=True,
        write_statistics=False,
        store_schema=True,
    )
