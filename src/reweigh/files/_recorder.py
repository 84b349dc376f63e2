"""The recorder: predictions from any loop, on any rank, into one file; a killed process leaves whole shards.

While it records, whole parts appear under their own names. When it ends, the parts become one file, each row once:
`val.parquet` by a single process, `val.parquet/rank-00000-of-00004.parquet` and so on by several. Ranks never wait
for one another; `reweigh.open("val.parquet")` says which ranks are missing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

from ..errors import InputError, bad_input
from ..predictions import Predictions
from . import _ranks, _repeats
from ._assemble import assemble
from ._names import Choice, resolve
from ._process import DOING, place_of, process_started, run_name
from ._save import write, writer_of

ROWS_PER_PART = 65_536
BYTES_PER_PART = 64 << 20
SECONDS_PER_PART = 30.0


def record(
    path: str | os.PathLike[str],
    *,
    rank: int | None = None,
    world_size: int | None = None,
    head: str | None = None,
    class_names: Sequence[str] | None = None,
    about: Mapping[str, Any] | None = None,
    unique: bool = False,
    rows_per_part: int = ROWS_PER_PART,
) -> Recorder:
    """A recorder for a `with` block: `with reweigh.record("val.parquet") as r: r.add(logits, target, ids=ids)`.

    Rank and world size come from torch.distributed or the launcher's environment where they are not given. Several
    ranks need `ids`, because samplers pad the last batch with rows of other ranks: the same id with the same content
    is kept once, with another content it is an error. `unique=True` says that no row is on two ranks.
    """
    place, count = place_of(rank, world_size)
    if rows_per_part < 1:
        raise bad_input(DOING, came=f"rows_per_part={rows_per_part}", expected="at least 1")
    constant = {"head": head, "class_names": class_names, "about": about}
    return Recorder(
        Path(os.path.expanduser(os.fspath(path))), place, count, constant, unique or count == 1, rows_per_part
    )


class Recorder:
    """Collects batches and writes them; made by `record`."""

    def __init__(
        self, path: Path, rank: int, world: int, constant: Mapping[str, Any], unique: bool, rows_per_part: int
    ) -> None:
        self._path, self._rank, self._world = path, rank, world
        self._constant, self._unique, self._rows_per_part = constant, unique, rows_per_part
        self._tables: list[Predictions] = []
        self._parts: list[Path] = []
        self._rows = self._bytes = 0
        self._flushed = time.monotonic()
        self._state = "new"
        self._run = ""
        writer_of(path)

    @property
    def _folder(self) -> Path:
        return self._path if self._world > 1 else _ranks.parts_folder(self._path)

    def __enter__(self) -> Recorder:
        if self._state != "new":
            raise InputError(f"{DOING}: this recorder was used already. Call reweigh.record(...) again.")
        if self._world == 1 and self._path.is_dir():
            raise InputError(
                f"{DOING}: {self._path} is a folder, of an earlier recording by several ranks. Delete it or choose another name."
            )
        if self._world > 1 and self._path.is_file():
            raise InputError(
                f"{DOING}: {self._path} is a file, and {self._world} ranks write a folder of shards. Delete it or choose another name."
            )
        self._run = run_name(self._path, self._rank)
        with _sentences(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._remove(_own(self._folder, self._rank))
        self._state = "open"
        self._flushed = time.monotonic()
        return self

    def add(
        self,
        logits: Any = None,
        target: Any = None,
        *,
        log_probabilities: Any = None,
        probabilities: Any = None,
        confidence: Any = None,
        correct: Any = None,
        ids: Any = None,
        weights: Any = None,
        groups: Mapping[str, Any] | None = None,
    ) -> None:
        """One batch: scores of one kind, the targets, and what else is known of its rows. Tensors may be on any device."""
        if self._state != "open":
            raise InputError(f"{DOING}: add(...) outside the `with` block of reweigh.record(...).")
        if ids is None and not self._unique:
            raise InputError(
                f"{DOING}: got no ids on one of {self._world} ranks, expected ids=, because samplers pad ranks with rows of "
                "others, which would be counted twice. Say record(..., unique=True) if no row is on two ranks."
            )
        scores = {"logits": logits, "log_probabilities": log_probabilities, "probabilities": probabilities}
        columns = {
            **scores,
            "confidence": confidence,
            "correct": correct,
            "targets": target,
            "ids": ids,
            "weights": weights,
        }
        kept = {name: _copied(values) for name, values in columns.items()}
        kept_groups = {name: _copied(values) for name, values in (groups or {}).items()}
        for table in _without_repeats(kept, kept_groups, self._constant):
            self._take(table)

    def _take(self, table: Predictions) -> None:
        if self._tables and (table.ids is None) != (self._tables[0].ids is None):
            raise InputError(f"{DOING}: only some batches have ids, expected all or none.")
        self._tables.append(table)
        self._rows += len(table)
        self._bytes += table.scores.numel() * table.scores.element_size()
        late = time.monotonic() - self._flushed > SECONDS_PER_PART
        if self._rows >= self._rows_per_part or self._bytes >= BYTES_PER_PART or late:
            self._flush()

    def _flush(self) -> None:
        """What has been collected becomes a whole part."""
        if not self._tables:
            return
        part = self._folder / _ranks.shard_name(self._rank, self._world, self._path.suffix, len(self._parts))
        with _sentences(self._path):
            self._folder.mkdir(exist_ok=True)
        write([Predictions.concatenate(list(self._once(self._tables)))], part, self._note())
        self._parts.append(part)
        self._tables, self._rows, self._bytes = [], 0, 0
        self._flushed = time.monotonic()

    def _once(self, tables: Sequence[Predictions]) -> Iterator[Predictions]:
        twice = numpy.empty(0, numpy.uint64)
        if tables and tables[0].ids is not None:
            twice = _repeats.repeated(_repeats.hashes(table.ids) for table in tables)
        return _repeats.once(tables, twice, str(self._path))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._state = "closed"
        if kind is not None:  # keep what there is as a whole part; the recording stays unfinished
            try:
                self._flush()
            except Exception as second:
                if error is not None:
                    error.add_note(f"The last rows could not be written either: {second}")
            return
        self._finish()

    def _finish(self) -> None:
        """Parts and the rest become the file or this rank's shard."""
        alone = self._world == 1
        target = self._path if alone else self._folder / _ranks.shard_name(self._rank, self._world, self._path.suffix)
        if not self._parts and not self._tables:
            if alone:
                raise InputError(f"{DOING}: nothing was added, so {self._path} was not written.")
            nothing = Predictions(logits=numpy.empty((0, 2), numpy.float32))
            with _sentences(self._path):
                self._folder.mkdir(exist_ok=True)
            write([nothing], target, self._note(empty=True))
            return
        with _sentences(self._path):
            self._folder.mkdir(exist_ok=True) if not alone else None
        write(self._everything(), target, {} if alone else self._note())
        with _sentences(self._path):
            self._remove(self._parts)

    def _everything(self) -> Iterator[Predictions]:
        """All rows, each once; parts are read back one at a time."""
        if not self._parts:
            return self._once([Predictions.concatenate(list(self._once(self._tables)))])
        self._flush()
        if self._ids_of(self._parts[0]) is None:
            return (_read(part) for part in self._parts)
        twice = _repeats.repeated(_repeats.hashes(self._ids_of(part)) for part in self._parts)
        return _repeats.once((_read(part) for part in self._parts), twice, str(self._path))

    def _ids_of(self, part: Path) -> Any:
        source = writer_of(part).open(part, {})
        return source.read({"id": "text"})["id"] if "id" in source.columns else None

    def _note(self, *, empty: bool = False) -> dict[str, Any]:
        note = {"rank": self._rank, "world": self._world, "run": self._run, "empty": empty}
        return {"recording": {**note, "process_started": process_started(), "written": time.time()}}

    def _remove(self, files: Sequence[Path]) -> None:
        for file in files:
            file.unlink(missing_ok=True)
        if self._world == 1 and self._folder.is_dir() and not any(self._folder.iterdir()):
            self._folder.rmdir()


def _read(part: Path) -> Predictions:
    source = writer_of(part).open(part, {})
    roles = resolve(source.columns, Choice(), source.label)
    return assemble(source.read(roles.wanted()), roles, Choice(), source.manifest, source.label)


def _own(folder: Path, rank: int) -> list[Path]:
    """Files that an earlier recording of this rank has left."""
    found = [(path, _ranks.rank_of(path)) for path in folder.iterdir()] if folder.is_dir() else []
    return [path for path, named in found if named and named[0] == rank]


def _copied(values: Any) -> Any:
    """A column in memory of its own: loops reuse their buffers."""
    if values is None:
        return None
    if isinstance(values, torch.Tensor):
        return values.detach().to("cpu", copy=True)
    return numpy.array(values)


def _without_repeats(
    columns: Mapping[str, Any], groups: Mapping[str, Any], constant: Mapping[str, Any]
) -> Iterator[Predictions]:
    """The batch as one table, or, where an id repeats inside it, as several in which none does."""
    ids = columns["ids"]
    if ids is None or ids.ndim != 1 or len(ids) < 2:
        yield Predictions(**columns, groups=groups, **constant)
        return
    plain = ids.numpy() if isinstance(ids, torch.Tensor) else ids
    _, places = numpy.unique(plain, return_inverse=True)
    order = numpy.argsort(places, kind="stable")
    begins = numpy.flatnonzero(numpy.r_[True, numpy.diff(places[order]) > 0])
    occurrence = numpy.empty(len(order), numpy.int64)  # 0 for the first row of an id, 1 for the second, ...
    occurrence[order] = numpy.arange(len(order)) - numpy.repeat(begins, numpy.diff(numpy.r_[begins, len(order)]))
    if not occurrence.any():
        yield Predictions(**columns, groups=groups, **constant)
        return
    for time_ in range(int(occurrence.max()) + 1):
        rows = numpy.flatnonzero(occurrence == time_)
        part = {name: None if values is None else values[rows] for name, values in columns.items()}
        yield Predictions(**part, groups={name: values[rows] for name, values in groups.items()}, **constant)


class _sentences:
    """System errors in a block become one sentence about the recording."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, OSError):
            raise InputError(f"{DOING} to {self.path}: {error.strerror or error} ({error.filename}).") from error
