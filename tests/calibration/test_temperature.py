"""One temperature: against root finding in high precision, at every scale, and where no temperature is best."""

from __future__ import annotations

import os
import threading
import time
import warnings

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import logsumexp

from reweigh import Predictions
from reweigh.calibration import TemperatureScaling
from reweigh.calibration._rows import Rows, highest_logit
from reweigh.calibration._tempering import sigmoid_moments, softmax_moments, true_gap

from .problems import likelihood, rows, softmax


def oracle(z, y, weight=None):
    """The root of the derivative in log b, by bisection in float64."""
    z = np.asarray(z, float)
    z = z - z.max(1, keepdims=True)
    weight = np.ones(len(y)) if weight is None else weight

    def slope(log_b):
        v = np.exp(log_b) * z
        p = np.exp(v - logsumexp(v, axis=1, keepdims=True))
        return weight @ ((p * z).sum(1) - z[np.arange(len(y)), y]) / weight.sum()

    return np.exp(-brentq(slope, -40, 40, xtol=1e-14, rtol=1e-15, maxiter=300))


def test_against_mpmath():
    z, y = rows(12, classes=3)
    y[:3] = (z[:3].argmax(1) + 1) % 3
    with mpmath.workdps(50):
        exact = [[mpmath.mpf(float(value)) for value in row] for row in z]

        def slope(b):
            total = mpmath.mpf(0)
            for row, label in zip(exact, y, strict=True):
                weight = [mpmath.e ** (b * value) for value in row]
                total += sum(w * value for w, value in zip(weight, row, strict=True)) / sum(weight) - row[int(label)]
            return total

        want = 1 / mpmath.findroot(slope, (mpmath.mpf("0.01"), mpmath.mpf(3)), solver="anderson", tol=1e-30)
    assert TemperatureScaling().fit(z, y).temperature_ == pytest.approx(float(want), rel=1e-12)


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1e-4, 1e-3, 1.0, 1e3, 1e4, 1e30, 1e300])
def test_any_scale_of_logits(scale):
    z, y = rows(400)
    want = oracle(z, y)
    assert TemperatureScaling().fit(z * scale, y).temperature_ == pytest.approx(want * scale, rel=1e-10)


@pytest.mark.parametrize(("n", "classes"), [(50_000, 3), (9000, 40), (40, 2), (60_000, 10)])
def test_all_sizes_with_and_without_the_rough_first_fit(n, classes):
    z, y = rows(n, classes, sharp=3.0)
    z = z.astype(np.float32)
    assert TemperatureScaling().fit(z, y).temperature_ == pytest.approx(oracle(z, y), rel=1e-10)


def test_rows_sorted_by_difficulty():
    z, y = rows(50_000, 4, sharp=3.0)
    order = np.lexsort((z.max(1), y))
    want = TemperatureScaling().fit(z, y)
    assert TemperatureScaling().fit(z[order], y[order]).temperature_ == pytest.approx(want.temperature_, rel=1e-12)


@given(st.integers(0, 2**32 - 1), st.integers(2, 6), st.integers(3, 60), st.floats(-3, 3))
def test_drawn_problems(seed, classes, n, log_scale):
    generator = np.random.default_rng(seed)
    z = generator.normal(size=(n, classes)) * np.exp(log_scale)
    y = generator.integers(0, classes, n)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        if len(np.unique(y)) == 1:
            return
        found = TemperatureScaling().fit(z, y)
    assert found.temperature_ > 0 and np.isfinite(found.temperature_)
    here = likelihood(softmax(z / found.temperature_), y)
    if not found.at_bound_:
        for other in (0.9, 0.999, 1.001, 1.1):
            assert here <= likelihood(softmax(z / (found.temperature_ * other)), y) + 1e-12


@pytest.mark.parametrize("threads", [1, 3])
def test_same_bits_on_any_number_of_threads(threads):
    z, y = rows(30_000, 7)
    before = torch.get_num_threads()
    want = TemperatureScaling().fit(z, y)
    try:
        torch.set_num_threads(threads)
        got = TemperatureScaling().fit(z, y)
        assert got.temperature_ == want.temperature_
        assert np.array_equal(got.predict_proba(z), want.predict_proba(z))
    finally:
        torch.set_num_threads(before)


def test_derivatives_are_those_of_the_cost():
    z, y = rows(50, 4)
    logits = torch.from_numpy(z)
    table = Rows(logits=logits, highest=highest_logit(logits, ""), target=torch.from_numpy(y))
    for moments in (lambda b: softmax_moments(table, true_gap(table), b), lambda b: sigmoid_moments(table, b)):
        b, h = 0.7, 1e-4
        here, low, high = moments(b), moments(b * (1 - h)), moments(b * (1 + h))
        assert here.first == pytest.approx((high.cost - low.cost) / (2 * h), rel=1e-6)
        slope_low, slope_high = low.first / (1 - h), high.first / (1 + h)  # b times the derivative in b
        assert here.second == pytest.approx((slope_high - slope_low) / (2 * h), rel=1e-6)
        bend_low, bend_high = low.second / (1 - h) ** 2, high.second / (1 + h) ** 2
        assert here.third == pytest.approx((bend_high - bend_low) / (2 * h), rel=1e-5)


def test_half_precision_and_masks():
    z, y = rows(2000)
    want = oracle(z, y)
    assert TemperatureScaling().fit(z.astype(np.float16), y).temperature_ == pytest.approx(want, rel=1e-3)
    wide = np.concatenate([z, np.full((2000, 3), -np.inf)], axis=1)
    assert TemperatureScaling().fit(wide, y).temperature_ == pytest.approx(want, rel=1e-12)


def test_separable_rows_get_a_bound_and_a_reason():
    y = np.arange(60) % 3
    z = 10.0 * np.eye(3)[y]
    for scale in (1e-4, 1.0, 1e4):
        with pytest.warns(UserWarning, match="every fitted row is classified correctly"):
            found = TemperatureScaling().fit(z * scale, y)
        assert found.at_bound_ and 0 < found.temperature_ < 0.1 * scale and found.temperature_interval_ is None
        assert np.isfinite(found.predict_proba(z * scale)).all()


def test_labels_against_the_logits_never_turn_the_order():
    y = np.arange(60) % 3
    z = -10.0 * np.eye(3)[y] + np.random.default_rng(0).normal(size=(60, 3))
    with pytest.warns(UserWarning, match="labels run against the logits"):
        found = TemperatureScaling().fit(z, y)
    assert found.at_bound_ and found.temperature_ > 100
    assert (found.predict_proba(z).argmax(1) == z.argmax(1)).all()


def test_equal_logits_have_no_temperature():
    with pytest.warns(UserWarning, match="all logits of every row are equal"):
        assert TemperatureScaling().fit(np.ones((6, 3)), [0, 1, 2, 0, 1, 2]).temperature_ == 1.0


def test_one_nearly_separated_row_has_a_finite_temperature():
    y = np.arange(60) % 3
    z = 10.0 * np.eye(3)[y]
    z[0] = [10 - 1e-6, 10, 0]
    found = TemperatureScaling().fit(z, y)
    assert not found.at_bound_ and found.temperature_ == pytest.approx(oracle(z, y), rel=1e-9)


def test_labels_without_relation_have_a_large_temperature():
    generator = np.random.default_rng(3)
    z, y = generator.normal(size=(4000, 5)), generator.integers(0, 5, 4000)
    z[np.arange(4000), y] += 0.01
    assert TemperatureScaling().fit(z, y).temperature_ == pytest.approx(oracle(z, y), rel=1e-9)


def test_soft_labels_are_weighted_rows():
    z, _ = rows(300, 4)
    share = (softmax(z / 3) + np.random.default_rng(0).dirichlet(np.ones(4), 300)) / 2
    want = TemperatureScaling().fit(np.repeat(z, 4, axis=0), np.tile(np.arange(4), 300), share.reshape(-1))
    assert TemperatureScaling().fit(z, share).temperature_ == pytest.approx(want.temperature_, rel=1e-10)
    table = Predictions(logits=z, targets=share)
    assert TemperatureScaling().fit(table).temperature_ == pytest.approx(want.temperature_, rel=1e-10)
    with pytest.raises(ValueError, match=r"row 4 of y.*sum to 1"):
        TemperatureScaling().fit(z, np.where(np.arange(300)[:, None] == 4, share * 2, share))


def test_sigmoid_heads():
    generator = np.random.default_rng(0)
    z = generator.normal(size=(2000, 3)) * 2
    labels = (generator.random((2000, 3)) < 1 / (1 + np.exp(-z))).astype(int)
    table = Predictions(logits=3 * z, targets=labels)
    found = TemperatureScaling().fit(table)
    pairs = np.stack([np.zeros(6000), 3 * z.reshape(-1)], 1)
    assert found.temperature_ == pytest.approx(oracle(pairs, labels.reshape(-1)), rel=1e-10)
    np.testing.assert_allclose(found.predict_proba(table), 1 / (1 + np.exp(-3 * z / found.temperature_)), atol=1e-14)
    assert np.array_equal(found.predict(table), (3 * z > 0).astype(int))
    assert found.apply(table).head == "sigmoid"
    one_vs_rest = Predictions(logits=3 * z, targets=z.argmax(1), head="sigmoid")
    want = oracle(pairs, np.eye(3, dtype=int)[z.argmax(1)].reshape(-1))
    assert TemperatureScaling().fit(one_vs_rest).temperature_ == pytest.approx(want, rel=1e-10)
    with pytest.raises(ValueError, match="softmax head"):
        TemperatureScaling(objective="ece").fit(table)


def test_interval_covers_the_truth():
    inside = 0
    for seed in range(200):
        z, y = rows(400, 4, sharp=2.0, seed=seed)
        low, high = TemperatureScaling().fit(z, y).temperature_interval_
        inside += low <= 2.0 <= high
    assert 180 <= inside <= 199  # 95 % of 200, within three deviations


def test_interval_is_the_observed_information():
    z, y = rows(500, 4)
    found = TemperatureScaling().fit(z, y)
    p = softmax(z / found.temperature_)
    v = z / found.temperature_
    information = ((p * v**2).sum(1) - (p * v).sum(1) ** 2).sum()
    width = 1.959963984540054 / np.sqrt(information)
    want = found.temperature_ * np.exp([-width, width])
    np.testing.assert_allclose(found.temperature_interval_, want, rtol=1e-5)


def error_of(confidence, correct, bins):
    """Equal widths, (l, u], as a plain loop."""
    total = 0.0
    for k in range(bins):
        inside = (confidence > k / bins) & (confidence <= (k + 1) / bins)
        if inside.any():
            total += inside.mean() * abs(confidence[inside].mean() - correct[inside].mean())
    return total


def test_the_papers_grid():
    z, y = rows(600, 4, sharp=2.3)
    correct = z.argmax(1) == y
    grid = [k / 10 for k in range(1, 101)]
    errors = [error_of(softmax(z / t).max(1), correct, 15) for t in grid]
    assert TemperatureScaling(objective="ece").fit(z, y).temperature_ == grid[int(np.argmin(errors))]
    errors = [error_of(softmax(z / t).max(1), correct, 7) for t in grid]
    assert TemperatureScaling(objective="ece", bins=7).fit(z, y).temperature_ == grid[int(np.argmin(errors))]
    found = TemperatureScaling(objective="ece", binning="mass").fit(z, y)
    assert found.temperature_ in grid and found.temperature_interval_ is None


def test_the_smallest_temperature_wins_ties():
    z, y = np.tile([1000.0, 0.0], (10, 1)), np.array([0, 1] * 5)
    # the confidence rounds to 1 at every temperature of the grid
    assert TemperatureScaling(objective="ece").fit(z, y).temperature_ == 0.1


def test_wrong_settings():
    z, y = rows(50)
    with pytest.raises(ValueError, match="objective='ace'"):
        TemperatureScaling(objective="ace").fit(z, y)
    with pytest.raises(ValueError, match="Did you mean 'width'"):
        TemperatureScaling(objective="ece", binning="widht").fit(z, y)
    with pytest.raises(ValueError, match="bins=0"):
        TemperatureScaling(objective="ece", bins=0).fit(z, y)
    with pytest.raises(ValueError, match="binning='width', the only one with a weighted form"):
        TemperatureScaling(objective="ece", binning="mass").fit(z, y, sample_weight=np.ones(50))
    with pytest.raises(ValueError, match="beside Predictions"):
        TemperatureScaling().fit(Predictions(logits=z, targets=y), y)


def test_memory_stays_flat():
    generator = np.random.default_rng(0)
    z = generator.standard_normal((5000, 2000), dtype=np.float32)  # 40 MB
    y = np.where(generator.random(5000) < 0.3, z.argmax(1), generator.integers(0, 2000, 5000))
    TemperatureScaling().fit(z[:100], y[:100])
    assert memory_of(lambda: TemperatureScaling().fit(z, y)) < 25e6, "blocks, not copies"


def memory_of(function):
    """Bytes of resident memory above the start while the function runs, sampled every millisecond."""
    page = os.sysconf("SC_PAGE_SIZE")

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * page

    highest = start = resident()
    running = True

    def watch():
        nonlocal highest
        while running:
            highest = max(highest, resident())
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        function()
    finally:
        running = False
        watcher.join()
    return highest - start
