"""Safetensors with a manifest: a SHA-256 for every tensor, verified before its numbers are used."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy
import torch

from ..errors import InputError, need
from ..predictions import Predictions
from ..registry import register_format
from . import _manifest
from ._array_header import in_words
from ._arrow import text
from ._failures import reading, stepwise
from ._limits import check_expansion, check_shape
from ._source import Format, Source, Wanted
from ._table_columns import columns_of

WHAT = "a safetensors file"
OFFSETS = ".offsets"  # text is kept as UTF-8 bytes and where each entry ends
MARK = "reweigh.manifest"  # an empty tensor that says the file is ours, in a place other than the manifest
BLOCK = 4 << 20
NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32"}
NAMES |= {
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "BOOL": "bool",
}
NUMPY_ONLY = (torch.uint16, torch.uint32, torch.uint64)  # torch can store but hardly compute with these


@register_format("safetensors", endings=(".safetensors",), writes=True)
def safetensors() -> Format:
    """Tensors with names, every one with its SHA-256 in the manifest."""
    return Format(open=_open, write=_write)


def _library() -> Any:
    return need("safetensors", "files", "reading and writing safetensors")


def _open(path: Path, options: Mapping[str, Any]) -> Source:
    label, library = str(path), _library()
    with reading(label, WHAT), library.safe_open(path, framework="pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}
        shapes = {
            name: (tuple(one.get_shape()), NAMES.get(one.get_dtype(), str(one.get_dtype())))
            for name, one in slices.items()
        }
        manifest = _own_manifest(file.metadata() or {}, shapes, label)
    texts = [name for name in shapes if name + OFFSETS in shapes]
    hidden = {MARK, *(name + OFFSETS for name in texts)}
    found = {name: shape for name, shape in shapes.items() if name not in hidden}
    rows = {
        name: shapes[name + OFFSETS][0][0] if name in texts else shape[0] for name, (shape, _) in found.items() if shape
    }
    if manifest is not None:
        kinds = {
            name: "text" if name in texts else " x ".join([*map(str, shape[1:]), kind])
            for name, (shape, kind) in found.items()
        }
        _manifest.check_columns(manifest, kinds, next(iter(rows.values()), 0), label)
    return Source(
        label=label,
        columns={name: f"{rows[name]} text" if name in texts else in_words(*found[name]) for name in rows},
        rows=next(iter(rows.values()), 0),
        manifest=manifest,
        read=lambda wanted: _read(path, wanted, texts, manifest),
        batches=lambda wanted, size: stepwise(lambda: _batches(path, wanted, size, texts, manifest), label, WHAT),
    )


def _own_manifest(facts: Mapping[str, str], shapes: Mapping[str, Any], label: str) -> dict[str, Any] | None:
    if _manifest.KEY in facts:
        return _manifest.loads(facts[_manifest.KEY], label)
    if MARK in shapes:
        raise _manifest.damaged(label, "its manifest is missing")
    return None


def _digest(values: torch.Tensor) -> str:
    """SHA-256 of a tensor's bytes, block by block."""
    flat = values.reshape(-1).view(torch.uint8) if values.numel() else torch.empty(0, dtype=torch.uint8)
    digest = hashlib.sha256()
    for start in range(0, len(flat), BLOCK):
        digest.update(flat[start : start + BLOCK].numpy().data)
    return digest.hexdigest()


def _stored(wanted: Wanted, texts: list[str]) -> list[str]:
    """The tensors that the wanted columns consist of."""
    return [part for name in wanted for part in ([name, name + OFFSETS] if name in texts else [name])]


def _tensors(file: Any, names: list[str], manifest: Mapping[str, Any] | None, label: str) -> dict[str, torch.Tensor]:
    """The tensors, mapped from the file, their digests verified."""
    found = {name: file.get_tensor(name) for name in names}
    for name, values in found.items():
        check_shape(label, name, tuple(values.shape))
        if manifest is not None and _digest(values) != manifest["digests"].get(name):
            raise _manifest.damaged(label, f"the tensor {name!r} does not match its SHA-256")
    return found


def _column(name: str, tensors: Mapping[str, torch.Tensor], texts: list[str], label: str) -> Any:
    if name in texts:
        return _text(tensors[name], tensors[name + OFFSETS], name, label)
    values = tensors[name]
    return values.numpy() if values.dtype in NUMPY_ONLY else values


def _text(encoded: torch.Tensor, offsets: torch.Tensor, name: str, label: str) -> numpy.ndarray:
    raw, ends = encoded.numpy().tobytes(), offsets.tolist()
    starts = [0, *ends[:-1]]
    if (
        any(start > end for start, end in zip(starts, ends, strict=True))
        or (ends and ends[-1] != len(raw))
        or (ends and ends[0] < 0)
    ):
        raise InputError(f"opening {label}: the offsets of the text column {name!r} do not fit its bytes.")
    return text([raw[start:end].decode("utf-8") for start, end in zip(starts, ends, strict=True)], name, label)


def _read(path: Path, wanted: Wanted, texts: list[str], manifest: Mapping[str, Any] | None) -> dict[str, Any]:
    label = str(path)
    check_expansion(label, path.stat().st_size, path.stat().st_size)
    with reading(label, WHAT), _library().safe_open(path, framework="pt") as file:
        tensors = _tensors(file, _stored(wanted, texts), manifest, label)
        return {name: _column(name, tensors, texts, label) for name in wanted}


def _batches(
    path: Path, wanted: Wanted, rows: int, texts: list[str], manifest: Mapping[str, Any] | None
) -> Iterator[dict[str, Any]]:
    """Slices of the mapped tensors: what has been read can be dropped by the system at any time."""
    label = str(path)
    with _library().safe_open(path, framework="pt") as file:
        tensors = _tensors(file, _stored(wanted, texts), manifest, label)
        columns = {name: _column(name, tensors, texts, label) for name in wanted}
        count = len(next(iter(columns.values())))
        if any(len(values) != count for values in columns.values()):
            raise InputError(f"opening {label}: its columns have different numbers of rows.")
        for start in range(0, count, rows):
            yield {name: values[start : start + rows] for name, values in columns.items()}


def _as_tensors(name: str, values: Any) -> dict[str, torch.Tensor]:
    """A column as it is stored; text in two tensors."""
    if isinstance(values, torch.Tensor):
        return {name: values.detach().cpu().contiguous()}
    if values.dtype.kind in "UST":
        encoded = [str(value).encode("utf-8") for value in (values.astype(str) if values.dtype.kind == "S" else values)]
        ends = numpy.cumsum([len(part) for part in encoded], dtype=numpy.int64)
        joined = numpy.frombuffer(b"".join(encoded), numpy.uint8).copy()
        return {name: torch.from_numpy(joined), name + OFFSETS: torch.from_numpy(ends)}
    plain = values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))
    if plain.dtype.name in ("longdouble", "float128"):
        plain = plain.astype(numpy.float64)
    if plain.dtype.name == "bfloat16":
        return {name: torch.from_numpy(plain.astype(numpy.float32)).bfloat16()}
    return {name: torch.from_numpy(numpy.array(plain, order="C"))}


def _write(handle: BinaryIO, tables: Iterable[Predictions], extra: Mapping[str, Any]) -> None:
    save = need("safetensors.torch", "files", "writing safetensors").save
    parts = list(tables)
    if not parts:
        raise InputError("writing safetensors: there are no predictions to write.")
    table = Predictions.concatenate(parts) if len(parts) > 1 else parts[0]
    tensors: dict[str, torch.Tensor] = {}
    words: dict[str, str] = {}
    for name, values in columns_of(table).items():
        stored = _as_tensors(name, values)
        shape, kind = tuple(stored[name].shape), str(stored[name].dtype).removeprefix("torch.")
        words[name] = "text" if len(stored) == 2 else " x ".join([*map(str, shape[1:]), kind])
        tensors |= stored
    digests = {name: _digest(values) for name, values in tensors.items()}
    manifest = {**_manifest.describe(table, words, extra), "rows": len(table), "digests": digests}
    tensors[MARK] = torch.empty(0, dtype=torch.uint8)
    handle.write(save(tensors, metadata={_manifest.KEY: _manifest.dumps(manifest)}))
