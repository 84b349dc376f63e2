"""`compare`: prediction files side by side, every difference with its paired interval on the rows they share."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy

from .. import files
from ..errors import InputError
from ..metrics import compare_pairs, estimate
from ..predictions import Predictions
from ._checking import Context, Finding, run_checks
from ._choice import OF_CONFIDENCE, OF_SCORES, Asked, asked
from ._digits import number, places, with_interval
from ._matching import common_rows, same_targets
from ._result import WIDTH, Measure, columns, flat
from ._runs import of_run
from ._streaming import Settings


class Gap(NamedTuple):
    """A file's value minus the first file's; `better` is the share of resamples in which it is better."""

    value: float
    low: float | None
    high: float | None
    better: float | None

    def verdict(self, direction: str) -> str:
        """Better, worse, equal or undecided, by the whole interval."""
        if self.low is None or self.high is None or direction not in ("higher", "lower"):
            return ""
        if self.low == self.high == 0:
            return "equal"
        sign = 1 if direction == "higher" else -1
        if self.low > 0 or self.high < 0:
            return "better" if sign * self.value > 0 else "worse"
        return "undecided"


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`: prints as a table, `to_dict()` for machines."""

    labels: tuple[str, ...]
    rows: int
    interval: float
    measures: Mapping[str, tuple[Measure, ...]]  # metric -> one a file
    gaps: Mapping[str, tuple[Gap, ...]]  # metric -> one a file after the first
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "files": list(self.labels),
            "rows": self.rows,
            "interval": self.interval,
            "metrics": {name: [one._asdict() for one in found] for name, found in self.measures.items()},
            "differences": {
                name: [{**gap._asdict(), "verdict": gap.verdict(self.measures[name][0].direction)} for gap in found]
                for name, found in self.gaps.items()
            },
            "findings": [finding.to_dict() for finding in self.findings],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        names = _short_labels(self.labels)
        parts = [
            textwrap.fill(
                f"{len(names)} files on the same {self.rows:,} rows, {100 * self.interval:.4g} % intervals; "
                f"differences from {names[0]}",
                WIDTH,
            )
        ]
        parts += [self._metric_text(metric, names) for metric in self.measures]
        notes = [textwrap.fill(note, WIDTH) for note in self.notes]
        return "\n\n".join([*parts, *notes, *map(str, self.findings)])

    def _metric_text(self, metric: str, names: Sequence[str]) -> str:
        measures, gaps = self.measures[metric], self.gaps[metric]
        cells = []
        for place, one in enumerate(measures):
            value = " ".join(filter(None, with_interval(one.value, one.low, one.high)))
            cells.append((value, *(_gap_cells(gaps[place - 1], one.direction) if place else ("", ""))))
        room = WIDTH - 8 - sum(max(len(row[column]) for row in cells) for column in range(3))
        rows = [(name, *row) for name, row in zip(distinct(names, max(room, 8)), cells, strict=True)]
        return f"{metric}\n" + textwrap.indent(columns(rows), "  ")


def distinct(names: Sequence[str], limit: int) -> list[str]:
    """Names cut in the middle to fit; numbered where that leaves two alike."""
    front = (limit - 1) // 2
    cut = [
        name if len(name) <= limit else f"{name[:front]}…{name[len(name) - (limit - 1 - front) :]}" for name in names
    ]
    if len(set(cut)) == len(cut):
        return cut
    return [f"{place} {name}"[:limit] for place, name in enumerate(cut, 1)]


def _gap_cells(gap: Gap, direction: str) -> tuple[str, str]:
    """A difference with its sign and interval, and the verdict; an end just off zero shows the digit that says so."""
    if gap.low is None or gap.high is None:
        return number(gap.value), ""
    decimals = places(gap.low, gap.high)
    if gap.low > 0 or gap.high < 0:
        decimals = next(
            (more for more in range(decimals, decimals + 3) if round(min(abs(gap.low), abs(gap.high)), more) > 0),
            decimals,
        )
    value, low, high = (number(one, decimals) for one in (gap.value, gap.low, gap.high))
    sign = "+" if gap.value > 0 and value.strip("0.") else ""
    return f"{sign}{value} [{low}, {high}]", gap.verdict(direction)


def _short_labels(labels: Sequence[str]) -> list[str]:
    """File names, with as many folders as tell them apart."""
    for depth in range(1, 8):
        found = ["/".join(Path(label).parts[-depth:]) for label in labels]
        if len(set(found)) == len(found):
            return found
    return list(labels)


def compare(
    sources: Sequence[Any] | Mapping[str, Any],
    metrics: Any = None,
    *,
    interval: float = 0.95,
    resamples: int = 200,
    seed: int = 0,
    cluster: str | None = None,
    ignore: str | Sequence[str] = (),
    split: str | None = None,
    **columns: Any,
) -> Comparison:
    """Predictions of several models on the same rows: values, and differences from the first with paired intervals.

    Rows are matched by id; without ids the files must have the same rows in the same order. Settings are those of
    `evaluate`; `split` says which predictions of a run folder to take.

    >>> import numpy
    >>> right = numpy.arange(100) < 80
    >>> one, other = (Predictions(confidence=numpy.full(100, 0.9), correct=found) for found in (right, ~right))
    >>> found = compare({"one": one, "other": other}, "accuracy")
    >>> round(found.gaps["accuracy"][0].value, 6), found.gaps["accuracy"][0].verdict("higher")
    (-0.6, 'worse')
    """
    labels, given = _named(sources)
    tables = [
        source if isinstance(source, Predictions) else files.open(of_run(source, split, "comparing"), **columns)
        for source in given
    ]
    if len(tables) < 2:
        raise InputError(f"comparing predictions: got {len(tables)}, expected at least two files.")
    chosen = (
        asked(metrics)
        if metrics is not None
        else asked(OF_CONFIDENCE if any(_top_only(table) for table in tables) else OF_SCORES)
    )
    settings = Settings(interval, resamples, seed, (), cluster, chosen)
    context = Context(
        table=tables[0],
        label=labels[0],
        others=tuple(zip(labels[1:], tables[1:], strict=True)),
        bins=settings.bins(chosen),
    )
    findings = list(run_checks(context, ignore=[ignore] if isinstance(ignore, str) else ignore))
    findings += _own_findings(labels[1:], tables[1:], ignore, {finding.code for finding in findings})
    tables, notes = _same_rows(labels, tables)
    return _compared(labels, tables, chosen, settings, tuple(findings), tuple(notes))


def _top_only(table: Predictions) -> bool:
    return table.kind == "confidence"


def _named(sources: Any) -> tuple[tuple[str, ...], list[Any]]:
    """Labels and sources."""
    if isinstance(sources, Mapping):
        return tuple(map(str, sources)), list(sources.values())
    if isinstance(sources, (str, os.PathLike, Predictions)) or not isinstance(sources, Sequence):
        raise InputError(
            "comparing predictions: got one source, expected a list of files or tables, or a mapping of names to them."
        )
    labels = [
        os.fspath(one) if isinstance(one, (str, os.PathLike)) else f"table {place}" for place, one in enumerate(sources)
    ]
    return tuple(labels), list(sources)


def _own_findings(
    labels: Sequence[str], tables: Sequence[Predictions], ignore: str | Sequence[str], known: set[str]
) -> list[Finding]:
    """What the checks find in the other files by themselves; a code that was said already is not said again."""
    found = []
    for label, table in zip(labels, tables, strict=True):
        for finding in run_checks(
            Context(table=table, label=label), ignore=[ignore] if isinstance(ignore, str) else ignore
        ):
            if finding.code not in known:
                found.append(finding)
    return found


def _same_rows(labels: Sequence[str], tables: Sequence[Predictions]) -> tuple[list[Predictions], list[str]]:
    """The tables cut to the rows that all have with one target, in the order of the first."""
    first, notes = tables[0], []
    keep = numpy.ones(len(first), bool)
    places = [numpy.arange(len(first))]
    for label, table in zip(labels[1:], tables[1:], strict=True):
        rows = common_rows(first, table)
        if rows is None:
            rows = _by_order(labels[0], first, label, table)
        place = numpy.full(len(first), -1, numpy.int64)
        place[rows[0]] = rows[1]
        if first.targets is not None and table.targets is not None:
            place[rows[0]] = numpy.where(same_targets(first.take(rows[0]), table.take(rows[1])), rows[1], -1)
        keep &= place >= 0
        places.append(place)
    if not keep.any():
        raise InputError(
            f"comparing predictions: {labels[0]} shares no row with the same target with all of {', '.join(labels[1:])}. Are the ids the same?"
        )
    if not keep.all() or any(len(table) != keep.sum() for table in tables):
        sizes = ", ".join(
            f"{len(table):,} in {label}" for label, table in zip(_short_labels(labels), tables, strict=True)
        )
        notes.append(f"Only the {int(keep.sum()):,} rows that all files share with one target are compared ({sizes}).")
    return [
        replace(table.take(place[keep]), ids=None, _checked=False) for table, place in zip(tables, places, strict=True)
    ], notes


def _by_order(
    first_label: str, first: Predictions, label: str, table: Predictions
) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Rows paired by their place, where nothing contradicts it."""
    if len(first) != len(table):
        raise InputError(
            f"comparing predictions: {first_label} has {len(first):,} rows and {label} {len(table):,}, and without ids in both "
            "rows are matched by their place. Name the ids (--id NAME)."
        )
    if first.targets is not None and table.targets is not None and not same_targets(first, table).all():
        row = int(numpy.flatnonzero(~same_targets(first, table))[0])
        raise InputError(
            f"comparing predictions: the targets of {first_label} and {label} differ (row {row}), and without ids in both rows "
            "are matched by their place. Name the ids (--id NAME)."
        )
    rows = numpy.arange(len(first))
    return rows, rows


def _compared(
    labels: tuple[str, ...],
    tables: Sequence[Predictions],
    chosen: Sequence[Asked],
    settings: Settings,
    findings: tuple[Finding, ...],
    notes: tuple[str, ...],
) -> Comparison:
    common: dict[str, Any] = {
        "interval": settings.interval,
        "resamples": settings.resamples,
        "seed": settings.seed,
        "by": settings.cluster,
    }
    measures: dict[str, list[Measure]] = {}
    gaps: dict[str, list[Gap]] = {}
    for one in chosen:
        for table in tables:
            for name, measure in flat(
                one.name, estimate(one.function, table, **common, **one.settings), one.direction, table.class_names
            ).items():
                measures.setdefault(name, []).append(measure)
        for table in tables[1:]:
            for name, gap in _gaps(
                one.name, compare_pairs(one.function, tables[0], table, **common, **one.settings), tables[0]
            ).items():
                gaps.setdefault(name, []).append(gap)
    return Comparison(
        labels,
        len(tables[0]),
        settings.interval or 0.95,
        {name: tuple(found) for name, found in measures.items()},
        {name: tuple(found) for name, found in gaps.items()},
        findings,
        notes,
    )


def _gaps(name: str, found: Any, table: Predictions) -> dict[str, Gap]:
    """One gap a number, named as the measures are."""
    if isinstance(found, Mapping):
        return {key: gap for part, inner in found.items() for key, gap in _gaps(f"{name}.{part}", inner, table).items()}
    parts = flat(name, (found.value, found.low, found.high), "none", table.class_names)
    better = found.better.reshape(-1).tolist() if hasattr(found.better, "reshape") else [found.better]
    return {
        key: Gap(one.value, one.low, one.high, share if share == share else None)
        for (key, one), share in zip(parts.items(), better, strict=True)
    }
