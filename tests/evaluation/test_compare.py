"""`compare`: differences on the same rows, matched by id, with paired intervals."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy
import pytest

import reweigh
from reweigh import Predictions, metrics
from reweigh.errors import InputError
from reweigh.evaluation import compare

from .tables import classifier, identified

GOOD, POOR = {"skill": 2.5}, {"skill": 1.5}


def test_differences_are_those_of_the_metrics():
    one, other = classifier(**POOR), classifier(**GOOD)
    found = compare({"old": one, "new": other}, "accuracy,ECE:bins=10", resamples=50, seed=4)
    wanted = metrics.compare_pairs("accuracy", one, other, resamples=50, seed=4)
    assert found.gaps["accuracy"][0] == (wanted.value, wanted.low, wanted.high, wanted.better)
    assert found.gaps["accuracy"][0].verdict("higher") == "better"
    assert found.measures["expected_calibration_error:bins=10"][1].value == metrics.expected_calibration_error(
        other, bins=10
    )
    assert (found.labels, found.rows) == (("old", "new"), 600)


def test_pairing_tells_more_than_two_intervals():
    """One model twice, once with a little noise: the separate intervals overlap, the paired one is narrow."""
    one = classifier(2000)
    noise = numpy.random.default_rng(5).normal(size=(2000, 4)).astype("float32") * 0.05
    other = replace(one, logits=numpy.asarray(one.logits) + noise)
    found = compare([one, other], "accuracy")
    gap, alone = found.gaps["accuracy"][0], found.measures["accuracy"][0]
    assert gap.high - gap.low < (alone.high - alone.low) / 2
    assert gap.verdict("higher") == "undecided"
    same = compare([one, one], "accuracy").gaps["accuracy"][0]
    assert (same.value, same.verdict("higher")) == (0.0, "equal")


@pytest.mark.parametrize("kind", ["text", "numbers", "numbers and text"])
def test_rows_are_matched_by_id(kind):
    one, other = classifier(**POOR), classifier(**GOOD)
    ids = numpy.arange(600) if kind != "text" else numpy.array([f"i{k}" for k in range(600)])
    shuffled = numpy.random.default_rng(0).permutation(600)
    one = replace(one, ids=ids)
    other = replace(other, ids=ids.astype(str) if kind == "numbers and text" else ids).take(shuffled)
    found = compare([one, other], "accuracy,NLL", resamples=20)
    wanted = compare([classifier(**POOR), classifier(**GOOD)], "accuracy,NLL", resamples=20)
    for name in wanted.gaps:
        assert found.gaps[name][0].value == pytest.approx(wanted.gaps[name][0].value, rel=1e-12)
    assert found.notes == ()


def test_only_shared_rows_are_compared():
    one, other = identified(), identified(**GOOD).take(numpy.arange(100, 600))
    found = compare({"a": one, "b": other}, "accuracy", resamples=20)
    assert found.rows == 500
    assert found.measures["accuracy"][0].value == metrics.accuracy(one.take(numpy.arange(100, 600)))
    assert found.notes == ("Only the 500 rows that all files share with one target are compared (600 in a, 500 in b).",)
    with pytest.raises(InputError, match=r"shares no row with the same target"):
        compare([one.take(numpy.arange(50)), one.take(numpy.arange(50, 100))], "accuracy")


def test_without_ids_the_rows_must_agree():
    one = classifier()
    with pytest.raises(InputError, match=r"table 0 has 600 rows and table 1 599, and without ids"):
        compare([one, one.take(numpy.arange(599))])
    with pytest.raises(InputError, match=r"the targets of table 0 and table 1 differ \(row 0\)"):
        compare([one, replace(one, targets=(numpy.asarray(one.targets) + 1) % 4)])


@pytest.mark.parametrize(
    ("given", "message"),
    [("a.parquet", "got one source"), (3, "got one source"), ([classifier(5)], "got 1, expected at least two")],
)
def test_one_source_is_not_enough(given, message):
    with pytest.raises(InputError, match=message):
        compare(given)


def test_confidences_compare_with_full_scores():
    full = classifier(200)
    alone = Predictions(confidence=full.top_confidence.numpy() ** 0.5, correct=full.correctness.numpy() > 0)
    found = compare([full, alone], resamples=10)
    assert list(found.measures) == ["accuracy", "expected_calibration_error", "area_under_risk_coverage"]
    assert found.gaps["accuracy"][0].value == 0


def test_run_folders(tmp_path):
    for run, skill in (("one", 1.5), ("two", 2.5)):
        (tmp_path / run / "predictions").mkdir(parents=True)
        reweigh.save(classifier(100, skill=skill), tmp_path / run / "predictions" / "val.parquet")
    found = compare([tmp_path / "one", tmp_path / "two"], "accuracy", resamples=10)
    assert found.rows == 100
    reweigh.save(classifier(50), tmp_path / "one" / "predictions" / "test.parquet")
    with pytest.raises(InputError, match=r"no split named, expected one of test, val \(--split\)"):
        compare([tmp_path / "one", tmp_path / "two"], "accuracy")
    assert compare([tmp_path / "one", tmp_path / "two"], "accuracy", split="val", resamples=10).rows == 100


def test_text_and_plain_values(tmp_path):
    paths = [tmp_path / folder / "predictions of a model.parquet" for folder in ("first", "second", "third")]
    for number, path in enumerate(paths):
        path.parent.mkdir()
        reweigh.save(classifier(300, skill=1.5 + number), path)
    found = compare(paths, "accuracy,NLL", resamples=30)
    text = str(found)
    assert max(map(len, text.splitlines())) <= 80
    assert all(word in text for word in ("first/pred", "second/pred", "third/pred"))
    assert " better" in text
    record = json.loads(json.dumps(found.to_dict()))
    assert record["differences"]["accuracy"][1]["verdict"] == "better"
    assert record["files"] == list(map(str, paths))


def test_an_end_just_off_zero_shows_its_digits():
    from reweigh.evaluation._compare import Gap, _gap_cells

    assert _gap_cells(Gap(-0.03, -0.06, -0.004, 1.0), "lower") == ("-0.030 [-0.060, -0.004]", "better")
    assert _gap_cells(Gap(0.02, -0.01, 0.05, 0.9), "higher") == ("+0.02 [-0.01, 0.05]", "undecided")
    assert _gap_cells(Gap(0.5, None, None, None), "none") == ("0.5", "")


def test_names_that_do_not_fit_stay_distinct():
    from reweigh.evaluation._compare import distinct

    assert distinct(["a", "b"], 8) == ["a", "b"]
    assert distinct(["first/very long.npz", "second/very long.npz"], 12) == ["first…ng.npz", "secon…ng.npz"]
    assert distinct(["x" * 30, "x" * 31], 8) == ["1 xxx…xx", "2 xxx…xx"]
