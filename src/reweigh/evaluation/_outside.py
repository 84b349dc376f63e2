"""How well each score tells outside rows from these, with intervals by resampling both."""

from __future__ import annotations

import numpy
import torch

from ..errors import InputError
from ..metrics import out_of_distribution
from ..predictions import Predictions
from ._result import Measure

DIRECTIONS = {"auroc": "higher", "aupr_in": "higher", "aupr_out": "higher", "fpr95": "lower"}


def outside_measures(
    inside: Predictions, outside: Predictions, interval: float | None, resamples: int, seed: int
) -> dict[str, Measure]:
    """`SCORE.auroc` and so on of every score that the tables can give."""
    found: dict[str, Measure] = {}
    refused = ""
    for score in ("entropy", "msp", "energy", "max_logit"):
        try:
            values = out_of_distribution(inside, outside, score)
        except InputError as error:
            refused = refused or str(error)
            continue
        drawn = _resampled(inside, outside, score, resamples, seed) if interval is not None else None
        for name, value in values.items():
            low = high = None
            if drawn is not None and interval is not None:
                tail = (1 - interval) / 2
                low, high = (float(limit) for limit in numpy.quantile(drawn[name], [tail, 1 - tail]))
                low, high = min(low, value), max(high, value)
            found[f"{score}.{name}"] = Measure(value, low, high, DIRECTIONS[name])
    if not found:
        raise InputError(f"evaluating against outside rows: {refused}")
    return found


def _resampled(
    inside: Predictions, outside: Predictions, score: str, resamples: int, seed: int
) -> dict[str, list[float]]:
    """The four numbers on every resample: rows of both tables drawn with replacement, as weights."""
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, list[float]] = {name: [] for name in DIRECTIONS}
    for _ in range(resamples):
        values = out_of_distribution(_drawn(inside, generator), _drawn(outside, generator), score)
        for name in found:
            found[name].append(values[name])
    return found


def _drawn(table: Predictions, generator: torch.Generator) -> Predictions:
    counts = torch.bincount(
        torch.randint(len(table), (len(table),), generator=generator), minlength=len(table)
    ).double()
    counts = counts.to(table.scores.device)
    return table.reweighted(counts if table.row_weights is None else counts * table.row_weights)
