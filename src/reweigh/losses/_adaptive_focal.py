"""AdaFocal: each bin of confidence has a gamma of its own, moved by the validation set."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, Unpack

import torch
from torch import Tensor

from ..evidence import Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, State, choice, number, whole
from ._confidence_bins import LARGEST_GAMMA, READINGS, bin_of, bin_statistics, first_edges, rounded_bin_of
from ._inverse_focal import HIGHEST_SOUND_GAMMA

LARGEST_EXPONENT = 700.0  # of one update: beyond it a gamma is at its bound whatever it was
LOWEST_GAMMA = -100.0  # (1 + p)^100 is the most that float32 costs bear


def adaptive_gamma_cost(evidence: Evidence, gamma: Tensor) -> Tensor:
    """(1 - p)^gamma (-log p) where gamma is positive, (1 + p)^|gamma| (-log p) where it is negative."""
    gamma = gamma.to(evidence.log_p.dtype)
    log_base = torch.where(gamma > 0, evidence.log_miss, torch.log1p(torch.exp(evidence.log_p)))
    return torch.exp(gamma.abs() * log_base) * -evidence.log_p


def adaptive_cost(evidence: Evidence, state: State, *, place: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The cost with the gamma of each row's bin."""
    return adaptive_gamma_cost(evidence, state["gammas"][place(evidence.log_odds, state["edges"])])


def next_gammas(
    gammas: Tensor, gaps: Tensor, *, scale: float, gamma_max: float, gamma_min: float, switch: float
) -> Tensor:
    """gamma exp(+-scale gap), thrown to the other branch when it comes closer to 0 than `switch`, then bounded."""
    exponent = scale * torch.where(gammas > 0, gaps, -gaps)
    grown = gammas * torch.exp(exponent.clamp(max=LARGEST_EXPONENT))
    crossed = switch * torch.where(grown > 0, -1.0, 1.0).to(grown.dtype)
    return torch.where(grown.abs() < switch, crossed, grown).clamp(gamma_min, min(gamma_max, LARGEST_GAMMA))


def observe_validation(
    evidence: Evidence,
    state: State,
    *,
    scale: float,
    gamma_max: float,
    gamma_min: float,
    switch: float,
    statistics: partial,
) -> dict[str, Tensor]:
    """One update: new equal-mass edges of the confidence, the gap of each bin, the gammas moved by it."""
    edges, gaps, _ = statistics(evidence, state)
    gammas = next_gammas(
        state["gammas"].double(), gaps.double(), scale=scale, gamma_max=gamma_max, gamma_min=gamma_min, switch=switch
    )
    return {"edges": edges.to(state["edges"].dtype), "gammas": gammas.to(state["gammas"].dtype)}


def initial_state(*, bins: int, gamma: float) -> dict[str, Tensor]:
    """Equal-width bins, every gamma the same: the first epoch trains plain focal loss."""
    return {"edges": first_edges(bins).float(), "gammas": torch.full((bins,), gamma, dtype=torch.float32)}


@register_loss(
    "adaptive_focal",
    aliases=("AdaFocal",),
    source="Ghosh, Schaaf and Gormley, AdaFocal: Calibration-aware Adaptive Focal Loss, NeurIPS 2022",
    formula="-(1 - p)^gamma_b log p, or -(1 + p)^|gamma_b| log p where gamma_b < 0; gamma_b moved by validation gaps",
)
def adaptive_focal(
    *,
    scale: float = 1.0,
    bins: int = 15,
    gamma_max: float = 20.0,
    gamma_min: float = -2.0,
    switch: float = 0.2,
    gamma_start: float = 1.0,
    parity: Literal["ours", "official"] = "ours",
    **common: Unpack[Common],
) -> Loss:
    """AdaFocal: use it when you train long and want calibration without choosing gamma.

    Formula: with b the bin of p, (1 - p)^gamma_b (-log p), or (1 + p)^|gamma_b| (-log p) where gamma_b is negative.
    After each epoch, `loss.observe(validation)` makes equal-mass bins of the validation confidences and sets
    gamma_b <- gamma_b exp(+-scale (C_b - A_b)), jumping to the other branch when |gamma_b| falls below `switch`.

    Settings:
        scale: the paper's lambda, above 0 (default 1; larger adapts faster in short trainings).
        bins: at least 2 (default 15, the paper). gamma_start: first gamma (default 1).
        gamma_max: upper bound, at least 0, infinity included (default 20).
        gamma_min: lower bound, from -100 to 0 (default -2; below -3.5911 the gradient can reward errors).
        switch: the paper's S_th (default 0.2).
        parity: "official" drops the lowest validation sample and works with float32 probabilities, as the
            published program does: edges collapse where many confidences round to 1.

    State: `edges` (bins + 1, log-odds), `gammas` (bins). `loss.edges_as_probability` reads the edges.

    Helps calibration on long trainings; on short ones gamma hardly moves. The validation set drives training, so
    judge calibration on other rows.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.adaptive_focal(bins=2)
    >>> loss.observe(torch.tensor([[4.0, 0.0], [3.0, 0.0], [0.5, 0.0], [0.0, 1.0]]), torch.tensor([0, 1, 1, 1]))
    >>> [round(gamma, 3) for gamma in loss.gammas.tolist()]
    [1.546, 0.982]
    """
    name = "adaptive_focal"
    settings = {
        "scale": number(name, "scale", scale, low=0.0, high=1e6, above=True),
        "switch": number(name, "switch", switch, low=0.0, high=1e6),
        "gamma_max": number(name, "gamma_max", gamma_max, low=0.0),
        "gamma_min": number(name, "gamma_min", gamma_min, low=LOWEST_GAMMA, high=0.0),
    }
    place = choice(name, "parity", parity, {"ours": bin_of, "official": rounded_bin_of})
    statistics = partial(bin_statistics, parity=parity)
    start = number(name, "gamma_start", gamma_start, low=settings["gamma_min"], high=settings["gamma_max"])
    rule = Rule(
        name,
        partial(adaptive_cost, place=place),
        needs=("log_p", "log_miss", "log_odds"),
        init=partial(initial_state, bins=whole(name, "bins", bins, low=2), gamma=start),
        observes="validation",
        observe=partial(observe_validation, statistics=statistics, **settings),
        observe_needs=("confidence_log_odds", "top"),
        readings=READINGS,
        rewards_errors=settings["gamma_min"] < -HIGHEST_SOUND_GAMMA,
    )
    return Loss(rule, **common)
