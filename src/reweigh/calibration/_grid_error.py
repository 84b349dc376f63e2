"""The calibration error of the top class as a function of its confidences, for rows whose correctness stays."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..binning import assign, bin_sums, calibration_error
from ..errors import bad_input
from ._rows import Rows


def grid_error(rows: Rows, bins: int, binning: str) -> Callable[[torch.Tensor], float]:
    """A function of (n,) float64 confidences; weights only with bins of equal width, which alone have that form."""
    if rows.weight is not None and binning != "width":
        raise bad_input(
            "fitting TemperatureScaling with objective='ece'",
            came=f"weights with binning={binning!r}",
            expected="binning='width', the only one with a weighted form",
        )
    correct = top_correct(rows)

    def error(confidence: torch.Tensor) -> float:
        placed = assign(confidence, bins=bins, binning=binning, correct=correct)
        sums = bin_sums(placed.index, placed.count, confidence, correct, rows.weight).sum(-1)
        return float(calibration_error(sums))

    return error


def top_correct(rows: Rows) -> torch.Tensor:
    """(n,) float64: 1 where the largest logit (ties to the lowest class) is the true one; its share for soft labels."""
    predicted = rows.logits.argmax(1)  # type: ignore[union-attr]
    if rows.target is not None:
        return (predicted == rows.target).double()
    return rows.share.gather(1, predicted.unsqueeze(1)).squeeze(1)  # type: ignore[union-attr]
