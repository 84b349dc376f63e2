"""Accuracy over the classes with many, some and few training rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..errors import bad_input
from ..predictions import Predictions
from ..registry import register_metric
from ._traits import Statistics, need_some_rows, traits


def _counts(class_counts: Any) -> torch.Tensor:
    counts = torch.as_tensor(class_counts, dtype=torch.float64)
    if counts.ndim != 1 or bool((~(counts >= 0)).any()):
        raise bad_input(
            "grouping classes by their counts", came=f"class_counts={class_counts!r}", expected="one count a class"
        )
    return counts


def _statistics(predictions: Predictions, class_counts: Any, boundaries: Any = (20, 100), **_: Any) -> Statistics:
    what = "the accuracy by class counts"
    counts = _counts(class_counts)
    need_some_rows(predictions, what)
    if predictions.target_form != "index":
        raise bad_input(f"computing {what}", came=f"{predictions.target_form} targets", expected="class numbers")
    targets = predictions.target_tensor.long()
    if int(targets.max()) >= len(counts):
        raise bad_input(
            f"computing {what}", came=f"class {int(targets.max())}", expected=f"a count for it ({len(counts)} given)"
        )
    weights = predictions.row_weights
    right = predictions.correctness if weights is None else predictions.correctness * weights
    rows = torch.bincount(targets, weights=weights, minlength=len(counts)).double()
    return {"right": torch.bincount(targets, weights=right, minlength=len(counts)), "rows": rows}


def _value(statistics: Statistics, *, class_counts: Any, boundaries: Sequence[float] = (20, 100)) -> dict[str, float]:
    low, high = boundaries
    counts = _counts(class_counts)
    rows = statistics["rows"].cpu()
    accuracy = statistics["right"].cpu() / rows  # NaN for a class without rows
    groups = {"many": counts > high, "medium": (counts >= low) & (counts <= high), "few": counts < low}
    return {name: float(accuracy[inside & (rows > 0)].mean()) for name, inside in groups.items()}


@register_metric("shot_accuracy", direction="higher", range=(0, 1), heads=("softmax", "sigmoid"))
@traits(statistics=_statistics, value=_value)
def shot_accuracy(
    predictions: Predictions, class_counts: Any, boundaries: Sequence[float] = (20, 100)
) -> dict[str, float]:
    """Mean accuracy of the classes with `many` (above the upper boundary), `medium` and `few` (below the lower) rows.

    `class_counts` are the rows of each class in training. Every class of a group counts alike, as in the published
    protocol; classes without rows here are left out, and a group without any is NaN.

    >>> from reweigh import Predictions
    >>> shot_accuracy(Predictions(probabilities=[[0.9, 0.1], [0.8, 0.2]], targets=[0, 1]), [500, 5])["few"]
    0.0
    """
    if len(tuple(boundaries)) != 2 or not boundaries[0] <= boundaries[1]:
        raise bad_input(
            "grouping classes by their counts", came=f"boundaries={boundaries!r}", expected="two rising counts"
        )
    return _value(_statistics(predictions, class_counts), class_counts=class_counts, boundaries=boundaries)
