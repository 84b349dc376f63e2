"""Confidence scores: how sure a model is of its first choice, from evidence.

Each score has a value in [0, 1] that losses smooth and bin, and a key of log-odds grade (float64, larger is
surer) that ranks rows where the value itself would round to 1. Both come from the same fields.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from .evidence import Evidence

# log_odds has no bounds; binned losses see it on [-32, 32], beyond which a softmax says nothing new in float32
LOG_ODDS_RANGE = 32.0
# log-odds at which the probability of all other classes leaves float32's range
SMALLEST_SHARE = 85.0


@dataclass(frozen=True)
class Score:
    """A confidence score; `needs` are the fields its value reads, `key_needs` those its key reads."""

    name: str
    needs: tuple[str, ...]
    key_needs: tuple[str, ...]
    value: Callable[[Evidence], Tensor]  # in [0, 1], float64, differentiable
    key: Callable[[Evidence], Tensor]  # float64


def _max_probability(evidence: Evidence) -> Tensor:
    return torch.exp(evidence.log_top)


def _log_odds_key(evidence: Evidence) -> Tensor:
    return evidence.confidence_log_odds


def _margin(evidence: Evidence) -> Tensor:
    return torch.exp(evidence.log_top) - torch.exp(evidence.log_second)


def _margin_key(evidence: Evidence) -> Tensor:
    # 1 - margin = (1 - p1) + p2 does not cancel; exact ties of the two largest give 0
    return -torch.logaddexp(logsigmoid(-evidence.confidence_log_odds), evidence.log_second)


def _log_classes(evidence: Evidence) -> Tensor:
    return evidence.classes.clamp(min=2).double().log()  # one class left: entropy 0 over anything is 0


def _negative_entropy(evidence: Evidence) -> Tensor:
    return 1.0 - evidence.entropy / _log_classes(evidence)


def _entropy_key(evidence: Evidence) -> Tensor:
    log_classes, odds = _log_classes(evidence), evidence.confidence_log_odds
    resolved = -torch.log((evidence.entropy / log_classes).clamp(min=torch.finfo(torch.float64).tiny))
    # Beyond float32's smallest share the entropy is that of the first choice against the rest, m (1 + log(1 / m))
    beyond = odds - torch.log1p(odds.clamp(min=0.0)) + torch.log(log_classes)
    return torch.where(odds > SMALLEST_SHARE, beyond, resolved)


def _squeezed_log_odds(evidence: Evidence) -> Tensor:
    odds = evidence.confidence_log_odds.clamp(-LOG_ODDS_RANGE, LOG_ODDS_RANGE)
    return (odds + LOG_ODDS_RANGE) / (2 * LOG_ODDS_RANGE)


SCORES = {
    "max_probability": Score(
        "max_probability", ("log_top",), ("confidence_log_odds",), _max_probability, _log_odds_key
    ),
    "margin": Score("margin", ("log_top", "log_second"), ("log_second", "confidence_log_odds"), _margin, _margin_key),
    "negative_entropy": Score(
        "negative_entropy",
        ("entropy", "classes"),
        ("entropy", "classes", "confidence_log_odds"),
        _negative_entropy,
        _entropy_key,
    ),
    "log_odds": Score(
        "log_odds", ("confidence_log_odds",), ("confidence_log_odds",), _squeezed_log_odds, _log_odds_key
    ),
}
