"""Values and gradients against formulas written down again in mpmath, with forty digits, from the papers.

Nothing of the package takes part on the other side. Softmax losses see rows from undecided to hopeless; sigmoid
losses see single logits. The derivative is mpmath's own, by finite differences at forty digits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

import reweigh
from reweigh import registry

mpmath = pytest.importorskip("mpmath")
from mpmath import mpf  # noqa: E402

DIGITS = 40
NAMES = set(registry.names("loss"))


def probabilities(z: list) -> list:
    highest = max(z)
    shares = [mpmath.exp(one - highest) for one in z]
    return [share / mpmath.fsum(shares) for share in shares]


def log_p(z: list, y: int):
    """-log(1 + sum of the others' ratios): no digit is lost."""
    return -mpmath.log1p(mpmath.fsum(mpmath.exp(one - z[y]) for k, one in enumerate(z) if k != y))


def miss(z: list, y: int):
    p = probabilities(z)
    return mpmath.fsum(one for k, one in enumerate(p) if k != y)


def rivals(z: list, y: int) -> list:
    return [one for k, one in enumerate(probabilities(z)) if k != y]


def next_lower(z: list, y: int):
    below = [one for k, one in enumerate(z) if one < z[y]]
    return mpmath.exp(max(below) - z[y] + log_p(z, y)) if below else mpf(0)


def dual(z, y, rival, gamma=5):
    return -((miss(z, y) + rival) ** gamma) * log_p(z, y)


def brier(z, y):
    return miss(z, y) ** 2 + mpmath.fsum(one**2 for one in rivals(z, y))


def scheduled(z, y):
    return -(miss(z, y) ** (5 if mpmath.exp(log_p(z, y)) < mpf("0.2") else 3)) * log_p(z, y)


def normalized(z, y):
    return log_p(z, y) / mpmath.fsum(log_p(z, k) for k in range(len(z)))


def bi_tempered(z, y):
    """exp_t(z - lambda) with lambda found by bisection; the divergence from the one-hot target."""

    t1, t2 = mpf("0.8"), mpf("1.4")

    def exp_t(x):
        return max(1 + (1 - t2) * x, mpf(0)) ** (1 / (1 - t2))

    highest = max(z)
    distance = [one - highest for one in z]
    low, high = mpf(0), (mpf(len(z)) ** (t2 - 1) - 1) / (t2 - 1) + 1
    for _ in range(140):
        middle = (low + high) / 2
        if mpmath.fsum(exp_t(one - middle) for one in distance) > 1:
            low = middle
        else:
            high = middle
    p = [exp_t(one - low) for one in distance]
    log_t = (p[y] ** (1 - t1) - 1) / (1 - t1)
    return -log_t - (1 - mpmath.fsum(one ** (2 - t1) for one in p)) / (2 - t1)


def confidence_penalty(z, y, beta):
    p = probabilities(z)
    return -log_p(z, y) + beta * mpmath.fsum(one * log_p(z, k) for k, one in enumerate(p))


def smoothed(z, y):
    eps = mpf("0.1")
    return -(1 - eps) * log_p(z, y) - eps * mpmath.fsum(log_p(z, k) for k in range(len(z))) / len(z)


# name, settings, formula of (logits, true class)
SOFTMAX: list[tuple[str, dict, Callable]] = [
    ("cross_entropy", {}, lambda z, y: -log_p(z, y)),
    ("cross_entropy", {"label_smoothing": 0.1}, smoothed),
    ("focal", {"gamma": 0.2}, lambda z, y: -(miss(z, y) ** mpf("0.2")) * log_p(z, y)),
    ("focal", {}, lambda z, y: -(miss(z, y) ** 2) * log_p(z, y)),
    ("focal", {"gamma": 20}, lambda z, y: -(miss(z, y) ** 20) * log_p(z, y)),
    ("inverse_focal", {}, lambda z, y: -(1 + mpmath.exp(log_p(z, y))) * log_p(z, y)),
    ("scheduled_focal", {}, scheduled),
    ("dual_focal", {}, lambda z, y: dual(z, y, max(rivals(z, y)))),
    ("dual_focal", {"variant": "next_lower"}, lambda z, y: dual(z, y, next_lower(z, y))),
    ("brier", {}, brier),
    ("polynomial", {}, lambda z, y: -log_p(z, y) + miss(z, y)),
    ("generalized_cross_entropy", {"r": 0.7}, lambda z, y: -mpmath.expm1(mpf(0.7) * log_p(z, y)) / mpf(0.7)),
    ("mean_absolute", {}, lambda z, y: miss(z, y)),
    ("normalized_cross_entropy", {}, normalized),
    ("confidence_penalty", {"beta": 0.25}, lambda z, y: confidence_penalty(z, y, mpf("0.25"))),
    ("bi_tempered", {}, bi_tempered),
    ("adaptive_focal", {}, lambda z, y: -miss(z, y) * log_p(z, y)),  # before anything was observed gamma is 1
]

# name, settings, formula of (logit, is the label present)
SIGMOID: list[tuple[str, dict, Callable]] = [
    ("binary_cross_entropy", {}, lambda m, _: mpmath.log1p(mpmath.exp(-m))),
    ("binary_focal", {}, lambda m, _: mpmath.log1p(mpmath.exp(-m)) / (1 + mpmath.exp(m)) ** 2),
    (
        "focal_exponential",
        {},
        lambda m, y: mpmath.exp(-m) if y else mpmath.log1p(mpmath.exp(-m)) / (1 + mpmath.exp(m)) ** 2,
    ),
    ("exponential_cross_entropy", {"positive_weight": 1, "negative_weight": 1}, lambda m, _: mpmath.exp(-m)),
]

# how far the true class is ahead of the largest other
GAPS = [0.0, 1e-12, -1e-12, 1e-6, 0.4, -0.4, 3.1, -3.1, 12.3, -12.3, 37.0, -37.0, 95.0, -95.0, 720.0, -720.0, 1e4, -1e4]


def rows(classes: int) -> list[tuple[list[float], int]]:
    found = []
    for number, gap in enumerate(GAPS):
        y = number % classes
        z = [-0.11 - 0.37 * k - 0.05 * k * number for k in range(classes)]
        z[(y + 1) % classes] = 0.0
        z[y] = gap
        found.append((z, y))
    return found


def derivative(function: Callable, z: list, place: int):
    """Central differences at forty digits."""
    step = mpf(10) ** (-DIGITS // 3)
    ahead, behind = list(z), list(z)
    ahead[place] += step
    behind[place] -= step
    return (function(ahead) - function(behind)) / (2 * step)


def agrees(found: float, exact, relative: float, absolute: float) -> bool:
    return abs(mpf(found) - exact) <= relative * abs(exact) + absolute


def known(table):
    return [pytest.param(*entry, id=f"{entry[0]}{entry[1] or ''}") for entry in table if entry[0] in NAMES]


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize(("name", "settings", "formula"), known(SOFTMAX))
def test_softmax_loss_is_its_formula(name, settings, formula, classes):
    loss = reweigh.loss(name, reduction="none", **settings)
    for z, y in rows(classes):
        if name == "dual_focal" and abs(z[y]) < 1e-3 and settings:
            continue  # the rival changes there, and with it the derivative
        logits = torch.tensor([z], dtype=torch.float64, requires_grad=True)
        cost = loss(logits, torch.tensor([y]))
        cost.sum().backward()
        with mpmath.workdps(DIGITS):
            exact = [mpf(one) for one in z]
            value = formula(exact, y)
            assert agrees(cost.item(), value, 1e-9, 1e-300), (z, y, cost.item(), value)
            slopes = [derivative(partial(formula, y=y), exact, k) for k in range(classes)]
            largest = max(abs(one) for one in slopes)
            for k, slope in enumerate(slopes):
                # an entry that is a difference of larger ones is right to their rounding
                assert agrees(logits.grad[0, k].item(), slope, 1e-7, 1e-9 * float(largest) + 1e-24), (z, y, k)


@pytest.mark.parametrize(("name", "settings", "formula"), known(SIGMOID))
@pytest.mark.parametrize("present", [True, False])
def test_sigmoid_loss_is_its_formula(name, settings, formula, present):
    loss = reweigh.loss(name, reduction="none", **settings)
    for gap in GAPS:
        if "exponential" in name and gap * (1 if present else -1) < -600:
            continue  # continued by its tangent
        logits = torch.tensor([[gap]], dtype=torch.float64, requires_grad=True)
        cost = loss(logits, torch.tensor([[float(present)]]))
        cost.sum().backward()
        sign = 1 if present else -1
        with mpmath.workdps(DIGITS):
            margin = sign * mpf(gap)
            value = formula(margin, present)
            slope = sign * derivative(lambda at: formula(at[0], present), [margin], 0)
            assert agrees(cost.item(), value, 1e-9, 1e-300), (gap, cost.item(), value)
            assert agrees(logits.grad.item(), slope, 1e-7, 1e-24), (gap, logits.grad.item(), slope)


def test_evidence_is_exact_at_every_gap():
    """log p, log(1 - p), rivals and sums, in float64 and float32, by the fused form."""
    needs = ("log_p", "log_miss", "log_odds", "log_rival", "sum_log_p", "entropy", "confidence_log_odds")
    from reweigh.evidence import softmax_evidence

    for dtype, relative in ((torch.float64, 1e-12), (torch.float32, 2e-6)):
        for z, y in rows(5):
            logits = torch.tensor([z], dtype=dtype)
            found = softmax_evidence(logits, torch.tensor([y]), needs=needs)
            with mpmath.workdps(DIGITS):
                exact = [mpf(one) for one in logits[0].tolist()]
                p = probabilities(exact)
                logs = [log_p(exact, k) for k in range(5)]
                top = max(range(5), key=lambda k: exact[k])
                truth = {
                    "log_p": logs[y],
                    "log_miss": mpmath.log(miss(exact, y)),
                    "log_odds": logs[y] - mpmath.log(miss(exact, y)),
                    "log_rival": max(log for k, log in enumerate(logs) if k != y),
                    "sum_log_p": mpmath.fsum(logs),
                    "entropy": -mpmath.fsum(one * log for one, log in zip(p, logs, strict=True)),
                    "confidence_log_odds": logs[top] - mpmath.log(miss(exact, top)),
                }
                for name, value in truth.items():
                    off = abs(mpf(getattr(found, name).item()) - value)
                    floor = 1e-7 if dtype == torch.float32 and name == "log_odds" else 1e-15
                    floor = 2e-7 if dtype == torch.float32 and name == "confidence_log_odds" else floor
                    assert off <= relative * abs(value) + floor, (name, dtype, z, y, getattr(found, name).item(), value)
