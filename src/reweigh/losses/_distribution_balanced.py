"""Distribution-balanced loss: multi-label long tails, where a rare label rarely comes alone."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple, Unpack

import torch
from torch import Tensor

from ..errors import bad_input
from ..evidence import Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, State, counts, number
from ._powers import focal_cost, minus_log_sigmoid, power_of_e
from ._sigmoid_settings import finite, takes_indices


class Balance(NamedTuple):
    """Settings, named as in the loss."""

    map_floor: float
    map_slope: float
    map_center: float
    negative_scale: float
    gamma: float
    balance: float


def initial_state(*, inverse_count: Tensor, prior_logit: Tensor) -> dict[str, Tensor]:
    """What the counts come to, (K,) each."""
    return {"inverse_count": inverse_count, "prior_logit": prior_logit}


def prior_logit(state: State) -> Tensor:
    """What is added to the logit of each class."""
    return state["prior_logit"]


def rebalancing(of_class: Tensor, of_row: Tensor, settings: Balance) -> Tensor:
    """floor + sigmoid(slope (r - center)), r = (1/n_k) / sum of 1/n over the row's present labels; none: r infinite."""
    ratio = of_class / of_row.clamp(min=torch.finfo(of_row.dtype).tiny)
    return settings.map_floor + torch.sigmoid(settings.map_slope * (ratio - settings.map_center))


def tolerant_cost(log_odds: Tensor, settings: Balance) -> Tensor:
    """Of an absent label, log-odds u of its absence: sigmoid(-s u)^gamma (-log sigmoid(s u)) / s."""
    scaled = settings.negative_scale * log_odds
    base = minus_log_sigmoid(scaled) / settings.negative_scale
    return base if settings.gamma == 0.0 else power_of_e(-settings.gamma * minus_log_sigmoid(-scaled)) * base


def balanced_cost(evidence: Evidence, state: State, *, settings: Balance) -> Tensor:
    """The weight of the row and class, times a focal cost where present and a tolerant one where absent."""
    of_class = evidence.per_class(state["inverse_count"]).to(evidence.log_p.dtype)
    shares = evidence.by_label(present=of_class, absent=torch.zeros_like(of_class))
    if evidence.kept is not None:
        shares = torch.where(evidence.kept, shares, 0.0)
    weight = settings.balance * rebalancing(of_class, shares.sum(1, keepdim=True), settings)
    present = focal_cost(settings.gamma)(evidence, state)
    return weight * evidence.by_label(present=present, absent=tolerant_cost(evidence.log_odds, settings))


def balanced_soft_cost(evidence: Evidence, state: State, *, settings: Balance) -> Tensor:
    """The same with labels between 0 and 1: they weigh both terms, and count as much in the row's sum."""
    y = evidence.soft_target
    of_class = evidence.per_class(state["inverse_count"]).to(y.dtype)
    weight = settings.balance * rebalancing(of_class, (y * of_class).sum(1, keepdim=True), settings)
    present = focal_cost(settings.gamma)(evidence, state)
    return weight * (y * present + (1.0 - y) * tolerant_cost(-evidence.log_odds, settings))


@register_loss(
    "distribution_balanced",
    aliases=("DB",),
    source="Wu et al., Distribution-Balanced Loss for Multi-Label Classification in Long-Tailed Datasets, ECCV 2020",
    formula="W [y b s(-u)^g sp(-u) + (1 - y) b s(l u)^g sp(l u) / l], u = z - (k / l) ln(N/n - 1), W = s(10 (r - 0.2)) + 0.1",
)
def distribution_balanced(
    *,
    class_counts: Any,
    sample_count: float | None = None,
    map_floor: float = 0.1,
    map_slope: float = 10.0,
    map_center: float = 0.2,
    negative_scale: float = 2.0,
    prior_strength: float = 0.05,
    gamma: float = 2.0,
    balance: float = 2.0,
    targets: Literal["labels", "index"] = "labels",
    **common: Unpack[Common],
) -> Loss:
    """Distribution-balanced loss: use it for several labels a row whose frequencies are long-tailed.

    Formula: W b [y sigmoid(-u)^g sp(-u) + (1 - y) sigmoid(l u)^g sp(l u) / l] with sp(x) = ln(1 + e^x) and
    u = z - (kappa / l) ln(N / n_k - 1). W = floor + sigmoid(slope (r - center)), where
    r = (1/n_k) / sum of 1/n_j over the row's present labels undoes that rare labels come with frequent ones.

    Settings:
        class_counts: n_k, rows of the training set with label k; above 0 and below `sample_count`.
        sample_count: N, rows of the training set (default the sum of the counts, right for one label a row only).
        map_floor, map_slope, map_center: of W (defaults 0.1, 10 and 0.2).
        negative_scale: l, how much steeper and smaller absent labels are priced, above 0 (default 2).
        prior_strength: kappa (default 0.05). gamma: g, focal exponent, at least 0 (default 2).
        balance: b, a factor (default 2, which offsets the focal exponent). All defaults are the authors' program.
        targets: "labels" of the logits' shape (default), or "index" for class indices, each class against the rest.

    A row without present labels has the largest W. Soft labels weigh both terms. Helps rare labels that appear with
    frequent ones; without such company it is a focal loss with many settings.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.distribution_balanced(class_counts=[80, 15, 5], sample_count=100)
    >>> round(loss(torch.tensor([[1.0, -2.0, 0.5]]), torch.tensor([[1.0, 0.0, 1.0]])).item(), 4)
    0.0616
    """
    name = "distribution_balanced"
    number_of = counts(name, class_counts, zero=False, why="ln(N / n - 1) and 1 / n have no limit there")
    total = float(number_of.sum()) if sample_count is None else finite(name, "sample_count", sample_count, low=0.0)
    if bool((number_of >= total).any()):
        first = int((number_of >= total).nonzero()[0])
        raise bad_input(
            f"{name}(sample_count=...)",
            came=f"{total:g} rows, and {float(number_of[first]):g} of them with label {first}",
            expected="more rows than any label has (ln(N / n - 1) has no limit there)",
            mend="Give the number of rows of the training set.",
        )
    scale = finite(name, "negative_scale", negative_scale, low=0.0, above=True)
    strength = finite(name, "prior_strength", prior_strength)
    settings = Balance(
        finite(name, "map_floor", map_floor, low=0.0),
        finite(name, "map_slope", map_slope),
        finite(name, "map_center", map_center),
        scale,
        number(name, "gamma", gamma, low=0.0, high=100.0),
        finite(name, "balance", balance, low=0.0),
    )
    logit = -(strength / scale) * torch.log(total / number_of - 1.0)
    needs = ("log_odds", "log_p") if settings.gamma == 0.0 else ("log_odds", "log_p", "log_miss")
    rule = Rule(
        name,
        partial(balanced_cost, settings=settings),
        needs=needs,
        head="sigmoid",
        init=partial(initial_state, inverse_count=1.0 / number_of, prior_logit=logit),
        offset=prior_logit,
        soft="own",
        soft_cost=partial(balanced_soft_cost, settings=settings),
        soft_needs=needs,
        num_classes=len(number_of),
        index_targets=takes_indices(name, targets),
    )
    return Loss(rule, **common)
