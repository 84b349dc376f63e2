"""Asymmetric loss: absent labels fade faster than present ones, and below a margin they do not count at all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, Unpack

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..evidence import Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Cost, Rule, State, choice, log_loss, number, sided, weighted
from ._powers import WHOLE, focal_cost, focal_needs, miss_weight, power_of_e, product
from ._shifted_probability import Margin, log_rest_form, margin_of, shifted
from ._sigmoid_settings import finite, takes_indices

NOTHING = 1e30  # minus the logarithm of nothing


class Shift(NamedTuple):
    """A margin above 0 and how to take log(1 - p_m)."""

    margin: Margin
    log_rest: Callable[[Tensor, Tensor, Margin], Tensor]


# ------------------------------------------------------------------ where the label is absent: `complement` is p


def shifted_log_loss(evidence: Evidence, state: State, *, shift: Shift) -> Tensor:
    """-log(1 - p_m)."""
    p_m, _ = shifted(-evidence.log_odds, evidence.complement, shift.margin)
    return -shift.log_rest(p_m, evidence.log_p, shift.margin)


def shifted_weight(evidence: Evidence, state: State, *, gamma: float, shift: Shift) -> Tensor:
    """p_m^gamma; where p_m is 0 and has no logarithm the loss is 0 whatever the weight."""
    p_m, above = shifted(-evidence.log_odds, evidence.complement, shift.margin)
    if gamma in WHOLE:
        return product(p_m, int(gamma))
    return power_of_e(gamma * torch.log(p_m + (1.0 - above)))


# ------------------------------------------------------------------ where the label is present: `complement` is 1 - p


def widened_weight(evidence: Evidence, state: State, *, gamma: float, shift: Shift) -> Tensor:
    """min(1 - p + m, 1)^gamma."""
    p_m, _ = shifted(evidence.log_odds, 1.0 - evidence.complement, shift.margin)
    return power_of_e(gamma * shift.log_rest(p_m, evidence.log_miss, shift.margin))


# ------------------------------------------------------------------ soft labels, as published


def log_of_sum(log_a: Tensor, log_b: Tensor) -> Tensor:
    """log(a + b). Unlike that of logaddexp, its second derivative is finite however far a is from b."""
    apart = log_a - log_b
    return torch.where(apart > 0, log_a - logsigmoid(apart), log_b - logsigmoid(-apart))


def official_soft_cost(
    evidence: Evidence, state: State, *, gammas: tuple[float, float], shift: Shift | None, detached: bool
) -> Tensor:
    """(1 - pt)^(gamma+ y + gamma- (1 - y)) times y (-log p) + (1 - y) (-log(1 - p_m)), pt = y p + (1 - y) (1 - p_m)."""
    y = evidence.soft_target
    log_rest, log_shifted = evidence.log_miss, evidence.log_p
    if shift is not None:
        p_m, above = shifted(evidence.log_odds, torch.exp(evidence.log_p), shift.margin)
        log_rest = shift.log_rest(p_m, evidence.log_miss, shift.margin)
        log_shifted = torch.where(above > 0, torch.log(p_m + (1.0 - above)), -NOTHING)
    tiny = torch.finfo(y.dtype).tiny  # its logarithm stands for that of 0
    log_y, log_not_y = torch.log(y.clamp(min=tiny)), torch.log((1.0 - y).clamp(min=tiny))
    log_missed = log_of_sum(log_y + evidence.log_miss, log_not_y + log_shifted)  # log(1 - pt)
    weight = torch.exp((gammas[0] * y + gammas[1] * (1.0 - y)) * log_missed)
    return (weight.detach() if detached else weight) * -(y * evidence.log_p + (1.0 - y) * log_rest)


# ------------------------------------------------------------------ the two variants


def _official(positive: float, negative: float, shift: Shift | None, detached: bool) -> tuple[Cost, Cost]:
    if shift is None:
        return focal_cost(positive, detached=detached), focal_cost(negative, detached=detached)
    base = partial(shifted_log_loss, shift=shift)
    weight = partial(shifted_weight, gamma=negative, shift=shift)
    absent = base if negative == 0.0 else weighted(weight, base, detached=detached)
    return focal_cost(positive, detached=detached), absent


def _lfa(positive: float, negative: float, shift: Shift | None, detached: bool) -> tuple[Cost, Cost]:
    if shift is None:
        return _official(positive, negative, None, detached)
    widened = partial(widened_weight, gamma=positive, shift=shift)
    present = log_loss if positive == 0.0 else weighted(widened, log_loss, detached=detached)
    base = partial(shifted_log_loss, shift=shift)
    return present, base if negative == 0.0 else weighted(miss_weight(negative), base, detached=detached)


VARIANTS = {"official": _official, "lfa": _lfa}


@register_loss(
    "asymmetric",
    aliases=("ASL",),
    source="Ridnik et al., Asymmetric Loss For Multi-Label Classification, ICCV 2021; variant of Bozhao-Liu/LFA-demo, 2025",
    formula="present: -(1 - p)^gamma+ log p; absent: -p_m^gamma- log(1 - p_m), p_m = max(p - margin, 0)",
)
def asymmetric(
    *,
    gamma_negative: float = 4.0,
    gamma_positive: float = 1.0,
    margin: float = 0.05,
    variant: Literal["official", "lfa"] = "official",
    detached: bool = False,
    targets: Literal["labels", "index"] = "labels",
    **common: Unpack[Common],
) -> Loss:
    """Asymmetric loss: use it for many labels of which few are present.

    Formula ("official"): y (1 - p)^gamma+ (-log p) + (1 - y) p_m^gamma- (-log(1 - p_m)), p = sigmoid(z) and
    p_m = max(p - margin, 0). "lfa" is what another author's program computes: with a = min(1 - p + margin, 1),
    y a^gamma+ (-log p) + (1 - y) p^gamma- (-log a).

    Settings:
        gamma_negative, gamma_positive: fading of easy absent and present labels, at least 0 (defaults 4 and 1, the
            authors' program).
        margin: absent labels below this probability cost nothing, in [0, 1) (default 0.05).
        variant: "official" (default) or "lfa".
        detached: hold the weights constant in the gradient (default false; true is `disable_torch_grad_focal_loss`).
        targets: "labels" of the logits' shape (default), or "index" for class indices, each class against the rest.

    Soft labels: the official variant has a form of its own, with the exponent and the probability mixed by the
    label; "lfa" mixes the two costs. No epsilon is added to any logarithm: the limits are right without. Helps
    mean average precision with missing labels; hurts calibration (a label of probability 1/2 is best predicted
    as 0.64), and labels that are mostly present can be lost.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.asymmetric()
    >>> round(loss(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 0.0]])).item(), 4)
    0.4653
    """
    name = "asymmetric"
    negative = finite(name, "gamma_negative", gamma_negative, low=0.0)
    positive = finite(name, "gamma_positive", gamma_positive, low=0.0)
    least = number(name, "margin", margin, low=0.0, high=0.999)
    costs = choice(name, "variant", variant, VARIANTS)
    shift = None if least == 0.0 else Shift(margin_of(least), log_rest_form(margin_of(least)))
    present, absent = costs(positive, negative, shift, detached)
    everything = ("log_odds", "log_p", "log_miss") if shift is not None else ("log_p", "log_miss")
    same = shift is None and positive == negative
    official = variant == "official"
    soft_cost = partial(official_soft_cost, gammas=(positive, negative), shift=shift, detached=detached)
    rule = Rule(
        name,
        present if same else sided(present=present, absent=absent),
        needs=focal_needs(positive) if same else everything,
        head="sigmoid",
        soft="own" if official else "outcomes",
        soft_cost=soft_cost if official else None,
        soft_needs=everything if official else (),
        holds_constants=detached and positive + negative > 0,
        index_targets=takes_indices(name, targets),
    )
    return Loss(rule, **common)
