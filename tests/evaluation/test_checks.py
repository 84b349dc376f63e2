"""Every registered check: what it must find, and what it must not."""

from __future__ import annotations

from dataclasses import replace

import numpy
import pytest

import reweigh
from reweigh import Predictions, registry
from reweigh.errors import InputError
from reweigh.evaluation import Context, compare, run_checks

from .tables import classifier, identified


def codes(context: Context) -> set[str]:
    return {finding.code for finding in run_checks(context)}


def test_sound_tables_raise_no_alarm():
    for seed in range(5):
        for table in (
            classifier(2000, seed=seed),
            classifier(2000, classes=2, seed=seed),
            classifier(2000, classes=50, skill=0, seed=seed),
            replace(classifier(2000, seed=seed), head="sigmoid"),
            Predictions(
                confidence=numpy.random.default_rng(seed).random(2000),
                correct=numpy.random.default_rng(seed + 99).random(2000) < 0.5,
            ),
            Predictions(probabilities=numpy.eye(3)[numpy.arange(2000) % 3], targets=numpy.arange(2000) % 3),
        ):
            assert codes(Context(table=table, bins=15)) == set()
            assert codes(Context(table=table, others=(("twin", table),), bins=15)) == set()


def test_every_check_explains_itself():
    entries = registry.entries("check")
    assert len(entries) >= 8
    assert len({entry.details["code"] for entry in entries}) == len(entries)
    for entry in entries:
        assert entry.details["severity"] in ("error", "warning", "note")
        assert entry.summary
        assert len(entry.details["why"]) > 20
        assert len(entry.details["mend"]) > 20


def test_fitted_rows_by_id_by_score_and_by_note():
    fit = identified(400)
    part = fit.take(numpy.arange(200, 400))
    assert "RW101" in codes(Context(table=part, fit=fit))
    fresh = identified(400, seed=1)
    fresh = replace(fresh, ids=numpy.array([f"other {k}" for k in range(400)]))
    assert "RW101" not in codes(Context(table=fresh, fit=fit))
    bare = replace(part, ids=None)
    assert "RW101" in codes(Context(table=bare, fit=replace(fit, ids=None)))
    noted = replace(fresh, about={"calibrator": "temperature_scaling", "fitted_share": 0.98})
    (finding,) = run_checks(Context(table=noted))
    assert "temperature_scaling, and about 98 % of the rows it was fitted on are here" in finding.detected
    assert "RW101" in {one.code for one in reweigh.evaluate(part, "accuracy", fit=fit, resamples=5).findings}


def test_a_repaired_file_remembers(tmp_path):
    calibration = pytest.importorskip("reweigh.calibration")
    fit, other = classifier(500, scale=3), classifier(500, scale=3, seed=4)
    calibrator = calibration.calibrator("temperature").fit(fit)
    for table, wanted in ((fit, {"RW101"}), (other, set())):
        reweigh.save(calibrator.apply(table), tmp_path / "r.parquet")
        assert {
            one.code for one in reweigh.evaluate(tmp_path / "r.parquet", "accuracy", resamples=5).findings
        } == wanted


def test_changed_targets():
    one = identified()
    targets = numpy.asarray(one.targets).copy()
    targets[[3, 9]] = (targets[[3, 9]] + 1) % 4
    other = replace(one, targets=targets)
    found = compare({"a": one, "b": other}, "accuracy", resamples=5)
    assert [finding.code for finding in found.findings] == ["RW102"]
    assert "2 of 600 shared ids, 'row 3' first, have other targets in b than in a" in found.findings[0].detected
    assert found.rows == 598
    assert compare({"a": one, "b": other}, "accuracy", resamples=5, ignore="RW102").findings == ()


def test_class_order_by_name_by_decisions_and_by_targets():
    one = classifier(400, class_names=list("abcd"))
    other = classifier(400, class_names=list("abdc"))
    assert (
        "class 2 is 'c' in the predictions and 'd' in twin"
        in run_checks(Context(table=one, others=(("twin", other),)))[0].detected
    )
    foreign = replace(other, class_names=list("wxyz"))
    assert "other names" in run_checks(Context(table=one, others=(("twin", foreign),)))[0].detected
    turned = replace(classifier(400), logits=numpy.asarray(classifier(400).logits)[:, [2, 0, 1, 3]])
    found = run_checks(Context(table=classifier(400), others=(("turned", turned),)))
    assert "classes of one are put into another order" in {one.code: one.detected for one in found}["RW103"]
    assert "RW103" in codes(Context(table=turned))


def test_swapped_labels():
    table = classifier(400, classes=2)
    swapped = replace(table, targets=1 - numpy.asarray(table.targets))
    assert codes(Context(table=swapped)) == {"RW104"}
    labels = numpy.random.default_rng(0).random((300, 3)) < 0.4
    multi = Predictions(
        logits=numpy.where(labels, -1.0, 1.0) + numpy.random.default_rng(1).normal(size=(300, 3)), targets=labels
    )
    assert codes(Context(table=multi)) == {"RW104"}
    confidence = numpy.random.default_rng(0).random(500)
    assert codes(Context(table=Predictions(confidence=confidence, correct=confidence < 0.4))) == {"RW104"}
    assert codes(Context(table=classifier(12, classes=2))) == set()


def test_far_priors():
    fit = classifier(2000)
    kept = numpy.flatnonzero((numpy.asarray(fit.targets) > 0) | (numpy.arange(2000) % 5 == 0))
    other = classifier(2000, seed=3)
    few = other.take(numpy.flatnonzero((numpy.asarray(other.targets) > 0) | (numpy.arange(2000) % 5 == 0)))
    assert len(kept) < 2000
    (finding,) = run_checks(Context(table=few, fit=fit))
    assert finding.code == "RW105"
    assert "class 0 has a share of" in finding.detected
    noted = replace(few, about={"fitted_class_counts": [500, 500, 500, 500]})
    assert codes(Context(table=noted)) == {"RW105"}
    assert codes(Context(table=other.take(numpy.arange(30)), fit=fit)) == set()  # few rows differ by chance


@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
def test_probabilities_as_logits(head):
    random = numpy.random.default_rng(0)
    values = random.dirichlet(numpy.ones(4), 300) if head == "softmax" else random.random((300, 4))
    assert "RW106" in codes(Context(table=Predictions(logits=values, targets=values.argmax(1), head=head)))
    assert "RW106" not in codes(Context(table=Predictions(logits=values * 3, targets=values.argmax(1), head=head)))


def test_few_rows_for_the_bins():
    assert codes(Context(table=classifier(299), bins=15)) == {"RW107"}
    assert codes(Context(table=classifier(300), bins=15)) == set()
    assert codes(Context(table=classifier(299))) == set()
    assert codes(Context(table=classifier(100), bins=15, rows=10_000)) == set()
    found = {one.code for one in reweigh.evaluate(classifier(200), "ECE:bins=5,accuracy", resamples=5).findings}
    assert found == set()
    assert {one.code for one in reweigh.evaluate(classifier(200), "ECE:bins=50", resamples=5).findings} == {"RW107"}


def test_duplicated_rows():
    table = classifier(1000)
    twice = table.take(numpy.r_[numpy.arange(1000), numpy.arange(40)])
    (finding,) = run_checks(Context(table=twice))
    assert (finding.code, finding.detected[:24]) == ("RW108", "40 of the 1,040 rows of ")
    one_bit = numpy.asarray(twice.logits).copy()
    one_bit[1000:] = numpy.nextafter(one_bit[1000:], numpy.float32(100))
    assert codes(Context(table=replace(twice, logits=one_bit))) == set()
    coarse = Predictions(logits=numpy.round(numpy.random.default_rng(0).normal(size=(5000, 2)), 2).astype("float16"))
    assert codes(Context(table=coarse)) == set()


def test_ignoring_by_code_and_by_name():
    table = classifier(100)
    for word in ("RW107", "rw107", "few_rows", "few-rows"):
        assert run_checks(Context(table=table, bins=15), ignore=[word]) == ()
    with pytest.raises(InputError, match=r"there is no check called 'RW170'. Did you mean 'RW10"):
        run_checks(Context(table=table), ignore=["RW170"])


def test_a_check_of_ones_own():
    @registry.register_check("too_sure", code="MY001", severity="note", why="it never is", mend="look again")
    def too_sure(context):
        """The mean confidence is beyond belief."""
        return "mean confidence above 0.5" if float(context.table.top_confidence.mean()) > 0.5 else None

    try:
        found = reweigh.evaluate(classifier(300, scale=9), "accuracy", resamples=5).findings
        assert [(one.code, one.severity, one.why) for one in found] == [("MY001", "note", "it never is")]
        assert "MY001" in str(found[0])
    finally:
        registry._of_users["check"].pop("too_sure")


def test_the_gravest_comes_first():
    table = replace(classifier(100, classes=2), targets=1 - numpy.asarray(classifier(100, classes=2).targets))
    assert [one.severity for one in run_checks(Context(table=table, bins=15))] == ["error", "warning"]
