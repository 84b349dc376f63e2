"""AURC loss: cross-entropy weighed by rank, as the area under the risk-coverage curve weighs it."""

from __future__ import annotations

from functools import partial
from typing import Literal, Unpack

from torch import Tensor

from ..evidence import Evidence
from ..module import Common, Loss
from ..ranks import rank, selective_weights
from ..registry import register_loss
from ..rules import Rule, State, choice, log_loss
from ..scores import SCORES, Score


def ranked_cost(evidence: Evidence, state: State, *, score: Score, tied_mean: bool) -> Tensor:
    """(H_n - H_(n - r)) (-log p), r the ascending rank of the confidence."""
    weights = selective_weights(rank(score.key(evidence), evidence.kept), 1.0, tied_mean=tied_mean)
    return weights.to(evidence.log_p.dtype) * log_loss(evidence, state)


@register_loss(
    "area_under_risk_coverage",
    aliases=("AURC",),
    source="Zhou et al., A Novel Characterization of the Population Area Under the Risk Coverage Curve, ICML 2025",
    formula="(H_n - H_(n-r)) (-log p), r the ascending rank of the confidence, H the harmonic numbers",
)
def area_under_risk_coverage(
    *,
    score: Literal["max_probability", "margin", "negative_entropy", "log_odds"] = "max_probability",
    ties: Literal["mean", "stable"] = "mean",
    **common: Unpack[Common],
) -> Loss:
    """AURC loss: use it when the model will abstain at a coverage nobody knows yet.

    Formula: (H_n - H_(n-r)) (-log p), r the ascending rank of the row's confidence among the n rows of the batch: the
    mean over the batch is the area under the risk-coverage curve of cross-entropy. The weights have mean one and no
    gradient. It is `selective_risk(estimator="exact", coverage=1)`.

    Settings:
        score: the confidence (default "max_probability").
        ties: equal confidences share the mean weight ("mean", default) or rank as they stand ("stable").

    Helps selective prediction; hurts in small batches: the surest row weighs H_n, about ln n, whatever it is.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.area_under_risk_coverage()
    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.5, 0.0]])
    >>> round(loss(logits, torch.tensor([0, 1, 0])).item(), 4)
    0.2173
    """
    name = "area_under_risk_coverage"
    chosen = choice(name, "score", score, SCORES)
    tied_mean = choice(name, "ties", ties, {"mean": True, "stable": False})
    cost = partial(ranked_cost, score=chosen, tied_mean=tied_mean)
    return Loss(Rule(name, cost, needs=("log_p", *chosen.key_needs), coupled=True, soft="refused"), **common)
