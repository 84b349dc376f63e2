"""The selective and the conformal classifier: their rules, and that their promises hold in simulation."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from scipy.stats import binom

from reweigh import Predictions
from reweigh.calibration import ConformalClassifier, SelectiveClassifier
from reweigh.calibration._score_keys import SCORES, ScoreKey, value_of_key
from reweigh.calibration._selective_classifier import certified_prefix

from .problems import rows, softmax


def scores(z):
    p = softmax(z)
    ordered = np.sort(p, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(p > 0, p * np.log(p), 0).sum(1)
    return {
        "max_probability": p.max(1),
        "margin": ordered[:, -1] - ordered[:, -2],
        "negative_entropy": 1 - entropy / np.log((p > 0).sum(1)),
        "log_odds": np.log(p.max(1)) - np.log1p(-p.max(1)),
    }


@pytest.mark.parametrize("score", SCORES)
def test_keys_are_the_scores_without_rounding(score):
    z, _ = rows(200, 4)
    z[::5, 3] = -np.inf
    keys = ScoreKey(score)(torch.from_numpy(z)).numpy()
    np.testing.assert_allclose([value_of_key(score, key) for key in keys], scores(z)[score], atol=1e-12)
    table = Predictions(logits=z)
    name = {"max_probability": "log_odds", "margin": "margin_key", "negative_entropy": "entropy_key"}.get(score, score)
    np.testing.assert_allclose(keys, getattr(table, name).numpy(), rtol=1e-9, atol=1e-9)
    steep = np.array([[gap, 0.0, -1.0] for gap in (20.0, 40.0, 60.0, 600.0, 5000.0)])
    far = ScoreKey(score)(torch.from_numpy(steep))
    assert torch.isfinite(far).all() and (far.diff() > 0).all()
    alone = torch.tensor([[3.0, -math.inf, -math.inf]], dtype=torch.float64)
    assert float(ScoreKey(score)(alone)) == math.inf


@pytest.mark.parametrize("coverage", [0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("score", SCORES)
def test_target_coverage(score, coverage):
    z, y = rows(333, 4)
    found = SelectiveClassifier(coverage=coverage, score=score).fit(z, y)
    accepted = found.accepts(z)
    assert accepted.sum() == math.ceil(coverage * 333), "the smallest coverage that is enough"
    assert found.coverage_ == accepted.mean() and not found.certified_
    assert found.risk_ == pytest.approx((z.argmax(1) != y)[accepted].mean())
    assert np.array_equal(found.predict(z), np.where(accepted, z.argmax(1), -1))
    value = scores(z)[score]
    assert (value[accepted] >= found.threshold_ - 1e-9).all() and (value[~accepted] < found.threshold_ + 1e-9).all()
    np.testing.assert_allclose(found.predict_proba(z), softmax(z), atol=1e-14)


def true_risk(key_threshold, key, wrong):
    accepted = key >= key_threshold
    return wrong[accepted].mean() if accepted.any() else 0.0


@pytest.mark.parametrize("score", ["max_probability", "margin"])
def test_the_risk_is_exceeded_no_more_often_than_promised(score):
    level, runs = 0.1, 300
    population, truth = rows(100_000, 5, sharp=1.0, seed=99)
    key = ScoreKey(score)(torch.from_numpy(population)).numpy()
    wrong = population.argmax(1) != truth
    exceeded, coverage = 0, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for seed in range(runs):
            z, y = rows(400, 5, sharp=1.0, seed=seed)
            found = SelectiveClassifier(risk=0.35, level=level, score=score, random_state=seed).fit(z, y)
            exceeded += true_risk(found.key_threshold_, key, wrong) > 0.35
            coverage.append((key >= found.key_threshold_).mean())
    # at the promised level 30 of 300 are expected; 3.1 deviations above that is 46
    assert exceeded <= binom.ppf(0.999, runs, level)
    assert np.mean(coverage) > 0.3, "and it is not bought by refusing everything"


def test_a_bound_at_a_threshold_chosen_on_the_same_rows_would_not_do():
    """The sequence is fixed by other rows: what it certifies is decided by the testing rows alone."""
    z, y = rows(1000, 5, sharp=1.0)
    testing = np.arange(0, 1000, 2)
    found = SelectiveClassifier(risk=0.4).fit(z, y, certification_rows=testing)
    accepted = found.accepts(z[testing])
    wrong = (z.argmax(1) != y)[testing][accepted]
    assert found.certified_ and binom.cdf(wrong.sum(), accepted.sum(), 0.4) <= 0.05
    assert found.coverage_ == accepted.mean() and found.risk_ == wrong.mean()
    changed = y.copy()
    changed[testing] = (z[testing].argmax(1) + 1) % 5  # all testing rows wrong: nothing is certified
    with pytest.warns(UserWarning, match="no threshold could be certified for risk 0.4"):
        none = SelectiveClassifier(risk=0.4).fit(z, changed, certification_rows=testing)
    assert not none.accepts(z).any() and none.threshold_ == 1.0 and (none.predict(z) == -1).all()


def test_the_test_stops_at_the_first_failure():
    key = np.arange(100.0)[::-1]
    wrong = np.zeros(100)
    wrong[40:60] = 1
    sequence = np.array([70.0, 60.0, 45.0, 0.0])  # accept 30, 40, 55, 100 rows with 0, 0, 15, 20 errors
    p = [binom.cdf(errors, accepted, 0.25) for errors, accepted in ((0, 30), (0, 40), (15, 55), (20, 100))]
    assert p[1] < 0.05 < p[2]
    assert certified_prefix(sequence, key, wrong, 0.25, 0.05) == 2
    assert certified_prefix(np.array([1000.0]), key, wrong, 0.25, 0.05) == 0, "no accepted row certifies nothing"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"coverage": 0.9, "risk": 0.1}, "one of them"),
        ({"coverage": 0}, "coverage=0"),
        ({"risk": 1.5}, "risk=1.5"),
        ({"risk": 0.1, "level": 0}, "level=0"),
        ({"score": "entropy"}, "'max_probability' or 'margin'"),
    ],
)
def test_selective_settings(settings, message):
    z, y = rows(50, 3)
    with pytest.raises(ValueError, match=message):
        SelectiveClassifier(**settings).fit(z, y)
    with pytest.raises(ValueError, match="without risk="):
        SelectiveClassifier().fit(z, y, certification_rows=[1, 2])
    with pytest.raises(ValueError, match="an exact test counts rows"):
        SelectiveClassifier(risk=0.5).fit(z, y, np.ones(50))
    with pytest.raises(ValueError, match="0 rows to choose"):
        SelectiveClassifier(risk=0.5).fit(z, y, certification_rows=np.arange(50))


def test_the_name_of_the_score_is_also_the_accuracy():
    z, y = rows(300, 3)
    found = ConformalClassifier(score="aps").fit(z, y)
    assert found.score == "aps" and found.get_params()["score"] == "aps"
    assert found.score(z, y) == (z.argmax(1) == y).mean()
    assert found.set_params(score="lac").score == "lac"


# ---- conformal sets


def set_scores(z, score, penalty, free):
    """(n, K) scores as loops."""
    p = softmax(z)
    out = np.empty_like(p)
    for i in range(len(p)):
        order = np.argsort(-p[i], kind="stable")
        total = np.cumsum(p[i][order])
        for rank, k in enumerate(order, 1):
            if score == "lac":
                out[i, k] = 1 - p[i, k]
            else:
                out[i, k] = total[rank - 1] + (penalty * max(0, rank - free) if score == "raps" else 0)
    return out


@pytest.mark.parametrize("score", ["lac", "aps", "raps"])
@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_marginal_rule(score, coverage):
    z, y = rows(57, 4)
    found = ConformalClassifier(score=score, coverage=coverage, penalty=0.1, free_ranks=1).fit(z, y)
    table = set_scores(z, score, 0.1, 1)
    true = np.sort(table[np.arange(57), y])
    want = true[math.ceil(58 * coverage - 1e-9) - 1]
    assert found.quantiles_[0] == pytest.approx(want, abs=1e-12)
    new, _ = rows(200, 4, seed=5)
    near = np.isclose(set_scores(new, score, 0.1, 1), want, atol=1e-9)
    got = found.predict_set(new)
    assert np.array_equal(got[~near], (set_scores(new, score, 0.1, 1) <= want)[~near])
    assert np.array_equal(found.predict(new), new.argmax(1))


@pytest.mark.parametrize("score", ["lac", "aps", "raps"])
@pytest.mark.parametrize("scope", ["marginal", "class", "group"])
def test_coverage_holds(score, scope):
    """Over many fits the mean coverage lies between the promise and the promise + 1 / (n + 1)."""
    fits, n, coverage = 150, 149, 0.8
    held = {part: [] for part in range(3)}
    new, truth = rows(4000, 3, sharp=2.0, seed=10_000)
    part_of_new = {"marginal": np.zeros(4000, int), "class": truth, "group": (new[:, 0] > 0).astype(int)}[scope]
    for seed in range(fits):
        z, y = rows(n, 3, sharp=2.0, seed=seed)
        groups = {"groups": (z[:, 0] > 0).astype(int)} if scope == "group" else {}
        found = ConformalClassifier(score=score, scope=scope, coverage=coverage).fit(z, y, **groups)
        sets = found.predict_set(new, **({"groups": part_of_new} if scope == "group" else {}))
        for part in np.unique(part_of_new):
            held[part].append(sets[np.arange(4000), truth][part_of_new == part].mean())
    for values in held.values():
        if values:
            error = 3 * np.std(values) / math.sqrt(fits) + 3 * 0.4 / math.sqrt(1300)
            smallest = n // 5 if scope != "marginal" else n
            assert coverage - error <= np.mean(values) <= coverage + 1 / smallest + error


def test_too_few_rows_take_every_class():
    z, y = rows(8, 3)
    y[:] = [0, 1, 2, 0, 1, 2, 0, 1]
    with pytest.warns(UserWarning, match="fewer than the 9 rows that coverage 0.9 needs"):
        found = ConformalClassifier(coverage=0.9).fit(z, y)
    assert found.predict_set(z).all() and math.isinf(found.key_quantiles_[0])
    ConformalClassifier(coverage=0.8).fit(z, y)


def test_masked_classes_are_in_no_set():
    z, y = rows(300, 4)
    z[:, 3] = np.where(y == 3, z[:, 3], -np.inf)
    for score in ("lac", "aps", "raps"):
        sets = ConformalClassifier(score=score, coverage=0.99).fit(z, y).predict_set(z)
        assert not sets[y != 3, 3].any()


def test_certain_rows_still_differ():
    # p rounds to 1 in every row; the sets go by log p
    gaps = np.linspace(40, 80, 99)
    z = np.stack([gaps, np.zeros(99)], 1)
    y = np.zeros(99, int)
    y[:10] = 1  # the least certain ones are wrong
    found = ConformalClassifier(coverage=0.95).fit(z, y)
    sets = found.predict_set(z)
    assert sets[:, 0].all() and 0 < sets[:, 1].sum() < 20


def test_groups_of_predictions(tmp_path):
    from reweigh import calibration

    z, y = rows(400, 3)
    wards = np.array(["north", "south"])[(z[:, 0] > 0).astype(int)]
    table = Predictions(logits=z, targets=y, groups={"ward": wards})
    found = ConformalClassifier(scope="group").fit(table)
    assert found.groups_ == ["north", "south"]
    want = ConformalClassifier(scope="group").fit(z, y, groups=wards)
    assert np.array_equal(found.predict_set(table), want.predict_set(z, groups=wards))
    found.save(tmp_path / "c.json")
    assert np.array_equal(calibration.load(tmp_path / "c.json").predict_set(table), found.predict_set(table))
    with pytest.raises(ValueError, match="group 'west' in row 1"):
        found.predict_set(z[:2], groups=["north", "west"])
    two = Predictions(logits=z, targets=y, groups={"ward": wards, "sex": wards})
    with pytest.raises(ValueError, match="named by group="):
        ConformalClassifier(scope="group").fit(two)
    assert ConformalClassifier(scope="group", group="sex").fit(two).groups_ == ["north", "south"]
    with pytest.raises(ValueError, match="no groups"):
        ConformalClassifier(scope="group").fit(z, y)
    with pytest.raises(ValueError, match="scope='group'"):
        ConformalClassifier().fit(z, y, groups=wards)
    weighted = ConformalClassifier(scope="group").fit(z, y, np.where(np.arange(400) % 4, 1, 0), groups=wards)
    kept = np.arange(400) % 4 != 0
    assert np.array_equal(
        weighted.key_quantiles_,
        ConformalClassifier(scope="group").fit(z[kept], y[kept], groups=wards[kept]).key_quantiles_,
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"score": "thr"}, "'lac' or 'aps' or 'raps'"),
        ({"scope": "row"}, "'marginal' or 'class' or 'group'"),
        ({"coverage": 1.0}, "coverage=1.0"),
        ({"penalty": -1}, "penalty=-1"),
    ],
)
def test_conformal_settings(settings, message):
    z, y = rows(50, 3)
    with pytest.raises(ValueError, match=message):
        ConformalClassifier(**settings).fit(z, y)
