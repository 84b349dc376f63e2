"""From predictions to a decision: evaluate, compare, compare calibrators; the checks that guard them, one file each.

May import every room above: it is where metrics, calibrators and files meet. A new check is a file in `checks/` with
a function under `@register_check(NAME, code=..., severity=...)` that returns what it found, or None.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._checking import Context, Finding, run_checks
    from ._claims import Claim, Verdict
    from ._compare import Comparison, compare
    from ._compare_calibrators import compare_calibrators
    from ._evaluate import evaluate
    from ._result import Evaluation, Measure

_PUBLIC = {
    "Claim": "_claims",
    "Comparison": "_compare",
    "Context": "_checking",
    "Evaluation": "_result",
    "Finding": "_checking",
    "Measure": "_result",
    "Verdict": "_claims",
    "compare": "_compare",
    "compare_calibrators": "_compare_calibrators",
    "evaluate": "_evaluate",
    "run_checks": "_checking",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"there is no {name!r} in reweigh.evaluation")
    value = getattr(importlib.import_module(f".{_PUBLIC[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_PUBLIC)
