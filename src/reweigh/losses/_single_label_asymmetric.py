"""Single-label asymmetric loss: smoothed cross-entropy whose true and false classes fade at different rates."""

from __future__ import annotations

from functools import partial
from typing import Unpack

import torch
from torch import Tensor

from ..evidence import Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, State, number


def _faded(log_rate: Tensor, log_p: Tensor, gamma: float, detached: bool) -> Tensor:
    """rate^gamma (-log p)."""
    weight = torch.exp(gamma * log_rate)
    return (weight.detach() if detached else weight) * -log_p


def false_costs(log_all: Tensor, gamma: float, detached: bool) -> Tensor:
    """p_k^gamma (-log p_k) of every class, (n, K); 0 for masked ones."""
    masked = log_all == -torch.inf
    finite = torch.where(masked, 0.0, log_all)
    return torch.where(masked, 0.0, _faded(finite, finite, gamma, detached))


def asymmetric_cost(
    evidence: Evidence, state: State, *, negative: float, positive: float, smoothing: float, detached: bool
) -> Tensor:
    """(1 - eps + eps / K) (1 - p_y)^positive (-log p_y) + (eps / K) sum over the others of p_k^negative (-log p_k)."""
    share = smoothing / evidence.classes.to(evidence.log_p.dtype)
    false = false_costs(evidence.log_probabilities, negative, detached).scatter(1, evidence.target.unsqueeze(1), 0.0)
    return (1.0 - smoothing + share) * _faded(
        evidence.log_miss, evidence.log_p, positive, detached
    ) + share * false.sum(1)


def asymmetric_soft_cost(
    evidence: Evidence, state: State, *, negative: float, positive: float, smoothing: float, detached: bool
) -> Tensor:
    """The cost of every class as the true one, weighed by its share; class k is a false one with 1 - t_k."""
    log_all, part = evidence.log_probabilities, evidence.soft_target
    share = smoothing / evidence.classes.to(log_all.dtype)
    top = evidence.target.unsqueeze(1)  # the first choice, whose log(1 - p) does not follow from log p
    half = torch.where(log_all == -torch.inf, -1.0, log_all.scatter(1, top, -1.0))
    log_miss = torch.log1p(-torch.exp(half)).scatter(1, top, evidence.log_miss.unsqueeze(1))
    finite = torch.where(log_all == -torch.inf, 0.0, log_all)
    true = _faded(log_miss, finite, positive, detached)
    false = false_costs(log_all, negative, detached)
    return ((1.0 - smoothing + share).unsqueeze(1) * part * true + share.unsqueeze(1) * (1.0 - part) * false).sum(1)


@register_loss(
    "single_label_asymmetric",
    source="Ben-Baruch et al., Asymmetric Loss For Multi-Label Classification, ICCV 2021 (ASLSingleLabel of its program)",
    formula="-sum_k t_k w_k log p_k, t smoothed, w_y = (1 - p_y)^gamma_positive, w_k = p_k^gamma_negative",
)
def single_label_asymmetric(
    *,
    gamma_negative: float = 4.0,
    gamma_positive: float = 0.0,
    smoothing: float = 0.1,
    detached: bool = False,
    **common: Unpack[Common],
) -> Loss:
    """Single-label asymmetric loss: use it for label smoothing that leaves well-separated classes alone.

    Formula: -sum_k t_k w_k log p_k with t = (1 - eps) onehot(y) + eps / K, w_y = (1 - p_y)^gamma_positive and
    w_k = p_k^gamma_negative elsewhere, so the smoothed share of a class counts only while the class is probable.

    Settings:
        gamma_negative: at least 0 (default 4, the authors').
        gamma_positive: at least 0 (default 0, the authors'; timm takes 1).
        smoothing: eps, in [0, 1] (default 0.1, the authors').
        detached: hold the weights constant in the gradient (default false, as the authors' program).

    Helps single-label tasks with many classes; differs little from cross-entropy at its defaults. Needs all class
    probabilities, so it is exempt from the speed floors.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.single_label_asymmetric()
    >>> round(loss(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0])).item(), 4)
    0.1585
    """
    name = "single_label_asymmetric"
    settings = {
        "negative": number(name, "gamma_negative", gamma_negative, low=0.0, high=1e6),
        "positive": number(name, "gamma_positive", gamma_positive, low=0.0, high=1e6),
        "smoothing": number(name, "smoothing", smoothing, low=0.0, high=1.0),
        "detached": bool(detached),
    }
    rule = Rule(
        name,
        partial(asymmetric_cost, **settings),
        needs=("log_p", "log_miss", "log_probabilities", "classes"),
        holds_constants=bool(detached),
        rewards_errors=settings["smoothing"] > 0.5 and settings["negative"] < 1.0,  # nearly uniform targets
        soft="own",
        soft_cost=partial(asymmetric_soft_cost, **settings),
        soft_needs=("log_probabilities", "log_miss", "classes"),
    )
    return Loss(rule, **common)
