"""Generalised-risk loss (AUGRC): weights that grow linearly with rank, up to a coverage."""

from __future__ import annotations

from functools import partial
from typing import Literal, Unpack

import torch
from torch import Tensor

from ..evidence import Evidence
from ..module import Common, Loss
from ..ranks import midpoint_fractions, rank
from ..registry import register_loss
from ..rules import Rule, State, choice, log_loss, number
from ..scores import SCORES, Score


def generalized_weights(evidence: Evidence, *, score: Score, coverage: float, tied_mean: bool) -> Tensor:
    """min(G, kappa) / (kappa (1 - kappa / 2)), G = (r - 1/2) / n; tied rows share the mean. (n,) float64."""
    ranking = rank(score.key(evidence), evidence.kept)
    if coverage == 0.0:  # the limit: every row alike
        return ranking.back(ranking.counts.to(torch.float64))
    fraction = midpoint_fractions(ranking, tied_mean=False)[ranking.order]  # by place
    weight = fraction.clamp(max=coverage) / (coverage * (1.0 - coverage / 2.0))
    return ranking.back(ranking.mean_in_blocks(weight) if tied_mean else weight)


def generalized_cost(evidence: Evidence, state: State, *, score: Score, coverage: float, tied_mean: bool) -> Tensor:
    """Weight of the rank times -log p."""
    weights = generalized_weights(evidence, score=score, coverage=coverage, tied_mean=tied_mean)
    return weights.to(evidence.log_p.dtype) * log_loss(evidence, state)


@register_loss(
    "generalized_risk",
    aliases=("AUGRC",),
    source="Traub et al., Overcoming Common Flaws in the Evaluation of Selective Classification Systems, NeurIPS 2024 "
    "(the metric); as a loss: weights of mean one derived here",
    formula="min(G, kappa) / (kappa (1 - kappa / 2)) (-log p), G = (r - 1/2) / n",
)
def generalized_risk(
    *,
    score: Literal["max_probability", "margin", "negative_entropy", "log_odds"] = "max_probability",
    coverage: float = 1.0,
    ties: Literal["mean", "stable"] = "mean",
    **common: Unpack[Common],
) -> Loss:
    """Generalised-risk loss: use it as AURC's calmer sibling, whose largest weight is 2.

    Formula: min(G, kappa) / (kappa (1 - kappa / 2)) (-log p) with G = (r - 1/2) / n, r the ascending rank of the row's
    confidence. The weights have mean one (exactly where kappa n is whole) and no gradient. With kappa = 1 the mean
    over the batch is twice the area under the generalised-risk curve of cross-entropy.

    Settings:
        score: the confidence (default "max_probability").
        coverage: kappa, in [0, 1] (default 1); 0 is cross-entropy.
        ties: equal confidences share the mean weight ("mean", default) or rank as they stand ("stable").

    Helps selective prediction without the large weights of AURC; hurts learning of rows that are unsure throughout.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.generalized_risk()
    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.5, 0.0]])
    >>> round(loss(logits, torch.tensor([0, 1, 0])).item(), 4)
    0.2276
    """
    name = "generalized_risk"
    chosen = choice(name, "score", score, SCORES)
    cost = partial(
        generalized_cost,
        score=chosen,
        coverage=number(name, "coverage", coverage, low=0.0, high=1.0),
        tied_mean=choice(name, "ties", ties, {"mean": True, "stable": False}),
    )
    return Loss(Rule(name, cost, needs=("log_p", *chosen.key_needs), coupled=True, soft="refused"), **common)
