"""Classes in another order: by their names, or because another order explains far more rows."""

from __future__ import annotations

import numpy
import torch

from ...predictions import Predictions
from ...registry import register_check
from .._checking import Context
from .._matching import common_rows

MOST_CLASSES = 2048
MARGIN = 0.3  # by how much another order of the classes must explain more rows


@register_check(
    "class_order",
    code="RW103",
    severity="error",
    why="column k then stands for another class than target k, and every number below is about the wrong classes",
    mend="write class_names into the files, and bring the columns into one order before comparing",
)
def class_order(context: Context) -> str | None:
    """The classes stand in another order in the scores than in the targets or in another file."""
    names = context.table.class_names
    for label, other in (*context.others, *((("the rows fitted on", context.fit),) if context.fit is not None else ())):
        theirs = other.class_names
        if names and theirs and names != theirs:
            if set(names) != set(theirs):
                return f"the classes of {label} have other names than those of {context.label}."
            place = next(number for number, pair in enumerate(zip(names, theirs, strict=True)) if pair[0] != pair[1])
            return f"class {place} is {names[place]!r} in {context.label} and {theirs[place]!r} in {label}."
        found = _against_other(context, label, other)
        if found:
            return found
    return _against_targets(context)


def _usable(table: Predictions) -> bool:
    return table.kind != "confidence" and not table.per_label and 2 < (table.classes or 0) <= MOST_CLASSES


def _against_other(context: Context, label: str, other: Predictions) -> str | None:
    """Two files whose decisions agree only after the classes of one are put into another order."""
    rows = common_rows(context.table, other)
    if rows is None and len(other) == len(context.table):
        rows = (numpy.arange(len(other)),) * 2
    if (
        rows is None
        or len(rows[0]) < 50
        or not (_usable(context.table) and _usable(other))
        or context.table.classes != other.classes
    ):
        return None
    same, better = _agreement(context.table.predicted[rows[0]], other.predicted[rows[1]], int(other.classes or 0))
    if better > same + MARGIN:
        return (
            f"the decisions of {context.label} and {label} agree on {100 * same:.0f} % of the rows, and on {100 * better:.0f} % "
            "if the classes of one are put into another order."
        )
    return None


def _against_targets(context: Context) -> str | None:
    table = context.table
    if not _usable(table) or table.target_form != "index" or len(table) < 50:
        return None
    same, better = _agreement(table.predicted, table.target_tensor, int(table.classes or 0))
    if better > same + MARGIN:
        return f"{100 * same:.0f} % of the decisions of {context.label} are right, and {100 * better:.0f} % would be with the classes in another order."
    return None


def _agreement(first: torch.Tensor, second: torch.Tensor, classes: int) -> tuple[float, float]:
    """Share of equal pairs as they are, and under the best one-to-one renaming found greedily."""
    pairs = first.cpu().long() * classes + second.cpu().long()
    counts = torch.bincount(pairs, minlength=classes * classes).reshape(classes, classes).numpy()
    total, same = counts.sum(), numpy.trace(counts)
    taken_rows, taken_columns, renamed = set(), set(), 0
    for place in numpy.argsort(-counts, axis=None, kind="stable")[: 64 * classes]:
        row, column = divmod(int(place), classes)
        if row not in taken_rows and column not in taken_columns:
            taken_rows.add(row)
            taken_columns.add(column)
            renamed += int(counts[row, column])
    return same / total, renamed / total
