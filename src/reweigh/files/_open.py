"""`open` and `batches`: predictions from wherever they are, whole or in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Unpack

import numpy
import torch

from ..errors import InputError
from ..predictions import Predictions
from . import _repeats
from ._assemble import assemble
from ._names import GIVEN, Choice, ColumnNames, choice, resolve
from ._places import Opened, opened
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
    keywords, arrays = _split(columns)
    chosen = choice(keywords)
    found = _with_arrays(opened(source, chosen), arrays)
    tables = [_whole(one, chosen) for one in found.sources]
    for label, table in zip((one.label for one in found.sources), tables, strict=True):
        check_same_form(tables[0], table, found.sources[0].label, label)
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
    keywords, arrays = _split(columns)
    chosen = choice(keywords)
    found = _with_arrays(opened(source, chosen), arrays)
    return _stream(found, chosen, rows)


def _stream(found: Opened, chosen: Choice, rows: int) -> Iterator[Predictions]:
    def every() -> Iterator[Predictions]:
        first = None
        for source in found.sources:
            for table in _pieces(source, chosen, rows):
                first = first or (table, source.label)
                check_same_form(first[0], table, first[1], source.label)
                yield table

    roles = resolve(found.sources[0].columns, chosen, found.sources[0].label)
    if "id" not in roles.columns:
        yield from every()
        return

    def ids() -> Iterator[numpy.ndarray]:
        for source in found.sources:
            yield from _ids(source, chosen, rows)

    twice = _repeats.repeated(_repeats.hashes(part) for part in ids())
    yield from (
        _repeats.once(every(), twice, found.label) if found.recorded else _unrepeated(every(), twice, found.label)
    )


def _ids(source: Source, chosen: Choice, rows: int) -> Iterator[numpy.ndarray]:
    """The ids alone: only their column is read."""
    name = resolve(source.columns, chosen, source.label).columns["id"][0]
    for columns in source.batches({name: "text"}, rows):
        yield columns[name].reshape(-1)


def _unrepeated(tables: Iterator[Predictions], twice: numpy.ndarray, label: str) -> Iterator[Predictions]:
    """Tables of which no id comes again in another."""
    seen: dict[Any, int] = {}
    before = 0
    for table in tables:
        for place in numpy.flatnonzero(numpy.isin(_repeats.hashes(table.ids), twice)) if len(twice) else ():
            name = _repeats.plain_id(table.ids, int(place))
            if name in seen:
                raise InputError(
                    f"opening {label}: the id {name!r} is in rows {seen[name]} and {before + int(place)}, expected ids that occur once."
                )
            seen[name] = before + int(place)
        before += len(table)
        yield table


def _whole(source: Source, chosen: Choice) -> Predictions:
    roles = resolve(source.columns, chosen, source.label)
    return assemble(source.read(roles.wanted()), roles, chosen, source.manifest, source.label)


def _pieces(source: Source, chosen: Choice, rows: int) -> Iterator[Predictions]:
    """Batches of one source; a message counts its rows from the beginning of the batch, and says where that is."""
    roles = resolve(source.columns, chosen, source.label)
    before = 0
    for columns in source.batches(roles.wanted(), rows):
        label = source.label if not before else f"{source.label}, from row {before} on"
        table = assemble(columns, roles, chosen, source.manifest, label)
        before += len(table)
        yield table


def check_same_form(first: Predictions, other: Predictions, first_label: str, label: str) -> None:
    """Shards of one table mean the same; the message names the two files."""
    for name in ("kind", "head", "target_form", "classes", "class_names"):
        mine, theirs = getattr(first, name), getattr(other, name)
        if mine != theirs:
            raise InputError(
                f"opening {label}: its {name.replace('_', ' ')} is {theirs!r}, in {first_label} it is {mine!r}. Shards must agree."
            )
    for name in ("weights", "ids"):
        if (getattr(first, name) is None) != (getattr(other, name) is None):
            raise InputError(f"opening {label}: only one of it and {first_label} has {name}. Shards must agree.")
    if set(first.groups or {}) != set(other.groups or {}):
        raise InputError(
            f"opening {label}: its groups are {sorted(other.groups or {})}, in {first_label} {sorted(first.groups or {})}."
        )


def _split(columns: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keywords that name columns, and those that are columns themselves."""
    keywords, arrays = dict(columns), {}
    for name, value in columns.items():
        is_list = isinstance(value, (list, tuple)) and len(value) > 0 and not all(isinstance(one, str) for one in value)
        if isinstance(value, (numpy.ndarray, torch.Tensor)) or (
            is_list and name not in ("class_names", "group", "groups")
        ):
            arrays[name] = column(value, name)
            keywords[name] = f"{name}="  # a name that no file's column has by chance
    return keywords, arrays


def _with_arrays(found: Opened, arrays: Mapping[str, Any]) -> Opened:
    """The source with columns that were given as arrays beside it."""
    if not arrays:
        return found
    if len(found.sources) != 1:
        raise InputError(f"opening {found.label}: arrays as keywords go with one file or table, not with shards.")
    (source,) = found.sources
    extra = {f"{name}=": values for name, values in arrays.items()}

    def read(wanted: Wanted) -> dict[str, Any]:
        own = {name: kind for name, kind in wanted.items() if name not in extra}
        return {**(source.read(own) if own else {}), **{name: extra[name] for name in wanted if name in extra}}

    def pieces(wanted: Wanted, rows: int) -> Iterator[dict[str, Any]]:
        start = 0
        for part in source.batches({name: kind for name, kind in wanted.items() if name not in extra}, rows):
            stop = start + len(next(iter(part.values())))
            yield {**part, **{name: extra[name][start:stop] for name in wanted if name in extra}}
            start = stop

    columns = {**source.columns, **dict.fromkeys(extra, GIVEN)}
    return Opened([replace(source, columns=columns, read=read, batches=pieces)])
