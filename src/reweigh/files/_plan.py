"""A plan to read shards one by one, anywhere: which rows of which shard count, decided before anything is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy

from ..errors import InputError
from ..predictions import Predictions
from . import _repeats
from ._assemble import assemble
from ._names import Choice, resolve
from ._places import Opened
from ._shards import check_same_form
from ._source import Source

Seen = dict[Any, tuple[str, dict[str, numpy.ndarray]]]  # id -> where it was seen first, and its content


@dataclass(frozen=True)
class Plan:
    """Shards and how to read them; ids that repeat are known: `kept` says which shard and row has each of them."""

    found: Opened
    chosen: Choice
    twice: numpy.ndarray = field(default_factory=lambda: numpy.empty(0, numpy.uint64))
    kept: dict[Any, tuple[int, int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.found.sources)

    @property
    def label(self) -> str:
        return self.found.label

    def batches(self, shard: int, rows: int, seen: Seen | None = None) -> Iterator[Predictions]:
        """The rows of one shard that count, at most `rows` at a time; `seen` collects what repeats, for `agree`."""
        source, before = self.found.sources[shard], 0
        for table in pieces(source, self.chosen, rows):
            count = len(table)
            yield (
                self._counted(table, shard, before, source.label, {} if seen is None else seen)
                if len(self.twice)
                else table
            )
            before += count

    def _counted(self, table: Predictions, shard: int, before: int, label: str, seen: Seen) -> Predictions:
        keep = numpy.ones(len(table), bool)
        for place in map(int, numpy.flatnonzero(numpy.isin(_repeats.hashes(table.ids), self.twice))):
            name = _repeats.plain_id(table.ids, place)
            if name not in self.kept:
                continue  # its hash alone repeats
            agree(seen, name, label, _repeats.content(table, place))
            keep[place] = self.kept[name] == (shard, before + place)
        return table if keep.all() else table.take(keep)

    def sample(self, rows: int) -> Predictions:
        """The first rows of the first shard that has any."""
        for shard in range(len(self)):
            for table in self.batches(shard, rows):
                if len(table) or shard + 1 == len(self):
                    return table
        raise InputError(f"opening {self.label}: it holds no rows.")


def agree(seen: Seen, name: Any, label: str, content: dict[str, numpy.ndarray]) -> None:
    """Remember the content of an id that repeats, or refuse another content under the same id."""
    if name not in seen:
        seen[name] = (label, content)
        return
    _repeats.check_alike(name, seen[name][1], content, label)


def merge_seen(seen: Seen, more: Seen) -> None:
    """What was collected elsewhere."""
    for name, (label, content) in more.items():
        agree(seen, name, label, content)


def pieces(source: Source, chosen: Choice, rows: int) -> Iterator[Predictions]:
    """Batches of one source; a message counts its rows from the beginning of the batch, and says where that is."""
    roles = resolve(source.columns, chosen, source.label)
    before = 0
    for columns in source.batches(roles.wanted(), rows):
        label = source.label if not before else f"{source.label}, from row {before} on"
        table = assemble(columns, roles, chosen, source.manifest, label)
        before += len(table)
        yield table


def plan_of(found: Opened, chosen: Choice, rows: int) -> Plan:
    """The plan for these sources: shards of one form, ids that repeat located by reading their column alone."""
    _check_forms(found, chosen)
    roles = [resolve(source.columns, chosen, source.label) for source in found.sources]
    if any("id" not in one.columns for one in roles):
        return Plan(found, chosen)

    def ids() -> Iterator[tuple[int, int, Any]]:
        for shard, (source, one) in enumerate(zip(found.sources, roles, strict=True)):
            name, before = one.columns["id"][0], 0
            for columns in source.batches({name: "text"}, rows):
                values = columns[name].reshape(-1)
                yield shard, before, values
                before += len(values)

    twice = _repeats.repeated(_repeats.hashes(values) for _, _, values in ids())
    return Plan(found, chosen, twice, _located(ids(), twice, found)) if len(twice) else Plan(found, chosen)


def _check_forms(found: Opened, chosen: Choice) -> None:
    """Every shard's first row means what the first shard's does."""
    first: Predictions | None = None
    for source in found.sources if len(found.sources) > 1 else ():
        table = next(pieces(source, chosen, 1), None)
        if table is not None:
            first = table if first is None else first
            check_same_form(first, table, found.sources[0].label, source.label)


def _located(ids: Iterator[tuple[int, int, Any]], twice: numpy.ndarray, found: Opened) -> dict[Any, tuple[int, int]]:
    """Where each id that repeats is first; outside a recording a repetition is an error."""
    kept: dict[Any, tuple[int, int]] = {}
    for shard, before, values in ids:
        for place in map(int, numpy.flatnonzero(numpy.isin(_repeats.hashes(values), twice))):
            name = _repeats.plain_id(values, place)
            if name not in kept:
                kept[name] = (shard, before + place)
            elif not found.recorded:
                first, here = found.sources[kept[name][0]].label, found.sources[shard].label
                raise InputError(
                    f"opening {here}: the id {name!r} is in row {before + place}, and in row {kept[name][1]} of {first}; "
                    "expected ids that occur once."
                )
    return kept
