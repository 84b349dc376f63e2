"""Arrow columns as NumPy arrays: numbers, vectors of one length a row, text; an empty cell is an error with its row."""

from __future__ import annotations

from typing import Any

import numpy

from ..errors import InputError, need
from ._limits import check_shape

ROOMY_TEXT = (
    64 << 20
)  # bytes; fixed-width text beyond it is kept at variable width when one long entry would blow it up


def in_words(kind: Any) -> str:
    """A column's type as people write it."""
    types = need("pyarrow", "files", "reading tables").types
    if types.is_fixed_size_list(kind):
        return f"{kind.list_size} x {in_words(kind.value_type)}"
    if types.is_list(kind) or types.is_large_list(kind):
        return f"lists of {in_words(kind.value_type)}"
    plain = {"halffloat": "float16", "float": "float32", "double": "float64", "string": "text", "large_string": "text"}
    return plain.get(str(kind), str(kind))


def to_numpy(column: Any, name: str, label: str) -> numpy.ndarray:
    """(rows,) or (rows, K) of one chunked column, without a copy where its memory allows."""
    pyarrow = need("pyarrow", "files", "reading tables")
    if isinstance(column, pyarrow.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        if isinstance(column, pyarrow.ChunkedArray):
            column = pyarrow.concat_arrays(column.chunks)
    if isinstance(column, pyarrow.ExtensionArray):
        column = column.storage
    if pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    _check_full(column, name, label)
    kind = column.type
    if pyarrow.types.is_fixed_size_list(kind) or pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
        return _matrix(column, name, label)
    return _vector(column, name, label)


def _check_full(column: Any, name: str, label: str) -> None:
    if column.null_count:
        row = int(numpy.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise InputError(f"opening {label}: column {name!r} is empty in row {row}, expected a value in every row.")


def _matrix(column: Any, name: str, label: str) -> numpy.ndarray:
    """Lists of one length as (rows, K)."""
    pyarrow = need("pyarrow", "files", "reading tables")
    if pyarrow.types.is_fixed_size_list(column.type):
        width = column.type.list_size
    else:
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        width = int(lengths[0]) if len(lengths) else 0
        if (lengths != width).any():
            row = int(numpy.flatnonzero(lengths != width)[0])
            raise InputError(
                f"opening {label}: column {name!r} has {lengths[row]} values in row {row} and {width} in row 0, "
                "expected as many in every row."
            )
    values = column.flatten()
    if isinstance(values, pyarrow.ExtensionArray):
        values = values.storage
    if values.null_count:
        place = int(numpy.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
        raise InputError(
            f"opening {label}: column {name!r} is empty in row {place // max(width, 1)}, position {place % max(width, 1)}."
        )
    if pyarrow.types.is_nested(values.type):
        raise InputError(f"opening {label}: column {name!r} holds lists of lists, expected one list of numbers a row.")
    flat = _vector(values, name, label)
    check_shape(label, name, (len(column), width))
    return flat.reshape(len(column), width)


def _vector(column: Any, name: str, label: str) -> numpy.ndarray:
    types = need("pyarrow", "files", "reading tables").types
    kind = column.type
    if types.is_decimal(kind):
        return column.cast("float64").to_numpy(zero_copy_only=False)
    if types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind):
        return column.to_numpy(zero_copy_only=False)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return text(column.to_pylist(), name, label)
    if types.is_temporal(kind):
        return text(column.cast("string").to_pylist(), name, label)
    if types.is_null(kind) and not len(column):
        return numpy.empty(0)
    raise InputError(
        f"opening {label}: column {name!r} is of type {in_words(kind)}, expected numbers, booleans or text."
    )


def text(values: list[str], name: str, label: str) -> numpy.ndarray:
    """Strings as an array, whose entries all take the room of the longest: one absurd entry may not fill the memory."""
    longest = max(map(len, values), default=1)
    if 4 * longest * len(values) > max(ROOMY_TEXT, 64 * sum(map(len, values))):
        row = next(row for row, value in enumerate(values) if len(value) == longest)
        raise InputError(
            f"opening {label}: column {name!r} has {longest:,} characters in row {row}, expected names of one length or so. "
            "Leave the column out, or name another."
        )
    return numpy.array(values, dtype=f"U{max(longest, 1)}")
