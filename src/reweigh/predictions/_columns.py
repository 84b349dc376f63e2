"""One column at a time: NumPy or torch, kept as it came, seen as a tensor without a copy where that is possible."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy
import torch

from ..errors import bad_input

# rows of one block, in elements: the float64 copy of a block stays in the cache (1 MiB)
BLOCK_ELEMENTS = 1 << 17


def column(values: Any, name: str) -> Any:
    """A tensor or a NumPy array as it is; lists and other array-likes become NumPy arrays."""
    if values is None or isinstance(values, torch.Tensor):
        return values
    try:
        array = numpy.asarray(values)
    except ValueError as error:
        raise bad_input(
            f"reading {name}", came=f"rows of unequal length ({error})", expected="a rectangular array or tensor"
        ) from None
    if array.dtype == object and array.size and all(isinstance(value, str) for value in array.flat):
        array = array.astype(str)
    if array.dtype == object and array.size:
        raise bad_input(
            f"reading {name}",
            came=f"Python objects such as {array.flat[0]!r}",
            expected="numbers, booleans or text of one kind",
            mend="Missing values must be dropped or filled first.",
        )
    return array


def numeric(values: Any, name: str) -> Any:
    """A column of numbers or booleans; text, dates and complex numbers are an error."""
    values = column(values, name)
    if values is None or (isinstance(values, torch.Tensor) and not values.dtype.is_complex):
        return values
    if not isinstance(values, torch.Tensor) and (values.dtype.kind in "biuf" or values.dtype.name == "bfloat16"):
        return values
    raise bad_input(f"reading {name}", came=f"values of type {values.dtype}", expected="real numbers")


def tensor(values: Any) -> torch.Tensor:
    """The same numbers as a tensor; NumPy memory is shared, never written."""
    if isinstance(values, torch.Tensor):
        return values.detach()
    array = numpy.asarray(values)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype.name in ("bfloat16", "longdouble", "float128"):
        array = array.astype(numpy.float32 if array.dtype.name == "bfloat16" else numpy.float64)
    if array.dtype.name in ("uint16", "uint32", "uint64"):
        array = array.astype(numpy.int64)
    if any(stride < 0 or stride % max(array.itemsize, 1) for stride in array.strides):
        array = numpy.ascontiguousarray(array)
    with warnings.catch_warnings():  # a read-only array is only read
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


def is_text(values: Any) -> bool:
    """Whether a column holds strings."""
    return isinstance(values, numpy.ndarray) and values.dtype.kind in "USTO"


def take(values: Any, rows: Any) -> Any:
    """The given rows of a column, in the column's own type."""
    if values is None:
        return None
    if isinstance(values, torch.Tensor):
        if isinstance(rows, numpy.ndarray):
            rows = torch.from_numpy(numpy.ascontiguousarray(rows)).to(values.device)
        elif isinstance(rows, torch.Tensor):
            rows = rows.to(values.device)
        return values[rows]
    return values[rows.cpu().numpy() if isinstance(rows, torch.Tensor) else rows]


def join(columns: Sequence[Any]) -> Any:
    """Columns below one another: tensors if the first one is, else NumPy arrays."""
    if isinstance(columns[0], torch.Tensor):
        return torch.cat([tensor(values).to(columns[0].device) for values in columns])
    return numpy.concatenate(
        [values.cpu().numpy() if isinstance(values, torch.Tensor) else values for values in columns]
    )


def row_blocks(values: torch.Tensor):
    """Slices of rows that cut a matrix into blocks of about `BLOCK_ELEMENTS`."""
    rows = max(1, BLOCK_ELEMENTS // max(1, values[0].numel() if len(values) else 1))
    for start in range(0, len(values), rows):
        yield slice(start, min(start + rows, len(values)))
