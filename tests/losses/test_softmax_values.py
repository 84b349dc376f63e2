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
