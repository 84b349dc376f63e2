"""Likelihood, Brier score and accuracy at ordinary and extreme inputs."""

from __future__ import annotations

import math

import mpmath
import numpy
import pytest
import torch

from metrics.metric_tables import classifier, labels_table, logits_and_labels, soft_table, softmax
from reweigh import Predictions, metrics

GAPS = [0.0, 1e-12, 1e-6, 0.3, 5.0, 20.0, 37.0, 300.0, 1e4]


def exact(gap, right):
    """NLL and Brier score of one row of three classes, the top one ahead of two equals by `gap`."""
    with mpmath.workdps(60 + int(gap)):
        rest = mpmath.exp(-mpmath.mpf(gap))
        top, other = 1 / (1 + 2 * rest), rest / (1 + 2 * rest)
        truth = [1, 0, 0] if right else [0, 1, 0]
        brier = mpmath.fsum((p - t) ** 2 for p, t in zip((top, other, other), truth, strict=True))
        return float(-mpmath.log(top if right else other)), float(brier)


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("shift", [0.0, -1e3])
def test_scores_of_one_row_at_any_gap(gap, right, shift):
    row = numpy.array([[gap, 0.0, 0.0]]) + shift
    gap = row[0, 0] - row[0, 1]  # what the shift leaves of it
    table = Predictions(logits=row, targets=[0 if right else 1])
    likelihood, brier = exact(gap, right)
    assert metrics.negative_log_likelihood(table) == pytest.approx(likelihood, rel=1e-12, abs=1e-300)
    assert metrics.brier_score(table) == pytest.approx(brier, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_narrow_types_are_read_exactly(dtype):
    logits, labels = logits_and_labels()
    narrow = torch.tensor(logits).to(dtype)
    wide = narrow.double()
    wanted = torch.nn.functional.cross_entropy(wide, torch.tensor(labels))
    table = Predictions(logits=narrow, targets=labels)
    assert metrics.negative_log_likelihood(table) == pytest.approx(float(wanted), rel=1e-13)
    brier = ((torch.softmax(wide, 1) - torch.nn.functional.one_hot(torch.tensor(labels), 4)) ** 2).sum(1).mean()
    assert metrics.brier_score(table) == pytest.approx(float(brier), rel=1e-13)


def test_brier_sums_over_classes():
    p = numpy.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
    wanted = (0.09 + 0.04 + 0.01 + 0.01 + 0.81 + 0.64) / 2
    assert metrics.brier_score(Predictions(probabilities=p, targets=[0, 1])) == pytest.approx(wanted, rel=1e-14)


def test_soft_targets():
    table = soft_table()
    p, t = softmax(table.logits), table.targets
    assert metrics.negative_log_likelihood(table) == pytest.approx(-(t * numpy.log(p)).sum(1).mean(), rel=1e-13)
    assert metrics.brier_score(table) == pytest.approx(((p - t) ** 2).sum(1).mean(), rel=1e-13)
    assert metrics.accuracy(table) == pytest.approx(t[numpy.arange(150), p.argmax(1)].mean(), rel=1e-14)


def test_labels():
    table = labels_table()
    logits, truth = torch.tensor(table.logits), torch.tensor(table.targets).double()
    wanted = torch.nn.functional.binary_cross_entropy_with_logits(logits, truth)
    assert metrics.negative_log_likelihood(table) == pytest.approx(float(wanted), rel=1e-13)
    assert metrics.brier_score(table) == pytest.approx(
        float(((torch.sigmoid(logits) - truth) ** 2).sum(1).mean()), rel=1e-13
    )
    assert metrics.accuracy(table) == pytest.approx(float(((logits > 0) == (truth > 0)).double().mean()))


def test_one_vs_rest_heads():
    logits, labels = logits_and_labels()
    table = Predictions(logits=logits, targets=labels, head="sigmoid")
    truth = torch.nn.functional.one_hot(torch.tensor(labels), 4).double()
    wanted = torch.nn.functional.binary_cross_entropy_with_logits(torch.tensor(logits), truth)
    assert metrics.negative_log_likelihood(table) == pytest.approx(float(wanted), rel=1e-13)
    assert metrics.accuracy(table) == metrics.accuracy(Predictions(logits=logits, targets=labels))
    assert metrics.area_under_risk_coverage(table, loss="cross_entropy") > 0


def test_masked_classes_do_not_count():
    logits, labels = logits_and_labels(classes=3)
    wide = numpy.concatenate([logits, numpy.full((200, 2), -numpy.inf)], 1)
    for name in (
        "negative_log_likelihood",
        "brier_score",
        "accuracy",
        "expected_calibration_error",
        "area_under_risk_coverage",
    ):
        metric = getattr(metrics, name)
        assert metric(Predictions(logits=wide, targets=labels)) == pytest.approx(
            metric(Predictions(logits=logits, targets=labels)), rel=1e-13
        )
    narrow, masked = (
        metrics.area_under_risk_coverage(Predictions(logits=z, targets=labels), score="negative_entropy")
        for z in (logits, wide)
    )
    assert narrow == pytest.approx(masked, rel=1e-13)


def test_a_probability_of_zero_costs_infinitely_much():
    assert metrics.negative_log_likelihood(Predictions(probabilities=[[1.0, 0.0]], targets=[1])) == math.inf
    assert metrics.brier_score(Predictions(probabilities=[[1.0, 0.0]], targets=[1])) == 2.0


def test_raw_logits_are_not_probabilities():
    """Elsewhere they are taken silently, and the Brier score is 238."""
    logits, labels = logits_and_labels(scale=8.0)
    with pytest.raises(ValueError, match="logits="):
        Predictions(probabilities=logits, targets=labels)


def test_shift_and_class_order():
    table = classifier(rows=300)
    order = numpy.array([2, 0, 3, 1])
    shifted = Predictions(logits=table.logits + 7.25, targets=table.targets)
    permuted = Predictions(logits=table.logits[:, order], targets=numpy.argsort(order)[table.targets])
    for name in (
        "negative_log_likelihood",
        "brier_score",
        "expected_calibration_error",
        "area_under_risk_coverage",
        "score_decomposition",
    ):
        wanted = getattr(metrics, name)(table)
        for other in (shifted, permuted):
            assert getattr(metrics, name)(other) == pytest.approx(wanted, rel=1e-10)
