"""Too few rows for the bins."""

from __future__ import annotations

from ...registry import register_check
from .._checking import Context

A_BIN = 20  # rows in the average bin, below which a binned error is mostly noise


@register_check(
    "few_rows",
    code="RW107",
    severity="warning",
    why="with few rows a bin even a perfectly calibrated model shows a large calibration error",
    mend="use fewer bins (expected_calibration_error:bins=5), more rows, or a form without bins such as smooth_calibration_error",
)
def few_rows(context: Context) -> str | None:
    """There are too few rows for the number of bins."""
    if context.bins is None or context.count >= A_BIN * context.bins:
        return None
    return f"{context.label} has {context.count:,} rows for {context.bins} bins, fewer than {A_BIN} a bin."
