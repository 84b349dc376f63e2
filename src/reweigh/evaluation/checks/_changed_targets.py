"""The same id with different targets in two files."""

from __future__ import annotations

import numpy

from ...registry import register_check
from .._checking import Context
from .._matching import common_rows, plain_ids, same_targets


@register_check(
    "changed_targets",
    code="RW102",
    severity="error",
    why="two models judged by different answers cannot be compared, and one of the answers is wrong",
    mend="find out which file has the right targets and write the other one again; until then these rows are left out",
)
def changed_targets(context: Context) -> str | None:
    """The same id has different targets in two files."""
    for label, other in context.others:
        rows = common_rows(context.table, other)
        if rows is None or not len(rows[0]) or context.table.targets is None or other.targets is None:
            continue
        if context.table.target_form != other.target_form:
            return (
                f"the targets of {context.label} are {context.table.target_form}, those of {label} {other.target_form}."
            )
        wrong = ~same_targets(context.table.take(rows[0]), other.take(rows[1]))
        if wrong.any():
            ids = plain_ids(context.table)
            example = ids[rows[0][int(numpy.flatnonzero(wrong)[0])]]  # type: ignore[index]
            return f"{int(wrong.sum()):,} of {len(wrong):,} shared ids, {str(example)!r} first, have other targets in {label} than in {context.label}."
    return None
