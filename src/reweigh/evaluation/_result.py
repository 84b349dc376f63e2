"""What an evaluation found: numbers with intervals, per group, findings of the checks, verdicts on claims."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ._checking import Finding
from ._claims import Verdict
from ._digits import with_interval

WIDTH = 80


class Measure(NamedTuple):
    """One number with its interval (None where there is none) and the direction in which it is better."""

    value: float
    low: float | None = None
    high: float | None = None
    direction: str = "none"


@dataclass(frozen=True)
class Evaluation:
    """The result of `evaluate`: prints as a table, `to_dict()` for machines, `result["accuracy"]` for one number."""

    label: str
    rows: int
    form: str  # what the table holds, in words
    interval: float
    metrics: Mapping[str, Measure]
    groups: Mapping[str, Mapping[str, GroupResult]] = field(default_factory=dict)
    outside: Mapping[str, Measure] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Measure:
        return self.metrics[name] if name in self.metrics else self.outside[name]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "file": self.label,
            "rows": self.rows,
            "holds": self.form,
            "interval": self.interval,
            "metrics": _records(self.metrics),
            "by": {
                group: {value: {"rows": part.rows, "metrics": _records(part.metrics)} for value, part in parts.items()}
                for group, parts in self.groups.items()
            },
            "outside": _records(self.outside),
            "findings": [finding.to_dict() for finding in self.findings],
            "claims": [verdict.to_dict() for verdict in self.verdicts],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        parts = [f"{self.label}\n{textwrap.fill(self.form, WIDTH)}", measures_text(self.metrics, self.interval)]
        parts += [_groups_text(group, found) for group, found in self.groups.items()]
        if self.outside:
            parts.append("Outside rows:\n" + measures_text(self.outside, self.interval))
        parts += [textwrap.fill(note, WIDTH) for note in self.notes]
        parts += [str(finding) for finding in self.findings]
        if self.verdicts:
            parts.append("\n".join(map(str, self.verdicts)))
        return "\n\n".join(parts)


@dataclass(frozen=True)
class GroupResult:
    """The rows of one value of a group."""

    rows: int
    metrics: Mapping[str, Measure]


def _records(measures: Mapping[str, Measure]) -> dict[str, Any]:
    return {name: {**one._asdict()} for name, one in measures.items()}


def short(name: str, limit: int) -> str:
    """A name that fits, cut with an ellipsis."""
    return name if len(name) <= limit else name[: limit - 1] + "…"


def columns(rows: list[tuple[str, ...]]) -> str:
    """Aligned text, the first column to the left, the others to the right."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def measures_text(measures: Mapping[str, Measure], interval: float) -> str:
    """A table of metrics: name, value, interval."""
    found = {name: with_interval(one.value, one.low, one.high) for name, one in measures.items()}
    rows = [("metric", "value", f"{100 * interval:.4g} % interval")]
    rows += [(short(name, 44), value, limits) for name, (value, limits) in found.items()]
    if not any(limits for _, limits in found.values()):
        rows = [row[:2] for row in rows]
    return columns(rows)


def _groups_text(group: str, parts: Mapping[str, GroupResult]) -> str:
    """One table a metric would be long; one row a value, one column a metric, as many as fit."""
    names = list(dict.fromkeys(name for part in parts.values() for name in part.metrics))
    said = [f"By {group}:"]
    for start in range(0, len(names), 2):
        chosen = names[start : start + 2]
        rows = [(group, "rows", *(short(name, 24) for name in chosen))]
        for value, part in parts.items():
            cells = [
                " ".join(filter(None, with_interval(one.value, one.low, one.high)))
                for one in (part.metrics.get(name, Measure(math.nan)) for name in chosen)
            ]
            rows.append((short(value, 16), f"{part.rows:,}", *cells))
        said.append(columns(rows))
    return "\n".join(said)


def flat(name: str, found: Any, direction: str, class_names: Sequence[str] | None = None) -> dict[str, Measure]:
    """One measure a number: `metric`, `metric.part` of a mapping, `metric[class]` of one value a class."""
    if isinstance(found, Mapping):
        return {
            key: one
            for part, inner in found.items()
            for key, one in flat(f"{name}.{part}", inner, direction, class_names).items()
        }
    value, low, high = found
    if not hasattr(value, "reshape"):
        return {name: Measure(float(value), _plain(low), _plain(high), direction)}
    lists = [part.reshape(-1).tolist() for part in (value, low, high)]
    labels = class_names if class_names and len(class_names) == len(lists[0]) else range(len(lists[0]))
    found_by_label = zip(labels, *lists, strict=True)
    return {f"{name}[{label}]": Measure(one, least, most, direction) for label, one, least, most in found_by_label}


def _plain(limit: Any) -> float | None:
    return None if limit is None or math.isnan(float(limit)) else float(limit)
