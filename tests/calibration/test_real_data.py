"""Published networks: the temperatures and errors they must give."""

from __future__ import annotations

import numpy as np
import pytest

from reweigh import Predictions
from reweigh.calibration import HistogramBinning, SplineCalibration, TemperatureScaling

from .problems import likelihood, softmax

# file, key, temperature of least test likelihood, calibration error after it
CASES = [
    ("cifar10_logits_resnets", "resnet20", 2.3188, 0.00664),
    ("cifar10_logits_resnets", "resnet56", 2.4450, 0.00539),
    ("cifar10_probs_netcal", "wrn16_4", 2.0525, 0.00615),
    ("cifar100_probs_netcal", "wrn16_4", 1.1111, 0.04184),
]


def error(p, y):
    confidence, correct = p.max(1), p.argmax(1) == y
    place = np.ceil(confidence * 15).astype(int).clip(1, 15)
    return sum(
        inside.mean() * abs(confidence[inside].mean() - correct[inside].mean())
        for inside in (place == b for b in range(1, 16))
        if inside.any()
    )


def table(folder, file, key):
    archive = np.load(folder / "logits" / f"{file}.npz")
    kind = "logits" if "logits" in file else "probabilities"
    return Predictions(**{kind: archive[key]}, targets=archive["labels"].astype(np.int64))


@pytest.mark.parametrize(("file", "key", "temperature", "after"), CASES)
def test_temperatures(shared_data, file, key, temperature, after):
    predictions = table(shared_data, file, key)
    found = TemperatureScaling().fit(predictions)
    assert found.temperature_ == pytest.approx(temperature, abs=5e-5)
    assert error(found.predict_proba(predictions), np.asarray(predictions.targets)) == pytest.approx(after, abs=5e-6)
    low, high = found.temperature_interval_
    assert low < temperature < high and high / low < 1.1
    kept = found.apply(predictions)
    assert kept.kind == predictions.kind and (kept.predicted == predictions.predicted).all()


def test_half_of_the_rows_repairs_the_other(shared_data):
    predictions = table(shared_data, *CASES[0][:2])
    fit, test = predictions[::2], predictions[1::2]
    z, y = np.asarray(test.logits, float), np.asarray(test.targets)
    before = error(softmax(z), y)
    for kind in (TemperatureScaling, HistogramBinning, SplineCalibration):
        p = kind().fit(fit).predict_proba(test)
        assert error(p, y) < before / 3
    assert likelihood(TemperatureScaling().fit(fit).predict_proba(test), y) < likelihood(softmax(z), y) - 0.1


def test_top_confidences_alone(shared_data):
    archive = np.load(shared_data / "logits" / "imagenet_top1.npz")
    names = sorted(key.removesuffix("__conf") for key in archive if key.endswith("__conf"))
    name = next(name for name in names if "resnet101" in name)
    correct = (archive[f"{name}__pred"] == archive["labels"]).astype(int)
    predictions = Predictions(confidence=archive[f"{name}__conf"], correct=correct)
    fit, test = predictions[::2], predictions[1::2]
    repaired = HistogramBinning().fit(fit).apply(test)

    def gap(confidence, hit):
        place = np.ceil(np.asarray(confidence, float) * 15).clip(1, 15)
        return sum(
            (place == b).mean() * abs(np.mean(confidence[place == b]) - hit[place == b].mean())
            for b in range(1, 16)
            if (place == b).any()
        )

    hit = np.asarray(test.correct)
    assert gap(np.asarray(test.confidence), hit) > 0.04 > 0.02 > gap(np.asarray(repaired.confidence), hit)
