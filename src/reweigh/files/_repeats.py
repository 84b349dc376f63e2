"""Ids that occur more than once, found in bounded memory, and the same row recorded twice, kept once.

Samplers pad the last batch with rows that another rank has, too. The first pass hashes ids into 64 bits and finds
the hashes that repeat; only rows with such a hash are remembered in the second pass.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

import numpy

from ..errors import InputError
from ..predictions import Predictions
from ._table_columns import as_numpy

IN_MEMORY = 1 << 21  # hashes (16 MiB) sorted at once; more are spread over files by their top bits
BUCKETS = 256
# Two evaluations of one sample in differently filled batches differ by rounding; more than this is another content.
ROUNDING = {numpy.dtype("float64"): 1e-6, numpy.dtype("float32"): 1e-3, numpy.dtype("float16"): 2e-2}


def hashes(ids: Any) -> numpy.ndarray:
    """64 well-mixed bits of every id, equal for equal ids whatever the width of the array."""
    values = as_numpy(ids)
    if values.dtype.kind in "iub":
        return _mixed(values.astype(numpy.int64).view(numpy.uint64))
    if values.dtype.kind == "f":
        return _mixed(values.astype(numpy.float64).view(numpy.uint64))
    text = numpy.ascontiguousarray(values.astype(str))
    points = (
        text.view(numpy.uint32).reshape(len(text), -1)
        if text.dtype.itemsize
        else numpy.zeros((len(text), 0), numpy.uint32)
    )
    found = numpy.full(len(text), 0xCBF29CE484222325, numpy.uint64)
    for place in range(points.shape[1]):
        point = points[:, place].astype(numpy.uint64)
        found = numpy.where(point > 0, (found ^ point) * numpy.uint64(0x100000001B3), found)
    return _mixed(found)


def _mixed(bits: numpy.ndarray) -> numpy.ndarray:
    """A bijection of 64 bits that spreads neighbours (splitmix64)."""
    bits = bits + numpy.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> numpy.uint64(31))


def _twice(values: numpy.ndarray) -> numpy.ndarray:
    values = numpy.sort(values)
    return numpy.unique(values[1:][values[1:] == values[:-1]])


def repeated(batches: Iterable[numpy.ndarray]) -> numpy.ndarray:
    """The hashes that occur more than once in all batches together."""
    kept: list[numpy.ndarray] = []
    count, files = 0, None
    with tempfile.TemporaryDirectory(prefix="reweigh-") as folder:
        for values in batches:
            kept.append(values)
            count += len(values)
            if count > IN_MEMORY:
                files = files or [open(f"{folder}/{bucket}", "w+b") for bucket in range(BUCKETS)]
                _spill(numpy.concatenate(kept), files)
                kept, count = [], 0
        if files is None:
            return _twice(numpy.concatenate(kept)) if kept else numpy.empty(0, numpy.uint64)
        _spill(numpy.concatenate(kept or [numpy.empty(0, numpy.uint64)]), files)
        found = []
        for file in files:
            file.flush()
            found.append(_twice(numpy.fromfile(file.name, numpy.uint64)))
            file.close()
        return numpy.concatenate(found)


def _spill(values: numpy.ndarray, files: list[Any]) -> None:
    """Every hash into the file of its top eight bits."""
    values = numpy.sort(values)
    cuts = numpy.searchsorted(values, numpy.arange(1, BUCKETS, dtype=numpy.uint64) << numpy.uint64(56))
    for file, part in zip(files, numpy.split(values, cuts), strict=True):
        part.tofile(file)


def plain_id(ids: Any, row: int) -> Any:
    """One id as a Python value."""
    value = ids[row]
    return value.item() if hasattr(value, "item") else str(value)


def once(tables: Iterable[Predictions], twice: numpy.ndarray, label: str) -> Iterator[Predictions]:
    """The rows of a recording, each once; another content under the same id is an error."""
    seen: dict[Any, dict[str, numpy.ndarray]] = {}
    for table in tables:
        if not len(twice):
            yield table
            continue
        keep = numpy.ones(len(table), bool)
        for place in map(int, numpy.flatnonzero(numpy.isin(hashes(table.ids), twice))):
            name, found = plain_id(table.ids, place), content(table, place)
            if name not in seen:
                seen[name] = found
                continue
            keep[place] = False
            check_alike(name, seen[name], found, label)
        yield table if keep.all() else table.take(keep)


def check_alike(name: Any, first: dict[str, numpy.ndarray], second: dict[str, numpy.ndarray], label: str) -> None:
    """Another content under the same id is an error; rounding is not another content."""
    differing = next((part for part in second if not _alike(second[part], first.get(part))), None)
    if differing:
        raise InputError(
            f"opening {label}: the id {name!r} was recorded twice with different {differing}, expected the same "
            "row or none. Are two samples called the same, or two models recorded together?"
        )


def content(table: Predictions, row: int) -> dict[str, numpy.ndarray]:
    """One row of every column but the id."""
    found = {table.kind: table.scores, "correct": table.correct, "target": table.targets, "weight": table.weights}
    found |= {f"group {name}": values for name, values in (table.groups or {}).items()}
    return {
        name: numpy.asarray(as_numpy(values[row : row + 1])) for name, values in found.items() if values is not None
    }


def _alike(one: numpy.ndarray, other: numpy.ndarray | None) -> bool:
    if other is None or one.shape != other.shape:
        return False
    if one.dtype.kind != "f":
        return bool((one == other).all())
    slack = ROUNDING.get(one.dtype, 1e-3) * max(1.0, float(numpy.abs(one[numpy.isfinite(one)]).max(initial=0.0)))
    with numpy.errstate(invalid="ignore"):
        return bool(((one == other) | (numpy.abs(one - other) <= slack)).all())
