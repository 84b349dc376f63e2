"""Pairs of NPY files: scores in one, targets in another, beside one another in a folder or named one by one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy

from ..errors import InputError
from ..registry import register_format
from ._array_header import ArrayHeader, native, read_header
from ._failures import reading, stepwise
from ._limits import check_expansion
from ._names import RECOGNISED, SCORES
from ._source import Format, Source, Wanted

WHAT = "an NPY file"
ROLE_WORDS = {word: role for role, words in RECOGNISED.items() for word in words}


@register_format("npy", endings=(".npy",))
def npy() -> Format:
    """NumPy arrays, one a file: `logits.npy` beside `targets.npy`."""
    return Format(open=_open)


def _open(path: Path, options: Mapping[str, Any]) -> Source:
    """The arrays that belong to `path`, and those the user names as `target="labels.npy"`."""
    files = siblings(path)
    for word in _named_files(options):
        place = Path(word)
        files[word] = place if place.exists() else path.parent / word
    return source_of(files, str(path))


def _named_files(options: Mapping[str, Any]) -> list[str]:
    words = [os.fspath(value) for value in options.values() if isinstance(value, (str, os.PathLike))]
    return [word for word in words if word.endswith(".npy")]


def siblings(path: Path) -> dict[str, Path]:
    """Column -> file: the files whose names differ from this one's only in the word for what they hold."""
    pattern = re.compile(r"(?<![A-Za-z])(" + "|".join(sorted(ROLE_WORDS, key=len, reverse=True)) + r")(?![A-Za-z])")
    match = pattern.search(path.stem)
    if match is None:
        return {path.stem: path, path.name: path}
    before, after = path.stem[: match.start()], path.stem[match.end() :]
    found = {match[1]: path, path.name: path}
    for word, role in ROLE_WORDS.items():
        place = path.with_name(f"{before}{word}{after}.npy")
        same_role = ROLE_WORDS[match[1]] == role or (role in SCORES and ROLE_WORDS[match[1]] in SCORES)
        if not same_role and place.is_file():
            found[word] = place
    return found


def source_of(files: Mapping[str, Path], label: str) -> Source:
    """Arrays from several files as the columns of one table."""
    headers = {name: _header(path) for name, path in files.items()}
    return Source(
        label=label,
        columns={name: header.words for name, header in headers.items()},
        rows=next((header.shape[0] for header in headers.values() if header.shape), 0),
        read=lambda wanted: {name: _values(files[name], headers[name], copy=True) for name in wanted},
        batches=lambda wanted, rows: stepwise(lambda: _batches(files, headers, wanted, rows), label, WHAT),
    )


def _header(path: Path) -> ArrayHeader:
    with reading(str(path), WHAT), open(path, "rb") as file:
        return read_header(file, path.name, path.stat().st_size, str(path))


def _values(path: Path, header: ArrayHeader, *, copy: bool) -> numpy.ndarray:
    """The array, mapped from the file; in memory with `copy`."""
    order = "F" if header.fortran else "C"
    with reading(str(path), WHAT):
        if not header.bytes:
            return numpy.empty(header.shape, header.dtype)
        if copy:
            check_expansion(str(path), header.bytes, path.stat().st_size)
            flat = numpy.fromfile(path, header.dtype, offset=header.offset)
            return native(flat.reshape(header.shape, order=order))
        return numpy.memmap(path, header.dtype, "r", header.offset, header.shape, order)


def _batches(
    files: Mapping[str, Path], headers: Mapping[str, ArrayHeader], wanted: Wanted, rows: int
) -> Iterator[dict[str, Any]]:
    mapped = {name: _values(files[name], headers[name], copy=False) for name in wanted}
    counts = {name: len(values) for name, values in mapped.items()}
    first, count = next(iter(counts.items()))
    for name, other in counts.items():
        if other != count:
            raise InputError(
                f"opening {files[name]}: it has {other} rows and {files[first]} has {count}, expected as many."
            )
    for start in range(0, count, rows):
        yield {name: native(numpy.array(values[start : start + rows])) for name, values in mapped.items()}
