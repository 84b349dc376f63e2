"""Confidence penalty: cross-entropy minus a share of the entropy."""

from __future__ import annotations

from functools import partial
from typing import Unpack

from torch import Tensor

from ..evidence import Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, State, log_loss, number


def penalised_cost(evidence: Evidence, state: State, *, beta: float) -> Tensor:
    """-log p - beta H(p)."""
    return log_loss(evidence, state) - beta * evidence.entropy


@register_loss(
    "confidence_penalty",
    aliases=("CP",),
    source="Pereyra et al., Regularizing Neural Networks by Penalizing Confident Output Distributions, ICLR 2017 workshop",
    formula="-log p - beta H(p), H(p) = -sum_k p_k log p_k",
)
def confidence_penalty(*, beta: float = 0.1, **common: Unpack[Common]) -> Loss:
    """Confidence penalty: use it when a network is too sure of everything and label smoothing is too blunt.

    Formula: -log p - beta H(p), H the entropy of the predicted distribution in nats. It can be negative.

    Settings:
        beta: at least 0 (default 0.1, the paper); 0 is cross-entropy.

    Helps over-confidence; hurts where rows are truly easy, because it keeps pulling them back. From a beta of about 1
    it also holds back rows that are still wrong.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.confidence_penalty(beta=0.1)
    >>> round(loss(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0])).item(), 4)
    0.1174
    """
    beta = number("confidence_penalty", "beta", beta, low=0.0, high=1e6)
    rule = Rule(
        "confidence_penalty",
        partial(penalised_cost, beta=beta),
        needs=("log_p", "entropy"),
        precise=100,  # the two terms nearly cancel where beta times the log-odds is near 1
        soft="linear",
        rewards_errors=beta > 1.0,  # with about a thousand classes; later with fewer
    )
    return Loss(rule, **common)
