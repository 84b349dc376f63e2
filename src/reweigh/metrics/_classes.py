"""Metrics with one number a class: picking a class, averaging, ranking each class's probability."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch

from ..errors import bad_input
from ..predictions import Predictions
from ._outcomes import class_columns, class_outcome, outcomes
from ._ranking import Ordered, ordered, rank_down
from ._traits import need_some_rows

Array = numpy.ndarray
KEPT = 1 << 23  # places of rankings that a table may remember: 64 MiB


def class_number(positive: int | str, classes: int | None, names: Sequence[str] | None) -> int:
    """The number of a class given by number or name."""
    known = list(names or ())
    if isinstance(positive, str):
        if positive not in known:
            raise bad_input(
                "choosing a class", came=f"positive={positive!r}", expected=f"one of {known or 'no known names'}"
            )
        return known.index(positive)
    if not 0 <= int(positive) < int(classes or 0):
        raise bad_input(
            "choosing a class", came=f"positive={positive!r}", expected=f"a class from 0 to {int(classes or 0) - 1}"
        )
    return int(positive)


def chosen_class(predictions: Predictions, positive: int | str | None) -> int | None:
    """The number of the class asked for, or None for all."""
    return None if positive is None else class_number(positive, predictions.classes, predictions.class_names)


def summarised(values: torch.Tensor, support: torch.Tensor, average: str | None, positive: int | None) -> Any:
    """(K,) as it is, one class of it, or its mean: plain ("macro") or by support ("weighted"), without undefined ones."""
    if positive is not None:
        return float(values[positive])
    if average is None:
        return values
    if average not in ("macro", "weighted"):
        raise bad_input("averaging over classes", came=f"average={average!r}", expected="None, 'macro' or 'weighted'")
    known = ~torch.isnan(values)
    weight = torch.where(
        known, support if average == "weighted" else torch.ones_like(support), torch.zeros_like(support)
    )
    return float((torch.where(known, values, torch.zeros_like(values)) * weight).sum() / weight.sum())


def each_class(
    predictions: Predictions, measure: Callable[[Ordered, Array | None], Any], what: str, positive: int | None
) -> tuple[list[Any], torch.Tensor]:
    """`measure(outcomes in order, weights)` of every class (or of one), and the classes' support.

    Weights, too, come in the order of the ranking of the class's probability.
    """
    need_some_rows(predictions, what)
    targets = outcomes(predictions, what)
    weights = None if predictions.row_weights is None else predictions.row_weights.cpu().numpy()
    known = len(predictions) * int(predictions.classes or 0) <= KEPT
    rankings = predictions.remember("class rankings", dict)
    columns = None if known and len(rankings) == predictions.classes else class_columns(predictions)
    values, support = [], []
    for number in range(int(predictions.classes or 0)):
        key = None if columns is None else next(columns)[1]
        if positive is not None and number != positive:
            values.append(float("nan"))
            support.append(0.0)
            continue
        if key is None:
            of = rankings[number]
        else:
            of = ordered(rank_down(key.cpu().numpy()), class_outcome(predictions, targets, number).cpu().numpy())
        if known:
            rankings[number] = of
        weight = None if weights is None else weights[of.ranked.order]
        values.append(measure(of, weight))
        share = of.happened[of.hits]
        support.append(float(share.sum() if weight is None else (share * weight[of.hits]).sum()))
    return values, torch.tensor(support, dtype=torch.float64)
