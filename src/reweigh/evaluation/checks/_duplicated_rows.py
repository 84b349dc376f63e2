"""Rows that repeat another one to the last bit."""

from __future__ import annotations

import numpy
import torch

from ...predictions import Predictions
from ...registry import register_check
from .._checking import Context
from .._matching import row_hashes

SHARE = 0.001
DIGITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}  # bits of a number's digits


@register_check(
    "duplicated_rows",
    code="RW108",
    severity="warning",
    why="rows that come twice count twice, and intervals pretend to more evidence than there is",
    mend="drop the repetitions: give rows ids when recording (padding is then noticed), or filter the file",
)
def duplicated_rows(context: Context) -> str | None:
    """The same scores with the same target occur more than once."""
    table = context.table
    if table.kind == "confidence" or len(table) < 2 or _by_chance(table) > SHARE / 10:
        return None
    kept = table.scores.double().amax(1) - table.scores.double().amin(1)
    saturated = (kept >= 1).cpu().numpy() if table.kind == "probabilities" else numpy.zeros(len(table), bool)
    hashes = row_hashes(table)
    if table.targets is not None and table.target_form == "index":
        hashes = hashes ^ (table.target_tensor.cpu().numpy().astype(numpy.uint64) * numpy.uint64(0xC2B2AE3D27D4EB4F))
    hashes = hashes[~saturated]  # one class certain, all others zero: such rows are alike by rounding
    again = len(hashes) - len(numpy.unique(hashes))
    if again <= SHARE * len(table):
        return None
    return f"{again:,} of the {len(table):,} rows of {context.label} repeat the scores and the target of another row to the last bit."


def _by_chance(table: Predictions) -> float:
    """The share of rows that would repeat another one though all are of different samples."""
    free = max((table.classes or 1) - 1, 1)  # the last class follows from the others, or one may be constant
    return len(table) / 2.0 ** min(DIGITS.get(table.scores.dtype, 24) * free, 1000)
