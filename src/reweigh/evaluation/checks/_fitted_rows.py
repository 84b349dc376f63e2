"""A calibrator judged on its own fitting rows: by what `apply` noted, by ids, or by equal scores."""

from __future__ import annotations

import numpy

from ...registry import register_check
from .._checking import Context
from .._matching import common_rows, row_hashes

SHARE = 0.05  # of the rows it was fitted on; fewer may be chance


@register_check(
    "fitted_rows",
    code="RW101",
    severity="error",
    why="a calibrator looks better on the rows it was fitted on than it will be on any others",
    mend="judge it on rows it has not seen: split the file by id, fit on one part and evaluate the other",
)
def fitted_rows(context: Context) -> str | None:
    """A calibrator is judged on the rows it was fitted on."""
    share = (context.table.about or {}).get("fitted_share")
    if isinstance(share, (int, float)) and share > SHARE:
        name = (context.table.about or {}).get("calibrator", "a calibrator")
        return f"{context.label} was repaired by {name}, and about {100 * share:.0f} % of the rows it was fitted on are here."
    if context.fit is None or not len(context.fit):
        return None
    rows = common_rows(context.table, context.fit)
    if rows is not None:
        shared, of = len(rows[0]), "ids"
    else:
        if context.fit.kind != context.table.kind or context.fit.kind == "confidence":
            return None
        shared, of = int(numpy.isin(row_hashes(context.table), row_hashes(context.fit)).sum()), "scores"
    if shared <= SHARE * len(context.table):
        return None
    return f"{shared:,} of the {len(context.table):,} rows of {context.label} have {of} that are also among the rows fitted on."
