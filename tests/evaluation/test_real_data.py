"""Real networks' outputs through files: the figures that others computed from the same files."""

from __future__ import annotations

import pytest

import reweigh

TABLE = {
    # file, column, kind: accuracy, error with equal widths, with equal mass, likelihood
    ("cifar10_logits_resnets", "resnet20", "logits"): (0.9173, 0.053172, 0.052884, 0.37266),
    ("cifar10_logits_resnets", "resnet56", "logits"): (0.9339, 0.046445, 0.046445, 0.34583),
    ("cifar10_probs_netcal", "wrn16_4", "probabilities"): (0.9109, 0.053716, 0.053716, 0.37817),
    ("cifar100_probs_netcal", "wrn16_4", "probabilities"): (0.7543, 0.058060, 0.056819, 0.95645),
}


@pytest.mark.parametrize("row", TABLE, ids="-".join)
def test_figures(shared_data, tmp_path, row):
    file, column, kind = row
    accuracy, width, mass, likelihood = TABLE[row]
    source = shared_data / "logits" / f"{file}.npz"
    names = {"accuracy": "accuracy", "width": "ECE", "mass": "ECE:binning=mass", "likelihood": "NLL"}
    found = reweigh.evaluate(source, names, interval=None, **{kind: column})
    assert found["accuracy"].value == pytest.approx(accuracy, abs=1e-12)
    assert found["width"].value == pytest.approx(width, abs=6e-7)
    assert found["mass"].value == pytest.approx(mass, abs=6e-7)
    assert found["likelihood"].value == pytest.approx(likelihood, abs=6e-6)
    reweigh.save(reweigh.open(source, **{kind: column}), tmp_path / "own.parquet")
    again = reweigh.evaluate(tmp_path / "own.parquet", names, interval=None)
    assert again.metrics == found.metrics


def test_confidence_alone_is_enough_for_what_needs_no_more(shared_data):
    columns = {"confidence": "tv_resnet101__conf", "prediction": "tv_resnet101__pred"}
    source = shared_data / "logits" / "imagenet_top1.npz"
    names = {"accuracy": "accuracy", "width": "ECE", "mass": "ECE:binning=mass", "selective": "AURC"}
    found = reweigh.evaluate(source, names, interval=None, **columns)
    assert found.rows == 50_000
    assert found["accuracy"].value == pytest.approx(0.77374, abs=1e-12)
    assert found["width"].value == pytest.approx(0.049168, abs=6e-7)
    assert found["mass"].value == pytest.approx(0.048940, abs=6e-7)
    assert 0 < found["selective"].value < 0.1


def test_the_checks_find_nothing_wrong_with_them(shared_data):
    for file, column, kind in TABLE:
        found = reweigh.evaluate(shared_data / "logits" / f"{file}.npz", "accuracy", interval=None, **{kind: column})
        assert [one.code for one in found.findings] == [], (file, column)
