"""Sigmoid heads in one pass: blocks repeated from a recording, row by row and by sums, against the plain form."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import reweigh
from reweigh import onepass
from reweigh.kernels import _replay
from reweigh.module import Loss
from reweigh.onepass import _block
from reweigh.rules import Rule, log_loss, weighted

CLASSES = 7
FORMS = [
    ("binary_cross_entropy", {}),
    ("binary_cross_entropy", {"positive_weight": [0.5 + k for k in range(CLASSES)]}),
    ("binary_focal", {}),
    ("binary_focal", {"gamma": 0.5, "alpha": 0.25}),
    ("binary_focal", {"gamma": 3.0, "detached": True}),
    ("binary_inverse_focal", {}),
    ("binary_adaptive_focal", {}),
    ("binary_adaptive_focal", {"state": "per_class", "num_classes": CLASSES}),
    ("asymmetric", {}),
    ("asymmetric", {"variant": "lfa", "gamma_negative": 2.5}),
    ("asymmetric", {"gamma_negative": 0.5, "margin": 1e-3}),
    ("exponential_cross_entropy", {}),
    ("exponential_cross_entropy", {"saturation": "clamp"}),
    ("focal_exponential", {}),
    ("exponential_focal", {}),
    ("balanced_exponential", {}),
    ("power", {"r": -0.5}),
    ("power", {}),
    ("equalization", {"num_classes": CLASSES}),
    ("distribution_balanced", {"class_counts": [2**k for k in range(CLASSES)]}),
    ("zlpr", {}),
    ("recall", {}),
]
KINDS = ["float", "bool", "integer", "soft", "ignored", "weights", "none", "dense", "apart"]


@pytest.fixture
def small_blocks(monkeypatch):
    """Ten rows a block, so that a batch of 64 is recorded, proved, repeated, and has a rest."""
    monkeypatch.setattr(_block, "BLOCK", 10 * CLASSES)


def drawn(kind, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (64, CLASSES, 3) if kind == "dense" else (64, CLASSES)
    z = (torch.randn(shape, generator=generator, dtype=torch.float64) * 4).to(dtype)
    y = (torch.rand(shape, generator=generator) < 0.3).float()
    given = {}
    if kind == "bool":
        y = y.bool()
    if kind == "integer":
        y = y.long()
    if kind == "soft":
        y[20:40] = torch.rand(y[20:40].shape, generator=generator)  # some blocks are soft, others hard
    if kind == "ignored":
        gone = torch.rand(shape, generator=generator) < 0.2
        y, z = torch.where(gone, -100.0, y), torch.where(gone, torch.nan, z)
    if kind == "weights":
        given["sample_weight"] = torch.rand(64, generator=generator)
    if kind == "apart":
        z, y = z.repeat_interleave(2, 0)[::2], y.T.contiguous().T
    return z, y, given


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "settings"), FORMS, ids=[f"{name}:{settings}" for name, settings in FORMS])
def test_blocks_equal_the_plain_form(name, settings, kind, small_blocks, monkeypatch):
    loss = reweigh.loss(name, reduction="none" if kind == "none" else "mean", **settings)
    if kind == "soft" and loss.rule.soft == "refused":
        pytest.skip("hard labels only")
    if kind == "weights" and name == "zlpr":
        pytest.skip("weights of rows multiply outside")
    for dtype in (torch.float64, torch.float32):
        z, y, given = drawn(kind, dtype)
        fast, plain = z.clone().requires_grad_(), z.clone().requires_grad_()
        value = loss(fast, y, **given)
        cotangent = torch.rand(value.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(value)
        value.backward(cotangent)
        with monkeypatch.context() as patched:
            patched.setattr(onepass, "runs", lambda z: False)
            patched.setattr(onepass, "serves", lambda z, rule: False)
            patched.setattr(onepass, "serves_rows", lambda z, rule: False)
            right = loss(plain, y, **given)
            right.backward(cotangent)
        relative = 1e-11 if dtype == torch.float64 else 2e-5
        torch.testing.assert_close(value, right, rtol=relative, atol=1e-12)
        scale = plain.grad.abs().max().item()
        torch.testing.assert_close(fast.grad, plain.grad, rtol=relative, atol=relative * 1e-2 * scale)


def test_later_blocks_are_repeated(small_blocks, monkeypatch):
    """The default forms really take the short way."""
    stages = []
    whole = _replay.Repeated.__call__

    def watched(self, *blocks, into):
        found = whole(self, *blocks, into=into)
        stages.append(self.stage)
        return found

    monkeypatch.setattr(_replay.Repeated, "__call__", watched)
    for name, settings in FORMS:
        stages.clear()
        z, y, _ = drawn("float", torch.float32)
        reweigh.loss(name, **settings)(z.requires_grad_(), y).backward()
        assert stages[:3] == ["recorded", "proved", "proved"], (name, settings, stages)


def looks_at_values(evidence, state):
    return evidence.log_p.abs() if bool(evidence.log_p.min() < -8) else -evidence.log_p * 2.0


def remembers(evidence, state, *, seen):
    seen.append(1)  # not what a rule may do, but it must not be repeated wrongly
    return -evidence.log_p * len(seen)


def sorts(evidence, state):
    return -evidence.log_p + 0.0 * evidence.log_p.sort(1).values


def works_in_place(evidence, state):
    doubled = evidence.log_p * 2.0
    return doubled.neg_().add_(1.0)


def draws_constants(evidence, state):
    return -evidence.log_p * torch.tensor([1.0, 2, 3, 4, 5, 6, 7])


def reads_views(evidence, state):
    first = evidence.log_p[:, :1]
    return -evidence.log_p + first.detach().expand_as(evidence.log_p).abs()


@pytest.mark.parametrize("cost", [looks_at_values, sorts, works_in_place, draws_constants, reads_views])
def test_rules_of_users_are_priced_as_written(cost, small_blocks):
    z, y, _ = drawn("float", torch.float64)
    y = y.bool()
    for part in range(0, 64, 10):  # what the blocks see
        z[part : part + 5] *= part / 10
    loss = Loss(Rule("own", cost, needs=("log_p",), head="sigmoid"), reduction="none")
    leaf = z.clone().requires_grad_()
    value = loss(leaf, y)
    value.sum().backward()
    right, slopes = [], []
    for part in range(0, 64, 10):
        again = z[part : part + 10].clone().requires_grad_()
        block = onepass.sigmoid_cost(again, y[part : part + 10], None, loss.rule, {})
        block.sum().backward()
        right.append(block)
        slopes.append(again.grad)
    torch.testing.assert_close(value, torch.cat(right), rtol=1e-12, atol=0)
    torch.testing.assert_close(leaf.grad, torch.cat(slopes), rtol=1e-10, atol=1e-15)


def test_what_does_not_repeat_itself_is_not_trusted(small_blocks):
    z, y, _ = drawn("bool", torch.float64)
    seen = []
    loss = Loss(Rule("own", partial(remembers, seen=seen), needs=("log_p",), head="sigmoid"))
    loss(z.requires_grad_(), y)
    assert len(seen) == 7  # every block asked the rule


def test_state_is_read_at_every_call(small_blocks):
    loss = reweigh.losses.equalization(num_classes=CLASSES)
    z, y, _ = drawn("float", torch.float32)
    before = loss(z.requires_grad_(), y).item()
    loss.observe(z.detach(), y)
    after = loss(z, y).item()
    assert before != after
    assert loss(z, y).item() == after  # the same bits


def test_under_another_mode_blocks_run_as_written(small_blocks):
    from torch.utils.flop_counter import FlopCounterMode

    z, y, _ = drawn("float", torch.float32)
    right = reweigh.losses.binary_focal()(z, y)
    with FlopCounterMode(display=False):
        assert reweigh.losses.binary_focal()(z, y).item() == right.item()


def test_a_constant_cost_has_no_gradient(small_blocks):
    loss = Loss(Rule("own", lambda evidence, state: torch.ones_like(evidence.log_p), needs=("log_p",), head="sigmoid"))
    z, y, _ = drawn("float", torch.float32)
    value = loss(z.requires_grad_(), y)
    value.backward()
    assert value.item() == 1.0 and not z.grad.any()


def test_a_second_backward_pass_and_a_second_derivative(small_blocks):
    for name in ("binary_focal", "zlpr"):
        loss = reweigh.loss(name)
        z, y, _ = drawn("float", torch.float64)
        z.requires_grad_()
        value = loss(z, y)
        first = torch.autograd.grad(value, z, retain_graph=True)[0]
        torch.testing.assert_close(torch.autograd.grad(value, z, retain_graph=True)[0], first, rtol=0, atol=0)
        again = torch.autograd.grad(value, z, create_graph=True)[0]
        torch.testing.assert_close(again, first, rtol=1e-10, atol=1e-18)
        assert torch.autograd.grad(again.square().sum(), z)[0].abs().sum() > 0


def test_memory_is_one_gradient_and_a_few_blocks():
    """Beyond the derivative, blocks only: no n x K intermediate."""
    z = torch.randn(40_000, 80, requires_grad=True)
    y = (torch.rand(40_000, 80) < 0.1).float()
    loss = reweigh.losses.binary_focal()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        loss(z, y).backward()
    largest = max(event.self_cpu_memory_usage for event in profile.events())
    held = 0
    peak = 0
    for event in sorted(profile.events(), key=lambda event: event.time_range.start):
        held += event.self_cpu_memory_usage
        peak = max(peak, held)
    size = z.numel() * 4
    assert largest <= size and peak <= size + 60 * _block.BLOCK * 4


def test_weighted_and_log_loss_are_the_parts(small_blocks):
    """A user's focal loss by the combinators, one line."""

    def fade(evidence, state):
        return torch.exp(2.0 * evidence.log_miss)

    z, y, _ = drawn("float", torch.float32)
    mine = Loss(Rule("mine", weighted(fade, log_loss), needs=("log_p", "log_miss"), head="sigmoid"))
    torch.testing.assert_close(mine(z, y), reweigh.losses.binary_focal()(z, y), rtol=1e-6, atol=0)
