"""How well a score tells rows from outside the training distribution from rows inside it."""

from __future__ import annotations

import numpy
import torch

from ..errors import bad_input, unknown_name
from ..predictions import Predictions
from ..registry import register_metric
from ._area_under_roc import block_sums, roc_area
from ._average_precision import step_precision
from ._ranking import Ordered, ordered, rank_down
from ._traits import need_some_rows

Tensor = torch.Tensor
Array = numpy.ndarray
SCORES = ("entropy", "msp", "energy", "max_logit")


def _needs(predictions: Predictions, score: str, kinds: tuple[str, ...], heads: tuple[str, ...]) -> None:
    if predictions.kind not in kinds or predictions.head not in heads:
        raise bad_input(
            f"scoring rows by {score}",
            came=f"{predictions.head} {predictions.kind}",
            expected=f"{' or '.join(heads)} {' or '.join(kinds)}",
        )


def outside_score(predictions: Predictions, score: str) -> Tensor:
    """(n,) float64, higher for rows that look more foreign; ranks where probabilities round to 1."""
    full = ("logits", "log_probabilities", "probabilities")
    if score == "msp":
        if predictions.per_label:
            return -predictions.class_log_odds(slice(None)).amax(1)
        return -predictions.log_odds
    if score == "entropy":
        _needs(predictions, score, full, ("softmax",))
        return -predictions.entropy_key
    _needs(predictions, score, ("logits",), ("softmax", "sigmoid") if score == "max_logit" else ("softmax",))
    if score == "max_logit":
        return -predictions.largest_score.double()
    top, log_total = predictions.normalizers
    return -(top + log_total)


def false_positive_rate(of: Ordered, weights: Array | None, rate: float) -> float:
    """Share of inside rows flagged at the strictest threshold that flags `rate` of the outside rows."""
    positive, negative = block_sums(of, weights)
    caught = numpy.cumsum(positive) / positive.sum()
    return float((numpy.cumsum(negative) / negative.sum())[int(numpy.argmax(caught >= rate - 1e-12))])


@register_metric("out_of_distribution", aliases=("OOD",), direction="none", range=(0, 1), heads=("softmax", "sigmoid"))
def out_of_distribution(inside: Predictions, outside: Predictions, score: str = "entropy") -> dict[str, float]:
    """`auroc`, `aupr_in`, `aupr_out` and `fpr95` of telling outside rows (positive) from inside rows.

    Settings:
        score: "entropy" of the softmax, "msp" (one minus the largest probability), "energy" (-logsumexp of the logits)
            or "max_logit" (its negative). The last two need logits.

    `aupr_in` takes the inside rows as positive; `fpr95` is the share of inside rows flagged when 95 % of the outside
    rows are. Targets are not needed.

    >>> from reweigh import Predictions
    >>> inside = Predictions(probabilities=[[0.9, 0.1], [0.8, 0.2]])
    >>> out_of_distribution(inside, Predictions(probabilities=[[0.5, 0.5]]))["auroc"]
    1.0
    """
    if score not in SCORES:
        raise unknown_name("score", str(score), SCORES)
    for table in (inside, outside):
        need_some_rows(table, "the detection of outside rows")
    parts = [outside_score(table, score) for table in (inside, outside)]
    key = torch.cat([part.cpu() for part in parts]).numpy()
    foreign = numpy.repeat([0.0, 1.0], [len(part) for part in parts])
    weights = None
    if inside.weights is not None or outside.weights is not None:
        columns = [
            torch.ones(len(t)).double() if t.row_weights is None else t.row_weights.cpu() for t in (inside, outside)
        ]
        weights = torch.cat(columns).numpy()
    out, back = ordered(rank_down(key), foreign), ordered(rank_down(-key), 1 - foreign)
    down, up = (None if weights is None else weights[of.ranked.order] for of in (out, back))
    return {
        "auroc": roc_area(out, down),
        "aupr_in": step_precision(back, up),
        "aupr_out": step_precision(out, down),
        "fpr95": false_positive_rate(out, down, 0.95),
    }
