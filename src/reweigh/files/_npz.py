"""NPZ: NumPy arrays in a zip, each with its CRC; headers are judged first, nothing is ever unpickled."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy

from ..errors import InputError
from ..predictions import Predictions
from ..registry import register_format
from . import _manifest
from ._array_header import ArrayHeader, native, read_header, width_in_words
from ._failures import reading, stepwise
from ._limits import check_expansion
from ._source import Format, Source, Wanted, slices
from ._table_columns import as_numpy, columns_of

WHAT = "an NPZ file"
COMMENT = b"reweigh"  # the archive's comment: a second place that says the file is ours
MOST_MANIFEST = 16 << 20
CHUNK = 1 << 20
END_BYTES = (1 << 16) + 22  # within which a zip's end record begins


@register_format("npz", endings=(".npz",), writes=True)
def npz() -> Format:
    """NumPy's archive of arrays; needs no further package."""
    return Format(open=_open, write=_write)


def _open(path: Path, options: Mapping[str, Any]) -> Source:
    label = str(path)
    with reading(label, WHAT), zipfile.ZipFile(path) as archive:
        members = _members(archive, label)
        manifest = _own_manifest(archive, members, label)
        headers = {
            name: _header(archive, info, name, label)
            for name, info in members.items()
            if manifest or _readable(archive, info)
        }
    arrays = {name: header for name, header in headers.items() if header.shape and name != _manifest.KEY}
    rows = next((header.shape[0] for header in arrays.values()), 0)
    if manifest is not None:
        _manifest.check_columns(
            manifest, {name: width_in_words(header) for name, header in arrays.items()}, rows, label
        )
    columns = {
        name: arrays[name].words if name in arrays else "" for name in members if name in arrays or name not in headers
    }
    return Source(
        label=label,
        columns=columns,
        rows=rows,
        manifest=manifest,
        read=lambda wanted: _read(path, wanted),
        batches=lambda wanted, rows: stepwise(lambda: _batches(path, wanted, rows), label, WHAT),
    )


def _members(archive: zipfile.ZipFile, label: str) -> dict[str, zipfile.ZipInfo]:
    """Name -> member of every array; all members are looked at, so that none is lost by a damaged name."""
    _check_directory(archive)
    found: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        archive.open(info).close()  # compares the name in the directory with the one beside the data
        name = info.filename.removesuffix(".npy")
        if name == info.filename:
            continue
        if name in found:
            raise InputError(f"opening {label}: it holds two arrays called {name!r}.")
        found[name] = info
    return found


def _check_directory(archive: zipfile.ZipFile) -> None:
    """The directory has as many entries as its end says, and ends where that begins; zipfile reads on without."""
    handle = archive.fp
    handle.seek(0, 2)  # type: ignore[union-attr]
    size = handle.tell()  # type: ignore[union-attr]
    handle.seek(max(0, size - END_BYTES))  # type: ignore[union-attr]
    tail = handle.read()  # type: ignore[union-attr]
    place = tail.rfind(b"PK\x05\x06")
    if place < 0 or len(tail) != place + 22 + int.from_bytes(tail[place + 20 : place + 22], "little"):
        raise zipfile.BadZipFile("the end of its directory is missing")
    entries = int.from_bytes(tail[place + 10 : place + 12], "little")
    length, begin = (int.from_bytes(tail[place + at : place + at + 4], "little") for at in (12, 16))
    if 0xFFFF == entries or 0xFFFFFFFF in (length, begin):
        return  # a large archive keeps these numbers elsewhere
    if entries != len(archive.infolist()) or begin + length != max(0, size - END_BYTES) + place:
        raise zipfile.BadZipFile("its directory is not where its end says")


def _own_manifest(
    archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], label: str
) -> dict[str, Any] | None:
    info = members.get(_manifest.KEY)
    if info is None:
        if archive.comment == COMMENT:
            raise _manifest.damaged(label, "its manifest is missing")
        return None
    if info.file_size > MOST_MANIFEST:
        raise _manifest.damaged(label, f"its manifest claims {info.file_size} bytes")
    header = _header(archive, info, _manifest.KEY, label)
    return _manifest.loads(_values(archive, info, header).tobytes(), label)


def _readable(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bool:
    """Whether an array of a foreign file could be read; one that cannot stops only who asks for it."""
    try:
        _header(archive, info, info.filename, "")
    except InputError:
        return False
    return True


def _header(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, label: str) -> ArrayHeader:
    with archive.open(info) as stream:
        return read_header(stream, name, info.file_size, label)  # type: ignore[arg-type]


def _values(archive: zipfile.ZipFile, info: zipfile.ZipInfo, header: ArrayHeader) -> numpy.ndarray:
    """The whole array; reading to the end makes its CRC count."""
    out = numpy.empty(header.shape[::-1] if header.fortran else header.shape, header.dtype)
    memory = out.reshape(-1).view(numpy.uint8).data
    if info.compress_type == zipfile.ZIP_STORED:
        _copy_stored(archive, info, header, memory)
    else:
        with archive.open(info) as stream:
            stream.read(header.offset)
            _fill(stream, memory, info.filename)
            if stream.read(1):
                raise zipfile.BadZipFile(f"{info.filename} is longer than it claims")
    return native(out.T if header.fortran else out)


def _copy_stored(archive: zipfile.ZipFile, info: zipfile.ZipInfo, header: ArrayHeader, memory: memoryview) -> None:
    """An uncompressed member, straight from the file into the array; the CRC as zip defines it."""
    with open(str(archive.filename), "rb", buffering=0) as file:
        file.seek(info.header_offset)
        local = file.read(30)  # a fixed header that ends in the lengths of the name and of the extra field
        begin = (
            info.header_offset + 30 + int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
        )
        file.seek(begin)
        crc = zlib.crc32(file.read(header.offset))
        for start in range(0, len(memory), CHUNK):
            piece = memory[start : start + CHUNK]
            _fill(file, piece, info.filename)
            crc = zlib.crc32(piece, crc)
    if crc != info.CRC:
        raise zipfile.BadZipFile(f"bad CRC-32 for {info.filename}")


def _fill(stream: Any, memory: memoryview, name: str) -> None:
    done = 0
    while done < len(memory):
        count = stream.readinto(memory[done : done + CHUNK])
        if not count:
            raise zipfile.BadZipFile(f"{name} ends early")
        done += count


def _read(path: Path, wanted: Wanted) -> dict[str, numpy.ndarray]:
    label = str(path)
    with reading(label, WHAT), zipfile.ZipFile(path) as archive:
        members = _members(archive, label)
        headers = {name: _header(archive, members[name], name, label) for name in wanted}
        stored = min(sum(members[name].compress_size for name in wanted), path.stat().st_size)
        check_expansion(label, sum(header.bytes for header in headers.values()), stored)
        return {name: _values(archive, members[name], headers[name]) for name in wanted}


def _batches(path: Path, wanted: Wanted, rows: int) -> Iterator[dict[str, numpy.ndarray]]:
    label = str(path)
    with zipfile.ZipFile(path) as archive, ExitStack() as stack:
        members = _members(archive, label)
        headers = {name: _header(archive, members[name], name, label) for name in wanted}
        if any(header.fortran and len(header.shape) == 2 for header in headers.values()):
            yield from slices(_read(path, wanted), rows)  # columns after one another: rows are nowhere together
            return
        streams = {name: stack.enter_context(archive.open(members[name])) for name in wanted}
        for name, stream in streams.items():
            stream.read(headers[name].offset)
        count = _same_rows(headers, label)
        for start in range(0, count, rows):
            yield {name: _next(streams[name], headers[name], min(rows, count - start), name) for name in wanted}
        for name, stream in streams.items():
            if stream.read(1):
                raise zipfile.BadZipFile(f"{name} is longer than it claims")


def _same_rows(headers: Mapping[str, ArrayHeader], label: str) -> int:
    counts = {name: header.shape[0] for name, header in headers.items()}
    first, count = next(iter(counts.items()))
    for name, other in counts.items():
        if other != count:
            raise InputError(f"opening {label}: {name!r} has {other} rows and {first!r} has {count}, expected as many.")
    return count


def _next(stream: Any, header: ArrayHeader, rows: int, name: str) -> numpy.ndarray:
    out = numpy.empty((rows, *header.shape[1:]), header.dtype)
    _fill(stream, out.reshape(-1).view(numpy.uint8).data, name)
    return native(out)


def _write(handle: BinaryIO, tables: Iterable[Predictions], extra: Mapping[str, Any]) -> None:
    parts = list(tables)
    if not parts:
        raise InputError("writing NPZ: there are no predictions to write.")
    table = Predictions.concatenate(parts) if len(parts) > 1 else parts[0]
    arrays = {name: as_numpy(values) for name, values in columns_of(table).items()}
    words = {}
    with zipfile.ZipFile(handle, "w", zipfile.ZIP_STORED) as archive:
        archive.comment = COMMENT
        for name, values in arrays.items():
            words[name] = width_in_words(ArrayHeader(values.shape, False, values.dtype, 0))
            _write_member(archive, name, values)
        text = _manifest.dumps({**_manifest.describe(table, words, extra), "rows": len(table)})
        _write_member(archive, _manifest.KEY, numpy.frombuffer(text.encode(), numpy.uint8))


def _write_member(archive: zipfile.ZipFile, name: str, values: numpy.ndarray) -> None:
    info = zipfile.ZipInfo(f"{name}.npy")  # a fixed date: the same table gives the same bytes
    with archive.open(info, "w", force_zip64=True) as stream:
        numpy.lib.format.write_array(stream, numpy.ascontiguousarray(values), allow_pickle=False)
