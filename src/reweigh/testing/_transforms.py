"""torch.func and torch.compile."""

from __future__ import annotations

import torch

from ._checks import apply_if, check
from ._compare import demand_close, demand_finite
from ._subject import Subject, draw


def _gradient_by_loop(subject: Subject, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = z.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(subject.built()(z, y), z)
    return gradient


@check("functional_gradient")
def functional_gradient(subject: Subject) -> None:
    """torch.func.grad gives the gradient of backward()."""
    data = draw(subject, 6, seed=80)
    z, y = subject.place(data.logits), subject.place(data.target)
    found = torch.func.grad(subject.built())(z, y)
    demand_close(found, _gradient_by_loop(subject, z, y), "torch.func.grad", relative=1e-8, absolute=1e-11)


@check("batched_gradient")
def batched_gradient(subject: Subject) -> None:
    """torch.func.vmap(grad) over batches, as per-sample gradients need, equals a loop."""
    parts = [draw(subject, 4, seed=seed) for seed in (81, 82, 83)]
    z = subject.place(torch.stack([part.logits for part in parts]))
    y = subject.place(torch.stack([part.target for part in parts]))
    found = torch.func.vmap(torch.func.grad(subject.built()))(z, y)
    expected = torch.stack([_gradient_by_loop(subject, one, other) for one, other in zip(z, y, strict=True)])
    demand_close(
        found, expected, "vmap(grad)", relative=1e-8, absolute=1e-11,
        mend="Costs must not depend on Python control flow over values, nor write in place.",
    )  # fmt: skip


def _compiled(subject: Subject, backend: str) -> None:
    data = draw(subject, 7, seed=84)
    torch._dynamo.reset()
    loss = subject.built()
    compiled = torch.compile(loss, fullgraph=True, backend=backend, dynamic=False)
    z, y = subject.place(data.logits, torch.float32).requires_grad_(), subject.place(data.target)
    value = compiled(z, y)
    (gradient,) = torch.autograd.grad(value, z)
    plain = loss(z, y)
    (expected,) = torch.autograd.grad(plain, z)
    demand_finite(gradient, f"the gradient compiled with {backend}", mend="")
    demand_close(value, plain, f"compiled with {backend}", relative=1e-5, absolute=1e-7)
    demand_close(gradient, expected, f"the gradient compiled with {backend}", relative=1e-4, absolute=1e-7)
    torch._dynamo.reset()


@check("compiles")
def compiles(subject: Subject) -> None:
    """torch.compile(fullgraph=True) traces the loss without a break and gives the same numbers."""
    _compiled(subject, "aot_eager")


@check("compiles_with_inductor")
def compiles_with_inductor(subject: Subject) -> None:
    """Compiled to machine code by Inductor, the numbers are the same."""
    apply_if(subject.full, "only in the full profile")
    _compiled(subject, "inductor")
