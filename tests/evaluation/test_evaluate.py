"""`evaluate`: values, intervals, groups, outside rows; text for people, plain values for machines."""

from __future__ import annotations

import json

import numpy
import pytest

import reweigh
from reweigh import Predictions, metrics
from reweigh.errors import InputError
from reweigh.evaluation import Evaluation, Measure

from .tables import classifier, identified


def test_values_and_intervals_are_those_of_the_metrics():
    table = classifier()
    found = reweigh.evaluate(table, "accuracy,ECE:bins=10,NLL", resamples=50, seed=3)
    assert list(found.metrics) == ["accuracy", "expected_calibration_error:bins=10", "negative_log_likelihood"]
    for name, settings in {"accuracy": {}, "expected_calibration_error": {"bins": 10}}.items():
        wanted = metrics.estimate(name, table, resamples=50, seed=3, **settings)
        label = name if not settings else f"{name}:bins=10"
        assert found[label][:3] == tuple(wanted)
    assert (found["accuracy"].direction, found["negative_log_likelihood"].direction) == ("higher", "lower")
    assert found.rows == 600


def test_suitable_metrics_without_asking():
    full = [
        "accuracy",
        "negative_log_likelihood",
        "brier_score",
        "expected_calibration_error",
        "area_under_risk_coverage",
    ]
    assert list(reweigh.evaluate(classifier(60), resamples=10).metrics) == full
    alone = Predictions(confidence=[0.9, 0.8, 0.7], correct=[True, True, False])
    assert list(reweigh.evaluate(alone, resamples=10, ignore="RW107").metrics) == [full[0], full[3], full[4]]
    with pytest.raises(InputError, match=r"there are no targets, so nothing can be judged.*--target"):
        reweigh.evaluate(Predictions(logits=numpy.zeros((3, 2))), engine="stream")


def test_functions_and_names_of_ones_own():
    def always_half(predictions):
        return 0.5

    found = reweigh.evaluate(classifier(60), [always_half, "accuracy"], resamples=5)
    assert (found["always_half"].value, list(found.metrics)) == (0.5, ["always_half", "accuracy"])
    found = reweigh.evaluate(classifier(60), {"mine": always_half, "five bins": "ECE:bins=5"}, resamples=5)
    assert list(found.metrics) == ["mine", "five bins"]


def test_without_intervals():
    found = reweigh.evaluate(classifier(), "accuracy,ECE", interval=None)
    assert found["accuracy"] == Measure(metrics.accuracy(classifier()), None, None, "higher")
    assert "interval" not in str(found)


def test_metrics_of_several_numbers():
    table = classifier(200, class_names=["a", "b", "c", "d"])
    found = reweigh.evaluate(table, "score_decomposition", resamples=10)
    assert {"score_decomposition.miscalibration", "score_decomposition.discrimination"} <= set(found.metrics)
    report = reweigh.evaluate(table, "class_report", resamples=10)
    assert {f"class_report.recall[{name}]" for name in "abcd"} <= set(report.metrics)


MISTAKES = {
    "unknown metric": (("acuracy",), {}, "no metric called 'acuracy'. Did you mean 'accuracy'"),
    "unknown setting": (
        ("ECE:bin=3",),
        {},
        "metric 'expected_calibration_error' has no setting 'bin'. Did you mean 'bins'",
    ),
    "missing setting": (("shot_accuracy",), {}, "needs the setting 'class_counts'.*@file.yaml"),
    "twice": ((["accuracy", "accuracy"],), {}, "'accuracy' is asked for twice"),
    "no name": (([3],), {}, "got 3, expected a name with settings"),
    "unknown group": ((), {"by": "hospital"}, "hospital"),
    "unknown engine": ((), {"engine": "dask"}, "engine='dask', expected 'memory', 'stream' or 'ray'"),
    "columns of a table": ((), {"logits": "z*"}, "got logits=, which goes with a file"),
    "level": ((), {"interval": 95}, "interval=95"),
    "claim": ((), {"require": "accuracy is good"}, "expected METRIC, one of >= > <= <"),
    "claim about nothing": ((), {"require": "speed>=3"}, "there is no result called 'speed'"),
    "unknown check": ((), {"ignore": "RW999"}, "there is no check called 'RW999'"),
    "a curve": (("risk_coverage_curve",), {}, "A curve has no single interval"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(mistake):
    given, keywords, message = MISTAKES[mistake]
    with pytest.raises(InputError, match=message):
        reweigh.evaluate(classifier(60), *given, resamples=5, **keywords)


@pytest.mark.parametrize("by", ["site", ["site"], ["site", "class"]])
def test_by_group(by):
    table = identified()
    found = reweigh.evaluate(table, "accuracy,ECE", by=by, resamples=20)
    assert set(found.groups["site"]) == {"north", "south", "west"}
    north = table.by("site")["north"]
    assert found.groups["site"]["north"].rows == len(north)
    assert found.groups["site"]["north"].metrics["accuracy"].value == metrics.accuracy(north)
    if "class" in by:
        recall = [float((table.predicted[table.target_tensor == k] == k).double().mean()) for k in range(4)]
        assert [found.groups["class"][str(k)].metrics["accuracy"].value for k in range(4)] == pytest.approx(recall)


def test_a_group_too_small_for_a_metric_is_undefined():
    sites = numpy.array(["a"] * 59 + ["b"])
    table = classifier(60, classes=2, groups={"site": sites})
    found = reweigh.evaluate(table, "calibration_slope,accuracy", by="site", resamples=10)
    assert numpy.isnan(found.groups["site"]["b"].metrics["calibration_slope"].value)
    assert "undefined" in str(found)


def test_rows_that_come_in_patients_widen_the_interval():
    """Four copies of every row say no more than one."""
    once = classifier(150)
    rows = numpy.repeat(numpy.arange(150), 4)
    table = Predictions(
        logits=numpy.asarray(once.logits)[rows], targets=numpy.asarray(once.targets)[rows], groups={"patient": rows}
    )
    alone, clustered = (
        reweigh.evaluate(table, "NLL", cluster=name, ignore="RW108")["negative_log_likelihood"]
        for name in (None, "patient")
    )
    assert clustered.high - clustered.low > 1.6 * (alone.high - alone.low)


def test_outside_rows():
    inside, foreign = classifier(300, skill=5), classifier(200, skill=0, seed=9)
    found = reweigh.evaluate(inside, "accuracy", outside=foreign, resamples=30)
    assert {"entropy.auroc", "msp.fpr95", "energy.aupr_in", "max_logit.aupr_out"} <= set(found.outside)
    wanted = metrics.out_of_distribution(inside, foreign, "msp")
    one = found["msp.auroc"]
    assert one.value == wanted["auroc"]
    assert one.low < one.value < one.high
    probabilities = Predictions(probabilities=[[0.9, 0.1], [0.8, 0.2]])
    assert set(reweigh.evaluate(probabilities, outside=probabilities, resamples=5).outside) == {
        f"{score}.{part}" for score in ("entropy", "msp") for part in ("auroc", "aupr_in", "aupr_out", "fpr95")
    }
    judged = reweigh.evaluate(inside, "accuracy", outside=foreign, require="msp.auroc>=0.6", resamples=10)
    assert judged.verdicts[0].outcome == "kept"


def test_the_result_is_plain_and_readable(tmp_path):
    found = reweigh.evaluate(identified(), by="site", require=["accuracy>=0.1"], resamples=20, ignore="RW107")
    assert isinstance(found, Evaluation)
    record = json.loads(json.dumps(found.to_dict()))
    assert set(record) == {
        "file",
        "rows",
        "holds",
        "interval",
        "metrics",
        "by",
        "outside",
        "findings",
        "claims",
        "notes",
    }
    assert record["metrics"]["accuracy"]["value"] == found["accuracy"].value
    text = str(found)
    assert max(map(len, text.splitlines())) <= 80
    assert "600 rows x 4 classes" in text
    assert "kept:" in text


def test_from_a_file_and_its_columns(tmp_path):
    table = identified()
    reweigh.save(table, tmp_path / "val.parquet")
    numpy.savez(tmp_path / "val.npz", scores=table.logits, truth=table.targets)
    whole = reweigh.evaluate(table, "accuracy", interval=None)
    assert reweigh.evaluate(tmp_path / "val.parquet", "accuracy", interval=None)["accuracy"] == whole["accuracy"]
    named = reweigh.evaluate(tmp_path / "val.npz", "accuracy", interval=None, logits="scores", target="truth")
    assert named["accuracy"] == whole["accuracy"]
    assert named.label == str(tmp_path / "val.npz")


def test_weights_count():
    rows = numpy.arange(200)
    table = classifier(200, weights=(rows % 3).astype(float))
    repeated = classifier(200).take(numpy.repeat(rows, rows % 3))
    one = reweigh.evaluate(table, "accuracy,NLL", interval=None)
    other = reweigh.evaluate(repeated, "accuracy,NLL", interval=None, ignore="RW108")
    for name in one.metrics:
        assert one[name].value == pytest.approx(other[name].value, rel=1e-12)


def test_what_does_not_suit_is_left_out_with_a_note(monkeypatch):
    from reweigh.evaluation import _choice

    monkeypatch.setattr(_choice, "OF_SCORES", ("accuracy", "calibration_slope"))
    found = reweigh.evaluate(classifier(60), resamples=5)
    assert list(found.metrics) == ["accuracy"]
    assert found.notes[0].startswith("calibration_slope is left out: ")
    with pytest.raises(InputError):
        reweigh.evaluate(classifier(60), "accuracy,calibration_slope", resamples=5)


def test_digits_are_those_the_interval_supports():
    from reweigh.evaluation._digits import number, with_interval

    assert with_interval(0.053172, 0.0489, 0.0571) == ("0.053", "[0.049, 0.057]")
    assert with_interval(0.053172, 0.0519, 0.0548) == ("0.0532", "[0.0519, 0.0548]")
    assert with_interval(123.4, 100.0, 150.0) == ("123", "[100, 150]")
    assert with_interval(0.5, 0.5, 0.5) == ("0.5000", "[0.5000, 0.5000]")
    assert with_interval(0.123456789, None, None) == ("0.12346", "")
    assert with_interval(float("nan"), float("nan"), float("nan")) == ("undefined", "")
    assert with_interval(1e-9, -2e-8, 3e-8) == ("0.00000000", "[-0.00000002, 0.00000003]")
    assert (number(float("inf")), number(-0.001, 2)) == ("infinite", "0.00")


def test_a_group_that_is_looked_at_need_not_be_named_twice(tmp_path):
    table = identified(120)
    numpy.savez(
        tmp_path / "a.npz",
        logits=table.logits,
        label=table.targets,
        site=table.groups["site"],
        ward=table.groups["patient"],
    )
    for by, group in (("site", None), (["site", "class"], None), ("site", "ward"), (["ward", "site"], ["ward"])):
        found = reweigh.evaluate(
            tmp_path / "a.npz", "accuracy", by=by, interval=None, **({"group": group} if group else {})
        )
        assert set(found.groups) == ({by} if isinstance(by, str) else set(by))
    clustered = reweigh.evaluate(tmp_path / "a.npz", "NLL", cluster="ward", resamples=10)
    assert (
        clustered["negative_log_likelihood"]
        == reweigh.evaluate(table, "NLL", cluster="patient", resamples=10)["negative_log_likelihood"]
    )
    with pytest.raises(InputError, match=r"no column 'sit' for group. Did you mean 'site'"):
        reweigh.evaluate(tmp_path / "a.npz", "accuracy", by="sit")


def test_outside_files_need_only_their_scores(tmp_path):
    table = identified(100)
    numpy.savez(
        tmp_path / "a.npz", scores=table.logits, truth=table.targets, image=table.ids, site=table.groups["site"]
    )
    numpy.savez(tmp_path / "b.npz", scores=classifier(80, skill=0).logits)
    found = reweigh.evaluate(
        tmp_path / "a.npz",
        "accuracy",
        outside=tmp_path / "b.npz",
        by="site",
        resamples=5,
        logits="scores",
        target="truth",
        id="image",
    )
    assert 0 < found["msp.auroc"].value < 1
