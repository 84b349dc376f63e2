"""The report on every class against the rest: the table of the loss function assessment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy
import torch

from ..errors import bad_input
from ..predictions import Predictions
from ..registry import register_metric
from ._area_under_roc import area_under_roc, block_sums
from ._confusion import Counts, confusion_statistics, counts_of, share
from ._outcomes import class_outcome, outcomes
from ._precision_recall import f_score_of, miss_of, overflow_of, precision_of, recall_of
from ._ranking import ordered, rank_down
from ._traits import need_some_rows, traits

Tensor = torch.Tensor


@dataclass(frozen=True)
class ClassReport:
    """(K,) columns, by attribute or by name. The plain ones are of the class itself.

    The `weighted_` ones average the class and the rest by their rows, as published: there recall is the accuracy and
    F0 the precision, and both are high for whoever never finds a rare class. The `majority_` ones say how high.
    """

    area_under_roc: Tensor
    threshold: Tensor
    true_positive: Tensor
    false_positive: Tensor
    false_negative: Tensor
    true_negative: Tensor
    accuracy: Tensor
    precision: Tensor
    recall: Tensor
    f_half: Tensor
    f_zero: Tensor
    f_one: Tensor
    miss: Tensor
    overflow: Tensor
    weighted_precision: Tensor
    weighted_recall: Tensor
    weighted_f_half: Tensor
    weighted_f_zero: Tensor
    weighted_f_one: Tensor
    majority_accuracy: Tensor
    majority_precision: Tensor
    majority_f_one: Tensor
    class_names: tuple[str, ...] | None = None

    def keys(self) -> list[str]:
        """The names of the columns."""
        return [item.name for item in fields(self) if item.name != "class_names"]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.keys():
            raise bad_input("reading a class report", came=f"the column {name!r}", expected=f"one of {self.keys()}")
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())


def class_report_from_counts(
    counts: Sequence[Any], *, area: Any = None, threshold: Any = None, class_names: Sequence[str] | None = None
) -> ClassReport:
    """The report of known counts: (K,) true positives, false positives, false negatives, true negatives."""
    table = Counts(*(torch.as_tensor(part, dtype=torch.float64) for part in counts))
    if len({part.shape for part in table}) != 1 or any(bool((part < 0).any()) for part in table):
        raise bad_input(
            "reporting on classes",
            came="counts below 0 or of unequal length",
            expected="four columns, one entry a class",
        )
    rest = Counts(table.true_negative, table.false_negative, table.false_positive, table.true_positive)
    prior = share(table.present, table.total)
    largest = torch.maximum(prior, 1 - prior)

    def weighted(of: Any) -> Tensor:
        return prior * of(table) + (1 - prior) * of(rest)

    unknown = torch.full_like(prior, torch.nan)
    return ClassReport(
        unknown if area is None else torch.as_tensor(area, dtype=torch.float64),
        unknown if threshold is None else torch.as_tensor(threshold, dtype=torch.float64).expand_as(prior),
        *table,
        share(table.true_positive + table.true_negative, table.total),
        precision_of(table),
        recall_of(table),
        f_score_of(table, 0.5),
        f_score_of(table, 0.0),
        f_score_of(table, 1.0),
        miss_of(table),
        overflow_of(table),
        weighted(precision_of),
        weighted(recall_of),
        weighted(lambda c: f_score_of(c, 0.5)),
        weighted(lambda c: f_score_of(c, 0.0)),
        weighted(lambda c: f_score_of(c, 1.0)),
        largest,
        largest**2,
        largest * 2 * largest / (1 + largest),
        None if class_names is None else tuple(class_names),
    )


def best_thresholds(validation: Predictions) -> Tensor:
    """(K,) the probability at which each class's F1 is highest on these rows; of equals the lowest, NaN without rows.

    Choose it on other rows than those judged by it.
    """
    need_some_rows(validation, "thresholds")
    targets = outcomes(validation, "thresholds")
    weights = None if validation.row_weights is None else validation.row_weights.cpu().numpy()
    found = []
    for number in range(int(validation.classes or 0)):
        probability = validation.class_probabilities(slice(number, number + 1)).squeeze(1).cpu().numpy()
        ranked = rank_down(probability)
        of = ordered(ranked, class_outcome(validation, targets, number).cpu().numpy())
        positive, negative = block_sums(of, None if weights is None else weights[ranked.order])
        hit, decided = numpy.cumsum(positive), numpy.cumsum(positive + negative)
        if not hit[-1] > 0:
            found.append(float("nan"))
            continue
        score = 2 * hit / (decided + hit[-1])
        best = len(score) - 1 - int(numpy.argmax(score[::-1]))
        found.append(float(probability[ranked.order][ranked.starts[best] :][: _block_size(ranked, best)].min()))
    return torch.tensor(found, dtype=torch.float64)


def _block_size(ranked: Any, block: int) -> int:
    ends = numpy.append(ranked.starts[1:], len(ranked.order))
    return int(ends[block] - ranked.starts[block])


@register_metric("class_report", direction="none", range=(0, "inf"), heads=("softmax", "sigmoid"))
@traits(instead="precision and recall")
def class_report(
    predictions: Predictions, *, thresholds: Any = None, validation: Predictions | None = None
) -> ClassReport:
    """Every class against the rest: area under ROC, threshold, counts, accuracy, precision, recall, F scores.

    Settings:
        thresholds: a class is decided for where its probability is strictly above; a number or one a class, 0.5 unsaid.
        validation: other rows, on which each class's threshold is chosen for the highest F1.

    >>> from reweigh import Predictions
    >>> report = class_report(Predictions(probabilities=[[0.1, 0.9], [0.2, 0.8]], targets=[1, 0]))
    >>> report.recall.tolist(), report["precision"].tolist()
    ([0.0, 1.0], [0.0, 0.5])
    """
    if thresholds is not None and validation is not None:
        raise bad_input("reporting on classes", came="thresholds and validation", expected="one of them")
    if validation is not None:
        thresholds = best_thresholds(validation)
    limit = torch.as_tensor(0.5 if thresholds is None else thresholds, dtype=torch.float64)
    limit = limit.expand(int(predictions.classes or 0)) if limit.ndim == 0 else limit
    counts = counts_of(confusion_statistics(predictions, threshold=limit.nan_to_num(nan=float("inf"))))
    return class_report_from_counts(
        [part.cpu() for part in counts],
        area=area_under_roc(predictions),
        threshold=limit,
        class_names=predictions.class_names,
    )
