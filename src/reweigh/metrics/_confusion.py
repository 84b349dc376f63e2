"""One-vs-rest counts of every class, and the shares read off them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..errors import bad_input
from ..predictions import Predictions
from ._classes import class_number, summarised
from ._intervals import wilson
from ._outcomes import outcome_block, outcomes
from ._traits import Statistics, need_some_rows

Tensor = torch.Tensor


class Counts(NamedTuple):
    """(K,) true and false positives and negatives of each class against the rest, in rows or weight."""

    true_positive: Tensor
    false_positive: Tensor
    false_negative: Tensor
    true_negative: Tensor

    @property
    def present(self) -> Tensor:
        """Weight of the rows that belong to the class."""
        return self.true_positive + self.false_negative

    @property
    def total(self) -> Tensor:
        """Weight of all rows."""
        return self.present + self.false_positive + self.true_negative


def share(part: Tensor, whole: Tensor) -> Tensor:
    """part / whole, 0 where there is nothing to share."""
    return torch.where(whole > 0, part / whole.clamp(min=1e-300), torch.zeros_like(part))


def decisions_block(predictions: Predictions, rows: slice, probability: Tensor, threshold: Any) -> Tensor:
    """(b, K) whether each class is decided for: the predicted class, or every class whose probability exceeds its threshold."""
    if threshold is None and not predictions.per_label:
        picked = predictions.predicted[rows].unsqueeze(1)
        return torch.zeros_like(probability).scatter_(1, picked, 1.0)
    if threshold is None:
        return predictions.predicted.view(len(predictions), -1)[rows].double()
    return (probability > threshold).double()


def checked_threshold(threshold: Any, predictions: Predictions) -> Any:
    """None, a number, or one a class."""
    if threshold is None:
        return None
    values = torch.as_tensor(threshold, dtype=torch.float64, device=predictions.scores.device)
    if values.ndim > 1 or (values.ndim == 1 and len(values) != predictions.classes) or bool(torch.isnan(values).any()):
        raise bad_input(
            "deciding by a threshold",
            came=f"threshold={threshold!r}",
            expected=f"a number, or {predictions.classes} of them",
        )
    return values


def confusion_statistics(predictions: Predictions, *, threshold: Any = None, **_: Any) -> Statistics:
    """{"counts": (K, 4)} true positives, false positives, false negatives, true negatives."""
    what = "one-vs-rest counts"
    need_some_rows(predictions, what)
    targets = outcomes(predictions, what)
    threshold = checked_threshold(threshold, predictions)
    if threshold is None and predictions.target_form == "index":
        return {"counts": _index_counts(predictions, targets.long())}
    sums = torch.zeros(3, int(predictions.classes or 0), dtype=torch.float64, device=targets.device)
    weights = predictions.row_weights
    weight_sum = 0.0
    for rows, probability in predictions.probability_blocks():
        chosen = decisions_block(predictions, rows, probability, threshold)
        truth = outcome_block(predictions, targets, rows)
        weight = (
            torch.ones(len(chosen), dtype=torch.float64, device=targets.device) if weights is None else weights[rows]
        )
        sums += torch.stack([weight @ (chosen * truth), weight @ chosen, weight @ truth])
        weight_sum += float(weight.sum())
    hit, decided, present = sums
    counts = torch.stack([hit, decided - hit, present - hit, weight_sum - decided - present + hit], 1)
    return {"counts": counts}


def _index_counts(predictions: Predictions, targets: Tensor) -> Tensor:
    """(K, 4) the same from class numbers alone, where every row is decided for one class."""
    classes = int(predictions.classes or 0)
    predicted, weights = predictions.predicted, predictions.row_weights
    present = torch.bincount(targets, weights=weights, minlength=classes).double()
    decided = torch.bincount(predicted, weights=weights, minlength=classes).double()
    right = predictions.correctness if weights is None else predictions.correctness * weights
    hit = torch.bincount(targets, weights=right, minlength=classes)
    total = float(len(targets)) if weights is None else weights.sum()
    return torch.stack([hit, decided - hit, present - hit, total - decided - present + hit], 1)


def counts_of(statistics: Statistics) -> Counts:
    """The counts of `confusion_statistics`, or of sums of them."""
    return Counts(*statistics["counts"].unbind(1))


def class_metric(statistics: Statistics, per_class: Any, predictions: Any, average: str | None, positive: Any) -> Any:
    """One of the shares below, for every class, one class or averaged ("micro" pools the counts)."""
    counts = counts_of(statistics)
    if average == "micro":
        counts = Counts(*(part.sum().reshape(1) for part in counts))
        return float(per_class(counts)[0])
    names = None if predictions is None else predictions.class_names
    chosen = None if positive is None else class_number(positive, len(counts.present), names)
    return summarised(per_class(counts), counts.present, average, chosen)


def share_interval(
    predictions: Predictions, level: float, parts: Any, settings: dict[str, Any]
) -> tuple[Any, Any] | None:
    """Wilson's interval for right / counted, where rows are plain and no average is taken."""
    if predictions.weights is not None or predictions.target_form == "soft" or settings.get("average") is not None:
        return None
    right, counted = parts(counts_of(confusion_statistics(predictions, threshold=settings.get("threshold"))))
    low, high = wilson(right, counted, level)
    positive = settings.get("positive")
    if positive is None:
        return low, high
    number = class_number(positive, predictions.classes, predictions.class_names)
    return float(low[number]), float(high[number])
