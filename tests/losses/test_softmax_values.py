"""Pointwise softmax losses against formulas in 220 digits, against PyTorch, and against each other."""

from __future__ import annotations

import math
import warnings
from functools import partial

import mpmath
import pytest
import torch
from torch.nn.functional import cross_entropy

import reweigh
from losses.softmax_oracle import agree, grid, wide_rows
from reweigh.errors import InputError

mpf, log, fsum = mpmath.mpf, mpmath.log, mpmath.fsum


def smoothed(p, y, held, *, eps, others=False):
    share = mpf(eps) / (len(p) - 1 if others else len(p))
    true = 1 - mpf(eps) + (0 if others else share)
    return -fsum((true if k == y else share) * log(value) for k, value in enumerate(p))


def inverse(p, y, held, *, gamma, detached=False):
    return (1 + (held if detached else p)[y]) ** mpf(gamma) * -log(p[y])


def scheduled(p, y, held, *, steps):
    below = 1 - mpf(10) ** -14
    gamma = next(gamma for bound, gamma in steps if bound == 1.0 or held[y] < mpf(bound) * below)
    return (1 - p[y]) ** gamma * -log(p[y])


def squares(p, y, held):
    return fsum((value - (k == y)) ** 2 for k, value in enumerate(p))


def poly(p, y, held, *, epsilon):
    return -log(p[y]) + mpf(epsilon) * (1 - p[y])


def box_cox(p, y, held, *, r):
    return (1 - p[y] ** mpf(r)) / mpf(r)


def symmetric(p, y, held, *, alpha, beta):
    return mpf(alpha) * -log(p[y]) + mpf(beta) * -log(mpf(10) ** -4) * (1 - p[y])


def normalized(p, y, held):
    return log(p[y]) / fsum(log(value) for value in p)


def absolute(p, y, held):
    return fsum(abs(value - (k == y)) for k, value in enumerate(p)) / 2


def penalised(p, y, held, *, beta):
    return -log(p[y]) + mpf(beta) * fsum(value * log(value) for value in p)


def uncertain(p, y, held, *, gamma, norm):
    apart = [abs(value - (k == y)) for k, value in enumerate(held)]
    length = max(apart) if norm == math.inf else fsum(value**norm for value in apart) ** (mpf(1) / norm)
    return length ** mpf(gamma) * -log(p[y])


def margin_smoothed(p, y, held, *, margin, strength):
    first = held.index(max(held))
    beyond = [max(mpf(0), log(p[first]) - log(value) - mpf(margin)) for value in p]
    return -log(p[y]) + mpf(strength) * fsum(beyond) / len(p)


def asymmetric(p, y, held, *, negative, positive, eps, detached=False):
    weight = held if detached else p
    total = mpf(0)
    for k, value in enumerate(p):
        share = mpf(eps) / len(p) + (1 - mpf(eps) if k == y else 0)
        fading = (1 - weight[k]) ** mpf(positive) if k == y else weight[k] ** mpf(negative)
        total -= share * fading * log(value)
    return total


def plain(p, y, held):
    return -log(p[y])


STEPS_53, STEPS_52 = ((0.2, 5), (1.0, 3)), ((0.2, 5), (0.5, 3), (1.0, 2))
CASES = [
    ("cross_entropy", {}, plain),
    ("cross_entropy", {"label_smoothing": 0.1}, partial(smoothed, eps=0.1)),
    ("cross_entropy", {"label_smoothing": 0.3, "smoothing": "others"}, partial(smoothed, eps=0.3, others=True)),
    ("inverse_focal", {"gamma": 0.2}, partial(inverse, gamma=0.2)),
    ("inverse_focal", {"gamma": 3.5}, partial(inverse, gamma=3.5)),
    ("inverse_focal", {"gamma": 20.0, "detached": True}, partial(inverse, gamma=20, detached=True)),
    ("scheduled_focal", {}, partial(scheduled, steps=STEPS_53)),
    ("scheduled_focal", {"schedule": "52"}, partial(scheduled, steps=STEPS_52)),
    ("brier", {}, squares),
    ("polynomial", {"epsilon": 2.0}, partial(poly, epsilon=2)),
    ("polynomial", {"epsilon": -1.0}, partial(poly, epsilon=-1)),
    ("generalized_cross_entropy", {}, partial(box_cox, r=0.7)),
    ("generalized_cross_entropy", {"r": 1e-6}, partial(box_cox, r=1e-6)),
    ("symmetric_cross_entropy", {"alpha": 6.0, "beta": 0.1}, partial(symmetric, alpha=6, beta=0.1)),
    ("normalized_cross_entropy", {}, normalized),
    ("mean_absolute", {}, absolute),
    ("confidence_penalty", {}, partial(penalised, beta=0.1)),
    ("confidence_penalty", {"beta": 0.7}, partial(penalised, beta=0.7)),
    ("uncertainty_weighted", {}, partial(uncertain, gamma=1, norm=2)),
    ("uncertainty_weighted", {"gamma": 0.2, "norm": 1}, partial(uncertain, gamma=0.2, norm=1)),
    ("uncertainty_weighted", {"gamma": 20.0, "norm": math.inf}, partial(uncertain, gamma=20, norm=math.inf)),
    ("margin_label_smoothing", {"margin": 2.0}, partial(margin_smoothed, margin=2, strength=0.1)),
    ("single_label_asymmetric", {}, partial(asymmetric, negative=4, positive=0, eps=0.1)),
    (
        "single_label_asymmetric",
        {"gamma_negative": 0.2, "gamma_positive": 1.5, "smoothing": 0.4, "detached": True},
        partial(asymmetric, negative=0.2, positive=1.5, eps=0.4, detached=True),
    ),
]
IDS = [f"{name}-{'-'.join(map(str, settings.values()))}" for name, settings, _ in CASES]


def largest_exponent(settings: dict) -> float:
    return max([5.0, *[value for value in settings.values() if isinstance(value, float) and value < 100]])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize(("name", "settings", "formula"), CASES, ids=IDS)
def test_values_and_gradients(name, settings, formula, classes, dtype):
    loss = reweigh.loss(name, reduction="none", **settings)
    z, y = grid(classes)
    if name == "scheduled_focal":  # no type decides on which side of a step a probability is that rounds to it
        p = torch.softmax(z, 1)[torch.arange(len(y)), y]
        apart = (p.unsqueeze(1) - torch.tensor([0.2, 0.5])).abs().amin(1) > 1e-6
        z, y = z[apart], y[apart]
    agree(loss, z, y, formula, dtype=dtype, gamma=largest_exponent(settings))


@pytest.mark.parametrize(("name", "settings", "formula"), CASES, ids=IDS)
def test_many_classes(name, settings, formula):
    loss = reweigh.loss(name, reduction="none", **settings)
    for dtype in (torch.float64, torch.float32):
        agree(loss, *wide_rows(120, 3), formula, dtype=dtype, gamma=largest_exponent(settings), places=1)


def logits_and_targets(rows: int = 40, classes: int = 6, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    z = 3.0 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    return z, torch.randint(classes, (rows,), generator=generator), generator


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy_is_that_of_pytorch(smoothing, reduction, weighted):
    z, y, generator = logits_and_targets()
    weight = torch.rand(6, generator=generator, dtype=torch.float64) if weighted else None
    y[::7] = -100
    y[3] = 5
    loss = reweigh.losses.cross_entropy(label_smoothing=smoothing, reduction=reduction, class_weight=weight)
    ours, theirs = z.clone().requires_grad_(), z.clone().requires_grad_()
    found = loss(ours, y)
    expected = cross_entropy(theirs, y, weight=weight, label_smoothing=smoothing, reduction=reduction)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    found.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dense", [False, True])
def test_cross_entropy_of_soft_targets_is_that_of_pytorch(smoothing, weighted, dense):
    z, _, generator = logits_and_targets()
    weight = torch.rand(6, generator=generator, dtype=torch.float64) if weighted else None
    if dense:
        z = z.reshape(10, 6, 2, 2)
    share = torch.rand(z.shape, generator=generator, dtype=torch.float64)
    share = share / share.sum(1, keepdim=True)
    for reduction in ("mean", "sum", "none"):
        loss = reweigh.losses.cross_entropy(label_smoothing=smoothing, reduction=reduction, class_weight=weight)
        ours, theirs = z.clone().requires_grad_(), z.clone().requires_grad_()
        found = loss(ours, share)
        expected = cross_entropy(theirs, share, weight=weight, label_smoothing=smoothing, reduction=reduction)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
        found.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-11, atol=1e-14)


def test_smoothing_leaves_masked_classes_out():
    z = torch.tensor([[1.0, -math.inf, 0.3, -0.7], [0.2, 0.1, -math.inf, -math.inf]], dtype=torch.float64)
    y = torch.tensor([0, 1])
    for smoothing in ("uniform", "others"):
        loss = reweigh.losses.cross_entropy(label_smoothing=0.3, smoothing=smoothing, reduction="none")
        short = [loss(z[0, [0, 2, 3]].unsqueeze(0), torch.tensor([0])), loss(z[1, :2].unsqueeze(0), torch.tensor([1]))]
        torch.testing.assert_close(loss(z, y), torch.cat(short), rtol=1e-13, atol=0)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("focal", {"gamma": 0.0}),
        ("dual_focal", {"gamma": 0.0}),
        ("inverse_focal", {"gamma": 0.0}),
        ("scheduled_focal", {"schedule": ((1.0, 0.0),)}),
        ("polynomial", {"epsilon": 0.0}),
        ("generalized_cross_entropy", {"r": 0.0}),
        ("symmetric_cross_entropy", {"alpha": 1.0, "beta": 0.0}),
        ("confidence_penalty", {"beta": 0.0}),
        ("uncertainty_weighted", {"gamma": 0.0}),
        ("margin_label_smoothing", {"strength": 0.0}),
        ("margin_label_smoothing", {"margin": 1e6}),
        ("single_label_asymmetric", {"gamma_negative": 0.0, "smoothing": 0.0}),
    ],
)
def test_what_is_cross_entropy_at_some_setting(name, settings):
    z, y, _ = logits_and_targets()
    z[0], z[1] = z[0] * 1e3, 0.0
    found = reweigh.loss(name, reduction="none", **settings)(z, y)
    torch.testing.assert_close(found, cross_entropy(z, y, reduction="none"), rtol=1e-12, atol=1e-13)


def test_relations_between_losses():
    z, y, _ = logits_and_targets()

    def cost(name, **settings):
        return reweigh.loss(name, reduction="none", **settings)(z, y)

    close = partial(torch.testing.assert_close, rtol=1e-11, atol=1e-13)
    close(cost("GCE", r=1.0), cost("MAE"))
    close(cost("SCE", alpha=0.0, beta=1.0), -math.log(1e-4) * cost("MAE"))
    close(cost("Poly-1", epsilon=3.0), cost("CE") + 3.0 * cost("MAE"))
    close(cost("BSCE-GRA", gamma=2.0, norm=2), cost("Brier") * cost("CE"))
    close(cost("BSCE-GRA", gamma=1.0, norm=1), 2.0 * cost("MAE") * cost("CE"))
    close(cost("scheduled_focal", schedule=((1.0, 3.0),)), cost("focal", gamma=3.0))
    close(cost("CP", beta=1.0).sum(), (torch.softmax(z, 1) * torch.log_softmax(z, 1)).sum() + cost("CE").sum())
    uniform = cost("cross_entropy", label_smoothing=0.3)
    close(cost("cross_entropy", label_smoothing=0.25, smoothing="others"), uniform)  # eps (K - 1) / K


def test_uniform_logits_are_on_the_upper_side_of_a_step():
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for level in (0.0, 3.3, -700.0):
            z = torch.full((3, 5), level, dtype=dtype)
            found = reweigh.losses.scheduled_focal(reduction="none")(z, torch.tensor([0, 2, 4]))
            torch.testing.assert_close(found.double(), torch.full((3,), 0.8**3 * math.log(5.0)).double())


def test_soft_brier_is_the_squared_distance():
    z, _, generator = logits_and_targets()
    share = torch.rand(z.shape, generator=generator, dtype=torch.float64)
    share = share / share.sum(1, keepdim=True)
    found = reweigh.losses.brier(reduction="none")(z, share)
    torch.testing.assert_close(found, (torch.softmax(z, 1) - share).square().sum(1), rtol=1e-12, atol=1e-14)
    sure = torch.tensor([[40.0, 0.0, 0.0]], dtype=torch.float64)
    found = reweigh.losses.brier()(sure, torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64))
    expected = reweigh.losses.brier()(sure, torch.tensor([0]))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "name",
    ["cross_entropy", "brier", "normalized_cross_entropy", "polynomial", "confidence_penalty", "margin_label_smoothing",
     "single_label_asymmetric", "uncertainty_weighted", "generalized_cross_entropy"],
)  # fmt: skip
def test_one_hot_shares_weigh_as_class_indices_do(name):
    z, y, generator = logits_and_targets()
    weight = torch.rand(6, generator=generator, dtype=torch.float64)
    weight[2] = 0.0
    settings = {"label_smoothing": 0.2} if name == "cross_entropy" else {}
    loss = reweigh.loss(name, reduction="none", class_weight=weight, **settings)
    share = torch.nn.functional.one_hot(y, 6).double()
    torch.testing.assert_close(loss(z, share), loss(z, y), rtol=1e-12, atol=1e-14)


def test_normalized_cross_entropy_is_not_weighed_inside():
    z, y, generator = logits_and_targets()
    weight = torch.rand(6, generator=generator, dtype=torch.float64)
    found = reweigh.losses.normalized_cross_entropy(reduction="none", class_weight=weight)(z, y)
    expected = weight[y] * reweigh.losses.normalized_cross_entropy(reduction="none")(z, y)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)
    every = torch.stack(
        [reweigh.losses.normalized_cross_entropy(reduction="none")(z, torch.full_like(y, k)) for k in range(6)]
    )
    torch.testing.assert_close(every.sum(0), torch.ones(40, dtype=torch.float64))


@pytest.mark.parametrize(("name", "settings", "formula"), CASES, ids=IDS)
def test_one_class_left_costs_nothing(name, settings, formula):
    z = torch.tensor([[-math.inf, 3.0, -math.inf], [0.0, 1.0, 2.0]], requires_grad=True)
    cost = reweigh.loss(name, reduction="none", **settings)(z, torch.tensor([1, 0]))
    (gradient,) = torch.autograd.grad(cost.sum(), z)
    assert cost[0].item() == 0.0
    assert torch.equal(gradient[0], torch.zeros(3))
    assert bool(torch.isfinite(gradient).all())


def test_inverse_focal_warns_above_its_sound_range():
    with pytest.warns(UserWarning, match=r"above gamma = 3\.5911"):
        steep = reweigh.losses.inverse_focal(gamma=3.6)
    assert steep.rule.rewards_errors
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not reweigh.losses.inverse_focal(gamma=3.591).rule.rewards_errors
        assert not reweigh.losses.inverse_focal(gamma=8.0, detached=True).rule.rewards_errors
    # the bound is where the derivative in p touches 0
    p = torch.linspace(0.05, 0.95, 90001, dtype=torch.float64, requires_grad=True)
    for gamma, rises in ((3.5911, False), (3.5912, True)):
        (slope,) = torch.autograd.grad(((1 + p) ** gamma * -torch.log(p)).sum(), p)
        assert bool((slope > 0).any()) == rises


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("cross_entropy", {"label_smoothing": 1.1}, "label_smoothing"),
        ("cross_entropy", {"smoothing": "other"}, "'uniform', 'others'"),
        ("inverse_focal", {"gamma": -1}, "at least 0"),
        ("scheduled_focal", {"schedule": "54"}, "53"),
        ("scheduled_focal", {"schedule": ((0.5, 1.0), (0.2, 2.0), (1.0, 3.0))}, "rising bounds"),
        ("scheduled_focal", {"schedule": ((0.5, 1.0),)}, "the last 1"),
        ("scheduled_focal", {"schedule": ((0.5, -1.0), (1.0, 2.0))}, "at least 0"),
        ("polynomial", {"epsilon": -1.5}, "at least -1"),
        ("generalized_cross_entropy", {"r": 1.5}, "at most 1"),
        ("symmetric_cross_entropy", {"alpha": math.nan}, "alpha"),
        ("uncertainty_weighted", {"norm": 3}, "inf"),
        ("margin_label_smoothing", {"margin": -0.1}, "margin"),
        ("single_label_asymmetric", {"smoothing": -0.1}, "smoothing"),
    ],
)
def test_wrong_settings_are_answered(name, settings, words):
    with pytest.raises(InputError, match=words):
        reweigh.loss(name, **settings)
