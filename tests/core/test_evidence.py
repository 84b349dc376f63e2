"""The fused evidence against the composite form in float64, and the composite form against its derivatives."""

from __future__ import annotations

import math

import pytest
import torch

from reweigh import evidence as evidence_module
from reweigh.evidence import INDEX_FIELDS, SOFTMAX_FIELDS, outcome_evidence, softmax_evidence, softmax_fields

EVERYTHING = tuple(name for name in SOFTMAX_FIELDS if name != "log_probabilities")
NEEDS = [
    ("log_p", "log_miss"),
    ("log_p", "log_miss", "sum_other_p_squared"),
    ("log_p", "log_miss", "log_rival"),
    ("log_p", "log_next_lower"),
    ("log_p", "log_top"),
    ("entropy", "classes"),
    ("log_second", "log_top"),
    tuple(name for name in EVERYTHING if name != "confidence_log_odds"),
    EVERYTHING,
]


def _case(shape, spread, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    z = (torch.randn(shape, dtype=torch.float64, generator=generator) * spread).to(dtype)
    if shape[1] > 3:
        z[0, 2] = -math.inf
    target_shape = (shape[0], *shape[2:])
    target = torch.randint(0, shape[1], target_shape, generator=generator)
    target = torch.where(torch.rand(target_shape, generator=generator) < 0.5, z.argmax(1), target)
    target[target == 2] = 1
    if shape == (3, 2):  # one class left
        z[1, 1], target[1] = -math.inf, 0
    return z, target


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("spread", [0.0, 1.0, 10.0, 300.0, 1e4])
@pytest.mark.parametrize("shape", [(7, 5), (6, 4, 3), (3, 2), (300, 1000)], ids=str)
def test_fused_equals_composite(shape, spread, dtype):
    z, target = _case(shape, spread, dtype, seed=len(shape) + int(spread))
    exact = dtype == torch.float64
    for needs in NEEDS:
        fused, composite = z.clone().requires_grad_(), z.double().clone().requires_grad_()
        found = softmax_evidence(fused, target, needs=needs)
        truth = softmax_fields(composite, target, needs)
        total, wanted = 0.0, 0.0
        for name in needs:
            a, b = getattr(found, name).reshape(-1), truth[name].reshape(-1)
            if name in INDEX_FIELDS:
                there = torch.ones_like(b, dtype=torch.bool)
                if name == "next_lower":
                    there = truth["log_next_lower"].reshape(-1) > -1e29
                assert not exact or torch.equal(a[there], b[there]), name
                continue
            real = b.abs() < 1e29
            torch.testing.assert_close(
                a[real].double(), b[real], rtol=1e-11 if exact else 1e-5, atol=1e-11 if exact else 1e-6, msg=name
            )
            weight = torch.linspace(-1, 1, len(b), dtype=torch.float64)
            total = total + (a.double() * weight)[real].sum()
            wanted = wanted + (b * weight)[real].sum()
        total.backward()
        wanted.backward()
        scale = max(1.0, composite.grad.abs().max().item())
        assert (fused.grad.double() - composite.grad).abs().max() <= (1e-9 if exact else 2e-5) * scale, needs


@pytest.mark.parametrize("name", [name for name in EVERYTHING if name not in INDEX_FIELDS])
def test_first_and_second_derivative(name):
    torch.manual_seed(1)
    z = torch.randn(5, 4, 2, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 4, (5, 2))
    scale, offset = torch.tensor([1.0, 2.0, 0.5, 1.0]), torch.randn(4)

    def field(logits):
        return getattr(softmax_evidence(logits, target, needs=(name,), scale=scale, offset=offset), name)

    assert torch.autograd.gradcheck(field, z)
    assert torch.autograd.gradgradcheck(field, z)


def test_outcomes_equal_each_class_in_turn():
    torch.manual_seed(0)
    z = torch.randn(5, 6, dtype=torch.float64)
    z[0, 1] = -math.inf
    z[2] = z[2, 0]  # all tied
    found = outcome_evidence(z, needs=EVERYTHING)
    for k in range(6):
        target = torch.full((5,), k)
        target[0] = k if k != 1 else int(z[0].argmax())
        truth = softmax_fields(z, target, EVERYTHING)
        for name in EVERYTHING:
            if name in ("next_lower", "rival", "second"):  # free where there is none, or tied
                continue
            torch.testing.assert_close(getattr(found, name).view(5, 6)[:, k].double(), truth[name].double(), msg=name)


def test_one_node_and_no_copy_of_the_logits():
    z = torch.randn(64, 50, requires_grad=True)
    target = torch.randint(0, 50, (64,))
    found = softmax_evidence(z, target, needs=("log_p", "log_miss"))
    assert found.log_p.grad_fn is found.log_miss.grad_fn
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        softmax_evidence(z, target, needs=("log_p", "log_miss"))
    assert all(tensor.data_ptr() in (z.data_ptr(), target.data_ptr()) for tensor in saved)


def test_a_second_backward_pass_recomputes():
    z = torch.randn(8, 5, dtype=torch.float64, requires_grad=True)
    cost = softmax_evidence(z, torch.arange(8) % 5, needs=("log_p", "entropy"))
    total = cost.log_p.sum() + cost.entropy.sum()
    first = torch.autograd.grad(total, z, retain_graph=True)[0]
    second = torch.autograd.grad(total, z)[0]
    assert torch.equal(first, second)


def test_keys_do_not_depend_on_the_order_of_classes():
    z = torch.randn(50, 300) * 5
    order = torch.randperm(300)
    needs = ("confidence_log_odds", "log_second", "entropy")
    one = softmax_evidence(z, torch.zeros(50, dtype=torch.long), needs=needs)
    other = softmax_evidence(z[:, order], torch.zeros(50, dtype=torch.long), needs=needs)
    for name in needs:
        a, b = getattr(one, name), getattr(other, name)
        assert ((a - b).abs() <= 1e-12 * a.abs().clamp(min=1)).all(), name


def test_half_precision_logits_are_upcast():
    z = torch.randn(16, 10)
    for dtype in (torch.bfloat16, torch.float16):
        low = z.to(dtype).requires_grad_()
        found = softmax_evidence(low, torch.arange(16) % 10, needs=("log_p",))
        assert found.log_p.dtype == torch.float32
        found.log_p.sum().backward()
        assert low.grad.dtype == dtype
        truth = low.detach().double().log_softmax(1)[torch.arange(16), torch.arange(16) % 10]
        torch.testing.assert_close(found.log_p.detach().double(), truth, rtol=1e-5, atol=1e-6)


def test_sigmoid_margins_are_finite_at_masked_labels():
    z = torch.tensor([[-math.inf, 3.0]], requires_grad=True)
    found = evidence_module.sigmoid_evidence(z, torch.tensor([[False, True]]), needs=("log_p", "log_miss", "log_odds"))
    assert torch.isfinite(found.log_odds).all()
    found.log_p.sum().backward()
    assert torch.equal(z.grad[0, 0], torch.tensor(0.0))
