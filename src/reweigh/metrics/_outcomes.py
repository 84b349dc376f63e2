"""What happened to each class, one column a class, whatever form the targets have."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..errors import bad_input
from ..predictions import Predictions

COLUMN_ELEMENTS = 1 << 22  # numbers of one block of class columns: 32 MiB in float64


def outcomes(predictions: Predictions, what: str) -> torch.Tensor:
    """The targets as a tensor beside the scores: class numbers (n,) or a matrix (n, K)."""
    if predictions.targets is None:
        raise bad_input(f"computing {what}", came="Predictions without targets", expected="targets=")
    if predictions.kind == "confidence":
        raise bad_input(
            f"computing {what}",
            came="Predictions with confidence and correct alone",
            expected="logits, log_probabilities or probabilities",
        )
    return predictions.target_tensor


def outcome_block(predictions: Predictions, targets: torch.Tensor, rows: slice) -> torch.Tensor:
    """(b, K) float64: 1 for the class that happened, or the shares given."""
    if predictions.target_form != "index":
        return targets[rows].double()
    index = targets[rows].long().unsqueeze(1)
    block = torch.zeros(len(index), int(predictions.classes or 0), dtype=torch.float64, device=targets.device)
    return block.scatter_(1, index, 1.0)


def class_outcome(predictions: Predictions, targets: torch.Tensor, number: int) -> torch.Tensor:
    """(n,) float64: whether, or how much, class `number` happened."""
    if predictions.target_form == "index":
        return (targets == number).double()
    return targets[:, number].double()


def class_columns(predictions: Predictions) -> Iterator[tuple[int, torch.Tensor]]:
    """(class number, (n,) log-odds of its probability), a block of classes at a time."""
    classes, rows = int(predictions.classes or 0), max(1, len(predictions))
    width = max(1, COLUMN_ELEMENTS // rows)
    for first in range(0, classes, width):
        block = predictions.class_log_odds(slice(first, min(first + width, classes)))
        for offset in range(block.shape[1]):
            yield first + offset, block[:, offset]
