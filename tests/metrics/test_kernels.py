"""Calibration errors without bins: kernel, kernel density, smooth, Kolmogorov-Smirnov."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy
import pytest
import torch

from metrics.metric_tables import classifier, confidences, labels_table, softmax
from reweigh import Predictions, metrics
from reweigh.density import beta_regression, dirichlet_regression, laplace_pair_sum

# ---- the kernel calibration error


@pytest.mark.parametrize("width", [0.4, 0.01, 1e-4, 50.0])
@pytest.mark.parametrize("ties", [False, True])
def test_kernel_error_is_the_double_sum(width, ties):
    table = confidences(rows=80, ties=ties)
    c, a = table.top_confidence.tolist(), table.correctness.tolist()
    pairs = itertools.product(range(80), repeat=2)
    square = math.fsum((a[i] - c[i]) * (a[j] - c[j]) * math.exp(-abs(c[i] - c[j]) / width) for i, j in pairs) / 80**2
    assert metrics.kernel_calibration_error(table, width=width, squared=True) == pytest.approx(square, rel=1e-11)
    assert metrics.kernel_calibration_error(table, width=width) == pytest.approx(math.sqrt(square), rel=1e-11)


def test_kernel_error_of_one_row_and_of_none():
    assert metrics.kernel_calibration_error(Predictions(confidence=[0.75], correct=[True])) == pytest.approx(0.25)
    with pytest.raises(ValueError, match="width"):
        metrics.kernel_calibration_error(confidences(), width=0)


def test_pair_sums_are_differentiable():
    position = torch.rand(12, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    value = torch.randn(12, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, v: laplace_pair_sum(x, v, width=0.4), (position, value))


# ---- kernel densities


def exact_dirichlet(p, truth, bandwidth, norm):
    """The definition, one kernel at a time, with forty digits."""
    with mpmath.workdps(40):
        rows, classes = p.shape
        total = mpmath.mpf(0)
        for j in range(rows):
            weights = []
            for i in range(rows):
                shape = [mpmath.mpf(float(p[i, c])) / bandwidth + 1 for c in range(classes)]
                log_beta = sum(map(mpmath.loggamma, shape)) - mpmath.loggamma(sum(shape))
                log_kernel = (
                    sum((a - 1) * mpmath.log(mpmath.mpf(float(p[j, c]))) for c, a in enumerate(shape)) - log_beta
                )
                weights.append(mpmath.exp(log_kernel) if i != j else mpmath.mpf(0))
            scale = sum(weights)
            for c in range(classes):
                mean = sum(w * float(truth[i, c]) for i, w in enumerate(weights)) / scale
                total += abs(mean - float(p[j, c])) ** norm
        return float(total / rows)


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("bandwidth", [0.02, 0.3, 0.001])
def test_canonical_error_agrees_with_forty_digits(norm, bandwidth):
    table = classifier(rows=14, classes=3, seed=6)
    wanted = exact_dirichlet(softmax(table.logits), numpy.eye(3)[table.targets], mpmath.mpf(bandwidth), norm)
    found = metrics.kernel_density_calibration_error(table, bandwidth=bandwidth, norm=norm)
    assert found == pytest.approx(wanted, rel=1e-9)


def test_one_probability_is_two_classes_counted_once():
    table = confidences(rows=13, seed=1)
    c, a = table.top_confidence.numpy(), table.correctness.numpy()
    wanted = exact_dirichlet(numpy.stack([c, 1 - c], 1), numpy.stack([a, 1 - a], 1), mpmath.mpf("0.02"), 1) / 2
    found = metrics.kernel_density_calibration_error(table, scope="top_label")
    assert found == pytest.approx(wanted, rel=1e-9)


def test_marginal_error_sums_over_classes():
    for table in (classifier(rows=40), labels_table(rows=30)):
        logits = table.logits
        p = 1 / (1 + numpy.exp(-logits)) if table.per_label else softmax(logits)
        truth = table.targets if table.per_label else numpy.eye(4)[table.targets]
        each = [
            metrics.kernel_density_calibration_error(
                Predictions(confidence=p[:, k], correct=truth[:, k]), scope="top_label"
            )
            for k in range(p.shape[1])
        ]
        found = metrics.kernel_density_calibration_error(table, scope="marginal")
        assert found == pytest.approx(sum(each), rel=1e-8)


def test_small_bandwidths_do_not_underflow():
    """Kernels far out of float64's range, where exponentiating them first gives 0.84 for 1.04."""
    table = classifier(rows=60, classes=10, seed=1)
    found = metrics.kernel_density_calibration_error(table, bandwidth=1e-4)
    assert 0 < found < 2 and math.isfinite(found)
    sure = Predictions(probabilities=[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], targets=[0, 1, 0])
    assert math.isfinite(metrics.kernel_density_calibration_error(sure))


def test_absent_classes_have_gradients():
    log_p = torch.log_softmax(
        torch.randn(20, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), 1
    ).requires_grad_()
    outcome = torch.nn.functional.one_hot(torch.arange(20) % 3, 5).double()
    (dirichlet_regression(log_p, outcome, bandwidth=0.02) - log_p.exp()).abs().sum().backward()
    assert torch.isfinite(log_p.grad).all() and (log_p.grad != 0).any()


def test_regressions_are_differentiable():
    odds = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    outcome = torch.tensor([1.0, 0, 1, 1, 0, 1], dtype=torch.float64)
    sigmoid = torch.nn.functional.logsigmoid
    assert torch.autograd.gradcheck(lambda z: beta_regression(sigmoid(z), sigmoid(-z), outcome, bandwidth=0.1), odds)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bandwidth": 0}, "bandwidth"),
        ({"norm": 0.5}, "norm"),
        ({"scope": "joint"}, "scope"),
        ({"norm": math.inf}, "norm"),
    ],
)
def test_bad_density_settings(settings, words):
    with pytest.raises(ValueError, match=words):
        metrics.kernel_density_calibration_error(classifier(rows=5), **settings)


def test_one_row_has_no_neighbours():
    with pytest.raises(ValueError, match="at least two"):
        metrics.kernel_density_calibration_error(classifier(rows=1))
    with pytest.raises(ValueError, match="sigmoid"):
        metrics.kernel_density_calibration_error(labels_table())


# ---- the smooth calibration error


def slow_smooth(table, bandwidth, points=4001):
    """Reflected Gaussians around every confidence, on a fine grid."""
    grid = (numpy.arange(points) + 0.5) / points
    total = numpy.zeros(points)
    gap = (table.correctness - table.top_confidence).numpy() / len(table)
    for shift in range(-4, 5):
        for sign in (1, -1):
            centre = sign * table.top_confidence.numpy() + 2 * shift
            total += (gap * numpy.exp(-0.5 * ((grid[:, None] - centre) / bandwidth) ** 2)).sum(1)
    return numpy.abs(total / (bandwidth * math.sqrt(2 * math.pi))).mean()


@pytest.mark.parametrize("bandwidth", [0.02, 0.1, 0.7])
def test_smooth_error_is_the_integral(bandwidth):
    table = confidences(rows=120, seed=3)
    found = metrics.smooth_calibration_error(table, bandwidth=bandwidth)
    assert found == pytest.approx(slow_smooth(table, bandwidth), rel=2e-5)


def test_smooth_error_is_its_own_bandwidth():
    for seed in range(4):
        table = confidences(rows=150, seed=seed)
        error = metrics.smooth_calibration_error(table)
        assert metrics.smooth_calibration_error(table, bandwidth=error) == pytest.approx(error, abs=1e-9)


def test_smooth_error_at_the_ends():
    assert metrics.smooth_calibration_error(Predictions(confidence=[1.0, 0.0], correct=[True, False])) == 0.0
    assert metrics.smooth_calibration_error(Predictions(confidence=[1.0], correct=[False])) == pytest.approx(1.0)
    all_wrong = Predictions(confidence=[0.6] * 10, correct=[False] * 10)
    assert metrics.smooth_calibration_error(all_wrong) == pytest.approx(0.6)
    with pytest.raises(ValueError, match="bandwidth"):
        metrics.smooth_calibration_error(all_wrong, bandwidth=-1)


def test_smooth_error_is_continuous_where_bins_jump():
    near = [
        metrics.smooth_calibration_error(Predictions(confidence=[0.5 + e, 0.5 - e], correct=[True, False]))
        for e in (1e-9, -1e-9)
    ]
    assert near[0] == pytest.approx(near[1], abs=1e-6)


# ---- Kolmogorov-Smirnov


def test_kolmogorov_smirnov_is_the_largest_gap_of_sums():
    for ties in (False, True):
        table = confidences(rows=90, seed=8, ties=ties)
        c, a = table.top_confidence.tolist(), table.correctness.tolist()
        wanted = max(abs(math.fsum(x - y for x, y in zip(c, a, strict=True) if x <= t)) for t in c) / 90
        assert metrics.kolmogorov_smirnov_calibration(table) == pytest.approx(wanted, rel=1e-12)
