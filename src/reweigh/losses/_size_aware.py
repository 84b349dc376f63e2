"""Size-aware box loss: the overlap of small boxes counts more."""

from __future__ import annotations

from functools import partial
from typing import Literal, Unpack

import torch
from torch import Tensor

from ..errors import bad_input
from ..evidence import Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Cost, Rule, State, choice
from ._sigmoid_settings import finite

# ------------------------------------------------------------------ weights of areas, from alpha for small ones to 1


def exponential(area: Tensor, *, alpha: float, small: float, medium: float, power: float) -> Tensor:
    """alpha e^(-A / s), within [1, alpha]: 1 from s ln(alpha) on."""
    return (alpha * torch.exp(-area / small)).clamp(1.0, alpha)


def step(area: Tensor, *, alpha: float, small: float, medium: float, power: float) -> Tensor:
    """alpha up to s, (alpha + 1) / 2 up to m, then 1."""
    largest = torch.full_like(area, alpha)
    beyond_small = torch.where(area <= medium, (largest + 1.0) / 2.0, torch.ones_like(area))
    return torch.where(area <= small, largest, beyond_small)


def linear(area: Tensor, *, alpha: float, small: float, medium: float, power: float) -> Tensor:
    """alpha (1 - A / m) + 1, within [1, alpha]: alpha up to m / alpha, 1 from m on."""
    return (alpha * (1.0 - area / medium) + 1.0).clamp(1.0, alpha)


def exp_smooth(area: Tensor, *, alpha: float, small: float, medium: float, power: float) -> Tensor:
    """1 + (alpha - 1) e^(-A / s): the same ends without a kink."""
    return 1.0 + (alpha - 1.0) * torch.exp(-area / small)


def by_power(area: Tensor, *, alpha: float, small: float, medium: float, power: float) -> Tensor:
    """(s / A)^(power / 2), within [1, alpha]: power 1 goes by sides, 2 by areas."""
    return torch.pow(small / area, power / 2.0).clamp(1.0, alpha)


WEIGHTINGS = {
    "exponential": exponential,
    "step": step,
    "linear": linear,
    "exp_smooth": exp_smooth,
    "power": by_power,
}


def size_weight(evidence: Evidence, state: State, *, of_area: partial) -> Tensor:
    """The weight of each true box, in float32 at least, without gradient."""
    return of_area(evidence.area.detach().clamp(min=0.0))


# ------------------------------------------------------------------ cost, and what the weights are divided by


def overlap_cost(evidence: Evidence, state: State) -> Tensor:
    """1 - IoU^2, as (1 - IoU) (1 + IoU), which does not cancel."""
    return evidence.gap * (1.0 + evidence.overlap)


def weighed_cost(evidence: Evidence, state: State, *, weight: Cost) -> Tensor:
    """w (1 - IoU^2)."""
    return weight(evidence, state) * overlap_cost(evidence, state)


def mean_weighed_cost(evidence: Evidence, state: State, *, weight: Cost) -> Tensor:
    """w (1 - IoU^2) over the mean weight of the batch."""
    weights = weight(evidence, state)
    if evidence.kept is None:
        mean = weights.mean()
    else:
        mean = torch.where(evidence.kept, weights, 0.0).sum() / evidence.kept.sum().clamp(min=1)
    return weights / mean * overlap_cost(evidence, state)


@register_loss(
    "size_aware",
    source="size-aware loss of an RVT fork for event cameras (exponential, step, linear)",
    formula="w(A) (1 - IoU^2), A the area of the true box",
)
def size_aware(
    *,
    alpha: float = 2.5,
    threshold: float = 1024.0,
    medium_threshold: float = 9216.0,
    weighting: Literal["exponential", "step", "linear", "exp_smooth", "power"] = "exponential",
    power: float = 1.0,
    normalize: Literal["none", "mean", "sum"] = "none",
    **common: Unpack[Common],
) -> Loss:
    """Size-aware box loss: use it when a detector fits large objects and misses the small ones.

    Formula: w(A) (1 - IoU^2) for boxes x1 y1 x2 y2, (n, 4), in pixels of the network's input; A is the area of the
    true box. With s = threshold and m = medium_threshold, w is by `weighting`
        "exponential": alpha e^(-A/s), within [1, alpha];    "step": alpha up to s, (alpha + 1)/2 up to m, then 1;
        "linear": alpha (1 - A/m) + 1, within [1, alpha];    "exp_smooth": 1 + (alpha - 1) e^(-A/s);
        "power": (s/A)^(power/2), within [1, alpha].

    Settings:
        alpha: weight of the smallest boxes, at least 1 (default 2.5; 1 changes nothing).
        threshold, medium_threshold: s and m in square pixels, above 0 (defaults 32^2 and 96^2, as COCO's sizes).
        weighting: default "exponential", the published form; "exp_smooth" has no kink and reaches everything.
        power: exponent of "power", at least 0 (default 1).
        normalize: "none" (default, published): the scale of the loss grows with the share of small boxes. "mean"
            divides the weights by their mean over the batch, all ranks of a process group together, so that the scale
            stays. "sum" lets the weights enter the denominator of the mean, as class weights do.

    With reduction "mean" that is sum(w l) / n, sum(w l) / (n mean(w)) and sum(w l) / sum(w): the latter two are one
    number. With "sum" and "none", "mean" still divides each w by their mean, and "sum" is what "none" is: w l. With
    sample_weight v the means are sum(v w l) over sum(v), sum(v) mean(w) and sum(v w). Boxes without area, inside out
    or apart have an overlap of 0. Helps the overlap of small boxes; average precision often does not follow, and
    falls when alpha is large and nothing is normalised.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.size_aware()
    >>> round(loss(torch.tensor([[0.0, 0, 16, 12]]), torch.tensor([[0.0, 0, 16, 16]])).item(), 4)
    0.8518
    """
    name = "size_aware"
    settings = {
        "alpha": finite(name, "alpha", alpha, low=1.0),
        "small": finite(name, "threshold", threshold, low=0.0, above=True),
        "medium": finite(name, "medium_threshold", medium_threshold, low=0.0, above=True),
        "power": finite(name, "power", power, low=0.0),
    }
    of_area = choice(name, "weighting", weighting, WEIGHTINGS)
    if of_area is step and settings["medium"] < settings["small"]:
        raise bad_input(
            f"{name}(medium_threshold=...)",
            came=f"{settings['medium']:g} below threshold={settings['small']:g}",
            expected="medium_threshold of at least threshold",
        )
    weight = partial(size_weight, of_area=partial(of_area, **settings))
    cost = {
        "none": partial(weighed_cost, weight=weight),
        "mean": partial(mean_weighed_cost, weight=weight),
        "sum": overlap_cost,
    }
    rule = Rule(
        name,
        choice(name, "normalize", normalize, cost),
        needs=("overlap", "gap", "area"),
        head="boxes",
        coupled=normalize == "mean",
        normalize_rows=weight if normalize == "sum" else None,
    )
    return Loss(rule, **common)
