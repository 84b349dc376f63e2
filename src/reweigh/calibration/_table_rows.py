"""The columns of Predictions as a calibrator's rows: probabilities become logits."""

from __future__ import annotations

import numpy as np
import torch

from ..errors import bad_input
from ..predictions import Predictions
from ._rows import Rows, as_tensor, highest_logit

Tensor = torch.Tensor


def rows_of(predictions: Predictions, doing: str) -> Rows:
    """The columns of Predictions; probabilities become logits, zeros among them the smallest number of their type."""
    scores = predictions.scores
    if len(scores) == 0:
        raise bad_input(doing, came="Predictions without rows", expected="at least one row")
    ids, groups = predictions.ids, predictions.groups
    if predictions.kind == "confidence":
        return Rows(
            logits=None,
            confidence=scores.double(),
            correct=predictions.correctness,
            weight=predictions.row_weights,
            ids=ids,
            groups=groups,
        )
    logits = _logits_of(scores, predictions.kind, str(predictions.head))
    target = share = None
    if predictions.targets is not None:
        target, share = _truth_of(predictions, logits)
    return Rows(
        logits=logits,
        highest=highest_logit(logits, doing),
        head=str(predictions.head),
        target=target,
        share=share,
        weight=predictions.row_weights,
        ids=ids,
        groups=groups,
    )


def _truth_of(predictions: Predictions, logits: Tensor) -> tuple[Tensor | None, Tensor | None]:
    values = predictions.targets
    truth = values.detach() if isinstance(values, Tensor) else as_tensor(np.asarray(values))
    truth = truth.to(logits.device)
    if predictions.target_form == "index":
        return truth.to(torch.int64), None
    if predictions.target_form == "multi_hot" and predictions.head == "softmax":
        return truth.to(torch.int64).argmax(1), None
    return None, truth.double()


def _logits_of(scores: Tensor, kind: str, head: str) -> Tensor:
    if kind == "logits":
        return scores
    if kind == "log_probabilities" and head == "softmax":
        return scores
    if kind == "log_probabilities":
        log_p = scores.double().clamp(max=0.0)
        # where 1 - p rounds to 0, the smallest float64 stands for it
        return log_p - torch.log(-torch.expm1(log_p)).clamp(min=-745.0)
    tiny = torch.finfo(scores.dtype).tiny
    p = scores.double()
    if head == "softmax":
        return p.clamp(min=tiny).log_()
    # where 1 - p is 0 in the type of p, half a unit in its last place stands for it
    rest = (1 - p).clamp(min=torch.finfo(scores.dtype).eps / 4)
    return p.clamp(min=tiny).log() - rest.log()
