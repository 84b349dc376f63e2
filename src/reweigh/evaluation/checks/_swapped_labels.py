"""Scores that rank worse than chance: labels or columns that were swapped."""

from __future__ import annotations

import math

import numpy
import torch

from ...predictions import Predictions
from ...registry import register_check
from .._checking import Context

FEWEST = 10  # rows of either kind, below which a rank statistic says little
CLEARLY = 4.0  # standard errors below one half
MOST_CLASSES = 100


@register_check(
    "swapped_labels",
    code="RW104",
    severity="error",
    why="scores that rank worse than a coin are nearly always labels or columns that were swapped",
    mend="look at the rows with the highest scores; swap the two classes, or the sign of the score, where they are wrong",
)
def swapped_labels(context: Context) -> str | None:
    """An area under the ROC curve is clearly below one half."""
    table = context.table
    if table.kind == "confidence" or table.targets is None:
        return _of_confidence(context)
    if table.target_form == "soft":
        return None
    targets = table.target_tensor.cpu().numpy()
    for number in _classes(table, targets):
        scores = _column(table, number)
        area, error = roc_area(scores, targets == number if targets.ndim == 1 else targets[:, number] > 0)
        if area + CLEARLY * error < 0.5:
            name = table.class_names[number] if table.class_names else number
            return f"the scores of class {name} in {context.label} have an area under the ROC curve of {area:.3f}."
    return None


def _of_confidence(context: Context) -> str | None:
    """Wrong decisions that are held with more confidence than right ones."""
    if context.table.kind != "confidence":
        return None
    right = context.table.correctness.cpu().numpy()
    if not numpy.isin(right, (0, 1)).all():
        return None
    area, error = roc_area(context.table.scores.double().cpu().numpy(), right > 0)
    if area + CLEARLY * error < 0.5:
        return f"in {context.label} wrong decisions have the higher confidence: its area under the ROC curve for being right is {area:.3f}."
    return None


def _classes(table: Predictions, targets: numpy.ndarray) -> list[int]:
    """The classes to look at; of two softmax classes one tells all."""
    if table.classes == 2 and table.head == "softmax":
        return [1]
    if targets.ndim == 2:
        return list(range(min(int(table.classes or 0), MOST_CLASSES)))
    counts = numpy.bincount(targets.astype(numpy.int64), minlength=int(table.classes or 0))
    return [int(number) for number in numpy.argsort(-counts, kind="stable")[:MOST_CLASSES]]


def _column(table: Predictions, number: int) -> numpy.ndarray:
    """What ranks the rows for a class: its own score, against the other one where there are two under softmax."""
    scores = table.scores
    column = scores[:, number].double()
    if table.head == "softmax" and table.kind == "logits":
        column = column - torch.logsumexp(scores.double(), 1)
    return column.cpu().numpy()


def roc_area(scores: numpy.ndarray, positive: numpy.ndarray) -> tuple[float, float]:
    """The area under the ROC curve, ties counting half, and its standard error where the area is one half."""
    ones = int(positive.sum())
    zeros = len(positive) - ones
    if min(ones, zeros) < FEWEST:
        return 0.5, math.inf
    _, places, counts = numpy.unique(scores, return_inverse=True, return_counts=True)
    ranks = (numpy.cumsum(counts) - (counts - 1) / 2)[places.reshape(-1)]
    area = (ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros)
    return float(area), math.sqrt((ones + zeros + 1) / (12 * ones * zeros))
