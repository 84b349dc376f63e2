"""Platt, beta, isotonic and Bayesian binning: one curve a class."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, gammaln
from sklearn.isotonic import IsotonicRegression

from reweigh import Predictions
from reweigh.calibration import BayesianBinning, BetaCalibration, IsotonicCalibration, PlattScaling
from reweigh.calibration._bayesian_binning import average_histogram

from .problems import NAMES, details, make, rows, softmax


def log_odds(z, k):
    others = np.delete(z, k, axis=1)
    top = others.max(1)
    return z[:, k] - (np.log(np.exp(others - top[:, None]).sum(1)) + top)


def logistic(features, label, bounds=None, weight=None):
    """(parameters, cost) of the logistic fit with an intercept."""
    x = np.column_stack([features, np.ones(len(label))])
    weight = np.ones(len(label)) if weight is None else weight

    def cost(point):
        t = x @ point
        return weight @ (np.logaddexp(0, t) - label * t), x.T @ (weight * (expit(t) - label))

    found = minimize(cost, np.ones(x.shape[1]), jac=True, method="L-BFGS-B", bounds=bounds,
                     options={"ftol": 1e-16, "gtol": 1e-11, "maxiter": 5000})  # fmt: skip
    return found.x, found.fun


@pytest.mark.parametrize("classes", [2, 4])
def test_platt_is_the_maximum_likelihood(classes):
    z, y = rows(600, classes, sharp=2.5)
    found = PlattScaling().fit(z, y)
    columns = []
    for k in range(classes):
        odds = log_odds(z, k)
        (slope, intercept), _ = logistic(odds[:, None], (y == k).astype(float))
        assert found.slope_[k] == pytest.approx(slope, abs=1e-5)
        assert found.intercept_[k] == pytest.approx(intercept, abs=1e-5)
        residual = expit(found.slope_[k] * odds + found.intercept_[k]) - (y == k)
        assert abs((residual * odds).mean()) < 1e-8 and abs(residual.mean()) < 1e-8
        columns.append(expit(found.slope_[k] * odds + found.intercept_[k]))
    q = np.stack(columns, 1)
    np.testing.assert_allclose(found.predict_proba(z), q / q.sum(1, keepdims=True), atol=1e-12)
    if classes == 2:
        np.testing.assert_allclose(q.sum(1), 1, atol=1e-15)


def test_platt_at_the_extremes():
    z, y = rows(300, 3)
    z[0], y[0] = [2000.0, 0, -2000], 0
    z[1], y[1] = [0, 1e4, 0], 1
    p = PlattScaling().fit(z, y).predict_proba(z)
    assert np.isfinite(p).all() and (p[[0, 1], [0, 1]] > 0.5).all()


def test_platt_of_classes_never_shown():
    z, y = rows(300, 3)
    with pytest.warns(UserWarning, match=r"class 2 \(1 in all\) never or always"):
        found = PlattScaling().fit(z[y != 2], y[y != 2])
    assert found.slope_[2] == 1 and found.intercept_[2] == 0
    with pytest.warns(UserWarning, match="separate its rows without error"):
        PlattScaling().fit(20 * np.eye(3)[y], y)


@pytest.mark.parametrize("seed", range(6))
def test_beta_is_the_constrained_maximum_likelihood(seed):
    z, y = rows(300, 2, sharp=[0.5, 1.0, 3.0][seed % 3], seed=seed)
    if seed > 2:  # a curve that bends the other way: a constraint holds
        y = np.where(np.abs(z[:, 1] - z[:, 0]) > 2, np.random.default_rng(seed).integers(0, 2, 300), y)
    found = BetaCalibration().fit(z, y)
    p = softmax(z)
    features = np.column_stack([np.log(p[:, 1]), -np.log(p[:, 0])])
    want, cost = logistic(features, (y == 1).astype(float), bounds=[(0, None), (0, None), (None, None)])
    assert min(found.a_.min(), found.b_.min()) >= 0
    odds = features @ [found.a_[1], found.b_[1]] + found.c_[1]
    assert (np.logaddexp(0, odds) - (y == 1) * odds).sum() <= cost + 1e-7
    np.testing.assert_allclose([found.a_[1], found.b_[1], found.c_[1]], want, atol=2e-3)
    np.testing.assert_allclose(found.predict_proba(z)[:, 1], expit(odds), atol=1e-12)


def test_beta_with_an_active_constraint():
    generator = np.random.default_rng(0)
    z = np.column_stack([np.zeros(2000), generator.normal(size=2000) * 3])
    p = softmax(z)[:, 1]
    y = (generator.random(2000) < 0.2 + 0.3 * (p < 0.3) + 0.5 * (p > 0.7)).astype(int)
    found = BetaCalibration().fit(z, y)
    assert found.a_[1] == 0 or found.b_[1] == 0
    assert (np.diff(found.predict_proba(z[np.argsort(p)])[:, 1]) >= 0).all(), "never falls"


def test_isotonic_is_scikit_learns():
    z, y = rows(500, 4)
    new, _ = rows(300, 4, seed=1)
    weight = np.random.default_rng(0).random(500) + 0.1
    found = IsotonicCalibration().fit(z, y, sample_weight=weight)
    p, q = softmax(z), softmax(new)
    columns = [
        IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(p[:, k], y == k, weight).predict(q[:, k])
        for k in range(4)
    ]
    want = np.stack(columns, 1)
    np.testing.assert_allclose(found.predict_proba(new), want / want.sum(1, keepdims=True), atol=1e-9)


def test_pooled_isotonic():
    z, y = rows(500, 4)
    new, _ = rows(300, 4, seed=1)
    found = IsotonicCalibration(mode="pooled").fit(z, y)
    p, q = softmax(z), softmax(new)
    curve = IsotonicRegression(out_of_bounds="clip").fit(p.reshape(-1), np.eye(4)[y].reshape(-1))
    want = curve.predict(q.reshape(-1)).reshape(q.shape) + 1e-9 * q
    np.testing.assert_allclose(found.predict_proba(new), want / want.sum(1, keepdims=True), atol=2e-9)
    assert len(found.points_) == 1


def test_isotonic_rows_of_zeros_stay_as_they_were():
    y = np.array([0, 1, 2] * 20)
    z = 5.0 * np.eye(3)[y]
    found = IsotonicCalibration().fit(z, y)
    flat = np.array([[0.1, 0.0, 0.05], [5.0, 0, 0]])
    p = found.predict_proba(flat)
    np.testing.assert_allclose(p.sum(1), 1)
    np.testing.assert_allclose(p[0], softmax(flat[:1])[0], atol=0.35)
    assert p[1].argmax() == 0
    # a row at whose probabilities every curve says 0
    found.heights_ = [np.zeros_like(heights) for heights in found.heights_]
    np.testing.assert_allclose(found.predict_proba(flat), softmax(flat), atol=1e-15)


def plain_average(p, label):
    """Bayesian binning as loops: every number of bins, its evidence, the average."""
    order = np.argsort(p, kind="stable")
    p, label = p[order], label[order]
    root = len(p) ** (1 / 3)
    least = max(1, int(np.floor(root / 10)))
    models = []
    for bins in range(least, max(least, min(int(np.ceil(10 * root)), int(np.ceil(len(p) / 5)))) + 1):
        chunks = np.array_split(p, bins)
        edges = sorted({(one[-1] + two[0]) / 2 for one, two in itertools.pairwise(chunks)} - {0.0, 1.0})
        where = np.searchsorted(edges, p, side="left")
        ends = [0.0, *edges, 1.0]
        strength, log_evidence, values = 2 / (len(edges) + 1), 0.0, []
        for b in range(len(edges) + 1):
            n, m = int((where == b).sum()), label[where == b].sum()
            alpha = strength * (ends[b] + ends[b + 1]) / 2
            beta = strength - alpha
            log_evidence += gammaln(strength) - gammaln(n + strength) + gammaln(m + alpha) - gammaln(alpha)
            log_evidence += gammaln(n - m + beta) - gammaln(beta)
            values.append((m + alpha) / (n + strength))
        models.append((edges, values, log_evidence))
    weight = np.exp(np.array([one[2] for one in models]) - max(one[2] for one in models))
    weight /= weight.sum()

    def predict(x):
        return sum(w * np.array(one[1])[np.searchsorted(one[0], x)] for w, one in zip(weight, models, strict=True))

    return predict


@pytest.mark.parametrize(("n", "tied"), [(7, False), (300, False), (300, True), (1000, True)])
def test_bayesian_binning_is_the_average(n, tied):
    generator = np.random.default_rng(n)
    p = generator.random(n) ** 2
    p = np.round(p, 2) if tied else p
    label = (generator.random(n) < p).astype(float)
    edges, values = average_histogram(p, label)
    x = np.concatenate([generator.random(500), p, [0.0, 1.0], edges])
    np.testing.assert_allclose(values[np.searchsorted(edges, x, side="left")], plain_average(p, label)(x), atol=1e-11)


def test_bayesian_binning_of_two_classes_is_that_of_the_second():
    z, y = rows(400, 2)
    found = BayesianBinning().fit(z, y)
    p = softmax(z)
    edges, values = average_histogram(p[:, 1], (y == 1).astype(float))
    np.testing.assert_allclose(
        found.predict_proba(z)[:, 1], values[np.searchsorted(edges, p[:, 1], side="left")], atol=1e-14
    )


@pytest.mark.parametrize("kind", [PlattScaling, BetaCalibration, IsotonicCalibration, BayesianBinning])
def test_sigmoid_heads_keep_each_label_to_itself(kind):
    generator = np.random.default_rng(0)
    z = generator.normal(size=(800, 3)) * 3
    labels = (generator.random((800, 3)) < expit(z / 2)).astype(int)
    found = kind().fit(Predictions(logits=z, targets=labels))
    for k in range(3):
        pair = np.column_stack([np.zeros(800), z[:, k]])
        alone = kind().fit(pair, labels[:, k]).predict_proba(pair)[:, 1]
        got = found.predict_proba(Predictions(logits=z, head="sigmoid"))[:, k]
        np.testing.assert_allclose(got, alone, atol=1e-6)
    out = found.apply(Predictions(logits=z, targets=labels))
    assert out.head == "sigmoid"


@pytest.mark.parametrize("kind", [PlattScaling, BetaCalibration, IsotonicCalibration])
def test_curves_of_sharp_rows_recover_the_truth(kind):
    z, y = rows(20_000, 3, sharp=2.0)
    p = kind().fit(z, y).predict_proba(z)
    assert np.abs(p - softmax(z / 2)).mean() < 0.02 < np.abs(softmax(z) - softmax(z / 2)).mean()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", [name for name in NAMES if "sigmoid" in details(name)["heads"]])
def test_labels_that_are_masked_stay_absent(name):
    generator = np.random.default_rng(1)
    z = generator.normal(size=(400, 3)) * 3
    labels = (generator.random((400, 3)) < expit(z / 2)).astype(int)
    masked = (generator.random((400, 3)) < 0.2) & (labels == 0)
    masked[:, 0] = False
    hidden = np.where(masked, -np.inf, z)
    table = Predictions(logits=hidden, targets=labels)
    p = make(name).fit(table).predict_proba(table)
    assert np.isfinite(p).all() and (p[masked] < 1e-300).all() and (p[~masked] > 0).any()
