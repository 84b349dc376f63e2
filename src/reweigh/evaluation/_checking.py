"""Running the registered checks: each sees a `Context` and says what it found, or nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .. import registry
from ..errors import unknown_name
from ..predictions import Predictions

SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a check may look at: the table judged, other tables beside it, and the rows a calibrator was fitted on."""

    table: Predictions
    label: str = "the predictions"
    others: tuple[tuple[str, Predictions], ...] = ()
    fit: Predictions | None = None
    bins: int | None = None  # the most bins a binned metric was asked for
    rows: int | None = None  # of the whole, where `table` is its beginning

    @property
    def count(self) -> int:
        return len(self.table) if self.rows is None else self.rows


@dataclass(frozen=True)
class Finding:
    """What a check found: how it was detected, why it matters, what to do."""

    code: str
    name: str
    severity: str
    detected: str
    why: str
    mend: str

    def to_dict(self) -> dict[str, str]:
        """Plain values, ready for JSON."""
        return dict(self.__dict__)

    def __str__(self) -> str:
        lines = (
            f"{self.severity} {self.code} ({self.name}): {self.detected}",
            f"Why it matters: {self.why}",
            f"What to do: {self.mend}",
        )
        return "\n".join(
            textwrap.fill(line, 80, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
            for line in lines
        )


def known_codes() -> dict[str, str]:
    """Code -> name of every registered check."""
    return {str(entry.details.get("code", "")).upper(): entry.name for entry in registry.entries("check")}


def run_checks(context: Context, *, ignore: Iterable[str] = ()) -> tuple[Finding, ...]:
    """The findings of all checks but those ignored by code or name, the gravest first."""
    codes = known_codes()
    muted = {_code(word, codes) for word in ignore}
    found = []
    for entry in registry.entries("check"):
        code = str(entry.details.get("code", "")).upper()
        if code in muted:
            continue
        detected = entry.load()(context)
        if detected:
            found.append(_finding(entry, code, detected))
    return tuple(sorted(found, key=lambda one: (SEVERITIES.index(one.severity), one.code)))


def _finding(entry: registry.Entry, code: str, detected: str) -> Finding:
    details: dict[str, Any] = entry.details
    return Finding(
        code,
        entry.name,
        str(details.get("severity", "warning")),
        detected,
        str(details.get("why", "")),
        str(details.get("mend", "")),
    )


def _code(word: str, codes: dict[str, str]) -> str:
    """The code of a word to ignore, which is a code or a name."""
    if word.upper() in codes:
        return word.upper()
    for code, name in codes.items():
        if registry.normalized(name) == registry.normalized(word):
            return code
    raise unknown_name("check", word, [*codes, *codes.values()])
