"""Sigmoid losses against their formulas in 400 digits, against PyTorch and torchvision, and against published programs."""

from __future__ import annotations

import math
import warnings

import mpmath
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid, softplus

import reweigh
from losses.sigmoid_oracle import GRADIENTS, LOGITS, VALUES, Point, agree, costs_and_gradient, mpf, tensors
from reweigh.errors import InputError

log, exp = mpmath.log, mpmath.exp
DTYPES = [torch.float64, torch.float32]


# ------------------------------------------------------------------ formulas, of a present label


def cross_entropy(at: Point):
    return -at.log_p


def focal(gamma):
    return lambda at: at.q ** mpf(gamma) * -at.log_p


def inverse_focal(gamma):
    return lambda at: (1 + at.p) ** mpf(gamma) * -at.log_p


def exponential(at: Point):
    inside = exp(min(-at.z, mpf(at.bound)))
    return inside + exp(mpf(at.bound)) * max(mpf(0), -at.z - at.bound)


def power(r):
    def cost(at: Point):
        if r >= 0:
            return mpmath.expm1(mpf(r) * at.log_p) / -mpf(r) if r else -at.log_p
        bound = mpf(at.bound) / -mpf(r)  # of the log-odds: the tangent there, in the log-odds
        near = log(1 + exp(min(-at.z, bound)))
        slope = exp(-mpf(r) * log(1 + exp(bound))) / (1 + exp(-bound))
        return mpmath.expm1(-mpf(r) * near) / -mpf(r) + slope * max(mpf(0), -at.z - bound)

    return cost


def clamped(at: Point):
    c = mpf(10) ** -8
    p = min(max(at.p, c), 1 - c)
    return Point(log(p / (1 - p)), p, 1 - p, at.bound)


def author(formula):
    """Of the clamped p, without derivative beyond."""
    return lambda at: formula(clamped(at))


def author_exponential(at: Point):
    return 1 / (clamped(at).p + mpf(10) ** -8) - 1


def rest(at: Point, m):
    """1 - p_m, p_m = max(p - m, 0), written without cancelling at the end where p is 1."""
    return min(at.q + mpf(m), mpf(1))


def asymmetric_absent(gamma, m):
    return lambda at: max(at.p - mpf(m), mpf(0)) ** mpf(gamma) * -log(rest(at, m))


def lfa_present(gamma, m):
    return lambda at: rest(at, m) ** mpf(gamma) * -at.log_p


def lfa_absent(gamma, m):
    return lambda at: at.p ** mpf(gamma) * -log(rest(at, m))


def mirrored(formula):
    """The absent side of a loss that treats both alike."""
    return lambda at: formula(at.flipped())


def both(formula):
    return formula, mirrored(formula)


def times(weight, formula):
    return lambda at: mpf(weight) * formula(at)


def losses(name, *pairs):
    return [(f"{name}:{settings}", name, settings, present, absent) for settings, (present, absent) in pairs]


FORMS = [
    *losses(
        "binary_cross_entropy",
        ({}, both(cross_entropy)),
        ({"positive_weight": 2.5}, (times(2.5, cross_entropy), mirrored(cross_entropy))),
    ),
    *losses(
        "binary_focal",
        *[({"gamma": gamma}, both(focal(gamma))) for gamma in (0.0, 0.2, 0.5, 1.0, 2.0, 2.5, 3.0, 4.0, 7.0, 20.0)],
        ({"alpha": 0.25}, (times(0.25, focal(2)), times(0.75, mirrored(focal(2))))),
    ),
    *losses(
        "binary_inverse_focal", *[({"gamma": gamma}, both(inverse_focal(gamma))) for gamma in (0.0, 0.5, 1.0, 3.0)]
    ),
    *losses(
        "exponential_cross_entropy",
        ({}, both(exponential)),
        (
            {"positive_weight": 3.0, "negative_weight": 0.5},
            (times(3, exponential), times(0.5, mirrored(exponential))),
        ),
        ({"saturation": "clamp"}, both(author_exponential)),
    ),
    *losses(
        "focal_exponential",
        *[({"gamma": gamma}, (exponential, mirrored(focal(gamma)))) for gamma in (0.0, 0.5, 2.0, 5.0)],
        ({"saturation": "clamp"}, (author_exponential, mirrored(author(focal(2))))),
        ({"saturation": "clamp", "gamma": 0.5}, (author_exponential, mirrored(author(focal(0.5))))),
    ),
    *losses(
        "exponential_focal",
        ({"gamma": 3.0}, (focal(3), mirrored(exponential))),
        ({"saturation": "clamp"}, (author(focal(2)), mirrored(author_exponential))),
    ),
    *losses(
        "balanced_exponential",
        ({}, (exponential, mirrored(cross_entropy))),
        ({"saturation": "clamp"}, (author_exponential, mirrored(author(cross_entropy)))),
    ),
    *losses(
        "power",
        *[
            ({"r": r}, both(power(r)))
            for r in (0.0, 1e-25, 1e-15, 0.01, 0.7, 1.0, 2.0, -1.0, -0.5, -0.01, -3.0, -1e-12)
        ],
    ),
    *losses(
        "asymmetric",
        ({}, (focal(1), asymmetric_absent(4, 0.05))),
        ({"gamma_negative": 2.5, "gamma_positive": 0.0, "margin": 0.2}, (focal(0), asymmetric_absent(2.5, 0.2))),
        ({"gamma_negative": 0.5, "gamma_positive": 0.5}, (focal(0.5), asymmetric_absent(0.5, 0.05))),
        ({"gamma_negative": 0.0, "margin": 0.05}, (focal(1), asymmetric_absent(0, 0.05))),
        ({"gamma_negative": 1.0, "margin": 1e-4}, (focal(1), asymmetric_absent(1, 1e-4))),
        ({"margin": 0.0}, (focal(1), mirrored(focal(4)))),
        ({"variant": "lfa"}, (lfa_present(1, 0.05), lfa_absent(4, 0.05))),
        ({"variant": "lfa", "gamma_positive": 2.5, "margin": 1e-4}, (lfa_present(2.5, 1e-4), lfa_absent(4, 1e-4))),
        ({"variant": "lfa", "margin": 0.0, "gamma_negative": 2.0}, (focal(1), mirrored(focal(2)))),
    ),
    *losses("equalization", ({"num_classes": 1}, both(cross_entropy))),  # before anything was observed
]
# beside the common grid: both sides of the margins, and the middle of the range
MIDDLE = [
    sign * size
    for size in (1e-3, 0.11, 1.3, 2.93, 2.944, 2.9445, 2.95, 5.7, 9.2, 9.22, 14.5, 18.4, 30.0)
    for sign in (1, -1)
]


def built(name, settings, **common):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return reweigh.loss(name, **settings, **common)


def shaped(loss, logits, dtype, label):
    """As `costs_and_gradient`, a column for losses that know their classes."""
    if loss.rule.num_classes is None:
        return costs_and_gradient(loss, logits, dtype, label)
    z = torch.tensor(logits, dtype=torch.float64).to(dtype).unsqueeze(1).requires_grad_()
    cost = loss(z, torch.full(z.shape, label, dtype=dtype))
    return cost, torch.autograd.grad(cost.sum(), z)[0]


@pytest.mark.parametrize(
    ("name", "settings", "present", "absent"), [form[1:] for form in FORMS], ids=[form[0] for form in FORMS]
)
def test_values_and_gradients(name, settings, present, absent):
    loss = built(name, settings, reduction="none")
    exponent = max([1.0, *[value / 5 for key, value in settings.items() if key.startswith("gamma")]])
    for dtype in DTYPES:
        for label in (0.0, 1.0):
            cost, slope = tensors(present, absent, LOGITS + MIDDLE, dtype, label)
            found, gradient = shaped(loss, LOGITS + MIDDLE, dtype, label)
            agree(found, cost, VALUES[dtype], f"{dtype} costs of label {label}", times=exponent)
            agree(gradient, slope, GRADIENTS[dtype], f"{dtype} gradients of label {label}", times=exponent)


OWN_SOFT = {"asymmetric"}


@pytest.mark.parametrize(
    ("name", "settings", "present", "absent"),
    [form[1:] for form in FORMS if form[1] not in OWN_SOFT or form[2].get("variant") == "lfa"],
    ids=[form[0] for form in FORMS if form[1] not in OWN_SOFT or form[2].get("variant") == "lfa"],
)
def test_soft_labels_weigh_both_costs(name, settings, present, absent):
    loss = built(name, settings, reduction="none")
    logits = LOGITS[:9] + [20.0, -20.0, 1e4, -1e4]
    for dtype in DTYPES:
        label = torch.tensor(0.3, dtype=dtype).item()
        cost, slope = tensors(present, absent, logits, dtype, label)
        found, gradient = shaped(loss, logits, dtype, label)
        scale = cost.abs().clamp(min=1e-3).reciprocal()  # the two gradients may cancel
        agree(found, cost, VALUES[dtype], f"{dtype} costs", times=4.0)
        agree(
            gradient.reshape(-1).double() * scale,
            slope * scale,
            (GRADIENTS[dtype][0], 1e-6 if dtype == torch.float32 else 1e-8),
            f"{dtype} gradients",
            times=4.0,
        )


# ------------------------------------------------------------------ the asymmetric loss's own soft form


@pytest.mark.parametrize(
    "settings", [{}, {"gamma_positive": 0.5, "gamma_negative": 2.5, "margin": 0.2}, {"margin": 0.0}], ids=str
)
@pytest.mark.parametrize("label", [1e-6, 0.3, 0.9, 1.0 - 2.0**-20])
def test_asymmetric_soft_form(settings, label):
    positive, negative = settings.get("gamma_positive", 1.0), settings.get("gamma_negative", 4.0)
    m = settings.get("margin", 0.05)
    label = torch.tensor(label, dtype=torch.float32).item()

    def cost(at: Point):
        y = mpf(label)
        p_m = max(at.p - mpf(m), mpf(0)) if at.z < 0 else max(1 - mpf(m) - at.q, mpf(0))
        missed = y * at.q + (1 - y) * p_m
        gamma = mpf(positive) * y + mpf(negative) * (1 - y)
        return missed**gamma * -(y * at.log_p + (1 - y) * log(rest(at, m)))

    loss = reweigh.losses.asymmetric(reduction="none", **settings)
    logits = [0.0, 1e-6, 0.5, -0.5, 3.0, -3.0, 20.0, -20.0, 75.0, -75.0, 1e4, -1e4]
    for dtype in DTYPES:
        right, slope = tensors(cost, cost, logits, dtype, 1.0)
        found, gradient = costs_and_gradient(loss, logits, dtype, label)
        agree(found, right, VALUES[dtype], f"{dtype} costs", times=2.0)
        agree(
            gradient,
            slope,
            (GRADIENTS[dtype][0], 1e-9 if dtype == torch.float32 else 1e-16),
            f"{dtype} gradients",
            times=4.0,
        )


def test_asymmetric_soft_form_meets_the_hard_one():
    z = torch.linspace(-12, 12, 97, dtype=torch.float64)
    target = (torch.arange(97) % 2).double()
    loss = reweigh.losses.asymmetric(reduction="none")
    with_soft = torch.cat([target, torch.tensor([0.5])])  # one soft label: the whole block takes the soft form
    found = loss(torch.cat([z, torch.zeros(1)]).double(), with_soft.double())[:-1]
    torch.testing.assert_close(found, loss(z, target), rtol=1e-12, atol=1e-300)


# ------------------------------------------------------------------ weights held constant


DETACHED = [
    ("binary_focal", {"gamma": 2.0}, lambda p, q, y: torch.where(y, q**3, p**3)),
    ("binary_focal", {"gamma": 0.5}, lambda p, q, y: torch.where(y, q**1.5, p**1.5)),
    ("binary_inverse_focal", {"gamma": 5.0}, lambda p, q, y: torch.where(y, (1 + p) ** 5 * q, (1 + q) ** 5 * p)),
    (
        "asymmetric",
        {},
        lambda p, q, y: torch.where(y, q**2, (p - 0.05).clamp(min=0) ** 4 * p * q / (q + 0.05) * (p > 0.05)),
    ),
    (
        "asymmetric",
        {"variant": "lfa"},
        lambda p, q, y: torch.where(y, (q + 0.05).clamp(max=1) * q, p**4 * p * q / (q + 0.05) * (p > 0.05)),
    ),
]


@pytest.mark.parametrize(
    ("name", "settings", "size"), DETACHED, ids=[f"{name}:{settings}" for name, settings, _ in DETACHED]
)
def test_detached_weights(name, settings, size):
    z = torch.linspace(-9.7, 9.7, 200, dtype=torch.float64).requires_grad_()
    present = torch.arange(200) % 2 == 1
    reweigh.loss(name, detached=True, reduction="sum", **settings)(z, present).backward()
    p, q = torch.sigmoid(z.detach()), torch.sigmoid(-z.detach())
    expected = torch.where(present, -1.0, 1.0) * size(p, q, present)
    torch.testing.assert_close(z.grad, expected, rtol=1e-10, atol=1e-15)


# ------------------------------------------------------------------ PyTorch and torchvision, where they coincide


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_binary_cross_entropy_is_pytorchs(reduction, dtype):
    generator = torch.Generator().manual_seed(1)
    for shape in [(9,), (9, 1), (5, 4), (3, 4, 2, 3)]:
        classes = shape[1] if len(shape) > 1 else 1
        for soft in (False, True):
            z = (torch.randn(shape, generator=generator, dtype=torch.float64) * 6).to(dtype).requires_grad_()
            target = torch.rand(shape, generator=generator).to(dtype)
            target = target if soft else (target < 0.4).to(dtype)
            weight = torch.rand(classes, generator=generator, dtype=torch.float64) + 0.5
            for given in (None, weight):
                if given is not None and len(shape) == 1:
                    given = given[:1]
                ours = reweigh.losses.binary_cross_entropy(positive_weight=given, reduction=reduction)(z, target)
                spread = None if given is None else given.to(dtype).view(-1, *[1] * (len(shape) - 2))
                theirs = binary_cross_entropy_with_logits(z, target, pos_weight=spread, reduction=reduction)
                relative = 1e-12 if dtype == torch.float64 else 2e-6
                torch.testing.assert_close(ours, theirs, rtol=relative, atol=2e-6 if dtype == torch.float32 else 1e-14)
                grads = [torch.autograd.grad(value.sum(), z)[0] for value in (ours, theirs)]
                torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("alpha", [None, 0.25, 0.0, 1.0])
@pytest.mark.parametrize("gamma", [0.0, 1.0, 2.0, 3.5])
def test_binary_focal_is_torchvisions(alpha, gamma):
    vision = pytest.importorskip("torchvision")
    z = (torch.randn(40, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) * 4).requires_grad_()
    target = (torch.rand(40, 6, generator=torch.Generator().manual_seed(4)) < 0.3).double()
    ours = reweigh.losses.binary_focal(gamma=gamma, alpha=alpha)(z, target)
    theirs = vision.ops.sigmoid_focal_loss(
        z, target, alpha=-1 if alpha is None else alpha, gamma=gamma, reduction="mean"
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)
    grads = [torch.autograd.grad(value, z)[0] for value in (ours, theirs)]
    torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-15)


def test_focal_gradient_is_finite_where_torchvisions_is_not():
    vision = pytest.importorskip("torchvision")
    z = torch.tensor([120.0], requires_grad=True)
    theirs = vision.ops.sigmoid_focal_loss(z, torch.ones(1), alpha=-1, gamma=0.5, reduction="sum")
    assert not torch.isfinite(torch.autograd.grad(theirs, z)[0])
    assert torch.autograd.grad(reweigh.losses.binary_focal(gamma=0.5)(z, torch.ones(1)), z)[0].item() == 0.0


# ------------------------------------------------------------------ the optimum of a label of probability q


SHARES = [0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.99]
OPTIMA = {
    ("binary_cross_entropy",): SHARES,
    ("exponential_cross_entropy",): [0.091, 0.187, 0.250, 0.333, 0.396, 0.500, 0.604, 0.750, 0.909],
    ("binary_focal",): [0.154, 0.250, 0.306, 0.373, 0.422, 0.500, 0.578, 0.694, 0.846],
    ("focal_exponential",): [0.231, 0.340, 0.403, 0.481, 0.540, 0.640, 0.745, 0.892, 0.989],
    ("asymmetric", "lfa"): [0.294, 0.392, 0.445, 0.507, 0.550, 0.622, 0.695, 0.806, 0.949],
    ("asymmetric", "official"): [0.321, 0.417, 0.468, 0.528, 0.570, 0.638, 0.708, 0.812, 0.942],
}


@pytest.mark.parametrize("which", OPTIMA, ids=":".join)
def test_optimal_probabilities(which):
    """Where q L+' + (1 - q) L-' crosses zero, to the three digits of the published table."""
    loss = reweigh.loss(which[0], reduction="none", **({"variant": which[1]} if len(which) > 1 else {}))
    for share, optimum in zip(SHARES, OPTIMA[which], strict=True):
        p = torch.tensor([optimum - 0.0006, optimum + 0.0006], dtype=torch.float64)
        z = torch.logit(p).requires_grad_()
        slopes = [torch.autograd.grad(loss(z, torch.full((2,), label)).sum(), z)[0] for label in (1, 0)]
        below, above = (share * slopes[0] + (1 - share) * slopes[1]).tolist()
        assert below < 0 < above, (share, optimum, below, above)


@pytest.mark.parametrize(("gamma", "optimum"), [(0, 0.618), (1, 0.620), (2, 0.640), (3, 0.662), (4, 0.683)])
def test_optimum_of_one_half_under_f_ece(gamma, optimum):
    z = torch.logit(torch.tensor([optimum - 0.0006, optimum + 0.0006], dtype=torch.float64)).requires_grad_()
    loss = reweigh.losses.focal_exponential(gamma=gamma, reduction="none")
    slope = sum(torch.autograd.grad(loss(z, torch.full((2,), label)).sum(), z)[0] for label in (1, 0))
    assert slope[0] < 0 < slope[1]


def test_f_ece_gradient_peak():
    """The gradient on absent labels peaks at 1.129, where p = 0.942."""
    z = torch.linspace(-8, 8, 16001, dtype=torch.float64).requires_grad_()
    reweigh.losses.focal_exponential(reduction="sum")(z, torch.zeros(len(z), dtype=torch.int64)).backward()
    assert z.grad.max().item() == pytest.approx(1.129, abs=5e-4)
    assert torch.sigmoid(z.detach())[z.grad.argmax()].item() == pytest.approx(0.942, abs=1e-3)


# ------------------------------------------------------------------ saturation


def test_author_values():
    """The published program at hopeless logits: 1/(2e-8) - 1, and no gradient beyond 18.42."""
    loss = reweigh.losses.exponential_cross_entropy(saturation="clamp", reduction="none")
    z = torch.tensor([-1e4, -20.0, -18.43, -18.41], dtype=torch.float64).requires_grad_()
    cost = loss(z, torch.ones(4))
    assert cost[:3].tolist() == pytest.approx([49_999_999.0] * 3, rel=1e-12)
    (gradient,) = torch.autograd.grad(cost.sum(), z)
    assert gradient[:3].tolist() == [0.0, 0.0, 0.0] and gradient[3] < -1e7
    half = reweigh.losses.focal_exponential(saturation="clamp", reduction="none")
    sure = half(torch.tensor([40.0], dtype=torch.float64), torch.zeros(1))
    assert sure.item() == pytest.approx((1 - 1e-8) ** 2 * -math.log(1e-8), rel=1e-9)  # the logarithm is clamped, too


@pytest.mark.parametrize(
    "name", ["exponential_cross_entropy", "focal_exponential", "exponential_focal", "balanced_exponential"]
)
@pytest.mark.parametrize("saturation", ["linear", "clamp"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_hopeless_logits_have_finite_gradients_in_every_type(name, saturation, dtype):
    for label in (0, 1):
        z = torch.tensor([-1e4, -300.0, -12.0, 12.0, 300.0, 1e4]).to(dtype).requires_grad_()
        cost = reweigh.loss(name, saturation=saturation, reduction="none")(z, torch.full(z.shape, label))
        (gradient,) = torch.autograd.grad(cost.sum(), z)
        assert torch.isfinite(cost).all() and torch.isfinite(gradient).all()
        hopeless = gradient[0] if label else gradient[-1]
        assert saturation == "clamp" or hopeless.abs() >= 0.99  # they still pull


def test_half_precision_turns_linear_at_five():
    z = torch.tensor([-4.0, -5.0, -7.0], dtype=torch.float16).requires_grad_()
    cost = reweigh.losses.exponential_cross_entropy(reduction="none")(z, torch.ones(3))
    assert cost.tolist() == pytest.approx([math.exp(4), math.exp(5), 3 * math.exp(5)], rel=1e-5)
    (gradient,) = torch.autograd.grad(cost.sum(), z)
    assert gradient.tolist() == pytest.approx([-math.exp(4), -math.exp(5), -math.exp(5)], rel=1e-3)


def test_a_sum_beyond_float32_is_kept_in_float64():
    z = torch.full((2000, 3), 1e4, requires_grad=True)
    loss = reweigh.losses.exponential_cross_entropy()(z, torch.zeros(2000, 3))
    assert loss.item() == pytest.approx(math.exp(75) * (1e4 - 74), rel=1e-5)


def test_power_joins_its_neighbours():
    z = torch.linspace(-60, 60, 241, dtype=torch.float64)
    target = (torch.arange(241) % 2).double()
    for r, twin in [(0.0, "binary_cross_entropy"), (-1.0, "exponential_cross_entropy")]:
        twin = reweigh.loss(twin, reduction="none")(z, target)
        torch.testing.assert_close(reweigh.losses.power(r=r, reduction="none")(z, target), twin, rtol=1e-14, atol=0)
        beside = reweigh.losses.power(r=r + 1e-9, reduction="none")(z, target)
        torch.testing.assert_close(beside, twin, rtol=1e-6, atol=0)


# ------------------------------------------------------------------ zlpr


def pairwise(z, y):
    """ZLPR of one row in 60 digits; soft labels weigh both sums."""
    with mpmath.workdps(60):
        absent = mpmath.fsum((1 - mpf(t)) * exp(mpf(x)) for x, t in zip(z, y, strict=True))
        present = mpmath.fsum(mpf(t) * exp(-mpf(x)) for x, t in zip(z, y, strict=True))
        return float(mpmath.log1p(absent) + mpmath.log1p(present)), [
            float((1 - mpf(t)) * exp(mpf(x)) / (1 + absent) - mpf(t) * exp(-mpf(x)) / (1 + present))
            for x, t in zip(z, y, strict=True)
        ]


@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_zlpr(soft, dtype):
    generator = torch.Generator().manual_seed(9)
    sizes = [0.0, 1e-6, 0.5, 3.0, 20.0, 55.0, 75.0, 300.0, 1e4]
    loss = reweigh.losses.zlpr(reduction="none")
    for size in sizes:  # a call for each, moderate logits and others
        z = (torch.randn(4, 5, generator=generator, dtype=torch.float64) * size).to(dtype).requires_grad_()
        y = (torch.rand(4, 5, generator=generator) < 0.4).to(dtype)
        y[0], y[1] = 0.0, 1.0  # rows without present labels, without absent ones
        y = torch.where(torch.rand(4, 5, generator=generator) < 0.5, 0.25, y) if soft else y
        cost = loss(z, y.to(dtype))
        (gradient,) = torch.autograd.grad(cost.sum(), z)
        right = [
            pairwise(row.tolist(), labels.tolist()) for row, labels in zip(z.detach().double(), y.double(), strict=True)
        ]
        agree(cost, torch.tensor([one[0] for one in right], dtype=torch.float64), VALUES[dtype], f"costs at {size}")
        slopes = torch.tensor([one[1] for one in right], dtype=torch.float64)
        agree(
            gradient,
            slopes,
            (GRADIENTS[dtype][0], 1e-7 if soft and dtype == torch.float32 else 1e-12),
            f"gradients at {size}",
            times=2.0,
        )


def test_zlpr_of_easy_rows_keeps_its_digits():
    cost = reweigh.losses.zlpr()(torch.tensor([[-20.0, -21.0, 22.0]]), torch.tensor([[0.0, 0.0, 1.0]]))
    assert cost.item() == pytest.approx(math.exp(-20) + math.exp(-21) + math.exp(-22), rel=1e-5)


def test_zlpr_ignores_and_weighs_rows():
    z = torch.tensor([[1.0, -2.0, float("nan")], [0.5, 0.1, 0.2], [2.0, 1.0, 0.0]], requires_grad=True)
    y = torch.tensor([[1, 0, -100], [-100, -100, -100], [0, 1, 0]])
    loss = reweigh.losses.zlpr()(z, y, sample_weight=torch.tensor([2.0, 5.0, 1.0]))
    first, third = pairwise([1.0, -2.0], [1, 0]), pairwise([2.0, 1.0, 0.0], [0, 1, 0])
    assert loss.item() == pytest.approx((2 * first[0] + third[0]) / 2, rel=1e-6)
    (gradient,) = torch.autograd.grad(loss, z)
    assert gradient[0, :2].tolist() == pytest.approx([first[1][0], first[1][1]], rel=1e-5)
    assert gradient[0, 2] == 0 and not gradient[1].any()


# ------------------------------------------------------------------ distribution-balanced


def balanced(z, y, counts, total, floor=0.1, slope=10.0, center=0.2, scale=2.0, kappa=0.05, gamma=2.0, balance=2.0):
    """The formula, for float64 tensors (n, K) and soft or hard labels."""
    rarity = 1 / counts
    ratio = rarity / (y * rarity).sum(1, keepdim=True)
    weight = floor + torch.sigmoid(slope * (ratio - center))
    u = z - kappa / scale * torch.log(total / counts - 1)
    present = balance * torch.exp(gamma * logsigmoid(-u)) * softplus(-u)
    absent = balance * torch.exp(gamma * logsigmoid(scale * u)) * softplus(scale * u, threshold=1e9) / scale
    return weight * (y * present + (1 - y) * absent)


@pytest.mark.parametrize(
    "settings", [{}, {"gamma": 0.0}, {"negative_scale": 1.0, "prior_strength": 0.0, "balance": 1.0}], ids=str
)
@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
def test_distribution_balanced(settings, soft):
    generator = torch.Generator().manual_seed(2)
    counts = torch.tensor([900.0, 120.0, 30.0, 4.0], dtype=torch.float64)
    z = (torch.randn(60, 4, generator=generator, dtype=torch.float64) * 4).requires_grad_()
    y = torch.rand(60, 4, generator=generator, dtype=torch.float64)
    y = y if soft else (y < 0.3).double()
    y[0] = 0.0  # no present label: the ratio is infinite
    ours = reweigh.losses.distribution_balanced(class_counts=counts, sample_count=1000, reduction="none", **settings)(
        z, y
    )
    names = {"negative_scale": "scale", "prior_strength": "kappa"}
    right = balanced(z, y, counts, 1000.0, **{names.get(name, name): value for name, value in settings.items()})
    torch.testing.assert_close(ours, right, rtol=1e-9, atol=1e-300)
    grads = [torch.autograd.grad(value.sum(), z)[0] for value in (ours, right)]
    torch.testing.assert_close(*grads, rtol=1e-7, atol=1e-14)


def test_distribution_balanced_counts_labels_that_count():
    """An ignored label is no company."""
    loss = reweigh.losses.distribution_balanced(class_counts=[50, 20, 5], sample_count=100, reduction="none")
    z = torch.tensor([[0.3, -1.0, 0.7]], dtype=torch.float64)
    found = loss(z, torch.tensor([[1, -100, 1]]))
    counts = torch.tensor([50.0, 20.0, 5.0], dtype=torch.float64)
    right = balanced(z, torch.tensor([[1.0, 0.0, 1.0]], dtype=torch.float64), counts, 100.0)
    assert found[0, 1] == 0
    torch.testing.assert_close(found[:, [0, 2]], right[:, [0, 2]], rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"class_counts": [5, 0]}, "class 1"),
        ({"class_counts": [5, 3], "sample_count": 5}, "label 0"),
        ({"class_counts": [5, 3], "negative_scale": 0.0}, "negative_scale"),
    ],
)
def test_distribution_balanced_refuses_what_has_no_limit(settings, words):
    with pytest.raises(InputError, match=words):
        reweigh.losses.distribution_balanced(**settings)


# ------------------------------------------------------------------ recall


def by_recall(z, y, recall=None):
    if recall is None:
        recall = torch.tensor(
            [1.0 if not t.any() else float(((s > 0) & t.bool()).sum() / t.sum()) for s, t in zip(z.T, y.T, strict=True)]
        )
    weight = torch.where(y.bool(), 1 - recall, recall)
    return weight * binary_cross_entropy_with_logits(z, y, reduction="none")


def test_recall_of_the_batch():
    generator = torch.Generator().manual_seed(6)
    z = (torch.randn(50, 5, generator=generator) * 2).requires_grad_()
    y = (torch.rand(50, 5, generator=generator) < 0.3).float()
    y[:, 3] = 0.0  # absent from the batch: recall 1, absent labels count fully
    z.data[:, 4] = 4.0  # found always: present labels cost nothing
    z.data[0, 0], y[0, 0] = 0.0, 1.0  # exactly 1/2 is not found
    ours = reweigh.losses.recall(reduction="none")(z, y)
    right = by_recall(z, y)
    torch.testing.assert_close(ours, right, rtol=1e-5, atol=1e-7)
    assert not ours[:, 4][y[:, 4] == 1].any()
    grads = [torch.autograd.grad(value.sum(), z)[0] for value in (ours, right)]
    torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-6)


def test_recall_leaves_ignored_labels_out():
    z = torch.tensor([[1.0], [-1.0], [5.0], [-2.0]])
    y = torch.tensor([[1], [1], [-100], [0]])
    found = reweigh.losses.recall()(z, y)
    right = by_recall(z[[0, 1, 3]], y[[0, 1, 3]].float()).mean()
    assert found.item() == pytest.approx(right.item(), rel=1e-6)


def test_recall_of_what_was_observed():
    seen, labels = torch.tensor([[1.0, 2.0], [1.0, -3.0], [-1.0, 1.0]]), torch.tensor([[1, 0], [1, 0], [1, 0]])
    z, y = torch.tensor([[0.5, 0.4], [-0.5, -0.2]]), torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    for statistics, expected in (("epoch", 2 / 3), ("running", 2 / 3)):
        loss = reweigh.losses.recall(statistics=statistics, num_classes=2, decay=0.5, reduction="none")
        torch.testing.assert_close(loss(z, y), by_recall(z, y))  # nothing observed: the batch's
        loss.observe(seen, labels)
        own = torch.tensor([expected, 0.5])  # class 1 was never present: its batch's, one of two
        torch.testing.assert_close(loss(z, y), by_recall(z, y, own))
        loss.observe(torch.tensor([[1.0, 1.0]]), torch.tensor([[1, 1]]))
        counts = (3 / 4, 1.0) if statistics == "epoch" else ((0.5 * 2 + 1) / (0.5 * 3 + 1), 1.0)
        torch.testing.assert_close(loss(z, y), by_recall(z, y, torch.tensor(counts)))
        loss.advance(1)
        assert bool(loss.present.any()) == (statistics == "running")


def test_recall_refuses_soft_labels_and_missing_sizes():
    with pytest.raises(InputError, match=r"soft label 0\.5"):
        reweigh.losses.recall()(torch.zeros(1, 2), torch.tensor([[0.5, 1.0]]))
    with pytest.raises(InputError, match="num_classes"):
        reweigh.losses.recall(statistics="epoch")


# ------------------------------------------------------------------ EQL v2


def test_equalization_follows_the_published_program():
    """Its weights, and its sums of gradients after every batch, written out; ours divides by K more."""
    generator = torch.Generator().manual_seed(8)
    classes, gamma, mu, alpha = 4, 12.0, 0.8, 4.0
    loss = reweigh.losses.equalization(num_classes=classes)
    on_present, on_absent = torch.zeros(classes).double(), torch.zeros(classes).double()
    negative = torch.ones(classes).double()
    for _ in range(6):
        z = torch.randn(30, classes, generator=generator, dtype=torch.float64).requires_grad_()
        y = torch.nn.functional.one_hot(torch.randint(0, classes - 1, (30,), generator=generator), classes).double()
        weight = (1 + alpha * (1 - negative)) * y + negative * (1 - y)
        theirs = (weight * binary_cross_entropy_with_logits(z, y, reduction="none")).sum() / 30
        ours = loss(z, y)
        torch.testing.assert_close(ours * classes, theirs, rtol=1e-12, atol=0)
        grads = [torch.autograd.grad(value, z)[0] for value in (ours * classes, theirs)]
        torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-18)
        size = (torch.sigmoid(z.detach()) - y).abs() * weight
        on_present, on_absent = on_present + (size * y).sum(0), on_absent + (size * (1 - y)).sum(0)
        negative = torch.sigmoid(gamma * (on_present / on_absent - mu))
        loss.observe(z.detach(), y)
    torch.testing.assert_close(loss.positive_gradient, on_present, rtol=1e-12, atol=0)
    torch.testing.assert_close(loss.negative_gradient, on_absent, rtol=1e-12, atol=0)
    assert loss.positive_gradient[-1] == 0  # never present: its absent labels fade


def test_equalization_forward_changes_nothing_and_warns():
    loss = reweigh.losses.equalization(num_classes=2)
    before = {name: value.clone() for name, value in loss.state().items()}
    with pytest.warns(UserWarning, match="never called"):
        for _ in range(60):
            loss(torch.zeros(3, 2), torch.ones(3, 2))
    assert all(torch.equal(before[name], value) for name, value in loss.state().items())


def test_equalization_of_a_class_always_present():
    loss = reweigh.losses.equalization(num_classes=2, reduction="none")
    loss.observe(torch.zeros(5, 2), torch.tensor([[1, 0]] * 5))
    cost = loss(torch.zeros(1, 2), torch.ones(1, 2))
    absent = 1 / (1 + math.exp(12 * 0.8))  # of class 1: nothing but absent labels
    assert cost.tolist()[0] == pytest.approx([math.log(2), (1 + 4 * (1 - absent)) * math.log(2)], rel=1e-6)


# ------------------------------------------------------------------ AdaFocal on labels


def test_binary_adaptive_focal_starts_as_focal():
    z, y = torch.randn(20, 3, generator=torch.Generator().manual_seed(1)), torch.randint(0, 2, (20, 3))
    focal_loss = reweigh.losses.binary_focal(gamma=1.5)(z, y)
    for settings in ({}, {"state": "per_class", "num_classes": 3}):
        ours = reweigh.losses.binary_adaptive_focal(gamma_start=1.5, **settings)(z, y)
        torch.testing.assert_close(ours, focal_loss, rtol=1e-6, atol=0)


def updated_by_hand(margins, gammas, *, bins, scale=1.0):
    """One update of AdaFocal from the log-odds of the true labels: edges as probabilities, gammas."""
    confidence, right = torch.sigmoid(margins.abs()), (margins > 0).double()
    confidence, order = confidence.sort()
    right = right[order]
    n = len(margins)
    position = (torch.arange(bins + 1, dtype=torch.float64) * n / bins).clamp(max=n - 1)
    low = position.floor().long()
    high = (low + 1).clamp(max=n - 1)
    edges = confidence[low] + (position - low) * (confidence[high] - confidence[low])
    moved = gammas.clone()
    for b in range(bins):
        inside = (confidence > edges[b]) & (confidence <= edges[b + 1])
        if b == 0:
            inside = inside | (confidence == confidence[0])
        if inside.any():
            gap = (confidence[inside] - right[inside]).mean()
            moved[b] = gammas[b] * torch.exp((scale if gammas[b] > 0 else -scale) * gap)
            if abs(moved[b]) < 0.2:
                moved[b] = -0.2 if moved[b] > 0 else 0.2
    return edges, moved.clamp(-2, 20)


@pytest.mark.parametrize("state", ["pooled", "per_class"])
def test_binary_adaptive_focal_follows_its_method(state):
    generator = torch.Generator().manual_seed(5)
    classes, bins = 3, 4
    settings = {"scale": 3.0, "bins": bins, "state": state}
    loss = reweigh.losses.binary_adaptive_focal(**settings, num_classes=classes, reduction="none")
    tables = 1 if state == "pooled" else classes
    gammas = torch.ones(tables, bins, dtype=torch.float64)
    for _ in range(3):
        z = torch.randn(40, classes, generator=generator, dtype=torch.float64) * 2
        y = torch.randint(0, 2, (40, classes), generator=generator)
        margins = torch.where(y == 1, z, -z)
        columns = [margins.reshape(-1)] if state == "pooled" else list(margins.T)
        edges, moved = zip(
            *[updated_by_hand(own, table, bins=bins, scale=3.0) for own, table in zip(columns, gammas, strict=True)],
            strict=True,
        )
        loss.observe(z, y)
        gammas = torch.stack(moved).float().double()  # kept as float32
        torch.testing.assert_close(loss.gammas.double().view(tables, bins), gammas, rtol=1e-6, atol=0)
        torch.testing.assert_close(
            loss.edges_as_probability.view(tables, bins + 1), torch.stack(edges), rtol=1e-6, atol=1e-7
        )
    z = torch.randn(30, classes, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 2, (30, classes), generator=generator)
    margins = torch.where(y == 1, z, -z)
    own_edges = torch.logit(torch.stack(edges)).expand(classes, bins + 1)
    own_gammas = loss.gammas.double().view(tables, bins).expand(classes, bins)
    right = torch.zeros_like(z)
    for k in range(classes):
        gamma = own_gammas[k][(margins[:, k].unsqueeze(1) >= own_edges[k, 1:-1]).sum(1)]
        p = torch.sigmoid(margins[:, k])
        right[:, k] = torch.where(gamma > 0, (1 - p) ** gamma, (1 + p) ** -gamma) * -torch.log(p)
    torch.testing.assert_close(loss(z, y), right, rtol=1e-9, atol=0)


def test_binary_adaptive_focal_observes_evidence_and_predictions():
    generator = torch.Generator().manual_seed(7)
    z = torch.randn(30, 3, generator=generator, dtype=torch.float64) * 3
    y = torch.randint(0, 2, (30, 3), generator=generator)
    for settings in ({}, {"state": "per_class", "num_classes": 3}):
        twins = [reweigh.losses.binary_adaptive_focal(bins=5, **settings) for _ in range(4)]
        twins[0].observe(z, y)
        twins[1].observe([twins[1].evidence(z[:11], y[:11]), twins[1].evidence(z[11:], y[11:])])
        twins[2].observe(reweigh.Predictions(logits=z, targets=y))
        twins[3].observe(reweigh.Predictions(probabilities=torch.sigmoid(z), targets=y))
        for twin in twins[1:]:
            torch.testing.assert_close(twin.gammas, twins[0].gammas, rtol=1e-6, atol=0)
            torch.testing.assert_close(twin.edges, twins[0].edges, rtol=1e-5, atol=1e-6)
    margins = torch.where(y == 1, z, -z).reshape(-1)
    alone = reweigh.losses.binary_adaptive_focal(bins=5)
    alone.observe(reweigh.Predictions(confidence=torch.sigmoid(margins.abs()), correct=(margins > 0)))
    pooled = reweigh.losses.binary_adaptive_focal(bins=5)
    pooled.observe(z, y)
    torch.testing.assert_close(alone.gammas, pooled.gammas, rtol=1e-6, atol=0)


def test_binary_adaptive_focal_leaves_unseen_classes_alone():
    loss = reweigh.losses.binary_adaptive_focal(state="per_class", num_classes=2, bins=3)
    before = loss.gammas[1].clone()
    loss.observe(torch.randn(9, 2), torch.tensor([[1, -100]] * 9))
    assert torch.equal(loss.gammas[1], before) and not torch.equal(loss.gammas[0], before)
    with pytest.raises(InputError, match="none that count"):
        loss.observe(torch.randn(3, 2), torch.full((3, 2), -100))


def test_saturated_probabilities_are_observed():
    loss = reweigh.losses.binary_adaptive_focal(bins=2)
    loss.observe(
        reweigh.Predictions(
            probabilities=torch.tensor([[1.0, 0.0], [0.9, 0.2]]), targets=torch.tensor([[1, 1], [1, 0]])
        )
    )
    assert torch.isfinite(loss.gammas).all()


# ------------------------------------------------------------------ what targets may be


NAMES = ["binary_cross_entropy", "binary_focal", "binary_inverse_focal", "asymmetric", "exponential_cross_entropy"]
NAMES += [
    "focal_exponential",
    "exponential_focal",
    "balanced_exponential",
    "power",
    "binary_adaptive_focal",
    "recall",
    "zlpr",
]


@pytest.mark.parametrize("name", NAMES)
def test_class_indices_are_each_class_against_the_rest(name):
    generator = torch.Generator().manual_seed(3)
    for shape in [(6, 4), (3, 4, 2, 2)]:
        z = torch.randn(shape, generator=generator)
        index = torch.randint(0, 4, (shape[0], *shape[2:]), generator=generator)
        index.view(-1)[1] = -100
        labels = torch.zeros(shape, dtype=torch.int64).scatter(1, index.clamp(min=0).unsqueeze(1), 1)
        labels = torch.where((index == -100).unsqueeze(1), -100, labels)
        by_index = reweigh.loss(name, targets="index")(z, index)
        torch.testing.assert_close(by_index, reweigh.loss(name)(z, labels), rtol=1e-6, atol=0)
    with pytest.raises(InputError, match="targets='index'"):
        reweigh.loss(name)(z, index)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("zlpr", "recall")])
def test_shapes_and_types_of_labels(name):
    generator = torch.Generator().manual_seed(4)
    loss = reweigh.loss(name, reduction="none")
    z = torch.randn(8, 3, generator=generator)
    y = torch.rand(8, 3, generator=generator) < 0.5
    right = loss(z, y)
    for labels in (y.long(), y.to(torch.uint8), y.float(), y.double(), y.to(torch.bfloat16)):
        torch.testing.assert_close(loss(z, labels), right, rtol=0, atol=0)
    for one in (z[:, 0], z[:, :1], z.reshape(2, 3, 4), z.T):
        shaped_labels = (
            y[:, 0]
            if one.dim() == 1
            else y[:, :1]
            if one.shape[-1] == 1
            else y.reshape(2, 3, 4)
            if one.dim() == 3
            else y.T
        )
        expected = (
            right[:, 0]
            if one.dim() == 1
            else right[:, :1]
            if one.shape[-1] == 1
            else right.reshape(2, 3, 4)
            if one.dim() == 3
            else right.T
        )
        torch.testing.assert_close(loss(one, shaped_labels), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("binary_cross_entropy", {"positive_weight": [1.0, -2.0]}, "positive_weight=...): got -2 for class 1"),
        ("binary_cross_entropy", {"positive_weight": float("nan")}, "positive_weight"),
        ("binary_cross_entropy", {"positive_weight": "many"}, "positive_weight"),
        (
            "exponential_cross_entropy",
            {"positive_weight": [1.0, 2.0], "negative_weight": [1.0, 2.0, 3.0]},
            "3 weights beside 2",
        ),
        ("exponential_cross_entropy", {"saturation": "soft"}, "'linear', 'clamp'"),
        ("binary_focal", {"gamma": -1.0}, "gamma=...): got -1.0"),
        ("binary_focal", {"gamma": float("inf")}, "gamma"),
        ("binary_focal", {"alpha": 1.5}, "alpha"),
        ("binary_focal", {"targets": "indices"}, "'labels', 'index'"),
        ("asymmetric", {"margin": 1.0}, "margin"),
        ("asymmetric", {"variant": "paper"}, "'official', 'lfa'"),
        ("power", {"r": float("nan")}, "r=...)"),
        ("equalization", {"num_classes": 0}, "num_classes"),
        ("binary_adaptive_focal", {"state": "per_class"}, "num_classes"),
    ],
)
def test_bad_settings_say_what_was_expected(name, settings, words):
    with pytest.raises(InputError) as caught:
        reweigh.loss(name, **settings)
    assert words in str(caught.value)


def test_a_weight_for_each_class_meets_that_many_classes():
    loss = reweigh.losses.binary_cross_entropy(positive_weight=[1.0, 2.0])
    with pytest.raises(InputError, match="2 classes"):
        loss(torch.zeros(2, 3), torch.zeros(2, 3))
    single = reweigh.losses.binary_cross_entropy(positive_weight=torch.tensor([3.0]))
    assert single(torch.zeros(4), torch.ones(4)).item() == pytest.approx(3 * math.log(2), rel=1e-6)


def test_inverse_focal_warns_where_it_rewards_errors():
    with pytest.warns(UserWarning, match="rewards errors"):
        reweigh.losses.binary_inverse_focal(gamma=3.6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reweigh.losses.binary_inverse_focal(gamma=3.59)
        reweigh.losses.binary_inverse_focal(gamma=5.0, detached=True)
