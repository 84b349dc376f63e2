"""Bi-tempered logistic loss: bounded on outliers, heavy tails near the border."""

from __future__ import annotations

import math
from functools import partial
from typing import Unpack

import torch
from torch import Tensor

from ..evidence import Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, State, number, whole

SMALL = -0.1  # of log p: above it the power series of the true class's part is summed,
TERMS = 14  # to the last digit of float64


def tempered_log(log_x: Tensor, t: float) -> Tensor:
    """(x^(1-t) - 1) / (1 - t) of log x; log x itself at t = 1.

    Where x^(1-t) is small, not by expm1: its derivative would be taken from 1 + (x^(1-t) - 1).
    """
    if t == 1.0:
        return log_x
    exponent = (1.0 - t) * log_x
    raised = torch.where(exponent > -0.7, torch.expm1(exponent), torch.exp(exponent.clamp(max=0.0)) - 1.0)
    return raised / (1.0 - t)


def log_tempered_exp(x: Tensor, t: float) -> Tensor:
    """log of the inverse of `tempered_log`, for x <= 0; -inf below its range."""
    if t == 1.0:
        return x
    base = (1.0 - t) * x
    below = base <= -1.0  # set apart before the logarithm, whose derivatives there would be infinite
    return torch.where(below, -torch.inf, torch.log1p(torch.where(below, 0.0, base)) / (1.0 - t))


def _normalizer(distance: Tensor, t2: float, iterations: int) -> Tensor:
    """The number whose subtraction makes tempered probabilities sum to one. distance (n, K) <= 0.

    Heavy tails (t2 > 1): (sum p)^(1-t2) is a concave function of it, linear where all classes are equal, so
    Newton's method from 0 rises to the root without overshooting, in about six steps. Short tails (t2 < 1)
    have an end where nothing is smooth: bisection.
    """
    if t2 > 1.0:
        found = torch.zeros_like(distance[:, :1])
        for _ in range(iterations):
            base = 1.0 + (1.0 - t2) * (distance - found)
            p = base ** (1.0 / (1.0 - t2))
            total, slope = p.sum(1, keepdim=True), (p / base).sum(1, keepdim=True)
            found = found + (total - total**t2) / ((1.0 - t2) * slope)
        return found
    classes = (distance > -torch.inf).sum(1, keepdim=True).to(distance.dtype)
    low, high = torch.zeros_like(classes), -tempered_log(-classes.log(), t2)
    for _ in range(60):
        middle = (low + high) / 2
        too_much = log_tempered_exp(distance - middle, t2).exp().sum(1, keepdim=True) > 1.0
        low, high = torch.where(too_much, middle, low), torch.where(too_much, high, middle)
    return (low + high) / 2


def log_tempered_softmax(log_probabilities: Tensor, t2: float, iterations: int) -> Tensor:
    """log of the tempered softmax, (n, K); a common shift of its input cancels."""
    if t2 == 1.0:
        return log_probabilities
    distance = log_probabilities - log_probabilities.amax(1, keepdim=True)
    with torch.no_grad():
        normalizer = _normalizer(distance, t2, iterations)
    # Derivatives of the normaliser: each further Newton step, of value 0, makes one more of them exact.
    for _ in range(2):
        log_p = log_tempered_exp(distance - normalizer, t2)
        excess = torch.exp(log_p).sum(1, keepdim=True)
        normalizer = normalizer + (excess - excess.detach()) / torch.exp(t2 * log_p).sum(1, keepdim=True)
    return log_tempered_exp(distance - normalizer, t2)


def true_class_part(log_p: Tensor, t1: float) -> Tensor:
    """-log_t1 p - (1 - p^(2-t1)) / (2 - t1). Near p = 1 the first orders of log p cancel: there its power series."""
    small = log_p > SMALL
    x = torch.where(small, log_p, 0.0)
    series = torch.zeros_like(x)
    for k in range(TERMS, 1, -1):
        series = series * x + ((2.0 - t1) ** (k - 1) - (1.0 - t1) ** (k - 1)) / math.factorial(k)
    beyond = torch.expm1((2.0 - t1) * log_p) / (2.0 - t1) - tempered_log(log_p, t1)
    return torch.where(small, series * x * x, beyond)


def bi_tempered_cost(evidence: Evidence, state: State, *, t1: float, t2: float, iterations: int) -> Tensor:
    """-log_t1 p_y - (1 - sum_j p_j^(2-t1)) / (2 - t1): the divergence from a one-hot target."""
    log_p = log_tempered_softmax(evidence.log_probabilities, t2, iterations)
    index = evidence.target.unsqueeze(1)
    true = log_p.gather(1, index).squeeze(1).clamp(min=torch.finfo(log_p.dtype).min)
    others = torch.exp((2.0 - t1) * log_p.scatter(1, index, -torch.inf)).sum(1)
    return true_class_part(true, t1) + others / (2.0 - t1)


def bi_tempered_soft_cost(evidence: Evidence, state: State, *, t1: float, t2: float, iterations: int) -> Tensor:
    """sum_k [t_k (log_t1 t_k - log_t1 p_k) - (t_k^(2-t1) - p_k^(2-t1)) / (2 - t1)], 0 where p = t."""
    log_p = log_tempered_softmax(evidence.log_probabilities, t2, iterations)
    share = evidence.soft_target
    log_share = torch.log(torch.where(share > 0, share, 1.0))
    finite = torch.where(share > 0, log_p, 0.0)
    gain = share * (tempered_log(log_share, t1) - tempered_log(finite, t1))
    volume = torch.where(share > 0, torch.exp((2.0 - t1) * log_share), 0.0) - torch.exp((2.0 - t1) * log_p)
    return (gain - volume / (2.0 - t1)).sum(1)


@register_loss(
    "bi_tempered",
    source="Amid, Warmuth, Anil and Koren, Robust Bi-Tempered Logistic Loss Based on Bregman Divergences, NeurIPS 2019",
    formula="-log_t1 p_y - (1 - sum_j p_j^(2-t1)) / (2-t1), p = softmax with temper t2, log_t u = (u^(1-t) - 1)/(1-t)",
)
def bi_tempered(*, t1: float = 0.8, t2: float = 1.4, iterations: int = 10, **common: Unpack[Common]) -> Loss:
    """Bi-tempered logistic loss: use it when labels are wrong now and then; no single sample can cost much.

    Formula: sum_k [t_k (log_t1 t_k - log_t1 p_k) - (t_k^(2-t1) - p_k^(2-t1)) / (2-t1)] with p the softmax of
    temper t2; t1 = t2 = 1 is cross-entropy. The normaliser is solved to the last digit, because five steps of the
    usual fixed point leave an error of 5e-4; its derivative is that of the implicit function.

    Settings:
        t1: below 1 bounds the loss of outliers, at least 0 (default 0.8, the paper).
        t2: above 1 makes tails heavy, above 0 (default 1.4, the paper).
        iterations: of Newton's method for the normaliser (default 10; six reach the last digit).

    Helps with label noise; on clean data it learns more slowly. Needs all class probabilities, so it is exempt
    from the speed floors.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.bi_tempered()
    >>> round(loss(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0])).item(), 4)
    0.2308
    """
    t1 = number("bi_tempered", "t1", t1, low=0.0, high=1.9)
    t2 = number("bi_tempered", "t2", t2, low=0.0, high=4.0, above=True)
    settings = {"t1": t1, "t2": t2, "iterations": whole("bi_tempered", "iterations", iterations)}
    rule = Rule(
        "bi_tempered",
        partial(bi_tempered_cost, **settings),
        needs=("log_probabilities",),
        precise=float("inf") if t1 < 0.6 or t2 > 2.0 else 0,  # the first orders of 1 - p cancel; powers magnify
        soft="own",
        soft_cost=partial(bi_tempered_soft_cost, **settings),
        soft_needs=("log_probabilities",),
    )
    return Loss(rule, **common)
