"""One class at a time: its probability and log-odds over the rows, without an (n, K) matrix of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ._maps import MINUS_INFINITY
from ._rows import Rows

Tensor = torch.Tensor


@dataclass(frozen=True)
class Columns:
    """Numbers of each row from which every class's column follows."""

    rows: Rows
    log_total: Tensor  # (n,) log sum of exp(z - max z)
    top: Tensor  # (n,) class of the largest logit
    top_odds: Tensor  # (n,) its log-odds; +inf where it is alone

    @staticmethod
    def of(rows: Rows) -> Columns:
        count, device = rows.count, rows.logits.device  # type: ignore[union-attr]
        log_total, top_odds = (torch.empty(count, dtype=torch.float64, device=device) for _ in range(2))
        top = torch.empty(count, dtype=torch.int64, device=device)
        for block in rows.blocks():
            moved = rows.logits[block].double() - rows.highest[block].double().unsqueeze(1)  # type: ignore[index]
            top[block] = moved.argmax(1)
            log_total[block] = torch.logsumexp(moved, 1)
            moved.scatter_(1, top[block].unsqueeze(1), MINUS_INFINITY)
            top_odds[block] = -torch.logsumexp(moved, 1)
        return Columns(rows, log_total, top, top_odds)

    def log_odds(self, k: int) -> Tensor:
        """(n,) log p_k - log(1 - p_k); -inf where the class is masked."""
        z = self.rows.logits[:, k].double()  # type: ignore[index]
        if self.rows.head == "sigmoid":
            return z
        log_p = z - self.rows.highest.double() - self.log_total  # type: ignore[union-attr]
        is_top = self.top == k
        # p_k <= 1/2 for all but the largest, so 1 - p_k has no cancellation
        rest = torch.where(is_top, 0.0, log_p.exp())
        return torch.where(is_top, self.top_odds, log_p - torch.log1p(-rest))

    def probability(self, k: int) -> Tensor:
        """(n,) p_k."""
        return torch.sigmoid(self.log_odds(k))

    def label(self, k: int) -> Tensor:
        """(n,) float64: whether (or to what share) the class is true."""
        if self.rows.share is not None:
            return self.rows.share[:, k]
        return (self.rows.target == k).double()

    def kept(self, k: int) -> Tensor:
        """(n,) whether the class is unmasked and has a rival."""
        unmasked = self.rows.logits[:, k] != MINUS_INFINITY  # type: ignore[index]
        return unmasked if self.rows.head == "sigmoid" else unmasked & torch.isfinite(self.top_odds)


@dataclass(frozen=True)
class TopLabel:
    """Log-odds of the largest probability (+inf where it is alone), and whether it was right."""

    odds: Tensor  # (n,)
    correct: Tensor  # (n,)

    @property
    def confidence(self) -> Tensor:
        return torch.sigmoid(self.odds)


def top_label(rows: Rows) -> TopLabel:
    """The top label of logits, or of confidences alone; those of exactly 1 count as the largest float64 below it."""
    if rows.logits is None:
        return TopLabel(odds_of_confidence(rows.confidence), rows.correct)  # type: ignore[arg-type]
    from ._grid_error import top_correct

    return TopLabel(Columns.of(rows).top_odds, top_correct(rows))


def odds_of_confidence(confidence: Tensor) -> Tensor:
    """Log-odds of probabilities from 0 to 1, finite at both ends."""
    inside = confidence.double().clamp(torch.finfo(torch.float64).tiny, 1 - torch.finfo(torch.float64).eps / 2)
    return inside.log() - torch.log1p(-inside)
