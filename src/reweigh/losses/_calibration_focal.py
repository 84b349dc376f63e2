"""CalFocal: focal loss whose gamma follows the calibration of the validation set, without memory."""

from __future__ import annotations

import math
from functools import partial
from typing import Unpack

import torch
from torch import Tensor

from ..evidence import Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, State, choice, log_loss, number, whole
from ._confidence_bins import LARGEST_GAMMA, READINGS, UNKNOWN, bin_of, bin_statistics, first_edges


def gamma_of_gap(gap: Tensor, *, scale: float, gamma_max: float) -> Tensor:
    """exp(scale * gap), at most gamma_max; never beyond a finite number, whatever gamma_max."""
    return torch.exp((scale * gap).clamp(max=math.log(LARGEST_GAMMA))).clamp(max=gamma_max)


def row_gammas(evidence: Evidence, state: State, *, scale: float, gamma_max: float) -> Tensor:
    """Case 1: each row's own probability against the accuracy of its bin; 1 where nothing is known."""
    accuracy = state["accuracies"][bin_of(evidence.log_odds, state["edges"])].to(evidence.log_p.dtype)
    gap = torch.exp(evidence.log_p.detach()) - accuracy
    return torch.where(accuracy < 0, 1.0, gamma_of_gap(gap, scale=scale, gamma_max=gamma_max))


def bin_gammas(evidence: Evidence, state: State, *, scale: float, gamma_max: float) -> Tensor:
    """Case 2: the gamma of the row's bin."""
    return state["gammas"][bin_of(evidence.log_odds, state["edges"])].to(evidence.log_p.dtype)


def calibrated_cost(evidence: Evidence, state: State, *, gammas: partial) -> Tensor:
    """(1 - p)^gamma (-log p), gamma a constant of the gradient."""
    return torch.exp(gammas(evidence, state) * evidence.log_miss) * log_loss(evidence, state)


def observe_accuracies(evidence: Evidence, state: State, *, scale: float, gamma_max: float) -> dict[str, Tensor]:
    """Equal-mass edges of the validation confidences, and the accuracy of each bin."""
    edges, _, accuracies = bin_statistics(evidence, state)
    return {"edges": edges.to(state["edges"].dtype), "accuracies": accuracies.to(state["accuracies"].dtype)}


def observe_gaps(evidence: Evidence, state: State, *, scale: float, gamma_max: float) -> dict[str, Tensor]:
    """Equal-mass edges of the validation confidences, and gamma from the gap of each bin."""
    edges, gap, _ = bin_statistics(evidence, state)
    gammas = gamma_of_gap(gap, scale=scale, gamma_max=gamma_max)
    return {"edges": edges.to(state["edges"].dtype), "gammas": gammas.to(state["gammas"].dtype)}


def unknown_accuracies(*, bins: int) -> dict[str, Tensor]:
    """Equal-width bins about which nothing is known: gamma is 1."""
    return {"edges": first_edges(bins).float(), "accuracies": torch.full((bins,), UNKNOWN, dtype=torch.float32)}


def unit_gammas(*, bins: int) -> dict[str, Tensor]:
    """Equal-width bins, every gamma 1."""
    return {"edges": first_edges(bins).float(), "gammas": torch.ones(bins, dtype=torch.float32)}


CASES = {1: (row_gammas, observe_accuracies, unknown_accuracies), 2: (bin_gammas, observe_gaps, unit_gammas)}


@register_loss(
    "calibration_focal",
    aliases=("CalFocal",),
    source="Ghosh, Schaaf and Gormley, AdaFocal: Calibration-aware Adaptive Focal Loss, NeurIPS 2022 (section on CalFocal)",
    formula="-(1 - p)^gamma log p, gamma = exp(scale (p - A_b)) (case 1) or exp(scale (C_b - A_b)) (case 2)",
)
def calibration_focal(
    *, scale: float = 1.0, case: int = 1, bins: int = 15, gamma_max: float = 20.0, **common: Unpack[Common]
) -> Loss:
    """CalFocal: use it as AdaFocal without memory, to see what the validation set says now.

    Formula: (1 - p)^gamma (-log p) with gamma = exp(scale (p - A_b)) for each row (case 1) or exp(scale (C_b - A_b))
    for each bin (case 2); b is the bin of p, A_b and C_b accuracy and mean confidence of the validation rows in it.
    After each epoch `loss.observe(validation)` makes new equal-mass bins. Gamma is a constant of the gradient; it is 1
    before the first observation and in bins without rows.

    Settings:
        scale: the paper's lambda, above 0 (default 1; the paper also tries 10 and 100).
        case: 1 (default) or 2.
        bins: at least 2 (default 15, the paper).
        gamma_max: bound of gamma, at least 0, infinity included (default 20, as AdaFocal's; the paper has none).

    State: `edges` (bins + 1, log-odds) and `accuracies` (case 1; -1: unknown) or `gammas` (case 2), (bins).

    Helps calibration quickly, because gamma does not have to grow; hurts with a large scale, where gamma jumps between
    its bounds. The validation set drives training, so judge calibration on other rows.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.calibration_focal(case=2, bins=2)
    >>> loss.observe(torch.tensor([[4.0, 0.0], [3.0, 0.0], [0.5, 0.0], [0.0, 1.0]]), torch.tensor([0, 1, 1, 1]))
    >>> [round(gamma, 3) for gamma in loss.gammas.tolist()]
    [1.546, 0.982]
    """
    name = "calibration_focal"
    settings = {
        "scale": number(name, "scale", scale, low=0.0, high=1e6, above=True),
        "gamma_max": number(name, "gamma_max", gamma_max, low=0.0),
    }
    gammas, observe, initial = choice(name, "case", case, CASES)
    rule = Rule(
        name,
        partial(calibrated_cost, gammas=partial(gammas, **settings)),
        needs=("log_p", "log_miss", "log_odds"),
        init=partial(initial, bins=whole(name, "bins", bins, low=2)),
        observes="validation",
        observe=partial(observe, **settings),
        observe_needs=("confidence_log_odds", "top"),
        readings=READINGS,
        holds_constants=True,
    )
    return Loss(rule, **common)
