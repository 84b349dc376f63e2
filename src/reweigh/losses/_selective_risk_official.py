"""The selective-risk loss as its published program computes it, defects included, for reproduction studies.

Deviations from the paper, all kept: the softmax is taken twice; negative entropy is the constant 1; the
normaliser C is missing; G is clamped to [1/(B+1), B/(B+1)] with the configured batch size B; the threshold
carries a gradient; counts run on until they are cleared, which is when `advance` is called; scores and
counts are float32.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..errors import bad_input
from ..evidence import Evidence
from ..rules import Rule, State, choice, log_loss
from ._score_histogram import linear_quantile

CLAMP = 1e-9


def _first(q: Tensor) -> Tensor:
    return q.amax(1)


def _gap(q: Tensor) -> Tensor:
    two = q.topk(2, dim=1).values
    return two[:, 0] - two[:, 1]


def _constant(q: Tensor) -> Tensor:
    return torch.ones_like(q[:, 0])


OFFICIAL_SCORES = {"max_probability": _first, "margin": _gap, "negative_entropy": _constant}


def scores_of(evidence: Evidence, score) -> Tensor:
    """The score of the softmax of the softmax."""
    q = torch.softmax(torch.exp(evidence.log_probabilities), 1)
    return score(q.clamp(CLAMP, 1.0 - CLAMP))


def counts_of(scores: Tensor, kept: Tensor | None, bins: int) -> Tensor:
    """Counts of [e_m, e_(m+1)), ends clamped, from float32 scores."""
    edges = torch.linspace(0.0, 1.0, bins + 1, dtype=torch.float32, device=scores.device)
    place = (torch.bucketize(scores.detach().float(), edges, right=True) - 1).clamp(0, bins - 1)
    ones = torch.ones_like(place, dtype=torch.float32) if kept is None else kept.float()
    return torch.zeros(bins, dtype=torch.float32, device=scores.device).index_add(0, place, ones)


def _smoothed(at: Tensor, counts: Tensor, smoothing: float) -> Tensor:
    edges = torch.linspace(0.0, 1.0, len(counts) + 1, dtype=at.dtype, device=at.device)
    centres = (edges[1:] + edges[:-1]) / 2
    held = counts.to(at.dtype).clamp(min=1e-12)
    return torch.sigmoid((at.unsqueeze(-1) - centres) / smoothing) @ held / held.sum()


def official_cost(
    evidence: Evidence, state: State, *, score, coverage: float, smoothing: float, batch_size: int | None
) -> Tensor:
    """-ln(1 - G(min(s, tau))) * -log p, everything clamped."""
    if evidence.log_p.numel() == 0:
        return log_loss(evidence, state)
    scores = scores_of(evidence, score)
    own = counts_of(scores, evidence.kept, len(state["counts"]))
    counts = torch.where(state["counts"].sum() > 0, state["counts"], own)
    tau = linear_quantile(scores, evidence.kept, coverage).to(scores.dtype)
    counted = scores.numel() if evidence.kept is None else evidence.kept.sum().to(scores.dtype)
    size = counted if batch_size is None else batch_size
    low: Any = 1.0 / (size + 1)
    high: Any = size / (size + 1)
    at_tau = _smoothed(tau, counts, smoothing).clamp(low, high)
    at_score = _smoothed(scores, counts, smoothing).clamp(low, high)
    weight = torch.where(scores >= tau, -torch.log(1.0 - at_tau), -torch.log(1.0 - at_score))
    return weight * log_loss(evidence, state)


def empty_counts(*, bins: int) -> dict[str, Tensor]:
    """No scores seen."""
    return {"counts": torch.zeros(bins, dtype=torch.float32)}


def add_counts(evidence: Evidence, state: State, *, score) -> dict[str, Tensor]:
    """The batch's scores join the running counts."""
    scores = scores_of(evidence, score)
    return {"counts": state["counts"] + counts_of(scores, evidence.kept, len(state["counts"]))}


def clear(epoch: int, state: State) -> dict[str, Tensor]:
    """The published trainer clears the counts once an epoch."""
    return {"counts": torch.zeros_like(state["counts"])}


def official_rule(score: str, coverage: float, smoothing: float, bins: int, batch_size: int | None) -> Rule:
    """The rule of `selective_risk(parity="official")`."""
    if score == "log_odds":
        raise bad_input(
            "selective_risk(parity='official')", came="score='log_odds'", expected="a score of the published program"
        )
    chosen = choice("selective_risk(parity='official')", "score", score, OFFICIAL_SCORES)
    return Rule(
        "selective_risk",
        partial(official_cost, score=chosen, coverage=coverage, smoothing=smoothing, batch_size=batch_size),
        needs=("log_p", "log_probabilities"),
        init=partial(empty_counts, bins=bins),
        observes="training",
        observe=partial(add_counts, score=chosen),
        observe_needs=("log_probabilities",),
        advance=clear,
        coupled=True,
        soft="refused",
    )
