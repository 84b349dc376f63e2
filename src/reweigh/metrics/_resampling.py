"""Resampled rows as weights: how often each row is drawn. A weighted metric then needs no copy of the table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy
import torch

from ..errors import bad_input
from ..predictions import Predictions

Tensor = torch.Tensor
KEPT = 1 << 25  # draws that a table may remember: 64 MiB as 16-bit counts


def group_numbers(predictions: Predictions, by: str) -> Tensor:
    """(n,) the number of each row's group."""
    groups = predictions.groups or {}
    if by not in groups:
        raise bad_input(
            "resampling by group", came=f"by={by!r}", expected=f"one of the groups ({', '.join(groups) or 'none'})"
        )
    values = groups[by]
    plain = values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else values
    return torch.from_numpy(numpy.unique(plain, return_inverse=True)[1].reshape(-1).astype(numpy.int64))


def _draw(units: int, generator: torch.Generator) -> Tensor:
    return torch.bincount(torch.randint(units, (units,), generator=generator), minlength=units)


def draws(predictions: Predictions, resamples: int, seed: int, by: str | None) -> Iterator[Tensor]:
    """(n,) counts for each resample, rows (or whole groups) drawn with replacement; the same for every metric."""
    inverse = None if by is None else group_numbers(predictions, by)
    units = len(predictions) if inverse is None else int(inverse.max()) + 1

    def fresh() -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(resamples):
            yield _draw(units, generator)

    drawn: Any = fresh()
    if units * resamples <= KEPT:
        key = ("draws", resamples, seed, by)
        drawn = predictions.remember(key, lambda: [counts.to(torch.int16) for counts in fresh()])
    for counts in drawn:
        yield counts.double() if inverse is None else counts.double()[inverse]


def drawn_rows(counts: Tensor) -> numpy.ndarray:
    """Each row number as often as it was drawn."""
    return numpy.repeat(numpy.arange(len(counts)), counts.numpy().astype(numpy.int64))
