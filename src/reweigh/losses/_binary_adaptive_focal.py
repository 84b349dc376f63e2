"""AdaFocal for sigmoid heads: each bin of confidence has a gamma of its own, over all labels or for each class."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, Unpack

import torch
from torch import Tensor

from ..errors import bad_input
from ..evidence import Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, State, choice, number, whole
from ._adaptive_focal import LOWEST_GAMMA, initial_state, next_gammas
from ._confidence_bins import READINGS, bin_of, bin_statistics
from ._inverse_focal import HIGHEST_SOUND_GAMMA
from ._powers import power_of_e
from ._sigmoid_settings import takes_indices

# ------------------------------------------------------------------ cost


def pooled_gamma(evidence: Evidence, state: State) -> Tensor:
    """The gamma of each label's bin, from one table for all classes."""
    return torch.take(state["gammas"], bin_of(evidence.log_odds.contiguous(), state["edges"]))


def class_gamma(evidence: Evidence, state: State) -> Tensor:
    """The gamma of each label's bin, from the table of its class."""
    edges, gammas = state["edges"], state["gammas"]  # (K, bins + 1), (K, bins)
    odds = evidence.log_odds.detach().movedim(1, 0)  # (K, n, d...)
    inner = edges[:, 1:-1].to(odds.dtype).contiguous()
    place = torch.searchsorted(inner, odds.flatten(1).contiguous(), right=True)  # (K, n d...)
    return gammas.gather(1, place).view(odds.shape).movedim(0, 1)


def adaptive_label_cost(evidence: Evidence, state: State, *, gamma_of: Callable[[Evidence, State], Tensor]) -> Tensor:
    """(1 - p)^gamma (-log p) where gamma is positive, (1 + p)^|gamma| (-log p) where it is negative."""
    gamma = gamma_of(evidence, state).to(evidence.log_p.dtype)
    fading = gamma.clamp(min=0.0) * evidence.log_miss
    rising = (-gamma).clamp(min=0.0) * torch.log1p(1.0 - evidence.complement)
    return power_of_e(fading + rising) * -evidence.log_p


# ------------------------------------------------------------------ memory


def decisions(log_odds: Tensor, kept: Tensor | None) -> Evidence:
    """Labels as decisions between present and absent: confidence max(p, 1 - p), right where p of the truth > 1/2."""
    odds = log_odds.reshape(-1)
    right = (odds > 0).long()
    kept = None if kept is None else kept.expand(log_odds.shape).reshape(-1)
    return Evidence(confidence_log_odds=odds.abs(), top=right, target=torch.ones_like(right), kept=kept)


def updated(evidence: Evidence, state: State, **settings: float) -> dict[str, Tensor]:
    """New equal-mass edges and the gammas moved by each bin's gap."""
    edges, gaps, _ = bin_statistics(evidence, state)
    gammas = next_gammas(state["gammas"].double(), gaps.double(), **settings)
    return {"edges": edges.to(state["edges"].dtype), "gammas": gammas.to(state["gammas"].dtype)}


def observe_pooled(evidence: Evidence, state: State, **settings: float) -> dict[str, Tensor]:
    """All labels together."""
    return updated(decisions(evidence.log_odds, evidence.kept), state, **settings)


def observe_classes(evidence: Evidence, state: State, **settings: float) -> dict[str, Tensor]:
    """Each class from its own labels; a class none of whose labels count stays as it is."""
    kept = torch.ones_like(evidence.log_odds, dtype=torch.bool) if evidence.kept is None else evidence.kept
    if not bool(kept.any()):
        raise bad_input("observing labels", came="none that count", expected="at least one on one of the ranks")
    found = []
    for k, counts in enumerate(kept.expand(evidence.log_odds.shape).unbind(1)):
        own = {name: state[name][k] for name in ("edges", "gammas")}
        found.append(
            updated(decisions(evidence.log_odds[:, k], counts), own, **settings) if bool(counts.any()) else own
        )
    return {name: torch.stack([one[name] for one in found]) for name in ("edges", "gammas")}


def initial_class_state(*, bins: int, gamma: float, num_classes: int) -> dict[str, Tensor]:
    """One table a class."""
    return {name: value.repeat(num_classes, 1) for name, value in initial_state(bins=bins, gamma=gamma).items()}


@register_loss(
    "binary_adaptive_focal",
    source="Ghosh, Schaaf and Gormley, AdaFocal, NeurIPS 2022, on sigmoids",
    formula="-(1 - p)^gamma_b log p, or -(1 + p)^|gamma_b| log p where gamma_b < 0; p of what is true of the label",
)
def binary_adaptive_focal(
    *,
    state: Literal["pooled", "per_class"] = "pooled",
    num_classes: int | None = None,
    scale: float = 1.0,
    bins: int = 15,
    gamma_max: float = 20.0,
    gamma_min: float = -2.0,
    switch: float = 0.2,
    gamma_start: float = 1.0,
    targets: Literal["labels", "index"] = "labels",
    **common: Unpack[Common],
) -> Loss:
    """AdaFocal on sigmoids: use it when you train long on several labels and want calibration without choosing gamma.

    Formula: `adaptive_focal` on p_t, the probability of what is true of the label. The confidence of such a decision
    is max(p, 1 - p), and it is right where p_t > 1/2; after each epoch `loss.observe(validation)` makes equal-mass
    bins of the confidences and moves each bin's gamma by its gap.

    Settings:
        state: one table of bins for all labels, "pooled" (default), or one a class, "per_class", which needs
            num_classes and enough validation labels of each class.
        scale, bins, gamma_max, gamma_min, switch, gamma_start: as in `adaptive_focal` (defaults 1, 15, 20, -2, 0.2, 1).
        targets: "labels" of the logits' shape (default), or "index" for class indices, each class against the rest.

    State: `edges` (bins + 1, log-odds) and `gammas` (bins), under "per_class" with K rows. Confidences are at least
    1/2, so all labels that the model has wrong are in the lowest bin. Helps calibration on long trainings; most
    labels of a long tail are easy absences, which decide the pooled bins.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.binary_adaptive_focal(bins=2)
    >>> loss.observe(torch.tensor([[4.0, -3.0], [0.5, 1.0]]), torch.tensor([[1, 1], [1, 0]]))
    >>> [round(gamma, 3) for gamma in loss.gammas.tolist()]
    [1.546, 0.982]
    """
    name = "binary_adaptive_focal"
    settings = {
        "scale": number(name, "scale", scale, low=0.0, high=1e6, above=True),
        "switch": number(name, "switch", switch, low=0.0, high=1e6),
        "gamma_max": number(name, "gamma_max", gamma_max, low=0.0),
        "gamma_min": number(name, "gamma_min", gamma_min, low=LOWEST_GAMMA, high=0.0),
    }
    start = number(name, "gamma_start", gamma_start, low=settings["gamma_min"], high=settings["gamma_max"])
    first = {"bins": whole(name, "bins", bins, low=2), "gamma": start}
    pooled = choice(name, "state", state, {"pooled": True, "per_class": False})
    size = None if num_classes is None else whole(name, "num_classes", num_classes)
    if not pooled and size is None:
        raise bad_input(f"{name}(state='per_class')", came="no num_classes", expected="num_classes, one table for each")
    init = partial(initial_state, **first) if pooled else partial(initial_class_state, **first, num_classes=size)
    rule = Rule(
        name,
        partial(adaptive_label_cost, gamma_of=pooled_gamma if pooled else class_gamma),
        needs=("log_odds", "log_p", "log_miss"),
        head="sigmoid",
        init=init,
        observes="validation",
        observe=partial(observe_pooled if pooled else observe_classes, **settings),
        observe_needs=("log_odds",),
        readings=READINGS,
        rewards_errors=settings["gamma_min"] < -HIGHEST_SOUND_GAMMA,
        num_classes=size,
        index_targets=takes_indices(name, targets),
    )
    return Loss(rule, **common)
