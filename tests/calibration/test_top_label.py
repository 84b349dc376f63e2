"""Histogram, scaling-binning and spline: the top confidence alone, against plain loops and SciPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.interpolate import CubicSpline
from scipy.optimize import minimize
from scipy.special import expit, logit

from reweigh import Predictions
from reweigh.calibration import HistogramBinning, ScalingBinning, SplineCalibration

from .problems import rows, softmax

KINDS = [HistogramBinning, ScalingBinning, SplineCalibration]


def binned(values, what, bins):
    """(edges, means) with edges midway between array_split chunks, bins (l, u]; the middle of an empty bin."""
    chunks = np.array_split(np.sort(values), min(bins, len(values)))
    inner = np.unique([(one[-1] + two[0]) / 2 for one, two in itertools.pairwise(chunks)])
    inner = inner[(inner > 0) & (inner < 1)]
    edges = np.concatenate([[0.0], inner, [1.0]])
    where = np.searchsorted(inner, values, side="left")
    means = [
        what[where == b].mean() if (where == b).any() else (edges[b] + edges[b + 1]) / 2 for b in range(len(edges) - 1)
    ]
    return edges, np.array(means), where


def spread(z, value):
    """The top probability replaced, the others in proportion."""
    p = softmax(z)
    top = p.argmax(1)
    out = p.copy()
    out[np.arange(len(z)), top] = 0
    out *= ((1 - value) / out.sum(1))[:, None]
    out[np.arange(len(z)), top] = value
    return out


@pytest.mark.parametrize("bins", [1, 4, 15, 1000])
@pytest.mark.parametrize("decimals", [2, 12])
def test_histogram_binning(bins, decimals):
    z, y = rows(300, 4)
    z = np.round(z, 1) if decimals == 2 else z
    found = HistogramBinning(bins=bins).fit(z, y)
    confidence, correct = softmax(z).max(1), (z.argmax(1) == y).astype(float)
    edges, means, where = binned(confidence, correct, bins)
    np.testing.assert_allclose(found.edges_, edges, atol=1e-12)
    if decimals == 12:
        np.testing.assert_allclose(found.values_, means, atol=1e-12)
        np.testing.assert_allclose(found.predict_proba(z), spread(z, means[where]), atol=1e-12)
        assert found.counts_.sum() == 300


def test_histogram_bins_hold_their_upper_edge_and_empty_ones_say_their_middle():
    confidence = np.array([0.5, 0.5, 0.5, 0.9])
    table = Predictions(confidence=confidence, correct=np.array([0, 1, 0, 1]))
    found = HistogramBinning(bins=4).fit(table)
    # the chunks are single rows: edges 0.5, 0.5 and 0.7, of which equal ones are merged
    np.testing.assert_allclose(found.edges_, [0, 0.5, 0.7, 1])
    np.testing.assert_allclose(found.values_, [1 / 3, 0.6, 1.0])
    assert found.counts_.tolist() == [3, 0, 1]
    out = found.apply(Predictions(confidence=np.array([0.5, 0.6, 0.7, 0.71]), correct=np.ones(4, int)))
    np.testing.assert_allclose(out.confidence, [1 / 3, 0.6, 0.6, 1.0])


@pytest.mark.parametrize("bins", [3, 15])
def test_scaling_binning(bins):
    z, y = rows(500, 4, sharp=2.5)
    found = ScalingBinning(bins=bins).fit(z, y)
    confidence, correct = softmax(z).max(1), (z.argmax(1) == y).astype(float)
    odds = logit(confidence)

    def cost(point):
        t = point[0] * odds + point[1]
        return (np.logaddexp(0, t) - correct * t).mean()

    best = minimize(cost, [1.0, 0.0], method="BFGS", options={"gtol": 1e-9})
    assert found.slope_ == pytest.approx(best.x[0], abs=1e-5) and found.intercept_ == pytest.approx(best.x[1], abs=1e-5)
    scaled = expit(found.slope_ * odds + found.intercept_)
    edges, means, where = binned(scaled, scaled, bins)
    np.testing.assert_allclose(found.edges_, edges, atol=1e-9)
    np.testing.assert_allclose(found.values_, means, atol=1e-9)
    np.testing.assert_allclose(found.predict_proba(z), spread(z, means[where]), atol=1e-9)


def test_scaling_binning_of_rows_that_are_all_right():
    z = 5 * np.eye(3)[[0, 1, 2] * 10]
    with pytest.warns(UserWarning, match="all right or all wrong"):
        found = ScalingBinning().fit(z, [0, 1, 2] * 10)
    np.testing.assert_allclose(found.predict_proba(z), softmax(z), atol=1e-12)


@pytest.mark.parametrize("knots", [4, 6])
def test_spline(knots):
    z, y = rows(400, 4, sharp=2.5)
    found = SplineCalibration(knots=knots).fit(z, y)
    confidence, correct = softmax(z).max(1), (z.argmax(1) == y).astype(float)
    order = np.argsort(confidence)
    s, hit = confidence[order], correct[order]
    t, height = np.linspace(0, 1, 400), np.cumsum(hit - s) / 400
    grid = np.linspace(0, 1, knots)
    # the natural spline through values at the knots is linear in them: least squares over those values
    basis = np.stack([CubicSpline(grid, np.eye(knots)[k], bc_type="natural")(t) for k in range(knots)], 1)
    curve = CubicSpline(grid, np.linalg.lstsq(basis, height, rcond=None)[0], bc_type="natural")
    value = np.clip(s + curve(t, 1), 0, 1)
    np.testing.assert_allclose(found.points_, s, atol=1e-14)
    np.testing.assert_allclose(found.heights_, value, atol=1e-9)
    new, _ = rows(200, 4, seed=1)
    want = np.interp(softmax(new).max(1), s, value)
    np.testing.assert_allclose(found.predict_proba(new).max(1), np.maximum(want, spread(new, want).max(1)), atol=1e-9)
    np.testing.assert_allclose(found.predict_proba(new), spread(new, want), atol=1e-9)


def test_spline_may_be_made_monotone():
    z, y = rows(400, 4, sharp=4.0, seed=3)
    plain, rising = SplineCalibration().fit(z, y), SplineCalibration(monotone=True).fit(z, y)
    assert (np.diff(plain.heights_) < 0).any()
    assert (np.diff(rising.heights_) >= 0).all() and np.abs(rising.heights_ - plain.heights_).max() < 0.1


def test_spline_between_points_is_interpolated_the_right_way_round():
    found = SplineCalibration()
    z, y = rows(100, 3)
    found.fit(z, y)
    found.points_, found.heights_ = np.array([0.4, 0.6]), np.array([0.1, 0.5])
    table = Predictions(confidence=np.array([0.2, 0.4, 0.45, 0.6, 0.9]), correct=np.ones(5, int))
    np.testing.assert_allclose(found.apply(table).confidence, [0.1, 0.1, 0.2, 0.5, 0.5])


@pytest.mark.parametrize("kind", KINDS)
def test_confidence_and_correctness_are_enough(kind):
    z, y = rows(400, 4, sharp=2.5)
    confidence, correct = softmax(z).max(1), (z.argmax(1) == y).astype(int)
    table = Predictions(confidence=confidence, correct=correct, ids=np.arange(400))
    alone = kind().fit(table)
    whole = kind().fit(z, y)
    out = alone.apply(table)
    top = whole.predict_proba(z)[np.arange(400), z.argmax(1)]
    np.testing.assert_allclose(out.confidence, top, atol=1e-9)
    assert np.array_equal(out.correct, correct) and np.array_equal(out.ids, np.arange(400))
    assert out.about["calibrator"]
    with pytest.raises(ValueError, match=r"apply\(predictions\)"):
        alone.predict_proba(table)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_with_one_class_left_stay_certain(kind):
    z, y = rows(200, 3)
    z[7] = [-np.inf, 1.0, -np.inf]
    y[7] = 1
    p = kind().fit(z, y).predict_proba(z)
    assert p[7].tolist() == [0, 1, 0] and np.isfinite(p).all()


@pytest.mark.parametrize("kind", KINDS)
def test_gaps_beyond_double_precision(kind):
    z, y = rows(300, 3)
    z[:40] *= 100
    p = kind().fit(z, y).predict_proba(z)
    assert np.isfinite(p).all()
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-12)


@pytest.mark.parametrize("settings", [{"bins": 0}, {"bins": 2.5}, {"bins": True}])
def test_wrong_settings(settings):
    z, y = rows(50, 3)
    for kind in (HistogramBinning, ScalingBinning):
        with pytest.raises(ValueError, match="whole number"):
            kind(**settings).fit(z, y)
    with pytest.raises(ValueError, match="knots=2"):
        SplineCalibration(knots=2).fit(z, y)


def test_others_refuse_confidences_alone():
    from reweigh.calibration import TemperatureScaling

    table = Predictions(confidence=np.array([0.4, 0.9]), correct=np.array([0, 1]))
    with pytest.raises(ValueError, match="HistogramBinning, ScalingBinning and SplineCalibration"):
        TemperatureScaling().fit(table)
