"""Claims such as `accuracy>=0.9`, judged by the interval: kept, broken, or undecided."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ._digits import number, with_interval

if TYPE_CHECKING:
    from ._result import Measure

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_FORM = re.compile(rf"\s*(?P<metric>[^<>]*[^<>=\s])\s*(?P<sign>>=|<=|>|<)\s*(?P<bound>{_NUMBER})\s*(?P<percent>%?)\s*")
KEPT, BROKEN, UNDECIDED = "kept", "broken", "undecided"


@dataclass(frozen=True)
class Claim:
    """That a metric is on one side of a bound."""

    metric: str
    sign: str
    bound: float
    origin: str = ""  # where the bound comes from, if not from the user

    def __str__(self) -> str:
        return f"{self.metric} {self.sign} {number(self.bound)}"


@dataclass(frozen=True)
class Verdict:
    """A claim, the measure it was judged by, and the outcome."""

    claim: Claim
    outcome: str
    value: float
    low: float | None
    high: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        claim = {"metric": self.claim.metric, "sign": self.claim.sign, "bound": self.claim.bound}
        record = {**claim, "outcome": self.outcome, "value": self.value, "low": self.low, "high": self.high}
        return {**record, "origin": self.claim.origin} if self.claim.origin else record

    def __str__(self) -> str:
        value, limits = with_interval(self.value, self.low, self.high)
        origin = f" (from {self.claim.origin})" if self.claim.origin else ""
        return f"{self.outcome + ':':<10} {self.claim}{origin}, it is {' '.join(filter(None, (value, limits)))}"


def parse(text: str) -> Claim:
    """The claim of a text: METRIC, one of >= > <= <, and a number or a percentage."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise InputError(
            f"reading the claim {text!r}: expected METRIC, one of >= > <= <, and a number, as in 'accuracy>=0.9'."
        )
    return Claim(match["metric"], match["sign"], float(match["bound"]) / (100 if match["percent"] else 1))


def judge(claim: Claim, measure: Measure) -> Verdict:
    """Kept if the whole interval keeps the claim, broken if none of it does, else undecided."""
    value, low, high = measure.value, measure.low, measure.high
    ends = [value if low is None else low, value if high is None else high]
    if math.isnan(value):
        return Verdict(claim, BROKEN, value, low, high)  # what is not reached at all cannot be claimed
    holds = [_holds(end, claim) for end in (*ends, value)]
    outcome = KEPT if all(holds) else UNDECIDED if any(holds) else BROKEN
    return Verdict(claim, outcome, value, low, high)


def _holds(value: float, claim: Claim) -> bool:
    return {">=": value >= claim.bound, ">": value > claim.bound, "<=": value <= claim.bound, "<": value < claim.bound}[
        claim.sign
    ]


def of_reference(measures: Mapping[str, Measure], origin: str) -> list[Claim]:
    """What an earlier result promises: each metric no worse than the worse end of its interval there."""
    claims = []
    for name, one in measures.items():
        if one.direction == "higher" and not math.isnan(one.value):
            claims.append(Claim(name, ">=", one.value if one.low is None else one.low, origin))
        if one.direction == "lower" and not math.isnan(one.value):
            claims.append(Claim(name, "<=", one.value if one.high is None else one.high, origin))
    return claims
