"""Soft targets: shares of classes, or labels between 0 and 1."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ..errors import InputError
from ._checks import apply_if, check
from ._compare import demand, demand_close
from ._reference import priced, softmax_cost
from ._shapes import labelled
from ._subject import Data, Subject, draw

TIGHT: dict[str, Any] = {"relative": 1e-8, "absolute": 1e-11}


def _soft(subject: Subject, seed: int) -> Data:
    data = draw(subject, 6, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    share = torch.rand(data.logits.shape, generator=generator, dtype=torch.float64)
    share[share < 0.2] = 0.0
    share[:, 0] += 0.1
    return Data(
        data.logits, share / share.sum(1, keepdim=True) if subject.rule.head == "softmax" else share.clamp(max=1)
    )


def _takes(subject: Subject) -> None:
    apply_if(subject.rule.head != "boxes", "boxes have no shares")
    apply_if(not subject.rule.index_targets, "the loss was built for class indices")
    rule = subject.rule
    demand(
        rule.head == "sigmoid" or rule.soft != "outcomes" or "log_probabilities" not in rule.needs,
        "a rule that needs log_probabilities cannot be asked about each class in turn as the outcome. Declare "
        "soft='own' with a soft_cost, soft='linear' if the cost is affine in log_p, or soft='refused'.",
    )


@check("soft_targets")
def soft_targets(subject: Subject) -> None:
    """A soft target costs the shares' average over outcomes, or what the rule's own soft form says."""
    _takes(subject)
    data = _soft(subject, 40)
    z, y = subject.place(data.logits), subject.place(data.target)
    if subject.rule.soft == "refused":
        try:
            subject.built()(z, y)
        except InputError:
            return
        demand(False, "soft targets are declared refused, but gave a number.")
    for reduction in ("none", "mean"):
        logits = data.logits.clone().requires_grad_()
        right = getattr(priced(subject.loss, logits, data.target), reduction)()
        (slope,) = torch.autograd.grad(right.sum(), logits)
        z = subject.place(data.logits).requires_grad_()
        value = subject.built(reduction=reduction)(z, y)
        (gradient,) = torch.autograd.grad(value.sum(), z)
        demand_close(value, right, f"soft targets, reduction={reduction!r}", **TIGHT)
        demand_close(gradient, slope, f"soft targets, reduction={reduction!r}: the gradient", **TIGHT)


@check("soft_and_hard")
def soft_and_hard(subject: Subject) -> None:
    """Shares of 0 and 1 cost what the class index, or the label, costs."""
    _takes(subject)
    apply_if(subject.rule.soft != "refused", "soft targets are refused")
    data = draw(subject, 6, seed=41)
    y = subject.place(labelled(data))
    found = []
    for target in (subject.place(data.target), y):
        z = subject.place(data.logits).requires_grad_()
        cost = subject.built(reduction="none")(z, target)
        (gradient,) = torch.autograd.grad(cost.sum(), z)
        found.append((cost, gradient))
    demand_close(found[1][0], found[0][0], "one-hot shares, and class indices", **TIGHT)
    demand_close(found[1][1], found[0][1], "the gradient of one-hot shares, and of class indices", **TIGHT)


@check("soft_targets_saturated")
def soft_targets_saturated(subject: Subject) -> None:
    """Soft targets at logits up to 1e4, in float32: finite costs and gradients that agree with float64."""
    _takes(subject)
    apply_if(subject.rule.soft != "refused" and not subject.rule.coupled, "soft targets are refused, or rows coupled")
    data = _soft(subject, 42)
    for spread in (20.0, 1e3):
        logits = (data.logits * spread).clamp(-1e4, 1e4)
        exact = logits.float().double().requires_grad_()
        right = priced(subject.loss, exact, data.target.float()).none()
        (slope,) = torch.autograd.grad(right.sum(), exact)
        z = subject.place(logits, torch.float32).requires_grad_()
        cost = subject.built(reduction="none")(z, subject.place(data.target, torch.float32))
        (gradient,) = torch.autograd.grad(cost.sum(), z)
        demand(bool(torch.isfinite(cost).all()), f"logits of size {2 * spread:g}: a cost is not finite.")
        demand(bool(torch.isfinite(gradient).all()), f"logits of size {2 * spread:g}: a gradient is not finite.")
        demand_close(
            cost, right, f"soft targets, logits of size {2 * spread:g}", relative=1e-4, absolute=1e-6, within=1e30
        )
        demand_close(gradient, slope, "their gradient", relative=1e-4, absolute=1e-6, within=1e30)


@check("linear_in_log_p")
def linear_in_log_p(subject: Subject) -> None:
    """A rule that declares soft="linear" grows in proportion to log p, all else equal."""
    apply_if(subject.rule.soft == "linear", "no such claim")
    data = draw(subject, 5, seed=43)
    state = {name: value.cpu() for name, value in subject.loss.state().items()}
    _, evidence = softmax_cost(subject.rule, state, data.logits, data.target)
    parts = [subject.rule.cost(replace(evidence, log_p=factor * evidence.log_p), state) for factor in (1.0, 2.0, 3.0)]
    demand_close(
        (parts[0] + parts[2]) / 2, parts[1], "the mean of the costs at log p and 3 log p, and the cost at 2 log p", relative=1e-9,
        mend="Declare soft='outcomes' instead.",
    )  # fmt: skip
