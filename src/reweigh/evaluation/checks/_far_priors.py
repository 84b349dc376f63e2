"""Class shares far from those a calibrator was fitted on."""

from __future__ import annotations

import numpy
import torch

from ...predictions import Predictions
from ...registry import register_check
from .._checking import Context

FAR = 0.1  # total variation, the share of rows that would have to change class
CLEARLY = 5.0  # standard deviations of the chi-square statistic


@register_check(
    "far_priors",
    code="RW105",
    severity="warning",
    why="a calibrator learns the class shares of its fitting rows; where they differ, its probabilities are shifted",
    mend="fit on rows with these shares, or correct for them: reweigh calibrate prior_correction",
)
def far_priors(context: Context) -> str | None:
    """The class shares are far from those of the rows fitted on."""
    here = class_counts(context.table)
    there = class_counts(context.fit) if context.fit is not None else _remembered(context.table)
    if here is None or there is None or len(here) != len(there) or not here.sum() or not there.sum():
        return None
    shares, fitted = here / here.sum(), there / there.sum()
    distance = numpy.abs(shares - fitted).sum() / 2
    if distance <= FAR or not _clear(here, there):
        return None
    place = int(numpy.argmax(numpy.abs(shares - fitted)))
    name = context.table.class_names[place] if context.table.class_names else place
    return (
        f"class {name} has a share of {100 * shares[place]:.1f} % in {context.label} and of {100 * fitted[place]:.1f} % among "
        f"the rows fitted on; {100 * distance:.0f} % of the rows would have to change class to match."
    )


def class_counts(table: Predictions) -> numpy.ndarray | None:
    """(K,) how often each class is the target."""
    if table.target_form != "index" or table.classes is None:
        return None
    return torch.bincount(table.target_tensor.cpu().long(), minlength=table.classes).double().numpy()


def _remembered(table: Predictions) -> numpy.ndarray | None:
    counts = (table.about or {}).get("fitted_class_counts")
    return None if not counts else numpy.asarray(counts, dtype=numpy.float64)


def _clear(here: numpy.ndarray, there: numpy.ndarray) -> bool:
    """Whether two samples of these sizes differ by more than chance (a chi-square test of homogeneity)."""
    both = here + there
    kept = both > 0
    expected = numpy.stack([both[kept] * part.sum() / both.sum() for part in (here, there)])
    statistic = ((numpy.stack([here[kept], there[kept]]) - expected) ** 2 / expected).sum()
    freedom = max(int(kept.sum()) - 1, 1)
    return bool(statistic > freedom + CLEARLY * numpy.sqrt(2 * freedom))
