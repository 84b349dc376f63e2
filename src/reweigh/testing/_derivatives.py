"""First and second derivatives against finite differences, and against the composite form."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..module import Loss
from ._checks import apply_if, check
from ._compare import demand, demand_close, demand_equal
from ._reference import priced
from ._subject import Subject, draw
from ._values import weights_like

POINTS = 3
REPEATED = 1e-10  # atomic sums on a device come in any order


def _function(subject: Subject, seed: int) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Costs as a function of float64 logits, and the logits."""
    data = draw(subject, 8 if subject.rule.coupled else 3, classes=4, seed=seed, spread=1.5)
    loss, target = subject.built(reduction="none"), subject.place(data.target)
    return (lambda logits: loss(logits, target)), subject.place(data.logits).requires_grad_()


def is_full_derivative(subject: Subject, seed: int) -> bool:
    """Does the gradient agree with finite differences at this point?"""
    function, logits = _function(subject, seed)
    return torch.autograd.gradcheck(
        function, logits, eps=1e-6, atol=1e-6, rtol=1e-4, nondet_tol=REPEATED, raise_exception=False
    )


@check("gradcheck")
def gradcheck(subject: Subject) -> None:
    """The gradient is the derivative by finite differences, unless the rule holds a part of its cost constant."""
    apply_if(not subject.rule.holds_constants, "the rule holds a part of its cost constant")
    for seed in range(10 if subject.full else POINTS):
        demand(
            is_full_derivative(subject, seed),
            "the gradient is not the derivative of the cost by finite differences. If the method holds a weight "
            "constant on purpose, say so with Rule(holds_constants=True); else look for .detach() or no_grad().",
        )


@check("gradgradcheck")
def gradgradcheck(subject: Subject) -> None:
    """The second derivative is that of the gradient by finite differences."""
    apply_if(not subject.rule.holds_constants, "the rule holds a part of its cost constant")
    function, logits = _function(subject, 1)
    fine = torch.autograd.gradgradcheck(
        function, logits, eps=1e-6, atol=1e-5, rtol=1e-3, nondet_tol=REPEATED, raise_exception=False
    )
    demand(fine, "the second derivative is not that of the gradient by finite differences: a step breaks the graph.")


@check("second_derivative")
def second_derivative(subject: Subject) -> None:
    """A gradient can be differentiated (as a gradient penalty does), with the result of the plain formula."""
    data = draw(subject, 6, classes=4, seed=3)
    found = _gradient_penalty(subject.built(reduction="none"), subject.place(data.logits), subject.place(data.target))
    logits = data.logits.clone().requires_grad_()
    cost = priced(subject.loss, logits, data.target).none()
    expected = _penalty(cost, logits)
    demand_close(
        found, expected, "the derivative of the squared gradient", relative=1e-6, absolute=1e-9,
        mend="Use differentiable operations only; a custom autograd function needs a differentiable backward.",
    )  # fmt: skip


def _gradient_penalty(loss: Loss, logits: Tensor, target: Tensor) -> Tensor:
    logits = logits.detach().requires_grad_()
    return _penalty(loss(logits, target), logits)


def _penalty(cost: Tensor, logits: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(cost, logits, weights_like(cost), create_graph=True)
    if not gradient.requires_grad:  # a gradient that is constant, such as that of a distance
        return torch.zeros_like(logits)
    (second,) = torch.autograd.grad(gradient.square().sum(), logits, materialize_grads=True)
    return second


@check("backward_twice")
def backward_twice(subject: Subject) -> None:
    """With retain_graph=True a second backward pass gives the gradient of the first."""
    data = draw(subject, 6, seed=4)
    logits = subject.place(data.logits, torch.float32).requires_grad_()
    value = subject.built()(logits, subject.place(data.target))
    (first,) = torch.autograd.grad(value, logits, retain_graph=True)
    first = first.clone()
    (second,) = torch.autograd.grad(value, logits)
    demand_equal(second, first, "the gradient of the second backward pass", mend="A buffer was overwritten.")
