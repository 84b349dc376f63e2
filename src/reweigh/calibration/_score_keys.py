"""Confidence scores as modules: a key of log-odds grade that orders rows where the score itself rounds to 1."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ._maps import MINUS_INFINITY, softplus

SCORES = ("max_probability", "margin", "negative_entropy", "log_odds")


class ScoreKey(nn.Module):
    """(n,) keys of float64 logits (n, K), larger where the model is surer."""

    def __init__(self, score: str) -> None:
        super().__init__()
        self.score = score

    def forward(self, logits: Tensor) -> Tensor:
        top, index = logits.max(1, keepdim=True)
        is_top = torch.zeros_like(logits).scatter(1, index, 1.0) > 0
        others = torch.where(is_top, MINUS_INFINITY, logits)
        second = others.amax(1, keepdim=True)
        base = torch.where(second == MINUS_INFINITY, 0.0, second)
        mass = (others - base).exp().sum(1, keepdim=True)  # 0 where the top is alone
        odds = (top - base - mass.log()).squeeze(1)
        if self.score in ("max_probability", "log_odds"):
            return odds
        alone = (second == MINUS_INFINITY).squeeze(1)
        if self.score == "margin":  # 1 - (p1 - p2) = (rest + p2) / total, over the logit of the runner-up
            total = softplus(odds.clamp(max=1e300)) + mass.log().squeeze(1)
            key = total - torch.log(mass + 1).squeeze(1)
        else:
            key = self._entropy(logits, top, others, odds)
        return torch.where(alone, float("inf"), key)

    @staticmethod
    def _entropy(logits: Tensor, top: Tensor, others: Tensor, odds: Tensor) -> Tensor:
        """-log(H / ln K), K without masked classes: H (1 + r) = (1 + r) log(1 + r) + sum x (-log x), r the others."""
        classes = (logits != MINUS_INFINITY).to(logits.dtype).sum(1)
        total = softplus(-odds)  # log(1 + r)
        first = torch.where(odds < 30, total + total.clamp(min=1e-300).log(), -odds)
        away = others - top
        ranked = torch.where(others == MINUS_INFINITY, MINUS_INFINITY, away + (-away).clamp(min=1e-300).log())
        best = ranked.amax(1)
        safe = torch.where(best == MINUS_INFINITY, 0.0, best)
        spread = (ranked - safe.unsqueeze(1)).exp().sum(1).log() + safe
        high, low = torch.maximum(first, spread), torch.minimum(first, spread)
        log_entropy = high + torch.log1p((low - torch.where(high == MINUS_INFINITY, 0.0, high)).exp()) - total
        return classes.log().log() - log_entropy


def value_of_key(score: str, key: float) -> float:
    """The score in its own units, at most 1."""
    if score == "log_odds":
        return key
    if score == "max_probability":
        return 1 / (1 + math.exp(-key)) if key > -700 else 0.0
    return -math.expm1(-key)
