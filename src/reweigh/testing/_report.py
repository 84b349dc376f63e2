"""What the suite found: one result a check and a variant, and the error that lists what fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


class ContractError(AssertionError):
    """A loss breaks its contract; the message says in words what fails and how to mend it."""

    def __init__(self, report: Report) -> None:
        AssertionError.__init__(self, str(report))
        self.report = report


class Broken(AssertionError):
    """Raised inside a check: the sentence that says what fails."""


class NotApplicable(Exception):
    """Raised inside a check: the reason why it says nothing about this loss."""


@dataclass(frozen=True)
class Result:
    """One check on one loss."""

    loss: str  # name and settings
    check: str
    outcome: Literal["passed", "failed", "skipped"]
    words: str = ""  # why it failed or does not apply


@dataclass(frozen=True)
class Report:
    """All results, in the order in which they were found."""

    results: tuple[Result, ...]

    @property
    def failed(self) -> tuple[Result, ...]:
        """The results that break the contract."""
        return tuple(result for result in self.results if result.outcome == "failed")

    def __str__(self) -> str:
        number = {kind: sum(result.outcome == kind for result in self.results) for kind in ("passed", "skipped")}
        head = f"{number['passed']} checks passed, {number['skipped']} do not apply"
        if not self.failed:
            return f"{head}."
        lines = [f"{len(self.failed)} checks failed, {head}:"]
        lines += [f"- {result.loss}: {result.check}: {result.words}" for result in self.failed]
        return "\n".join(lines)
