"""Comparing calibrators: an order from the fit rows alone, honest figures from others."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import reweigh
from reweigh import Predictions
from reweigh.calibration import IsotonicCalibration, TemperatureScaling
from reweigh.evaluation._compare_calibrators import compare_calibrators

from .problems import likelihood, rows, softmax

FAST = ("temperature_scaling", "platt_scaling", "histogram_binning")


def tables(n=800, sharp=3.0, weights=None):
    z, y = rows(2 * n, 4, sharp=sharp)
    table = Predictions(logits=z, targets=y, weights=weights)
    return table[:n], table[n:]


@pytest.fixture(scope="module")
def everything():
    return reweigh.compare_calibrators(*tables(600), resamples=50)


def test_everything_that_applies(everything):
    names = {row.name for row in everything.rows}
    assert {"none", "temperature_scaling", "matrix_scaling", "bayesian_binning", "structured_matrix_scaling"} <= names
    assert not {"posterior_correction", "selective_classifier", "prior_correction", "meta_accuracy"} & names
    assert not everything.skipped
    scores = [row.cross_validated for row in everything.rows]
    assert scores == sorted(scores)
    assert everything["none"].cross_validated > everything["temperature_scaling"].cross_validated + 0.1
    assert type(everything.best).__name__.lower() == everything.best_name.split("(")[0].replace("_", "")
    assert everything.best_name == next(row.name for row in everything.rows if row.name != "none")


def test_which_change_accuracy(everything):
    for row in everything.rows:
        assert not (row.preserves_accuracy and row.changes_accuracy), row.name
    assert everything["temperature_scaling"].accuracy == everything["none"].accuracy
    assert any(row.changes_accuracy for row in everything.rows)


def test_the_table(everything):
    text = str(everything)
    lines = text.splitlines()
    assert "600 fit rows" in lines[0] and "600 test rows" in lines[0] and "95% intervals" in lines[0]
    assert sum(line.startswith("temperature_scaling") for line in lines) == 1
    assert next(line for line in lines if line.startswith("none")).rstrip().endswith("no")


def test_the_result_is_frozen(everything):
    with pytest.raises(dataclasses.FrozenInstanceError):
        everything.score = "other"
    with pytest.raises(KeyError):
        _ = everything["nobody"]


def test_figures_are_what_they_say():
    fit, test = tables()
    found = compare_calibrators(fit, test, calibrators=FAST, resamples=60)
    row = found["temperature_scaling"]
    z, y = np.asarray(test.logits), np.asarray(test.targets)
    alone = TemperatureScaling().fit(fit)
    assert row.calibrator.temperature_ == alone.temperature_
    assert row.test == pytest.approx(likelihood(alone.predict_proba(z), y), rel=1e-12)
    assert row.difference == pytest.approx(row.test - likelihood(softmax(z), y), abs=1e-12)
    assert row.test_interval[0] < row.test < row.test_interval[1]
    assert row.difference_interval[0] < row.difference < row.difference_interval[1] < 0
    again = compare_calibrators(fit, test, calibrators=FAST, resamples=60)
    assert str(again) == str(found)
    other = compare_calibrators(fit, test, calibrators=FAST, resamples=60, seed=1)
    assert other["temperature_scaling"].test_interval != row.test_interval


def test_the_order_does_not_look_at_the_test_rows():
    fit, test = tables()
    z = np.asarray(test.logits)
    scrambled = Predictions(logits=z, targets=(np.asarray(test.targets) + 1) % 4)
    one = compare_calibrators(fit, test, calibrators=FAST, resamples=2)
    two = compare_calibrators(fit, scrambled, calibrators=FAST, resamples=2)
    assert [row.name for row in one.rows] == [row.name for row in two.rows]


def test_brier_score_and_settings():
    fit, test = tables()
    chosen = ["TS", TemperatureScaling(objective="ece"), IsotonicCalibration(mode="pooled")]
    found = compare_calibrators(fit, test, calibrators=chosen, score="brier_score", resamples=20)
    assert {row.name for row in found.rows} == {
        "none", "temperature_scaling", "temperature_scaling(objective='ece')", "isotonic_calibration(mode='pooled')",
    }  # fmt: skip
    p, y = found["temperature_scaling"].calibrator.predict_proba(test), np.asarray(test.targets)
    assert found["temperature_scaling"].test == pytest.approx(((p - np.eye(4)[y]) ** 2).sum(1).mean(), rel=1e-10)


def test_infinite_scores_rank_last():
    y = np.array([0, 1, 2] * 100)
    z = 3.0 * np.eye(3)[y] + np.random.default_rng(0).normal(size=(300, 3))
    y[:4] = 2
    table = Predictions(logits=z, targets=y)
    found = compare_calibrators(table[::2], table[1::2], calibrators=["isotonic", "TS"], resamples=20)
    scores = [row.cross_validated for row in found.rows]
    assert scores == sorted(scores) and "nan" not in str(found)


def test_weighted_tables_skip_what_has_no_weighted_form():
    weights = np.random.default_rng(0).integers(1, 3, 1200)
    fit, test = tables(600, weights=weights)
    found = compare_calibrators(fit, test, resamples=20)
    assert found.skipped["histogram_binning"] == "it has no weighted form" and "left out" in str(found)


def test_sigmoid_tables():
    generator = np.random.default_rng(0)
    z = generator.normal(size=(800, 3)) * 3
    labels = (generator.random((800, 3)) < 1 / (1 + np.exp(-z / 3))).astype(int)
    table = Predictions(logits=z, targets=labels)
    found = compare_calibrators(table[:400], table[400:], resamples=20)
    assert {"none", "temperature_scaling", "platt_scaling", "beta_calibration"} <= {row.name for row in found.rows}
    assert "not sigmoid" in found.skipped["vector_scaling"]


def test_many_parameters_are_left_out():
    fit, test = tables(18)
    found = compare_calibrators(fit, test, resamples=10, folds=3)
    assert found.skipped["matrix_scaling"] == "it has 20 parameters for 18 rows"


def test_failures_are_reasons():
    fit, test = tables(60)
    found = compare_calibrators(fit, test, calibrators=["TS", "HB"], resamples=10)
    assert not found.skipped
    wrong = TemperatureScaling(objective="ace")
    found = compare_calibrators(fit, test, calibrators=["TS", wrong], resamples=10)
    assert "objective='ace'" in found.skipped["temperature_scaling(objective='ace')"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fit": np.zeros((3, 2))}, "expected Predictions"),
        ({"test": Predictions(logits=np.zeros((3, 4)))}, "test without targets"),
        ({"test": Predictions(confidence=np.ones(3), correct=np.ones(3, int))}, "confidence alone"),
        ({"test": Predictions(logits=np.zeros((3, 2)), targets=[0, 1, 0])}, "same head and classes"),
        ({"folds": 1}, "folds=1"),
        ({"interval": 1.0}, "interval=1.0"),
        ({"score": "ece"}, "score='ece'"),
        ({"calibrators": ["temprature"]}, "Did you mean"),
        ({"calibrators": [3]}, "names of calibrators"),
        ({"calibrators": []}, "no calibrator that applies"),
    ],
)
def test_wrong_arguments(change, message):
    fit, test = tables(30)
    with pytest.raises(ValueError, match=message):
        compare_calibrators(**{"fit": fit, "test": test, **change})
