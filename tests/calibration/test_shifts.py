"""Posterior and prior correction."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq, minimize, minimize_scalar
from scipy.special import expit, logit

from reweigh import Predictions
from reweigh.calibration import PosteriorCorrection, PriorCorrection

from .problems import rows, softmax

ONE = np.zeros((1, 1))


def posterior(p, loss, **settings):
    return PosteriorCorrection(loss, settings=settings).fit(ONE).predict_proba(np.array([[logit(p)]]))[0, 0]


# the best answers p* to posteriors q, as published
SHARES = [0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.99]
TABLE = {
    ("ECE", ()): [0.091, 0.187, 0.250, 0.333, 0.396, 0.500, 0.604, 0.750, 0.909],
    ("binary_focal", ()): [0.154, 0.250, 0.306, 0.373, 0.422, 0.500, 0.578, 0.694, 0.846],
    ("F-ECE", ()): [0.231, 0.340, 0.403, 0.481, 0.540, 0.640, 0.745, 0.892, 0.989],
    ("ASL", (("variant", "lfa"),)): [0.294, 0.392, 0.445, 0.507, 0.550, 0.622, 0.695, 0.806, 0.949],
    ("ASL", ()): [0.321, 0.417, 0.468, 0.528, 0.570, 0.638, 0.708, 0.812, 0.942],
}


@pytest.mark.parametrize("case", TABLE, ids=str)
def test_published_table(case):
    name, settings = case
    for q, p in zip(SHARES, TABLE[case], strict=True):
        found = brentq(lambda x, q=q: posterior(x, name, **dict(settings)) - q, 1e-9, 1 - 1e-9)
        assert found == pytest.approx(p, abs=6e-4)


FORMS = {
    "BCE": (lambda p: -3 * np.log(p), lambda p: -np.log1p(-p), {"positive_weight": 3.0}),
    "binary_focal": (
        lambda p: -0.25 * (1 - p) ** 0.5 * np.log(p),
        lambda p: -0.75 * p**0.5 * np.log1p(-p),
        {"gamma": 0.5, "alpha": 0.25},
    ),
    "binary_inverse_focal": (
        lambda p: -((1 + p) ** 1.5) * np.log(p),
        lambda p: -((2 - p) ** 1.5) * np.log1p(-p),
        {"gamma": 1.5},
    ),
    "power": (lambda p: (1 - p**0.4) / 0.4, lambda p: (1 - (1 - p) ** 0.4) / 0.4, {"r": 0.4}),
    "B-ECE": (lambda p: 1 / p - 1, lambda p: -np.log1p(-p), {}),
    "ECE-F": (lambda p: -((1 - p) ** 3) * np.log(p), lambda p: 1 / (1 - p) - 1, {"gamma": 3.0}),
    "F-ECE": (lambda p: 1 / p - 1, lambda p: -(p**1.0) * np.log1p(-p), {"gamma": 1.0}),
    "exponential_cross_entropy": (
        lambda p: 2 * (1 / p - 1),
        lambda p: 0.5 * (1 / (1 - p) - 1),
        {"positive_weight": 2.0, "negative_weight": 0.5},
    ),
    "asymmetric": (
        lambda p: -((1 - p) ** 2.0) * np.log(p),
        lambda p: -(np.maximum(p - 0.1, 0) ** 3) * np.log(1 - np.maximum(p - 0.1, 0)),
        {"gamma_positive": 2.0, "gamma_negative": 3.0, "margin": 0.1},
    ),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("q", [0.05, 0.3, 0.5, 0.8, 0.97])
def test_the_map_undoes_the_minimisation(name, q):
    present, absent, settings = FORMS[name]
    best = minimize_scalar(
        lambda p: q * present(p) + (1 - q) * absent(p),
        bounds=(1e-7, 1 - 1e-7),
        method="bounded",
        options={"xatol": 1e-13},
    )
    assert posterior(best.x, name, **settings) == pytest.approx(q, abs=3e-6)


def test_detached_weights_have_another_map():
    for p in (0.2, 0.6):
        odds = (p**2 / (1 - p)) / ((1 - p) ** 2 / p)
        assert posterior(p, "binary_focal", detached=True) == pytest.approx(odds / (1 + odds))
        official = ((p - 0.05) ** 4 / (1.05 - p)) / ((1 - p) / p)
        assert posterior(p, "ASL", detached=True) == pytest.approx(official / (1 + official))


@pytest.mark.parametrize("name", [*FORMS, "ASL"])
def test_extreme_logits(name):
    settings = {} if name == "ASL" else FORMS[name][2]
    z = np.array([[-1e4, -745, -40, 0, 40, 745, 1e4]])
    calibrator = PosteriorCorrection(name, settings=settings).fit(z)
    moved = calibrator.transform(z)
    assert np.isfinite(moved).all() and (np.diff(moved) >= 0).all()
    q = calibrator.predict_proba(z)
    assert (q >= 0).all() and (q <= 1).all()


def test_posterior_of_sigmoid_predictions():
    generator = np.random.default_rng(0)
    q = generator.random((500, 3)) * 0.9 + 0.05
    labels = (generator.random((500, 3)) < q).astype(int)
    z = logit(q) / 2  # what exponential cross-entropy answers: sigmoid(2 z) is the posterior
    table = Predictions(logits=z, targets=labels, ids=np.arange(500))
    out = PosteriorCorrection("ECE").fit(table).apply(table)
    assert out.kind == "logits" and out.head == "sigmoid"
    np.testing.assert_allclose(expit(out.logits), q, atol=1e-12)
    single = Predictions(logits=z, targets=z.argmax(1), head="sigmoid")
    corrected = PosteriorCorrection("ECE").fit(single)
    assert np.array_equal(corrected.predict(single), z.argmax(1))
    with pytest.raises(ValueError, match="head='softmax'"):
        PosteriorCorrection("ECE").fit(Predictions(logits=z))


def test_posterior_by_a_function(tmp_path):
    calibrator = PosteriorCorrection(lambda p: p**2 / (p**2 + (1 - p) ** 2)).fit(np.zeros((2, 3)))
    z = np.random.default_rng(0).normal(size=(50, 3))
    np.testing.assert_allclose(calibrator.predict_proba(z), expit(2 * z), atol=1e-14)
    with pytest.raises(ValueError, match="function cannot be written to JSON"):
        calibrator.save(tmp_path / "no.json")
    with pytest.raises(ValueError, match="posteriors from 0 to 1"):
        PosteriorCorrection(lambda p: 2 * p).fit(z).predict_proba(z)


@pytest.mark.parametrize(
    ("loss", "settings", "message"),
    [
        ("F-EEC", None, "Did you mean"),
        ("focal_exponential", {"gama": 1}, "the setting 'gama', expected one of gamma"),
        ("power", {"r": 1.0}, "below 1"),
        ("binary_inverse_focal", {"gamma": 4.0}, "below 3.5911"),
        ("binary_focal", {"alpha": 1.5}, "alpha between 0 and 1"),
        ("BCE", {"positive_weight": -1.0}, "positive weights"),
        ("ASL", {"variant": "other"}, "'official' or 'lfa'"),
        (3, None, "name of a binary loss"),
    ],
)
def test_posterior_settings(loss, settings, message):
    with pytest.raises(ValueError, match=message):
        PosteriorCorrection(loss, settings=settings).fit(ONE)


def test_posterior_ignores_what_does_not_move_it():
    assert posterior(0.3, "F-ECE", gamma=2.0, reduction="sum", saturation="clamp", targets="index") == posterior(
        0.3, "F-ECE"
    )


# ---- prior correction


def shifted(n, shares, seed, classes=3):
    """Calibrated logits under equal shares, and rows of a population with other shares."""
    generator = np.random.default_rng(seed)
    y = generator.choice(classes, p=shares, size=n)
    x = generator.normal(size=(n, classes))
    x[np.arange(n), y] += 1.5
    return 1.5 * x, y  # log-likelihood ratios of unit normals shifted by 1.5


def test_given_shares_are_bayes_rule():
    z, y = rows(400, 3)
    source = np.bincount(y) / 400
    target = np.array([0.7, 0.2, 0.1])
    found = PriorCorrection(target_shares=target).fit(z, y)
    want = softmax(z) * target / source
    np.testing.assert_allclose(found.predict_proba(z), want / want.sum(1, keepdims=True), atol=1e-14)
    np.testing.assert_allclose(found.source_shares_, source)
    assert found.target_interval_ is None
    np.testing.assert_allclose(found.transform(z), z + np.log(target / source), atol=1e-13)


def test_estimated_shares_are_the_maximum_likelihood():
    z, _ = shifted(2000, [0.6, 0.3, 0.1], 0)
    found = PriorCorrection(source_shares=np.full(3, 1 / 3)).fit(z)
    p = softmax(z)

    def cost(point):
        w = np.append(point, 1 - point.sum())
        return -np.log(p @ w * 3).mean() if (w > 0).all() else np.inf

    want = minimize(cost, [0.3, 0.3], method="Nelder-Mead", options={"xatol": 1e-12, "fatol": 1e-15, "maxiter": 4000})
    np.testing.assert_allclose(found.target_shares_[:2], want.x, atol=1e-6)
    # the fixed point of expectation-maximisation
    posterior_shares = (p * found.target_shares_ * 3 / (p @ found.target_shares_ * 3)[:, None]).mean(0)
    np.testing.assert_allclose(posterior_shares, found.target_shares_, atol=1e-10)


@pytest.mark.parametrize("known_source", [True, False])
def test_intervals_cover_the_true_shares(known_source):
    truth = np.array([0.6, 0.3, 0.1])
    inside = np.zeros(3)
    for seed in range(100):
        target, _ = shifted(500, truth, seed)
        z, y = shifted(400, [1 / 3] * 3, 1000 + seed)
        if known_source:
            found = PriorCorrection(source_shares=np.full(3, 1 / 3)).fit(target)
        else:
            found = PriorCorrection().fit(z, y, unlabelled=target)
        low, high = found.target_interval_.T
        inside += (low <= truth) & (truth <= high)
    assert (inside >= 87).all(), inside  # 95 of 100, less three deviations and a little


def test_absent_classes_have_no_share():
    z, _ = shifted(1500, [0.7, 0.3, 0.0], 1)
    found = PriorCorrection(source_shares=np.full(3, 1 / 3)).fit(z)
    assert found.target_shares_[2] < 0.03 and found.target_interval_[2, 0] == 0
    assert np.isfinite(found.transform(z)).all()


def test_corrected_accuracy_improves_under_shift():
    truth = [0.85, 0.1, 0.05]
    target, labels = shifted(4000, truth, 2)
    z, y = shifted(4000, [1 / 3] * 3, 3)
    found = PriorCorrection().fit(z, y, unlabelled=Predictions(logits=target))
    assert (found.predict(target) == labels).mean() > (target.argmax(1) == labels).mean() + 0.05


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target_shares": [0.5, 0.5]}, "3 shares"),
        ({"target_shares": [0.5, 0.6, 0.2]}, "sum to 1.3"),
        ({"target_shares": [-0.5, 1.0, 0.5]}, "at least 0"),
        ({"source_shares": [1.0, 0.0, 0.0], "target_shares": [0.5, 0.25, 0.25]}, "class 1 with a target share"),
    ],
)
def test_prior_settings(settings, message):
    z, y = rows(50, 3)
    with pytest.raises(ValueError, match=message):
        PriorCorrection(**settings).fit(z, y)
    with pytest.raises(ValueError, match="neither labels nor source_shares"):
        PriorCorrection().fit(z)
    with pytest.raises(ValueError, match="one of the two"):
        PriorCorrection(target_shares=[0.2, 0.3, 0.5]).fit(z, y, unlabelled=z)
    with pytest.raises(ValueError, match=r"4 columns|4 features|4 classes"):
        PriorCorrection().fit(z, y, unlabelled=np.zeros((3, 4)))
