"""`open`, `batches` and `plan`: predictions from wherever they are, whole, in pieces, or shard by shard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Unpack

import torch

from ..errors import InputError
from ..predictions import Predictions
from . import _repeats
from ._assemble import assemble
from ._names import GIVEN, Choice, ColumnNames, choice, resolve
from ._places import Opened, opened
from ._plan import Plan, Seen, plan_of
from ._shards import check_same_form
from ._source import Source, Wanted
from ._tables import column

DEFAULT_ROWS = 65_536


def open(source: Any, **columns: Unpack[ColumnNames]) -> Predictions:
    """The predictions in a file, a folder of shards, several files or an open table.

    Columns called logits, log_probabilities, probabilities, confidence, correct, target(s), label(s), y, id(s),
    weight(s) and group.NAME are recognised; others are named by keyword: a name, a pattern (`logits="z*"`), a list.
    Nothing is guessed from values: whether numbers are logits or probabilities is said by a name, the column's or
    the keyword's. `head` and `class_names` complete what a file does not know; `binary=True` makes one column the
    second of two classes; `partial=True` opens what an unfinished recording has left.

    >>> table = open({"z0": [0.1, 2.0], "z1": [1.5, 0.3], "label": [1, 0]}, logits="z*")
    >>> len(table), table.classes, table.predicted.tolist()
    (2, 2, [1, 0])
    """
    found, chosen = prepared(source, columns)
    tables = [_whole(one, chosen) for one in found.sources]
    for one, table in zip(found.sources, tables, strict=True):
        check_same_form(tables[0], table, found.sources[0].label, one.label)
    if found.recorded and tables[0].ids is not None:
        twice = _repeats.repeated(_repeats.hashes(table.ids) for table in tables)
        tables = list(_repeats.once(tables, twice, found.label))
    if len(tables) == 1:
        return tables[0]
    try:
        return Predictions.concatenate(tables)
    except InputError as error:
        raise InputError(f"opening {found.label}: {error}") from error


def batches(source: Any, *, rows: int = DEFAULT_ROWS, **columns: Unpack[ColumnNames]) -> Iterator[Predictions]:
    """The same rows as `open`, at most `rows` at a time: a folder of shards larger than memory is read in a stream.

    Memory does not grow with the number of rows. Ids that repeat are found by a pass over the ids before.
    """
    if rows < 1:
        raise InputError(f"reading batches: got rows={rows}, expected at least 1.")
    found, chosen = prepared(source, columns)
    return _stream(plan_of(found, chosen, rows), rows)


def plan(source: Any, **columns: Unpack[ColumnNames]) -> Plan:
    """The shards behind a source and which of their rows count, for whoever reads them one by one."""
    found, chosen = prepared(source, columns)
    return plan_of(found, chosen, DEFAULT_ROWS)


def _stream(planned: Plan, rows: int) -> Iterator[Predictions]:
    seen: Seen = {}
    for shard in range(len(planned)):
        yield from planned.batches(shard, rows, seen)


def prepared(source: Any, columns: Mapping[str, Any]) -> tuple[Opened, Choice]:
    """The sources and the keywords, read."""
    keywords, arrays = _split(columns)
    chosen = choice(keywords)
    return _with_arrays(opened(source, chosen), arrays), chosen


def _whole(source: Source, chosen: Choice) -> Predictions:
    roles = resolve(source.columns, chosen, source.label)
    return assemble(source.read(roles.wanted()), roles, chosen, source.manifest, source.label)


def _split(columns: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keywords that name columns, and those that are columns themselves, under names that no file has by chance."""
    keywords, arrays = dict(columns), {}
    for name, value in columns.items():
        if name in ("group", "groups"):
            given = value if isinstance(value, Mapping) else {"group": value}
            groups = {str(group): column(one, str(group)) for group, one in given.items() if _is_array(one)}
            arrays |= {f"group.{group}=": one for group, one in groups.items()}
            if groups:
                named = {group: one for group, one in given.items() if str(group) not in groups}
                keywords[name] = {**named, **{group: f"group.{group}=" for group in groups}}
        elif name != "class_names" and _is_array(value):
            arrays[f"{name}="] = column(value, name)
            keywords[name] = f"{name}="
    return keywords, arrays


def _is_array(value: Any) -> bool:
    """Whether a keyword is a column itself rather than the name of one."""
    if isinstance(value, (list, tuple)):
        return len(value) > 0 and not all(isinstance(one, str) for one in value)
    return isinstance(value, torch.Tensor) or (hasattr(value, "__array__") and not isinstance(value, (str, bytes)))


def _with_arrays(found: Opened, arrays: Mapping[str, Any]) -> Opened:
    """The source with columns that were given as arrays beside it."""
    if not arrays:
        return found
    if len(found.sources) != 1:
        raise InputError(f"opening {found.label}: arrays as keywords go with one file or table, not with shards.")
    (source,) = found.sources
    extra = dict(arrays)

    def read(wanted: Wanted) -> dict[str, Any]:
        own = {name: kind for name, kind in wanted.items() if name not in extra}
        return {**(source.read(own) if own else {}), **{name: extra[name] for name in wanted if name in extra}}

    def pieces(wanted: Wanted, rows: int) -> Iterator[dict[str, Any]]:
        own = {name: kind for name, kind in wanted.items() if name not in extra}
        start = 0
        for part in source.batches(own or {next(iter(source.columns)): "number"}, rows):
            stop = start + len(next(iter(part.values())))
            yield {
                **{name: part[name] for name in own},
                **{name: extra[name][start:stop] for name in wanted if name in extra},
            }
            start = stop
        _check_rows(source.label, extra, wanted, start)

    columns = {**source.columns, **dict.fromkeys(extra, GIVEN)}
    return Opened([replace(source, columns=columns, read=read, batches=pieces)])


def _check_rows(label: str, extra: Mapping[str, Any], wanted: Wanted, rows: int) -> None:
    for name in wanted:
        if name in extra and len(extra[name]) != rows:
            raise InputError(
                f"opening {label}: it has {rows} rows, and {name.removesuffix('=')} was given with {len(extra[name])}."
            )
