"""The size-aware box loss against exact fractions, its weights against the published forms, its three normalisations."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

import reweigh
from reweigh.errors import InputError

ALPHA, SMALL, MEDIUM = 2.5, 1024.0, 9216.0


def weights_of(areas, *, weighting="exponential", alpha=ALPHA, threshold=SMALL, medium=MEDIUM, power=1.0):
    """By plain arithmetic, one area after the other."""
    found = []
    for area in areas:
        if weighting == "exponential":
            weight = min(max(alpha * math.exp(-area / threshold), 1.0), alpha)
        elif weighting == "step":
            weight = alpha if area <= threshold else (alpha + 1) / 2 if area <= medium else 1.0
        elif weighting == "linear":
            weight = min(max(alpha * (1 - area / medium) + 1, 1.0), alpha)
        elif weighting == "exp_smooth":
            weight = 1 + (alpha - 1) * math.exp(-area / threshold)
        else:
            weight = alpha if area == 0 and power else min(max((threshold / area) ** (power / 2), 1.0), alpha)
        found.append(weight)
    return found


def overlap(box, true) -> Fraction:
    """Intersection over union, exactly."""
    a, b = [Fraction(x) for x in box], [Fraction(x) for x in true]
    width = max(min(a[2], b[2]) - max(a[0], b[0]), 0)
    height = max(min(a[3], b[3]) - max(a[1], b[1]), 0)
    own = max(a[2] - a[0], 0) * max(a[3] - a[1], 0)
    union = own + (b[2] - b[0]) * (b[3] - b[1]) - width * height
    return width * height / union if union > 0 else Fraction(0)


def boxes(n, seed=0, dtype=torch.float64):
    """True boxes of all sizes, and predictions near them."""
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(n, 2, generator=generator, dtype=torch.float64) * 300
    side = torch.exp(torch.rand(n, 2, generator=generator, dtype=torch.float64) * 5.5)
    true = torch.cat([corner, corner + side], 1)
    moved = true + torch.randn(n, 4, generator=generator, dtype=torch.float64) * side.repeat(1, 2) * 0.15
    moved[:, 2:] = torch.maximum(moved[:, 2:], moved[:, :2] + 0.5)
    return moved.to(dtype), true.to(dtype)


FORMS = [
    {},
    {"weighting": "step"},
    {"weighting": "linear"},
    {"weighting": "exp_smooth"},
    {"weighting": "power"},
    {"weighting": "power", "power": 2.0, "alpha": 4.0},
    {"alpha": 7.0, "threshold": 300.0},
    {"weighting": "linear", "medium_threshold": 500.0},
]


@pytest.mark.parametrize("settings", FORMS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_values(settings, dtype):
    predicted, true = boxes(60, dtype=dtype)
    found = reweigh.losses.size_aware(reduction="none", **settings)(predicted, true)
    exact = [(row.tolist(), other.tolist()) for row, other in zip(predicted.double(), true.double(), strict=True)]
    areas = [(b[2] - b[0]) * (b[3] - b[1]) for _, b in exact]
    names = {"medium_threshold": "medium"}
    weights = weights_of(areas, **{names.get(name, name): value for name, value in settings.items()})
    right = [weight * float(1 - overlap(a, b) ** 2) for weight, (a, b) in zip(weights, exact, strict=True)]
    relative = 1e-9 if dtype == torch.float64 else 1e-5
    assert found.tolist() == pytest.approx(right, rel=relative, abs=1e-12)


@pytest.mark.parametrize(
    ("side", "weight"), [(16, 1.947), (20, 1.692), (25, 1.358), (30, 1.038), (31, 1.0), (400, 1.0)]
)
def test_published_weights(side, weight):
    box = torch.tensor([[0.0, 0.0, side, side]])
    away = box + 1000.0  # no overlap: the cost is the weight
    assert reweigh.losses.size_aware()(away, box).item() == pytest.approx(weight, abs=5e-4)


def test_gradients():
    predicted, true = boxes(40, seed=3)
    predicted.requires_grad_()
    for settings in FORMS:
        loss = reweigh.losses.size_aware(reduction="none", **settings)
        assert torch.autograd.gradcheck(lambda boxes, loss=loss: loss(boxes, true), predicted, eps=1e-5, atol=1e-7)
        assert torch.autograd.gradgradcheck(lambda boxes, loss=loss: loss(boxes, true), predicted, eps=1e-5, atol=1e-6)


def test_nearly_equal_boxes_keep_their_digits():
    """In float32, 1 - IoU of boxes that differ by a thousandth of a pixel."""
    true = torch.tensor([[10.0, 20.0, 110.0, 90.0]])
    moved = torch.tensor([[10.0, 20.0, 110.0, 90.0009765625]])
    exact = float(1 - overlap(moved[0].tolist(), true[0].tolist()) ** 2)
    assert reweigh.losses.size_aware(alpha=1.0)(moved, true).item() == pytest.approx(exact, rel=1e-6)
    assert reweigh.losses.size_aware()(true, true).item() == 0.0


def test_alpha_one_changes_no_bit():
    predicted, true = boxes(50, dtype=torch.float32)
    plain = reweigh.losses.size_aware(alpha=1.0)(predicted, true)
    for settings in FORMS[:5]:
        for normalize in ("none", "mean", "sum"):
            again = reweigh.losses.size_aware(**{**settings, "alpha": 1.0}, normalize=normalize)(predicted, true)
            assert again.item() == plain.item()


@pytest.mark.parametrize("weighting", ["exponential", "step", "linear", "exp_smooth", "power"])
def test_normalisations(weighting):
    predicted, true = boxes(30, seed=5)
    given = torch.rand(30, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.1
    areas = (true[:, 2:] - true[:, :2]).prod(1)
    w = torch.tensor(weights_of(areas.tolist(), weighting=weighting), dtype=torch.float64)
    plain = reweigh.losses.size_aware(alpha=1.0, reduction="none")(predicted, true)
    n = len(w)

    def ours(normalize, reduction, v=None):
        loss = reweigh.losses.size_aware(weighting=weighting, normalize=normalize, reduction=reduction)
        return loss(predicted, true, sample_weight=v)

    one = torch.ones(n, dtype=torch.float64)
    for v in (None, given):
        u = one if v is None else v
        right = {
            ("none", "none"): u * w * plain,
            ("none", "sum"): (u * w * plain).sum(),
            ("none", "mean"): (u * w * plain).sum() / u.sum(),
            ("mean", "none"): u * w / w.mean() * plain,
            ("mean", "sum"): (u * w * plain).sum() / w.mean(),
            ("mean", "mean"): (u * w * plain).sum() / (u.sum() * w.mean()),
            ("sum", "none"): u * w * plain,
            ("sum", "sum"): (u * w * plain).sum(),
            ("sum", "mean"): (u * w * plain).sum() / (u * w).sum(),
        }
        for (normalize, reduction), value in right.items():
            torch.testing.assert_close(ours(normalize, reduction, v), value, rtol=1e-9, atol=1e-12)
    same = ours("mean", "mean"), ours("sum", "mean")
    torch.testing.assert_close(*same, rtol=1e-12, atol=0)


def test_degenerate_boxes_cost_their_weight():
    true = torch.tensor([[10.0, 10, 50, 40]]).repeat(4, 1)
    true[2, 2:] = true[2, :2]  # no area
    odd = torch.tensor(
        [[60.0, 60, 20, 20], [100, 100, 120, 120], [20, 20, 20, 20], [30, 30, 30, 30]], requires_grad=True
    )
    cost = reweigh.losses.size_aware(reduction="none")(odd, true)
    weights = weights_of([1200.0, 1200.0, 0.0, 1200.0])
    assert cost.tolist() == pytest.approx(weights, rel=1e-6)
    (gradient,) = torch.autograd.grad(cost.sum(), odd)
    assert torch.isfinite(gradient).all()


def test_half_precision_areas_do_not_overflow():
    true = torch.tensor([[0.0, 0.0, 600.0, 400.0]], dtype=torch.float16)
    moved = torch.tensor([[0.0, 0.0, 600.0, 200.0]], dtype=torch.float16, requires_grad=True)
    loss = reweigh.losses.size_aware()(moved, true)
    assert loss.dtype == torch.float32 and loss.item() == pytest.approx(0.75, rel=1e-6)
    loss.backward()
    assert moved.grad.dtype == torch.float16 and torch.isfinite(moved.grad).all()


def test_no_gradient_through_the_area():
    predicted, true = boxes(5)
    true.requires_grad_()
    weighed = reweigh.losses.size_aware(reduction="sum", weighting="exp_smooth")(predicted, true)
    areas = (true.detach()[:, 2:] - true.detach()[:, :2]).prod(1)
    w = torch.tensor(weights_of(areas.tolist(), weighting="exp_smooth"), dtype=torch.float64)
    plain = reweigh.losses.size_aware(alpha=1.0, reduction="none")(predicted, true)
    found, right = (torch.autograd.grad(value, true)[0] for value in (weighed, (w * plain).sum()))
    torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-14)


def test_small_boxes_pull_harder_with_a_larger_alpha():
    """One scale for small boxes that want it below 1 and large ones that want it above: the optimum moves down."""
    own = torch.cat([torch.linspace(0.75, 1.0, 25), torch.linspace(1.0, 1.25, 25)]).double().unsqueeze(1)
    side = torch.cat([torch.full((25, 1), 10.0), torch.full((25, 1), 200.0)]).double()
    true = torch.cat([torch.zeros(50, 2, dtype=torch.float64), side, side], 1)
    optima = []
    for alpha in (1.0, 2.5, 8.0):
        loss = reweigh.losses.size_aware(alpha=alpha)
        scales = torch.linspace(0.7, 1.3, 601, dtype=torch.float64)
        costs = torch.tensor([loss(true * scale / own, true).item() for scale in scales])
        optima.append(scales[costs.argmin()].item())
    assert optima[0] > optima[1] > optima[2] > 0.75


def test_nothing_to_price():
    for normalize in ("none", "mean", "sum"):
        boxes = torch.zeros(0, 4, requires_grad=True)
        loss = reweigh.losses.size_aware(normalize=normalize)(boxes, torch.zeros(0, 4))
        loss.backward()
        assert loss.item() == 0.0 and boxes.grad.shape == (0, 4)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"alpha": 0.9}, "alpha=...): got 0.9"),
        ({"threshold": 0.0}, "threshold"),
        ({"medium_threshold": -1.0}, "medium_threshold"),
        ({"weighting": "step", "threshold": 1e4}, "medium_threshold of at least threshold"),
        ({"weighting": "cubic"}, "'exponential', 'step'"),
        ({"normalize": "per_gt"}, "'none', 'mean', 'sum'"),
        ({"power": -1.0}, "power"),
    ],
)
def test_bad_settings(settings, words):
    with pytest.raises(InputError) as caught:
        reweigh.losses.size_aware(**settings)
    assert words in str(caught.value)
