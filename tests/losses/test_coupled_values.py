"""Losses whose rows see each other: against loops over rows and pairs, in 60 digits and in plain PyTorch."""

from __future__ import annotations

import math
from functools import partial

import mpmath
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import reweigh
from reweigh import density
from reweigh.errors import InputError
from reweigh.losses._kernel_calibration import pair_sum, pairwise_sum, sorted_sum

mpf = mpmath.mpf
close = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-13)
DIGITS = 60


def batch(rows: int = 24, classes: int = 4, spread: float = 2.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    z = spread * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    return z, torch.where(
        torch.rand(rows, generator=generator) < 0.6, z.argmax(1), torch.randint(classes, (rows,), generator=generator)
    )


def exact(z: Tensor) -> list[list]:
    """Probabilities in many digits; masked classes have 0."""
    found = []
    for row in z.double().tolist():
        highest = max(row)
        parts = [mpmath.exp(mpf(v) - mpf(highest)) if v > -math.inf else mpf(0) for v in row]
        total = mpmath.fsum(parts)
        found.append([part / total for part in parts])
    return found


def exact_cross_entropy(p: list[list], y: list[int]) -> list:
    return [-mpmath.log(row[k]) for row, k in zip(p, y, strict=True)]


def top_of(row: list) -> int:
    return row.index(max(row))


def exact_value(z: Tensor, y: Tensor, penalty, strength: float) -> tuple[float, float]:
    """Mean cross-entropy plus strength times the penalty, and the penalty."""
    with mpmath.workdps(DIGITS):
        p, targets = exact(z), y.tolist()
        extra = penalty(p, targets)
        base = mpmath.fsum(exact_cross_entropy(p, targets)) / len(targets)
        return float(base + mpf(strength) * extra), float(extra)


# ------------------------------------------------------------------ penalties by definition


def mmce(p, y, *, width=0.4, weighted=True, official=False):
    r = [max(row) for row in p]
    a = [top_of(row) == k for row, k in zip(p, y, strict=True)]

    def kernel(i, j):
        return mpmath.exp(-abs(r[i] - r[j]) / mpf(width))

    n = len(y)
    if not weighted:
        return mpmath.fsum((a[i] - r[i]) * (a[j] - r[j]) * kernel(i, j) for i in range(n) for j in range(n)) / n**2
    right, wrong = [i for i in range(n) if a[i]], [i for i in range(n) if not a[i]]
    if not right or not wrong:
        return mpf(0)
    both = mpmath.fsum((1 - r[i]) * (1 - r[j]) * kernel(i, j) for i in right for j in right) / len(right) ** 2
    none = mpmath.fsum(r[i] * r[j] * kernel(i, j) for i in wrong for j in wrong) / len(wrong) ** 2
    mixed = mpmath.fsum((1 - r[i]) * r[j] * kernel(i, j) for i in right for j in wrong) / (len(right) * len(wrong))
    if official:
        m, k = len(right), len(wrong)
        return mpmath.sqrt(both / m**2 + none / k**2 - 2 * mixed / (m * k) + mpf(10) ** -10)
    return mpmath.sqrt(max(mpf(0), both + none - 2 * mixed))


def kde(p, y, *, h=0.02, norm=1):
    n, classes = len(y), len(p[0])
    if n < 2:
        return mpf(0)
    total = mpf(0)
    alpha = [[value / mpf(h) + 1 for value in row] for row in p]
    log_beta = [mpmath.fsum(mpmath.loggamma(v) for v in a) - mpmath.loggamma(mpmath.fsum(a)) for a in alpha]
    for j in range(n):
        logs = {
            i: mpmath.fsum((alpha[i][c] - 1) * mpmath.log(p[j][c]) for c in range(classes) if alpha[i][c] > 1)
            - log_beta[i]
            for i in range(n)
            if i != j
        }
        highest = max(logs.values())
        weight = {i: mpmath.exp(value - highest) for i, value in logs.items()}
        whole = mpmath.fsum(weight.values())
        for c in range(classes):
            mean = mpmath.fsum(w for i, w in weight.items() if y[i] == c) / whole
            total += abs(mean - p[j][c]) ** norm
    return total / n


def mdca(p, y):
    n, classes = len(y), len(p[0])
    return mpmath.fsum(abs(mpmath.fsum(row[c] for row in p) - y.count(c)) / n for c in range(classes)) / classes


PENALTIES = [
    ("kernel_calibration", {}, mmce, 1.0),
    ("kernel_calibration", {"strength": 2.0, "width": 0.1}, partial(mmce, width=0.1), 2.0),
    ("kernel_calibration", {"normalization": "official"}, partial(mmce, official=True), 1.0),
    ("kernel_calibration", {"weighted": False}, partial(mmce, weighted=False), 1.0),
    ("kernel_density", {}, kde, 0.3),
    ("kernel_density", {"strength": 1.0, "bandwidth": 0.2, "norm": 2}, partial(kde, h=0.2, norm=2), 1.0),
    ("kernel_density", {"bandwidth": 0.001}, partial(kde, h=0.001), 0.3),
    ("confidence_accuracy_difference", {}, mdca, 1.0),
    ("confidence_accuracy_difference", {"strength": 3.0}, mdca, 3.0),
]
IDS = [f"{name}-{'-'.join(map(str, settings.values()))}" for name, settings, _, _ in PENALTIES]


@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0, 30.0, 1e3])
@pytest.mark.parametrize(("name", "settings", "penalty", "strength"), PENALTIES, ids=IDS)
def test_values(name, settings, penalty, strength, spread):
    z, y = batch(14, 3, spread)
    for dtype, off, least in ((torch.float64, 1e-9, 1e-12), (torch.float32, 1e-5, 1e-7)):
        rounded = z.to(dtype)
        expected, _ = exact_value(rounded, y, penalty, strength)
        found = reweigh.loss(name, **settings)(rounded, y).item()
        assert found == pytest.approx(expected, rel=off, abs=least), dtype


@pytest.mark.parametrize(("name", "settings", "penalty", "strength"), PENALTIES, ids=IDS)
def test_gradients(name, settings, penalty, strength):
    z, y = batch(8, 3, 1.5, seed=5)
    moved = z.clone().requires_grad_()
    (found,) = torch.autograd.grad(reweigh.loss(name, **settings)(moved, y), moved)
    step = 1e-20
    with mpmath.workdps(DIGITS):
        for i in range(0, 8, 3):
            for k in range(3):
                ends = []
                for sign in (1, -1):
                    rows = [[mpf(v) for v in row] for row in z.tolist()]
                    rows[i][k] += sign * mpf(step)
                    p = [[mpmath.exp(v) / mpmath.fsum(mpmath.exp(u) for u in row) for v in row] for row in rows]
                    base = mpmath.fsum(exact_cross_entropy(p, y.tolist())) / len(p)
                    ends.append(base + mpf(strength) * penalty(p, y.tolist()))
                slope = float((ends[0] - ends[1]) / (2 * mpf(step)))
                assert found[i, k].item() == pytest.approx(slope, rel=1e-7, abs=1e-12)


@pytest.mark.parametrize(("name", "settings", "penalty", "strength"), PENALTIES, ids=IDS)
def test_certain_rows_do_not_cancel(name, settings, penalty, strength):
    """All rows right with a gap of 25 to 30: cross-entropy and penalty are about 1e-12, and right to nine digits."""
    z = torch.zeros(6, 3, dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    z[torch.arange(6), y] = torch.tensor([25.0, 26, 27, 28, 29, 30], dtype=torch.float64)
    expected, _ = exact_value(z, y, penalty, strength)
    least = 1e-17 if settings.get("normalization") is None else 1e-12
    assert reweigh.loss(name, **settings)(z, y).item() == pytest.approx(expected, rel=1e-7, abs=least)


@pytest.mark.parametrize(("name", "settings", "penalty", "strength"), PENALTIES, ids=IDS)
def test_ignored_rows_are_not_there(name, settings, penalty, strength):
    z, y = batch(20, 4)
    loss = reweigh.loss(name, **settings)
    kept = torch.ones(20, dtype=torch.bool)
    kept[[0, 3, 4, 19]] = False
    wild, held = z.clone(), torch.where(kept, y, -100)
    wild[~kept] = torch.tensor([math.nan, math.inf, -math.inf, 1e30], dtype=torch.float64)
    first, second = wild.requires_grad_(), z[kept].clone().requires_grad_()
    value, expected = loss(first, held), loss(second, y[kept])
    close(value, expected)
    value.backward()
    expected.backward()
    close(first.grad[kept], second.grad)
    assert not bool(first.grad[~kept].any())


@pytest.mark.parametrize(
    ("name", "settings"),
    [(name, settings) for name, settings, _, _ in PENALTIES]
    + [("area_under_risk_coverage", {}), ("generalized_risk", {}), ("generalized_risk", {"coverage": 0.3})],
    ids=[*IDS, "aurc", "augrc", "augrc-0.3"],
)
def test_small_batches(name, settings):
    loss = reweigh.loss(name, **settings)
    for rows in (0, 1, 2):
        z = torch.tensor([[1.0, 0.2, -0.5], [0.3, 0.9, 0.0]], dtype=torch.float64)[:rows].requires_grad_()
        for target in ([0, 1], [1, 0], [0, 0], [-100, -100], [0, -100]):
            value = loss(z, torch.tensor(target[:rows], dtype=torch.int64))
            (gradient,) = torch.autograd.grad(value, z, allow_unused=True, materialize_grads=True)
            assert math.isfinite(value.item())
            assert bool(torch.isfinite(gradient).all())
            if not any(k >= 0 for k in target[:rows]):
                assert value.item() == 0.0
                assert not bool(gradient.any())


def test_penalty_is_added_to_every_row():
    z, y = batch(12, 3)
    weight = torch.rand(3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for name, settings, penalty, strength in PENALTIES:
        extra = strength * exact_value(z, y, penalty, strength)[1]
        base = cross_entropy(z, y, reduction="none")
        close(reweigh.loss(name, reduction="none", **settings)(z, y), base + extra)
        close(reweigh.loss(name, reduction="sum", **settings)(z, y), base.sum() + 12 * extra)
        close(reweigh.loss(name, class_weight=weight, **settings)(z, y), cross_entropy(z, y, weight=weight) + extra)


# ------------------------------------------------------------------ MMCE


def test_both_normalizations_of_a_real_batch_size():
    """77 right and 19 wrong rows: the published programs divide twice, which shrinks the value about seventeenfold."""
    generator = torch.Generator().manual_seed(11)
    z = 2.0 * torch.randn(400, 5, generator=generator, dtype=torch.float64)
    order = z.argmax(1)
    z = torch.cat([z[:77], z[77:96]])
    y = torch.cat([order[:77], (order[77:96] + 1) % 5])
    found = {}
    for normalization in ("paper", "official"):
        value, extra = exact_value(z, y, partial(mmce, official=normalization == "official"), 1.0)
        assert reweigh.loss("MMCE", normalization=normalization)(z, y).item() == pytest.approx(value, rel=1e-10)
        found[normalization] = extra
    assert 0.3 < found["paper"] < 0.9
    assert 10 < found["paper"] / found["official"] < 25


def test_mmce_at_zero_has_a_finite_gradient():
    """Undecided rows, half of them right: the two sides cancel exactly, and the root must not divide by 0."""
    z = torch.zeros(4, 2, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0, 1, 0, 1])
    for settings in ({}, {"normalization": "official"}, {"weighted": False}):
        value = reweigh.losses.kernel_calibration(**settings)(z, y)
        (gradient,) = torch.autograd.grad(value, z)
        assert value.item() == pytest.approx(math.log(2.0), abs=2e-5)
        assert bool(torch.isfinite(gradient).all())


def test_mmce_gradient_flows_through_the_confidence_alone():
    z, y = batch(10, 3)
    z.requires_grad_()
    for settings in ({}, {"weighted": False}):
        loss = reweigh.losses.kernel_calibration(**settings)
        (whole,) = torch.autograd.grad(loss(z, y), z)
        (base,) = torch.autograd.grad(cross_entropy(z, y), z)
        r = torch.softmax(z, 1).amax(1)
        (direction,) = torch.autograd.grad(r.sum(), z)
        extra = whole - base  # row by row a multiple of dr / dz
        share = (extra * direction).sum(1, keepdim=True) / (direction * direction).sum(1, keepdim=True)
        close(extra, share * direction, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("pairs", [1 << 22, 64])
def test_blocks_of_rows_change_nothing(monkeypatch, pairs):
    z, y = batch(23, 3)
    whole = {}
    for size in (1 << 22, pairs):
        monkeypatch.setattr(density, "BLOCK_PAIRS", size)
        for name, settings in (("kernel_calibration", {"width": 0.001}), ("kernel_density", {})):
            point = z.clone().requires_grad_()
            value = reweigh.loss(name, **settings)(point, y)
            (gradient,) = torch.autograd.grad(value, point, create_graph=True)
            (second,) = torch.autograd.grad(gradient.square().sum(), point)
            if name in whole:
                for found, expected in zip((value, gradient, second), whole[name], strict=True):
                    close(found.detach(), expected)
            whole[name] = [part.detach() for part in (value, gradient, second)]


@pytest.mark.parametrize("width", [0.4, 0.05, 1 / 600, 1e-4])
def test_both_ways_to_sum_over_pairs(width):
    """One sort, and all pairs: the same values, gradients and second derivatives, ties included."""
    generator = torch.Generator().manual_seed(4)
    value = torch.randn(40, generator=generator, dtype=torch.float64)
    position = torch.rand(40, generator=generator, dtype=torch.float64)
    position[3:9], position[20], position[21] = position[2], 0.0, 1.0
    found = []
    for form in (pair_sum, pairwise_sum, sorted_sum)[: 3 if width >= 1 / 600 else 2]:
        v, x = value.clone().requires_grad_(), position.clone().requires_grad_()
        total = form(v, x, width)
        first = torch.autograd.grad(total, (v, x), create_graph=True)
        second = torch.autograd.grad(sum((part * part).sum() for part in first), (v, x))
        found.append([total, *first, *second])
    for other in found[1:]:
        for ours, theirs in zip(found[0], other, strict=True):
            close(ours.detach(), theirs.detach(), rtol=1e-9, atol=1e-9)


def test_pair_sum_is_that_of_the_metrics_room():
    generator = torch.Generator().manual_seed(4)
    value = torch.randn(50, generator=generator, dtype=torch.float64)
    position = torch.rand(50, generator=generator, dtype=torch.float64)
    close(pair_sum(value, position, 0.4), density.laplace_pair_sum(position, value, width=0.4))


# ------------------------------------------------------------------ KDE


def test_the_regularizer_of_kde_has_a_gradient():
    z, y = batch(12, 3)
    z.requires_grad_()
    (whole,) = torch.autograd.grad(reweigh.losses.kernel_density()(z, y), z)
    (base,) = torch.autograd.grad(cross_entropy(z, y), z)
    assert (whole - base).norm() > 0.05 * base.norm()


def test_kde_without_some_classes_and_with_many():
    for classes in (5, 100):
        z, _ = batch(16, classes)
        y = torch.zeros(16, dtype=torch.int64)  # every other class is absent
        y[3] = 1
        z.requires_grad_()
        value = reweigh.losses.kernel_density()(z, y)
        (gradient,) = torch.autograd.grad(value, z)
        assert bool(torch.isfinite(gradient).all())
        if classes == 5:
            assert value.item() == pytest.approx(exact_value(z.detach(), y, kde, 0.3)[0], rel=1e-9)


def test_kde_against_the_direct_estimate():
    """Kernels of moderate size, evaluated without logarithms, as the published program does below 60 classes."""
    z, y = batch(12, 3, 0.7)
    f = torch.softmax(z, 1)
    shape = f / 0.1 + 1
    beta = torch.exp(torch.lgamma(shape).sum(1) - torch.lgamma(shape.sum(1)))
    kernel = (f.unsqueeze(1) ** (shape - 1).unsqueeze(0)).prod(2) / beta  # [j, i]
    kernel.fill_diagonal_(0.0)
    mean = (kernel / kernel.sum(1, keepdim=True)) @ torch.nn.functional.one_hot(y, 3).double()
    expected = cross_entropy(z, y) + 0.3 * (mean - f).abs().sum(1).mean()
    close(reweigh.losses.kernel_density(bandwidth=0.1)(z, y), expected)


# ------------------------------------------------------------------ weights of rank


def harmonic(n: int) -> float:
    return math.fsum(1 / k for k in range(1, n + 1))


def looped_weights(keys: list[float], weight_of_rank, ties: str) -> list[float]:
    """weight_of_rank(1..n) put on rows by ascending key; blocks of equal keys share the mean."""
    n = len(keys)
    order = sorted(range(n), key=lambda i: keys[i])
    found = [0.0] * n
    for place, i in enumerate(order):
        if ties == "stable":
            found[i] = weight_of_rank(place + 1)
        else:
            block = [p for p, j in enumerate(order) if keys[j] == keys[i]]
            found[i] = math.fsum(weight_of_rank(p + 1) for p in block) / len(block)
    return found


SCORE_OF = {
    "max_probability": lambda p: p.amax(1),
    "margin": lambda p: p.sort(1).values[:, -1] - p.sort(1).values[:, -2],
    "negative_entropy": lambda p: (p * p.log()).sum(1),
    "log_odds": lambda p: torch.logit(p.amax(1)),
}


@pytest.mark.parametrize("ties", ["mean", "stable"])
@pytest.mark.parametrize("score", list(SCORE_OF))
def test_rank_weights(score, ties):
    z, y = batch(23, 4)
    z[5], z[6], z[9] = z[2], z[2], z[1]  # ties, exact because the rows are the same
    y[5] = 3
    keys = SCORE_OF[score](torch.softmax(z, 1)).tolist()
    base = cross_entropy(z, y, reduction="none")
    n = 23
    expected = looped_weights(keys, lambda r: harmonic(n) - harmonic(n - r), ties)
    found = reweigh.losses.area_under_risk_coverage(score=score, ties=ties, reduction="none")(z, y)
    close(found, torch.tensor(expected, dtype=torch.float64) * base)
    for coverage in (1.0, 0.4, 1e-9, 0.0):

        def weight(r, kappa=coverage):
            return min((r - 0.5) / n, kappa) / (kappa * (1 - kappa / 2)) if kappa else 1.0

        expected = looped_weights(keys, weight, ties)
        loss = reweigh.losses.generalized_risk(score=score, coverage=coverage, ties=ties, reduction="none")
        close(loss(z, y), torch.tensor(expected, dtype=torch.float64) * base)


def test_relations_of_selective_losses():
    z, y = batch(50, 4)
    n = 50
    base = cross_entropy(z, y, reduction="none")
    aurc = reweigh.losses.area_under_risk_coverage()
    close(aurc(z, y), reweigh.losses.selective_risk(estimator="exact", coverage=1.0)(z, y))
    order = torch.softmax(z, 1).amax(1).sort(descending=True).indices
    risks = base[order].cumsum(0) / torch.arange(1, n + 1)
    close(aurc(z, y), risks.mean())  # the mean selective risk over all coverages
    rank = torch.empty(n, dtype=torch.float64)
    rank[order.flip(0)] = torch.arange(1, n + 1, dtype=torch.float64)
    sele = (rank / n * base).mean()
    trapezoids = sele - base.mean() / (2 * n)  # the area under the generalised risk, from coverage 0
    accepted = torch.cat([torch.zeros(1, dtype=torch.float64), base[order].cumsum(0) / n])
    close(trapezoids, torch.trapezoid(accepted, dx=1 / n))
    close(reweigh.losses.generalized_risk()(z, y), 2 * trapezoids)
    ones = torch.zeros(n, 3, dtype=torch.float64)  # undecided: every weight is one
    for name in ("AURC", "AUGRC"):
        found = reweigh.loss(name, reduction="none")(ones, torch.arange(n) % 3)
        close(found, torch.full((n,), math.log(3.0), dtype=torch.float64))


@pytest.mark.parametrize("name", ["AURC", "AUGRC"])
def test_rank_weights_have_mean_one_and_rise_with_the_score(name):
    for n in (2, 7, 100):
        z, _ = batch(n, 5, seed=n)
        y = z.argmin(1)
        weight = reweigh.loss(name, reduction="none")(z, y) / cross_entropy(z, y, reduction="none")
        assert weight.mean().item() == pytest.approx(1.0, rel=1e-12)
        ordered = weight[torch.softmax(z, 1).amax(1).argsort()]
        assert bool((ordered.diff() > 0).all())


def test_rank_weights_see_beyond_rounding():
    """Confidences that round to 1 in float32 keep their order."""
    z = torch.tensor([[30.0, 0.0], [31.0, 0.0], [32.0, 0.0], [40.0, 0.0]])
    y = torch.tensor([1, 1, 1, 1])
    weight = reweigh.loss("AURC", reduction="none")(z, y) / z[:, 0]
    expected = [harmonic(4) - harmonic(4 - r) for r in (1, 2, 3, 4)]
    torch.testing.assert_close(weight, torch.tensor(expected), rtol=1e-5, atol=0)


def test_unequal_last_batches_keep_their_scale():
    z, y = batch(64, 4)
    loss = reweigh.losses.area_under_risk_coverage(reduction="none")
    for rows in (64, 37, 5):
        weight = loss(z[:rows], y[:rows]) / cross_entropy(z[:rows], y[:rows], reduction="none")
        assert weight.max().item() == pytest.approx(harmonic(rows), rel=1e-10)


@pytest.mark.parametrize("name", ["AURC", "AUGRC", "MMCE", "KDE-XE", "MDCA"])
def test_soft_targets_are_refused(name):
    with pytest.raises(InputError, match="one true class"):
        reweigh.loss(name)(torch.zeros(2, 3), torch.full((2, 3), 1 / 3))


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("MMCE", {"width": 0.0}, "above 0"),
        ("MMCE", {"normalization": "published"}, "'paper', 'official'"),
        ("MMCE", {"strength": -1.0}, "strength"),
        ("KDE-XE", {"bandwidth": 0.0}, "above 0"),
        ("KDE-XE", {"norm": 0.5}, "at least 1"),
        ("MDCA", {"strength": math.nan}, "strength"),
        ("AUGRC", {"coverage": 1.2}, "at most 1"),
        ("AURC", {"score": "msp"}, "max_probability"),
        ("AURC", {"ties": "average"}, "'mean', 'stable'"),
    ],
)
def test_wrong_settings_are_answered(name, settings, words):
    with pytest.raises(InputError, match=words):
        reweigh.loss(name, **settings)
