"""What must not matter: the order of rows, the names of classes, a common shift; and who depends on whom."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._checks import apply_if, check
from ._compare import demand, demand_close
from ._subject import Subject, draw
from ._values import costs_and_gradient, weights_like

TIGHT: dict[str, Any] = {"relative": 1e-9, "absolute": 1e-12}


def _costs(subject: Subject, logits: Tensor, target: Tensor) -> Tensor:
    return subject.built(reduction="none")(subject.place(logits), subject.place(target)).detach()


@check("row_order")
def row_order(subject: Subject) -> None:
    """Rows in another order have the same costs in that order."""
    data = draw(subject, 12, seed=1)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(2))
    before = _costs(subject, data.logits, data.target)
    after = _costs(subject, data.logits[order], data.target[order])
    demand_close(after, before[order.to(before.device)], "rows in another order", relative=1e-10, absolute=1e-13)


@check("class_order")
def class_order(subject: Subject) -> None:
    """Classes under other names, with whatever the state says of each, cost the same."""
    apply_if(subject.rule.head != "boxes", "boxes have no classes")
    data = draw(subject, 10, seed=5)
    classes = data.logits.shape[1]
    order = torch.randperm(classes, generator=torch.Generator().manual_seed(8))
    index = data.target.dim() == 1
    target = torch.argsort(order)[data.target] if index else data.target[:, order]
    loss = subject.built(reduction="none")
    before = _costs(subject, data.logits, data.target)
    for name, value in loss.state().items():
        for dimension, size in enumerate(value.shape):
            if subject.classes is not None and size == classes:
                loss._buffers[name] = loss._buffers[name].index_select(dimension, order.to(value.device))
    after = loss(subject.place(data.logits[:, order]), subject.place(target)).detach()
    before = before if subject.whole_rows else before[:, order.to(before.device)]
    demand_close(after, before, "classes in another order", relative=1e-9, absolute=1e-12)


@check("shift")
def shift(subject: Subject) -> None:
    """A number added to all logits of a row changes nothing under a softmax."""
    apply_if(subject.rule.head == "softmax", "only a softmax ignores a common shift")
    apply_if(subject.rule.scale is None, "logits are scaled per class, so a shift matters")
    data = draw(subject, 8, seed=6)
    logits = (data.logits * 1024).round() / 1024  # so that the shifted logits are exact
    by = torch.arange(-4, 4, dtype=torch.float64).unsqueeze(1) * 1024
    before = _costs(subject, logits, data.target)
    after = _costs(subject, logits + by, data.target)
    # an offset of logits (priors) rounds at the size of the shift
    demand_close(after, before, "costs after a common shift of the logits", relative=1e-9, absolute=1e-11)


@check("coupling")
def coupling(subject: Subject) -> None:
    """A row depends on other rows exactly if the rule says so (coupled=True)."""
    data = draw(subject, 12, seed=7)
    other = draw(subject, 12, seed=70)
    logits, target = data.logits.clone(), data.target.clone()
    logits[1:], target[1:] = other.logits[1:], other.target[1:]
    before = _costs(subject, data.logits, data.target)[0]
    after = _costs(subject, logits, target)[0]
    same = torch.allclose(before, after, rtol=1e-12, atol=1e-14)
    if subject.rule.coupled:
        same = same and _no_influence(subject, data.logits, data.target)
        demand(not same, "the rule declares coupled=True, but no row's cost depends on another row. Leave it out.")
    else:
        demand(same, "the cost of a row depends on other rows. Declare Rule(coupled=True), so that ranks are gathered.")


def _no_influence(subject: Subject, logits: Tensor, target: Tensor) -> bool:
    """Does no row's cost have a gradient for another row, and does leaving one out change nothing?"""
    z = subject.place(logits).requires_grad_()
    cost = subject.built(reduction="none")(z, subject.place(target))
    (gradient,) = torch.autograd.grad(cost[0].sum(), z)
    fewer = _costs(subject, logits[:5], target[:5])
    return not bool(gradient[1:].any()) and torch.allclose(fewer, cost[:5].detach(), rtol=1e-12, atol=1e-14)


@check("gradient_of_other_rows")
def gradient_of_other_rows(subject: Subject) -> None:
    """The cost of a row has no gradient for another row, unless the rule is coupled."""
    apply_if(not subject.rule.coupled, "the rule couples rows")
    data = draw(subject, 5, seed=9)
    z = subject.place(data.logits).requires_grad_()
    cost = subject.built(reduction="none")(z, subject.place(data.target))
    (gradient,) = torch.autograd.grad(cost[2].sum(), z)
    gradient[2] = 0
    demand(not bool(gradient.any()), "the cost of row 2 has a gradient for another row's logits.")


@check("layouts")
def layouts(subject: Subject) -> None:
    """Transposed, expanded, sliced and channels-last inputs cost the same as contiguous ones."""
    data = draw(subject, 6, seed=10)
    plain = costs_and_gradient(subject, data, torch.float64)
    z, y = subject.place(data.logits), subject.place(data.target)
    apart = torch.zeros(*z.shape, 2, device=z.device, dtype=z.dtype)
    apart[..., 0] = z
    wide = torch.stack([y, y], -1)
    for what, other in (("transposed", z.mT.contiguous().mT), ("sliced", apart[..., 0])):
        other = other.detach().requires_grad_()
        cost = subject.built(reduction="none")(other, wide[..., 0])
        (gradient,) = torch.autograd.grad(cost, other, weights_like(cost))
        demand_close(cost, plain[0], f"{what} logits", **TIGHT)
        demand_close(gradient, plain[1], f"the gradient of {what} logits", **TIGHT)
    loss, rows = subject.built(reduction="none"), 6
    row, label = z[:1].clone().requires_grad_(), y[:1]
    repeated = loss(row.expand(rows, *z.shape[1:]), label.expand(rows, *y.shape[1:]))
    copied = loss(row.repeat(rows, *[1] * (z.dim() - 1)), label.repeat(rows, *[1] * (y.dim() - 1)))
    demand_close(repeated, copied, "an expanded row", **TIGHT)
    slopes = [torch.autograd.grad(cost.sum(), row)[0] for cost in (repeated, copied)]
    demand_close(slopes[0], slopes[1], "the gradient of an expanded row", **TIGHT)


@check("channels_last")
def channels_last(subject: Subject) -> None:
    """Dense logits in channels-last memory have the costs and the gradient of contiguous ones."""
    apply_if(subject.rule.head != "boxes", "boxes are not dense")
    data = draw(subject, 2, dense=(2, 3), seed=11)
    found = []
    for memory in (torch.contiguous_format, torch.channels_last):
        z = subject.place(data.logits).contiguous(memory_format=memory).requires_grad_()
        cost = subject.built(reduction="none")(z, subject.place(data.target))
        (gradient,) = torch.autograd.grad(cost.sum(), z)
        found.append((cost, gradient))
    demand_close(found[1][0], found[0][0], "channels-last costs", **TIGHT)
    demand_close(found[1][1], found[0][1], "channels-last gradients", **TIGHT)
