"""The published outputs of real networks give the figures that were measured on them elsewhere."""

from __future__ import annotations

import numpy
import pytest

from reweigh import Predictions, metrics


def residual_network(shared_data, name):
    arrays = numpy.load(shared_data / "logits" / "cifar10_logits_resnets.npz")
    return Predictions(logits=arrays[name], targets=arrays["labels"])


def wide_network(shared_data, name):
    arrays = numpy.load(shared_data / "logits" / f"{name}_probs_netcal.npz")
    return Predictions(probabilities=arrays["wrn16_4"], targets=arrays["labels"])


def figures(table):
    return [
        100 * metrics.accuracy(table),
        metrics.expected_calibration_error(table),
        metrics.expected_calibration_error(table, binning="mass"),
    ]


@pytest.mark.parametrize(
    ("network", "accuracy", "width", "mass", "likelihood"),
    [("resnet20", 91.73, 0.053172, 0.052884, 0.37266), ("resnet56", 93.39, 0.046445, 0.046445, 0.34583)],
)
def test_residual_networks(shared_data, network, accuracy, width, mass, likelihood):
    table = residual_network(shared_data, network)
    assert figures(table) == [
        pytest.approx(accuracy, abs=1e-9),
        pytest.approx(width, abs=6e-7),
        pytest.approx(mass, abs=6e-7),
    ]
    assert metrics.negative_log_likelihood(table) == pytest.approx(likelihood, abs=6e-6)


@pytest.mark.parametrize(
    ("data", "accuracy", "width", "mass", "likelihood"),
    [("cifar10", 91.09, 0.053716, 0.053716, 0.37817), ("cifar100", 75.43, 0.058060, 0.056819, 0.95645)],
)
def test_wide_networks(shared_data, data, accuracy, width, mass, likelihood):
    table = wide_network(shared_data, data)
    assert figures(table) == [
        pytest.approx(accuracy, abs=1e-9),
        pytest.approx(width, abs=6e-7),
        pytest.approx(mass, abs=6e-7),
    ]
    assert metrics.negative_log_likelihood(table) == pytest.approx(likelihood, abs=6e-6)


def test_confidences_alone_are_enough(shared_data):
    arrays = numpy.load(shared_data / "logits" / "imagenet_top1.npz")
    table = Predictions(
        confidence=arrays["tv_resnet101__conf"],
        correct=arrays["tv_resnet101__pred"] == arrays["labels"],
        targets=arrays["labels"],
    )
    assert figures(table) == [
        pytest.approx(77.374),
        pytest.approx(0.049168, abs=6e-7),
        pytest.approx(0.048940, abs=6e-7),
    ]
    value, low, high = metrics.estimate("area_under_risk_coverage", table)
    assert low < value < high and high - low < 0.01
    assert metrics.coverage_at_risk(table, 0.05) == pytest.approx(0.6, abs=0.1)


@pytest.mark.parametrize("temperature", [2.3188])
def test_temperature_repairs_the_confidence(shared_data, temperature):
    table = residual_network(shared_data, "resnet20")
    repaired = table.with_scores(logits=table.logits.astype("f8") / temperature)
    assert metrics.expected_calibration_error(repaired) == pytest.approx(0.00664, abs=6e-6)


def test_the_reports_of_an_author(shared_data):
    """Every published column of the report follows from the integer counts recovered from it."""
    arrays = numpy.load(shared_data / "lfa" / "cifar10lt_author_results.npz")
    columns = {
        "acc": "accuracy",
        "Precision": "weighted_precision",
        "Recall": "weighted_recall",
        "F0.5": "weighted_f_half",
        "F0": "weighted_f_zero",
        "F1": "weighted_f_one",
    }
    names = arrays["metric_names"].tolist()
    losses = [key.removesuffix("__confusion_tp_fp_fn_tn") for key in arrays if key.endswith("__confusion_tp_fp_fn_tn")]
    reports = {}
    for loss in losses:
        folds = [metrics.class_report_from_counts(fold.T) for fold in arrays[f"{loss}__confusion_tp_fp_fn_tn"]]
        for fold, values in zip(folds, arrays[f"{loss}__values"], strict=True):
            for published, ours in columns.items():
                assert fold[ours].numpy() == pytest.approx(values[:, names.index(published)], abs=1e-12), (
                    loss,
                    published,
                )
        reports[loss] = folds
    recall = {loss: float(numpy.mean([fold.recall.mean() for fold in folds])) for loss, folds in reports.items()}
    assert recall["BCE"] == pytest.approx(0.525, abs=6e-4) and recall["F-ECE"] == pytest.approx(0.526, abs=6e-4)
    hard = metrics.hard_classes(reports, "BCE", k=1)
    assert hard.classes.tolist() == [5] and hard.recall.item() == pytest.approx(0.08, abs=6e-3)  # dogs: 228 pictures
