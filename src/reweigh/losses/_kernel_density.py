"""KDE-XE: cross-entropy plus the canonical calibration error, estimated with Dirichlet kernels."""

from __future__ import annotations

from functools import partial
from typing import Unpack

import torch
from torch import Tensor

from ..density import dirichlet_regression
from ..evidence import Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, State, log_loss, number, penalised


def accuracy_gaps(evidence: Evidence, *, bandwidth: float) -> Tensor:
    """(n, K) what the other rows say about each class, minus its probability; without cancellation near certainty."""
    log_all, top = evidence.log_probabilities, evidence.top.unsqueeze(1)
    outcome = torch.zeros_like(log_all).scatter(1, evidence.target.unsqueeze(1), 1.0)
    expected = dirichlet_regression(log_all, outcome, bandwidth=bandwidth, kept=evidence.kept)
    others = expected.scatter(1, top, 0.0)
    # Both sum to one, so at the first choice: (1 - others) - p = (1 - p) - others.
    at_top = torch.sigmoid(-evidence.confidence_log_odds) - others.sum(1)
    return (others - torch.exp(log_all)).scatter(1, top, at_top.unsqueeze(1).to(log_all.dtype))


def density_penalty(evidence: Evidence, state: State, *, bandwidth: float, norm: float) -> Tensor:
    """(1/n) sum_j sum_k |gap_jk|^norm; 0 below two rows."""
    if len(evidence.log_p) < 2:
        return 0.0 * evidence.log_probabilities.clamp(min=0.0).sum()
    error = (accuracy_gaps(evidence, bandwidth=bandwidth).abs() ** norm).sum(1)
    if evidence.kept is None:
        return error.mean()
    rows = evidence.kept.sum()
    return torch.where(rows > 1, torch.where(evidence.kept, error, 0.0).sum() / rows.clamp(min=1), 0.0)


@register_loss(
    "kernel_density",
    aliases=("KDE-XE",),
    source="Popordanoska, Sayer and Blaschko, A Consistent and Differentiable Lp Canonical Calibration Error Estimator, NeurIPS 2022",
    formula="-log p + strength * (1/n) sum_j || sum_(i != j) w_ji e_(y_i) - p_j ||_norm^norm, w_ji Dirichlet kernel weights",
)
def kernel_density(
    *, strength: float = 0.3, bandwidth: float = 0.02, norm: float = 1, **common: Unpack[Common]
) -> Loss:
    """KDE-XE loss: use it to train calibration of all class probabilities, not of the largest alone.

    Formula: -log p + strength * CE_kde, the penalty added to every row. CE_kde = (1/n) sum_j || r_j - p_j ||_norm^norm,
    where r_j is the mean outcome of the other rows, weighed by Dirichlet kernels with parameters p_i / bandwidth + 1.
    No root is taken. Classes that are absent from the batch are no trouble, and the penalty has its full gradient.

    Settings:
        strength: at least 0 (default 0.3, CIFAR-10 and Tiny-ImageNet; 0.5 for CIFAR-100).
        bandwidth: of the kernels, above 0 (default 0.02).
        norm: at least 1 (default 1).

    Helps canonical calibration; hurts with many classes and small batches, where nearly every row is alone. Costs
    n^2 K work for a batch of n rows, in blocks of rows, in float64; exempt from the speed floors.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.kernel_density()
    >>> logits = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.5, 0.0]])
    >>> round(loss(logits, torch.tensor([0, 1, 0])).item(), 4)
    0.9921
    """
    name = "kernel_density"
    strength = number(name, "strength", strength, low=0.0, high=1e6)
    bandwidth = number(name, "bandwidth", bandwidth, low=0.0, high=1e6, above=True)
    penalty = partial(
        density_penalty,
        bandwidth=bandwidth,
        norm=number(name, "norm", norm, low=1.0, high=100.0),
    )
    rule = Rule(
        name,
        penalised(log_loss, penalty, strength=strength),
        needs=("log_p", "log_probabilities", "confidence_log_odds", "top"),
        precise=float("inf"),  # kernels multiply logarithms by 1 / bandwidth
        coupled=True,
        soft="refused",
        # narrow kernels magnify what one row does to the others, which may outweigh its own cost
        rewards_errors=strength > 20.0 * bandwidth or norm > 1.0,
    )
    return Loss(rule, **common)
