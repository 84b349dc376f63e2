"""Precision, recall, F score, miss and overflow of each class against the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import bad_input
from ..predictions import Predictions
from ..registry import register_metric
from ._confusion import Counts, class_metric, confusion_statistics, share, share_interval
from ._traits import Statistics, traits

Tensor = torch.Tensor
Threshold = float | Sequence[float] | None


def precision_of(counts: Counts) -> Tensor:
    """Right among the rows decided for the class."""
    return share(counts.true_positive, counts.true_positive + counts.false_positive)


def recall_of(counts: Counts) -> Tensor:
    """Found among the rows of the class."""
    return share(counts.true_positive, counts.present)


def miss_of(counts: Counts) -> Tensor:
    """Missed among the rows of the class."""
    return share(counts.false_negative, counts.present)


def overflow_of(counts: Counts) -> Tensor:
    """Wrongly decided for, relative to the rows of the class; may exceed 1."""
    return share(counts.false_positive, counts.present)


def f_score_of(counts: Counts, beta: float) -> Tensor:
    """(1 + b^2) TP / ((1 + b^2) TP + b^2 FN + FP)."""
    square = beta * beta
    hit = (1 + square) * counts.true_positive
    return share(hit, hit + square * counts.false_negative + counts.false_positive)


def _value(per_class: Callable[..., Tensor]) -> Callable[..., Any]:
    def value(
        statistics: Statistics,
        *,
        average: str | None = None,
        positive: int | None = None,
        threshold: Any = None,
        **rest: Any,
    ) -> Any:
        return class_metric(statistics, lambda counts: per_class(counts, **rest), None, average, positive)

    return value


def _interval(parts: Callable[[Counts], tuple[Tensor, Tensor]]) -> Callable[..., tuple[Any, Any] | None]:
    return lambda predictions, level, **settings: share_interval(predictions, level, parts, settings)


def _measure(predictions: Predictions, per_class: Any, threshold: Threshold, average: str | None, positive: Any) -> Any:
    statistics = confusion_statistics(predictions, threshold=threshold)
    return class_metric(statistics, per_class, predictions, average, positive)


_precision = traits(
    statistics=confusion_statistics,
    value=_value(precision_of),
    interval=_interval(lambda c: (c.true_positive, c.true_positive + c.false_positive)),
)
_recall = traits(
    statistics=confusion_statistics, value=_value(recall_of), interval=_interval(lambda c: (c.true_positive, c.present))
)
_miss = traits(
    statistics=confusion_statistics, value=_value(miss_of), interval=_interval(lambda c: (c.false_negative, c.present))
)


@register_metric("precision", direction="higher", range=(0, 1), heads=("softmax", "sigmoid"))
@_precision
def precision(
    predictions: Predictions,
    *,
    threshold: Threshold = None,
    average: str | None = None,
    positive: int | str | None = None,
) -> Any:
    """Share of right ones among the rows decided for each class, (K,); 0 where none is.

    Settings:
        threshold: None decides for the predicted class (under sigmoid with label matrices for every label above 1/2);
            a number, or one a class, decides for every class whose probability is strictly above it.
        average: None, "macro", "weighted" (by rows of the class) or "micro" (counts pooled).
        positive: one class, by number or name, as a number.

    >>> from reweigh import Predictions
    >>> precision(Predictions(probabilities=[[0.1, 0.9], [0.2, 0.8]], targets=[1, 0])).tolist()
    [0.0, 0.5]
    """
    return _measure(predictions, precision_of, threshold, average, positive)


@register_metric("recall", direction="higher", range=(0, 1), heads=("softmax", "sigmoid"))
@_recall
def recall(
    predictions: Predictions,
    *,
    threshold: Threshold = None,
    average: str | None = None,
    positive: int | str | None = None,
) -> Any:
    """Share of each class's rows that are found, (K,); 0 for a class without rows. Settings as in `precision`.

    >>> from reweigh import Predictions
    >>> recall(Predictions(probabilities=[[0.1, 0.9], [0.2, 0.8]], targets=[1, 0])).tolist()
    [0.0, 1.0]
    """
    return _measure(predictions, recall_of, threshold, average, positive)


@register_metric("miss", direction="lower", range=(0, 1), heads=("softmax", "sigmoid"))
@_miss
def miss(
    predictions: Predictions,
    *,
    threshold: Threshold = None,
    average: str | None = None,
    positive: int | str | None = None,
) -> Any:
    """FN / P of each class: the share of its rows that is missed, 0 without rows. Settings as in `precision`.

    >>> from reweigh import Predictions
    >>> miss(Predictions(probabilities=[[0.1, 0.9], [0.2, 0.8]], targets=[1, 0])).tolist()
    [1.0, 0.0]
    """
    return _measure(predictions, miss_of, threshold, average, positive)


@register_metric("overflow", direction="lower", range=(0, "inf"), heads=("softmax", "sigmoid"))
@traits(statistics=confusion_statistics, value=_value(overflow_of))
def overflow(
    predictions: Predictions,
    *,
    threshold: Threshold = None,
    average: str | None = None,
    positive: int | str | None = None,
) -> Any:
    """FP / P of each class: rows wrongly decided for it, relative to its own. Settings as in `precision`.

    >>> from reweigh import Predictions
    >>> overflow(Predictions(probabilities=[[0.1, 0.9], [0.2, 0.8]], targets=[1, 0])).tolist()
    [0.0, 1.0]
    """
    return _measure(predictions, overflow_of, threshold, average, positive)


@register_metric("f_score", aliases=("F1",), direction="higher", range=(0, 1), heads=("softmax", "sigmoid"))
@traits(statistics=confusion_statistics, value=_value(lambda counts, beta=1.0: f_score_of(counts, beta)))
def f_score(
    predictions: Predictions,
    beta: float = 1.0,
    *,
    threshold: Threshold = None,
    average: str | None = None,
    positive: int | str | None = None,
) -> Any:
    """(1 + beta^2) P R / (beta^2 P + R) of each class; beta 0 is its precision. Settings as in `precision`.

    >>> from reweigh import Predictions
    >>> f_score(Predictions(probabilities=[[0.1, 0.9], [0.2, 0.8]], targets=[1, 0]), positive=1) == 2 / 3
    True
    """
    if not 0 <= beta < float("inf"):
        raise bad_input("computing the F score", came=f"beta={beta!r}", expected="a number of at least 0")
    return _measure(predictions, lambda counts: f_score_of(counts, beta), threshold, average, positive)
