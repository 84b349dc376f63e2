"""Claims judged by their interval, given or derived from an earlier result."""

from __future__ import annotations

import json

import pytest

import reweigh
from reweigh.errors import InputError
from reweigh.evaluation import Claim, Measure
from reweigh.evaluation._claims import judge, parse

from .tables import classifier, identified


@pytest.mark.parametrize(
    ("text", "claim"),
    [
        ("accuracy>=0.9", Claim("accuracy", ">=", 0.9)),
        (" ECE:bins=10,norm=2 < 5% ", Claim("ECE:bins=10,norm=2", "<", 0.05)),
        ("NLL<=1e-3", Claim("NLL", "<=", 0.001)),
        ("calibration_slope.slope>-.5", Claim("calibration_slope.slope", ">", -0.5)),
        ("class_report.recall[a b]>=1", Claim("class_report.recall[a b]", ">=", 1.0)),
    ],
)
def test_reading(text, claim):
    assert parse(text) == claim


@pytest.mark.parametrize(
    "text",
    ["", "accuracy", "accuracy>=", ">=0.9", "accuracy>=high", "accuracy==0.9", "accuracy=>0.9", "0.5<accuracy<0.9"],
)
def test_what_is_no_claim(text):
    with pytest.raises(InputError, match=r"as in 'accuracy>=0.9'"):
        parse(text)


NAN = float("nan")


@pytest.mark.parametrize(
    ("sign", "bound", "measure", "outcome"),
    [
        (">=", 0.90, (0.95, 0.92, 0.97), "kept"),
        (">=", 0.92, (0.95, 0.92, 0.97), "kept"),
        (">", 0.92, (0.95, 0.92, 0.97), "undecided"),
        (">=", 0.96, (0.95, 0.92, 0.97), "undecided"),
        (">=", 0.98, (0.95, 0.92, 0.97), "broken"),
        ("<=", 0.05, (0.03, 0.02, 0.04), "kept"),
        ("<=", 0.03, (0.03, 0.02, 0.04), "undecided"),
        ("<", 0.02, (0.03, 0.02, 0.04), "broken"),
        (">=", 0.5, (0.5, None, None), "kept"),
        (">", 0.5, (0.5, None, None), "broken"),
        (">=", 0.5, (NAN, None, None), "broken"),
    ],
)
def test_judging(sign, bound, measure, outcome):
    assert judge(Claim("m", sign, bound), Measure(*measure)).outcome == outcome


def test_claims_bring_their_metrics_and_know_abbreviations():
    found = reweigh.evaluate(classifier(), "NLL", require=["ECE:bins=5<=0.9", "accuracy>=0.99", "NLL<=5"], resamples=30)
    assert [one.outcome for one in found.verdicts] == ["kept", "broken", "kept"]
    assert "expected_calibration_error:bins=5" in found.metrics
    assert [one["outcome"] for one in json.loads(json.dumps(found.to_dict()))["claims"]] == ["kept", "broken", "kept"]


def test_a_claim_about_a_part():
    table = classifier(300, class_names=list("abcd"))
    found = reweigh.evaluate(table, "accuracy", require="class_report.recall[b]>=0.2", resamples=20)
    assert found.verdicts[0].outcome == "kept"


def test_an_earlier_result_makes_the_claims(tmp_path):
    old, worse, better = classifier(skill=2), classifier(skill=0.5), classifier(skill=4)
    for name, table, outcomes in (("same", old, {"kept"}), ("worse", worse, {"broken"}), ("better", better, {"kept"})):
        found = reweigh.evaluate(table, "accuracy,NLL", reference=old)
        assert {one.outcome for one in found.verdicts} == outcomes, name
        assert {one.claim.metric for one in found.verdicts} == {"accuracy", "negative_log_likelihood"}
    reweigh.save(old, tmp_path / "old.parquet")
    saved = reweigh.evaluate(old, "accuracy,NLL")
    (tmp_path / "old.json").write_text(json.dumps(saved.to_dict()))
    verdicts = [
        reweigh.evaluate(worse, "accuracy,NLL", reference=one).verdicts
        for one in (old, tmp_path / "old.parquet", tmp_path / "old.json", saved)
    ]
    assert len({tuple((one.claim.metric, one.claim.sign, one.claim.bound) for one in found) for found in verdicts}) == 1
    assert f"(from {tmp_path / 'old.parquet'})" in str(verdicts[1][0])


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"metrics": {"accuracy": 3}}', "nonsense"])
def test_a_reference_that_is_no_result(tmp_path, content):
    (tmp_path / "old.json").write_text(content)
    with pytest.raises(InputError, match=r"it is not what `reweigh evaluate --json` prints"):
        reweigh.evaluate(classifier(60), "accuracy", reference=tmp_path / "old.json")


def test_claims_over_a_stream(tmp_path):
    reweigh.save(identified(), tmp_path / "a.parquet")
    found = reweigh.evaluate(tmp_path / "a.parquet", "NLL", require="accuracy>=0.1", engine="stream")
    assert found.verdicts[0].outcome == "kept"
