"""Open tables: data frames and data sets by the Arrow interface, dictionaries of columns, lists of rows, arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy
import torch

from ..errors import InputError, need
from ..predictions import Predictions
from ._array_header import in_words, native
from ._arrow import in_words as arrow_in_words
from ._arrow import text, to_numpy
from ._limits import check_shape
from ._source import Source, Wanted, slices
from ._table_columns import columns_of


def table_source(table: Any) -> Source | None:
    """The source of an open table; None for what is no table (a path)."""
    label = f"the {type(table).__module__.split('.')[0]} {type(table).__name__}"
    if isinstance(table, Predictions):
        said = {"score": table.kind, "head": table.head, "class_names": table.class_names, "about": table.about}
        return replace(_of_columns(columns_of(table), "the Predictions"), manifest=said)
    if isinstance(table, Mapping):
        return _of_columns({str(name): column(values, str(name)) for name, values in table.items()}, "the dictionary")
    if isinstance(table, (numpy.ndarray, torch.Tensor)):
        return _of_array(table, label)
    if hasattr(table, "with_format") and hasattr(table, "column_names"):
        return _of_data_set(table, label)
    if hasattr(table, "__arrow_c_stream__"):
        pyarrow = need("pyarrow", "files", "reading open tables")
        return _of_arrow(table if isinstance(table, pyarrow.Table) else pyarrow.table(table), label)
    if isinstance(table, (list, tuple)) and table and all(isinstance(row, Mapping) for row in table):
        return _of_rows(table)
    return None


def _of_columns(columns: dict[str, Any], label: str) -> Source:
    for name, values in columns.items():
        if values.ndim:
            check_shape(label, name, tuple(values.shape))
    vectors = {name: values for name, values in columns.items() if values.ndim}
    return Source(
        label=label,
        columns={name: in_words(tuple(values.shape), values.dtype) for name, values in vectors.items()},
        rows=len(next(iter(vectors.values()))) if vectors else 0,
        read=lambda wanted: {name: vectors[name] for name in wanted},
        batches=lambda wanted, rows: slices({name: vectors[name] for name in wanted}, rows),
    )


def column(values: Any, name: str) -> Any:
    """An array or a tensor as it is; anything else as an array, from which objects are refused."""
    if isinstance(values, torch.Tensor):
        return values.detach()
    try:
        array = numpy.asarray(values)
    except ValueError as error:
        raise InputError(f"opening the dictionary: {name!r} has rows of unequal length ({error}).") from error
    if array.dtype == object and array.size and all(isinstance(value, str) for value in array.flat):
        return text(list(array.flat), name, "the table") if array.ndim == 1 else array.astype(str)
    if (
        array.dtype == object
        and array.ndim == 1
        and array.size
        and all(isinstance(row, (numpy.ndarray, list, tuple)) for row in array)
    ):
        try:
            return numpy.stack([numpy.asarray(row) for row in array])
        except ValueError as error:
            raise InputError(f"opening the dictionary: {name!r} has rows of unequal length ({error}).") from error
    if array.dtype == object:
        raise InputError(
            f"opening the dictionary: {name!r} holds objects such as {array.flat[0]!r}, expected numbers, booleans or text."
        )
    return native(array)


def _of_array(array: Any, label: str) -> Source:
    """A matrix whose columns are named by their numbers, "0", "1", ...; a record array by its own names."""
    names = getattr(getattr(array, "dtype", None), "names", None)
    if names:
        return _of_columns({name: column(array[name], name) for name in names}, label)
    if array.ndim != 2:
        raise InputError(
            f"opening {label}: it has the shape {tuple(array.shape)}, expected (rows, columns). "
            "Name what you have: reweigh.open({'logits': logits, 'target': target})."
        )
    values = array.detach() if isinstance(array, torch.Tensor) else native(array)
    check_shape(label, "array", tuple(values.shape))
    return _of_columns({str(place): values[:, place] for place in range(values.shape[1])}, label)


def _of_data_set(table: Any, label: str) -> Source:
    """A Hugging Face data set, its own selection and order of rows respected."""
    found = table.with_format("arrow")[:]
    return _of_arrow(found, label)


def _of_arrow(table: Any, label: str) -> Source:
    names = table.column_names
    twice = [name for name in names if names.count(name) > 1] if len(set(names)) < len(names) else []
    if twice:
        raise InputError(f"opening {label}: it has two columns called {twice[0]!r}.")

    def read(wanted: Wanted) -> dict[str, numpy.ndarray]:
        return {name: to_numpy(table.column(name), name, label) for name in wanted}

    return Source(
        label=label,
        columns={name: arrow_in_words(table.schema.field(name).type) for name in names},
        rows=table.num_rows,
        read=read,
        batches=lambda wanted, rows: slices(read(wanted), rows),
    )


def _of_rows(rows: Any) -> Source:
    """A list of dictionaries, one a row, all with the same keys."""
    names = list(rows[0])
    for place, row in enumerate(rows):
        if set(row) != set(names):
            wrong = sorted(set(row) ^ set(names))[0]
            raise InputError(f"opening the list of rows: row {place} differs from row 0 in the key {wrong!r}.")
    return _of_columns(
        {str(name): column([row[name] for row in rows], str(name)) for name in names}, "the list of rows"
    )
