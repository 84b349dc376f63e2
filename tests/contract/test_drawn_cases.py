"""Drawn batches: any size, type, spread, masked classes, ignored rows, weights and reduction, against the definition.

Ten cases a loss in `make test`, a thousand in `make nightly`. What may differ is what rounding of the evidence explains:
the definition is priced again with its evidence moved by a few units of its last place.
"""

from __future__ import annotations

import warnings

import pytest
import torch

pytest.importorskip("hypothesis")
from hypothesis import given
from hypothesis import strategies as st

from reweigh import registry
from reweigh.testing import variants
from reweigh.testing._reference import priced
from reweigh.testing._subject import Data, Subject, draw, exponent
from reweigh.testing._suite import subject_of

NAMES = [entry.name for entry in registry.entries("loss") if entry.thing is None]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
RELATIVE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}
LARGEST = {torch.float64: 1e300, torch.float32: 1e37, torch.bfloat16: 1e37, torch.float16: 1e4}


@st.composite
def cases(draw_value, subjects: list[Subject]):
    """A subject, its batch, the type of its logits and the keywords of the call."""
    subject = draw_value(st.sampled_from(subjects))
    boxes, softmax = subject.rule.head == "boxes", subject.rule.head == "softmax"
    rows = draw_value(st.integers(0, 7))
    dense = () if boxes else draw_value(st.sampled_from([(), (), (2,), (2, 2)]))
    data = draw(
        subject,
        rows,
        classes=draw_value(st.integers(2, 9)),
        dense=dense,
        seed=draw_value(st.integers(0, 2**31)),
        spread=draw_value(st.sampled_from([0.01, 0.5, 2.0, 10.0, 60.0, 500.0, 3000.0])),
    )
    logits, target = data.logits, data.target.clone()
    if not boxes and target.numel() and draw_value(st.booleans()):
        places = draw_value(st.lists(st.integers(0, target.numel() - 1), max_size=3))
        target.view(-1)[places] = -100
    if softmax and rows and draw_value(st.booleans()):
        mask = torch.rand(logits.shape, generator=torch.Generator().manual_seed(rows)) < 0.3
        logits = torch.where(mask.scatter(1, target.clamp(min=0).unsqueeze(1), False), -torch.inf, logits)
    call = {"reduction": draw_value(st.sampled_from(["none", "mean", "sum"]))}
    if not boxes and not subject.rule.per_row and draw_value(st.booleans()):
        call["class_weight"] = torch.linspace(0.2, 2.0, logits.shape[1], dtype=torch.float64)
    weight = torch.linspace(0.0, 2.0, rows, dtype=torch.float64) if draw_value(st.booleans()) else None
    return subject, Data(logits, target), draw_value(st.sampled_from(DTYPES)), call, weight


def flattened(subject: Subject, data: Data, weight: torch.Tensor | None):
    """The batch as rows, as the definition takes it."""
    logits, target = data.logits, data.target
    if weight is not None:
        weight = weight.view(-1, *[1] * (logits.dim() - 2)).expand(logits.shape[:1] + logits.shape[2:]).reshape(-1)
        weight = weight if subject.whole_rows else weight.unsqueeze(1)
    if logits.dim() > 2:
        target = target.flatten() if target.dim() < logits.dim() else target.movedim(1, -1).flatten(0, -2)
        logits = logits.movedim(1, -1).flatten(0, -2)
    return logits, target, weight


def by_definition(subject: Subject, data: Data, dtype, call: dict, weight, jitter: float = 0.0):
    """Value and gradient in float64, and the size of the terms that were added."""
    logits, target, weight = flattened(subject, data, weight)
    logits = logits.to(dtype).double().requires_grad_()
    shaped = None if weight is None else weight.expand(len(logits), logits.shape[1]) if weight.dim() == 2 else weight
    right = priced(
        subject.loss, logits, target, sample_weight=shaped, class_weight=call.get("class_weight"), jitter=jitter,
        gradient_type=dtype,
    )  # fmt: skip
    value = getattr(right, call["reduction"])()
    (gradient,) = torch.autograd.grad(value.sum(), logits, allow_unused=True, materialize_grads=True)
    share = max(float(right.share.sum()), 1e-300) if call["reduction"] == "mean" else 1.0
    terms = right.none().abs().detach()
    return value.detach(), gradient, terms if call["reduction"] == "none" else terms.sum() / share


def assert_explained(found, right, moved, terms, relative: float, largest: float, what: str):
    """|found - right| within rounding of the terms and within what moved evidence changes."""
    off = (found.detach().double() - right).abs()
    allowed = (
        relative * (right.abs() + terms) + 20 * torch.stack([(one - right).abs() for one in moved]).amax(0) + 1e-12
    )
    bad = ~(off <= allowed) & ~(right.abs() > largest)
    assert not bool(bad.any()), f"{what}: {found[bad][:3].tolist()} for {right[bad][:3].tolist()}"


def examine(subject: Subject, data: Data, dtype, call: dict, weight) -> None:
    logits = data.logits.to(dtype).requires_grad_()
    loss = subject.built(**call)
    value = loss(logits, data.target, sample_weight=weight)
    value.sum().backward()
    gradient = flattened(subject, Data(logits.grad, data.target), None)[0]
    if value.dim() > 1:
        value = (
            value.flatten() if subject.whole_rows else value.movedim(1, -1).flatten(0, -2) if value.dim() > 2 else value
        )
    wide = 4 * torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    right, slope, terms = by_definition(subject, data, dtype, call, weight)
    moved = [by_definition(subject, data, dtype, call, weight, jitter) for jitter in (wide, -wide)]
    many = max(1.0, exponent(subject.rule) / 5)
    value_type = torch.float64 if dtype == torch.float64 else torch.float32
    assert_explained(
        value, right, [one[0] for one in moved], terms, many * RELATIVE[value_type], LARGEST[dtype], "the value"
    )
    rows = slope.abs().flatten(1).amax(1).view(-1, *[1] * (slope.dim() - 1)) if slope.numel() else slope
    floor = 1e-4 if dtype == torch.float16 else 0.0  # float16 has no smaller steps
    assert_explained(
        gradient, slope, [one[1] for one in moved], rows + floor, many * RELATIVE[dtype], LARGEST[dtype], "the gradient"
    )
    assert bool(torch.isfinite(value).all())
    small = slope.abs() < torch.finfo(dtype).max / 4
    assert bool(torch.isfinite(gradient[small]).all())


def subjects_of(name: str) -> list[Subject]:
    return [subject_of(form) for form in variants(name)]


@pytest.mark.parametrize("name", NAMES)
def test_drawn_batches_cost_what_the_definition_says(name):
    subjects = subjects_of(name)

    @given(cases(subjects))
    def drawn(case):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            examine(*case)

    drawn()
