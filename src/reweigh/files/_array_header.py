"""The header of a NumPy array in a file, read and judged before anything is allocated; no object, no pickle."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import BinaryIO

import numpy
from numpy.lib import format as npy

from ..errors import InputError
from ._limits import check_shape

MOST_HEADER = 10_000  # bytes, NumPy's own limit for what is evaluated as a literal


@dataclass(frozen=True)
class ArrayHeader:
    """Type and shape of an array, and where its numbers begin."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: numpy.dtype
    offset: int

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def words(self) -> str:
        return in_words(self.shape, self.dtype)


def in_words(shape: tuple[int, ...], dtype: object) -> str:
    """Shape and type of an array for people."""
    name = dtype.name if isinstance(dtype, numpy.dtype) else str(dtype).removeprefix("torch.")
    plain = "text" if name.startswith("str") else name
    return f"{' x '.join(map(str, shape)) or 'single value'} {plain}"


def width_in_words(header: ArrayHeader) -> str:
    """Type and width without the rows, as a manifest lists it."""
    kind = "text" if header.dtype.kind in "US" else header.dtype.name
    return " x ".join([*map(str, header.shape[1:]), kind])


def read_header(handle: BinaryIO, name: str, stored: int, label: str) -> ArrayHeader:
    """The header at the handle's position of an array of `stored` bytes, header included."""
    version = npy.read_magic(handle)
    if version == (1, 0):
        shape, fortran, dtype = npy.read_array_header_1_0(handle, max_header_size=MOST_HEADER)
    elif version == (2, 0):
        shape, fortran, dtype = npy.read_array_header_2_0(handle, max_header_size=MOST_HEADER)
    else:
        raise InputError(
            f"opening {label}: {name!r} is in version {version[0]}.{version[1]} of NumPy's format, which holds records."
        )
    header = ArrayHeader(tuple(map(int, shape)), bool(fortran), dtype, handle.tell())
    _check_type(dtype, name, label)
    if shape:
        check_shape(label, name, header.shape)
    if header.bytes != stored - header.offset:
        raise InputError(
            f"opening {label}: {name!r} claims the shape {header.shape} of {dtype}, {header.bytes:,} bytes, "
            f"and has {stored - header.offset:,}: it is damaged or cut."
        )
    return header


def _check_type(dtype: numpy.dtype, name: str, label: str) -> None:
    if dtype.hasobject:
        raise InputError(
            f"opening {label}: {name!r} holds Python objects, which would have to be unpickled, and that could run any "
            "program. Save numbers, or text as numpy.array(values, dtype=str)."
        )
    if dtype.kind not in "biufUS" or dtype.itemsize == 0 or dtype.names is not None:
        raise InputError(f"opening {label}: {name!r} is of type {dtype}, expected numbers, booleans or text.")


def native(values: numpy.ndarray) -> numpy.ndarray:
    """In this machine's byte order, bytes as text."""
    if values.dtype.kind == "S":
        return numpy.char.decode(values, "utf-8") if values.size else values.astype(str)
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))
