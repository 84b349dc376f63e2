"""Evaluation of more rows than memory holds: sums added part by part, intervals by leaving out parts of the rows.

Every row belongs to one of a few groups by a hash of its place. Each group's sums have a fixed size; together they
are the metric's, and the values without one group each tell how much the metric varies (the delete-a-group
jackknife). Shards can be summed anywhere and in any order: on one machine or over a Ray cluster, the same number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from .. import files
from ..errors import InputError
from ..metrics import Stream
from ..predictions import Predictions
from ._choice import Asked, addable, part_of
from ._claims import Claim
from ._result import Evaluation, GroupResult, Measure, flat

JACKKNIFE_GROUPS = 64
SAMPLE_ROWS = 65_536  # kept for the checks
BATCH_BYTES = 16 << 20


# what shows progress: (items, label, how many) -> the same items
Progress = Callable[[Iterable[Any], str, int], Iterable[Any]]


def silent(items: Iterable[Any], label: str, total: int) -> Iterable[Any]:
    """No progress shown."""
    return items


@dataclass(frozen=True)
class Settings:
    """What an evaluation was asked for."""

    interval: float | None
    resamples: int
    seed: int
    by: tuple[str, ...]
    cluster: str | None
    metrics: Sequence[Asked] | None
    claims: tuple[Claim, ...] = ()

    def with_claims(self, chosen: list[Asked]) -> list[Asked]:
        """The metrics, and those that claims are about."""
        found = list(chosen)
        for claim in self.claims:
            known = {one.name for one in found}
            found += [one for one in part_of(claim.metric)[0] if one.name not in known]
        return found

    def bins(self, chosen: Sequence[Asked]) -> int | None:
        """The most bins of a metric with bins."""
        asked_for = [one.settings.get("bins", 15) for one in chosen if one.function.__name__ in BINNED]
        return max((int(bins) for bins in asked_for), default=None)


BINNED = ("expected_calibration_error", "maximum_calibration_error", "average_calibration_error", "reliability")


class Sums:
    """The streams of every metric, for every jackknife group, and for every value of the groups to look at."""

    def __init__(self, chosen: Sequence[Asked], groups: int, by: Sequence[str]) -> None:
        self.chosen, self.by, self.rows = list(chosen), tuple(by), 0
        self.parts = [[Stream(one.function, one.settings) for one in chosen] for _ in range(groups)]
        self.values: dict[str, dict[str, tuple[int, list[Stream]]]] = {group: {} for group in by}

    def add(self, table: Predictions, place: numpy.ndarray) -> None:
        """Some rows, each into the group `place` says."""
        self.rows += len(table)
        for number, streams in enumerate(self.parts):
            rows = numpy.flatnonzero(place == number)
            part = table if len(self.parts) == 1 else table.take(rows)
            for stream in streams:
                stream.add(part)
        for group in self.by:
            for value, part in table.by(group).items():
                count, streams = self.values[group].get(str(value)) or (
                    0,
                    [Stream(one.function, one.settings) for one in self.chosen],
                )
                for stream in streams:
                    stream.add(part)
                self.values[group][str(value)] = (count + len(part), streams)

    def merge(self, other: Sums) -> None:
        """What was summed elsewhere."""
        self.rows += other.rows
        for mine, theirs in zip(self.parts, other.parts, strict=True):
            for stream, more in zip(mine, theirs, strict=True):
                stream.merge(more)
        for group, values in other.values.items():
            for value, (count, streams) in values.items():
                if value not in self.values[group]:
                    self.values[group][value] = (count, streams)
                    continue
                before, kept = self.values[group][value]
                for stream, more in zip(kept, streams, strict=True):
                    stream.merge(more)
                self.values[group][value] = (before + count, kept)

    def measures(self, interval: float | None, class_names: Sequence[str] | None) -> dict[str, Measure]:
        """Value and interval of every metric."""
        found: dict[str, Measure] = {}
        for number, one in enumerate(self.chosen):
            streams = [part[number] for part in self.parts]
            whole = flat(one.name, _bare(_merged(streams).value()), one.direction, class_names)
            found |= (
                whole
                if interval is None or len(streams) < 2
                else _jackknifed(one, whole, streams, interval, class_names)
            )
        return found

    def group_results(self, class_names: Sequence[str] | None) -> dict[str, dict[str, GroupResult]]:
        """The values of every group, without intervals."""
        return {
            group: {
                value: GroupResult(count, self._of_value(streams, class_names))
                for value, (count, streams) in sorted(values.items())
            }
            for group, values in self.values.items()
        }

    def _of_value(self, streams: Sequence[Stream], class_names: Sequence[str] | None) -> dict[str, Measure]:
        found: dict[str, Measure] = {}
        for one, stream in zip(self.chosen, streams, strict=True):
            found |= flat(one.name, _bare(stream.value()), one.direction, class_names)
        return found


def _bare(result: Any) -> Any:
    """A value in the form of an estimate without ends."""
    if isinstance(result, Mapping):
        return {name: _bare(part) for name, part in result.items()}
    return (result, result * math.nan, result * math.nan) if hasattr(result, "reshape") else (float(result), None, None)


def _merged(streams: Sequence[Stream]) -> Stream:
    whole = Stream(streams[0].metric, streams[0].settings)
    for stream in streams:
        whole.merge(stream)
    return whole


def _jackknifed(
    one: Asked, whole: Mapping[str, Measure], streams: Sequence[Stream], interval: float, names: Sequence[str] | None
) -> dict[str, Measure]:
    """The interval from the values without one group each."""
    filled = [place for place, stream in enumerate(streams) if stream.sums is not None]
    if len(filled) < 2:
        return dict(whole)
    without = [
        flat(
            one.name,
            _bare(_merged([streams[place] for place in filled if place != left]).value()),
            one.direction,
            names,
        )
        for left in filled
    ]
    spread = _student(interval, len(filled) - 1)
    found = {}
    for name, measure in whole.items():
        values = numpy.array([part[name].value for part in without])
        error = math.sqrt((len(values) - 1) / len(values) * float(((values - values.mean()) ** 2).sum()))
        low, high = (min(max(measure.value + sign * spread * error, one.bounds[0]), one.bounds[1]) for sign in (-1, 1))
        found[name] = Measure(measure.value, low, high, measure.direction)
    return found


def _student(level: float, freedom: int) -> float:
    """The two-sided point of Student's distribution, by Cornish and Fisher's expansion of the normal one."""
    from statistics import NormalDist

    z = NormalDist().inv_cdf((1 + level) / 2)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def jackknife_groups(shard: int, first: int, count: int, seed: int, groups: int) -> numpy.ndarray:
    """(count,) the group of each row of a shard from row `first` on: a hash of its place."""
    bits = numpy.arange(first, first + count, dtype=numpy.uint64) + numpy.uint64(
        (shard * 0x9E3779B97F4A7C15 + seed * 0xD1B54A32D192ED03) % 2**64
    )
    bits = (bits ^ (bits >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return ((bits ^ (bits >> numpy.uint64(31))) % numpy.uint64(groups)).astype(numpy.int64)


def sums_of(
    tables: Iterator[Predictions], shard: int, chosen: Sequence[Asked], by: Sequence[str], seed: int, groups: int
) -> Sums:
    """The sums of one shard, batch by batch."""
    found, first = Sums(chosen, groups, by), 0
    for table in tables:
        found.add(table, jackknife_groups(shard, first, len(table), seed, groups))
        first += len(table)
    return found


def _check(settings: Settings) -> None:
    if settings.cluster is not None:
        raise InputError("evaluating a stream: rows are resampled one by one there. Say engine='memory' for cluster=.")
    if "class" in settings.by:
        raise InputError("evaluating a stream by class: name a group, or say engine='memory'.")


def stream_evaluation(
    source: Any, settings: Settings, columns: Mapping[str, Any], *, ray: bool, progress: Progress
) -> tuple[Evaluation, Predictions]:
    """The evaluation, and the first rows for the checks."""
    _check(settings)
    plan = files.plan(source, **columns)
    sample = plan.sample(SAMPLE_ROWS)
    chosen = settings.with_claims(list(settings.metrics) if settings.metrics is not None else addable(sample))
    groups = 1 if settings.interval is None else JACKKNIFE_GROUPS
    for one in chosen:
        Stream(one.function, one.settings)  # a metric that does not add up is refused before anything is read
    rows = max(1, BATCH_BYTES // (8 * (sample.classes or 1)))
    if ray:
        from ._ray import ray_sums

        sums = ray_sums(plan, rows, chosen, settings.by, settings.seed, groups)
    else:
        sums = Sums(chosen, groups, settings.by)
        seen: dict = {}
        for shard in progress(range(len(plan)), "reading shards", len(plan)):
            sums.merge(sums_of(plan.batches(shard, rows, seen), shard, chosen, settings.by, settings.seed, groups))
    measures = sums.measures(settings.interval, sample.class_names)
    notes = (
        ()
        if settings.interval is None
        else (f"Streamed; intervals by leaving out {groups} parts of the rows in turn, groups without intervals.",)
    )
    level = 0.95 if settings.interval is None else settings.interval
    form = repr(sample).partition("rows")[2].removesuffix(")")
    return (
        Evaluation(
            plan.label,
            sums.rows,
            f"{sums.rows:,} rows{form}",
            level,
            measures,
            sums.group_results(sample.class_names),
            notes=notes,
        ),
        sample,
    )
