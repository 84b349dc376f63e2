"""One number a class: areas, precision and recall, the class report, hard classes, accuracy by training counts."""

from __future__ import annotations

import itertools
import math

import numpy
import pytest
import torch

from metrics.metric_tables import classifier, confidences, labels_table, logits_and_labels, softmax
from reweigh import Predictions, metrics


def pair_area(scores, truth, weights):
    """Share of (positive, negative) pairs in the right order, ties half."""
    won = total = 0.0
    for i, j in itertools.product(range(len(scores)), repeat=2):
        weight = weights[i] * weights[j] * truth[i] * (1 - truth[j])
        total += weight
        won += weight * (1.0 if scores[i] > scores[j] else 0.5 if scores[i] == scores[j] else 0.0)
    return won / total if total else math.nan


def step_area(scores, truth, weights):
    """sum of (recall gained) x precision over thresholds."""
    area, recall = 0.0, 0.0
    for threshold in sorted(set(scores), reverse=True):
        taken = [i for i, score in enumerate(scores) if score >= threshold]
        hit = sum(weights[i] * truth[i] for i in taken)
        now = hit / sum(w * t for w, t in zip(weights, truth, strict=True))
        area += (now - recall) * hit / sum(weights[i] for i in taken)
        recall = now
    return area


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_areas_agree_with_loops(ties, weighted):
    table = classifier(rows=60, classes=3, ties=ties)
    weights = numpy.random.default_rng(0).random(60) if weighted else numpy.ones(60)
    table = table.reweighted(weights) if weighted else table
    scores = softmax(table.logits).round(12)
    truth = numpy.eye(3)[table.targets]
    for k in range(3):
        area = pair_area(scores[:, k].tolist(), truth[:, k], weights)
        assert metrics.area_under_roc(table)[k].item() == pytest.approx(area, rel=1e-12)
        assert metrics.area_under_roc(table, positive=k) == pytest.approx(area, rel=1e-12)
        wanted = step_area(scores[:, k].tolist(), truth[:, k], weights)
        assert metrics.average_precision(table)[k].item() == pytest.approx(wanted, rel=1e-12)


def test_areas_agree_with_scikit_learn():
    learn = pytest.importorskip("sklearn.metrics")
    for table in (classifier(rows=500, classes=5), labels_table(rows=300)):
        p = 1 / (1 + numpy.exp(-table.logits)) if table.per_label else softmax(table.logits)
        truth = table.targets if table.per_label else numpy.eye(5)[table.targets]
        areas = [learn.roc_auc_score(truth[:, k], p[:, k]) for k in range(p.shape[1])]
        precisions = [learn.average_precision_score(truth[:, k], p[:, k]) for k in range(p.shape[1])]
        assert metrics.area_under_roc(table).tolist() == pytest.approx(areas, rel=1e-12)
        assert metrics.average_precision(table).tolist() == pytest.approx(precisions, rel=1e-12)
        assert metrics.area_under_roc(table, average="macro") == pytest.approx(numpy.mean(areas))
        assert metrics.area_under_roc(table, average="weighted") == pytest.approx(
            numpy.average(areas, weights=truth.sum(0))
        )


def test_areas_see_past_saturation():
    gaps = numpy.linspace(18, 40, 50)
    truth = (numpy.arange(50) >= 25).astype(int)
    table = Predictions(logits=numpy.stack([0 * gaps, gaps], 1).astype("f4"), targets=truth)
    assert metrics.area_under_roc(table, positive=1) == 1.0


def test_classes_never_or_always_there():
    table = Predictions(logits=numpy.eye(3)[[0, 1, 0]] + 0.5, targets=[0, 1, 0])
    area = metrics.area_under_roc(table)
    assert torch.isnan(area).tolist() == [False, False, True]
    assert metrics.area_under_roc(table, average="macro") == pytest.approx(float(area[:2].mean()))
    assert math.isnan(metrics.average_precision(table)[2])


def test_failure_detection_area():
    table = confidences(rows=70, ties=True)
    wanted = pair_area(table.top_confidence.tolist(), table.correctness.tolist(), numpy.ones(70))
    assert metrics.area_under_roc(table, scope="top_label") == pytest.approx(wanted)


# ---- precision, recall and their kin


def loop_counts(decided, truth, weights):
    sums = [0.0, 0.0, 0.0, 0.0]
    for d, t, w in zip(decided, truth, weights, strict=True):
        sums[{(1, 1): 0, (1, 0): 1, (0, 1): 2, (0, 0): 3}[int(d), int(t)]] += w
    return sums


@pytest.mark.parametrize("form", ["softmax", "labels", "one_vs_rest", "threshold"])
@pytest.mark.parametrize("weighted", [False, True])
def test_shares_agree_with_loops(form, weighted):
    logits, labels = logits_and_labels(rows=90, classes=3)
    truth = numpy.eye(3)[labels]
    settings = {}
    if form == "labels":
        table = labels_table(rows=90)
        truth, decided = table.targets, table.logits > 0
    elif form == "one_vs_rest":
        table = Predictions(logits=logits, targets=labels, head="sigmoid")
        decided = numpy.eye(3)[logits.argmax(1)]
    else:
        table = Predictions(logits=logits, targets=labels)
        decided = numpy.eye(3)[logits.argmax(1)]
        if form == "threshold":
            settings = {"threshold": [0.2, 0.5, 0.7]}
            decided = softmax(logits) > numpy.array([0.2, 0.5, 0.7])
    weights = numpy.random.default_rng(0).integers(1, 5, 90) if weighted else numpy.ones(90)
    table = table.reweighted(weights) if weighted else table
    for k in range(3):
        tp, fp, fn, _ = loop_counts(decided[:, k], truth[:, k], weights)
        wanted = {
            "precision": tp / (tp + fp),
            "recall": tp / (tp + fn),
            "miss": fn / (tp + fn),
            "overflow": fp / (tp + fn),
            "f_score": 2 * tp / (2 * tp + fp + fn),
        }
        for name, value in wanted.items():
            assert getattr(metrics, name)(table, **settings)[k].item() == pytest.approx(value, rel=1e-12), name
            assert getattr(metrics, name)(table, positive=k, **settings) == pytest.approx(value, rel=1e-12), name
        precision, recall = wanted["precision"], wanted["recall"]
        for beta in (0.5, 2.0):
            value = (1 + beta**2) * precision * recall / (beta**2 * precision + recall)
            assert metrics.f_score(table, beta, **settings)[k].item() == pytest.approx(value, rel=1e-12)
        assert metrics.f_score(table, beta=0, **settings)[k].item() == pytest.approx(precision, rel=1e-12)
        overflow, miss = wanted["overflow"], wanted["miss"]
        assert precision == pytest.approx((1 - miss) / (1 - miss + overflow))


def test_averages():
    table = classifier(rows=300, classes=4)
    each = metrics.recall(table)
    support = numpy.bincount(table.targets, minlength=4)
    assert metrics.recall(table, average="macro") == pytest.approx(float(each.mean()))
    assert metrics.recall(table, average="weighted") == pytest.approx(numpy.average(each.numpy(), weights=support))
    assert metrics.recall(table, average="weighted") == pytest.approx(metrics.accuracy(table))
    assert metrics.precision(table, average="micro") == pytest.approx(metrics.accuracy(table))


def test_thresholds_are_strict_and_classes_have_names():
    table = Predictions(probabilities=[[0.5, 0.5], [0.25, 0.75]], targets=[0, 1], class_names=["no", "yes"])
    assert metrics.recall(table, threshold=0.5, positive="yes") == 1.0
    assert metrics.precision(table, threshold=0.25, positive="no") == 1.0
    with pytest.raises(ValueError, match="'maybe'"):
        metrics.recall(table, positive="maybe")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"average": "mean"}, "average"),
        ({"positive": 7}, "positive"),
        ({"threshold": [0.1]}, "threshold"),
        ({"threshold": math.nan}, "threshold"),
    ],
)
def test_bad_settings(settings, words):
    with pytest.raises(ValueError, match=words):
        metrics.recall(classifier(), **settings)
    with pytest.raises(ValueError, match="beta"):
        metrics.f_score(classifier(), -1)


# ---- the class report


def weighted_scores(truth, decided, beta):
    """Precision, recall and F of the labels 0 and 1, averaged by their rows."""
    total = numpy.zeros(3)
    for label in (0, 1):
        tp = ((decided == label) & (truth == label)).sum()
        precision = tp / max((decided == label).sum(), 1)
        recall = tp / max((truth == label).sum(), 1)
        score = (1 + beta**2) * precision * recall / (beta**2 * precision + recall) if tp else 0.0
        total += (truth == label).mean() * numpy.array([precision, recall, score])
    return total


def test_report_columns():
    table = classifier(rows=150, classes=3)
    report = metrics.class_report(table)
    p = softmax(table.logits)
    for k in range(3):
        truth, decided = (table.targets == k).astype(int), (p[:, k] > 0.5).astype(int)
        precision, recall, half = weighted_scores(truth, decided, 0.5)
        assert report.weighted_precision[k].item() == pytest.approx(precision)
        assert report.weighted_recall[k].item() == pytest.approx(recall) == pytest.approx((truth == decided).mean())
        assert report.weighted_f_half[k].item() == pytest.approx(half)
        assert report.weighted_f_one[k].item() == pytest.approx(weighted_scores(truth, decided, 1)[2])
        prior = truth.mean()
        assert report.majority_accuracy[k].item() == pytest.approx(max(prior, 1 - prior))
        constant = weighted_scores(truth, numpy.full(150, int(prior > 0.5)), 1)
        assert report.majority_precision[k].item() == pytest.approx(constant[0])
        assert report.majority_f_one[k].item() == pytest.approx(constant[2])
    assert torch.allclose(report.weighted_recall, report.accuracy, rtol=1e-14)
    assert torch.equal(report.weighted_f_zero, report.weighted_precision)
    assert torch.equal(report.f_zero, report.precision)
    assert torch.allclose(report.miss + report.recall, torch.ones(3).double())
    assert torch.equal(report.recall, metrics.recall(table, threshold=0.5))
    assert torch.equal(report.area_under_roc, metrics.area_under_roc(table)) and report.threshold.tolist() == [0.5] * 3
    assert report["f_one"] is report.f_one and set(report) == set(report.keys())
    with pytest.raises(ValueError, match="column"):
        report["f_two"]


def test_thresholds_come_from_other_rows():
    fitted, judged = classifier(rows=120, classes=3, seed=1), classifier(rows=100, classes=3, seed=2)
    report = metrics.class_report(judged, validation=fitted)
    p = softmax(fitted.logits)
    for k in range(3):
        truth = fitted.targets == k
        best = max(
            sorted(set(p[:, k])),
            key=lambda t: (2 * (truth & (p[:, k] >= t)).sum() / (truth.sum() + (p[:, k] >= t).sum()), -t),
        )
        assert report.threshold[k].item() == pytest.approx(best, rel=1e-14)
        hit = ((judged.targets == k) & (softmax(judged.logits)[:, k] > best)).sum()
        assert report.true_positive[k].item() == hit
    again = metrics.class_report(judged, thresholds=report.threshold)
    assert torch.equal(again.recall, report.recall)
    own = metrics.class_report(fitted, validation=fitted)  # strictly above: the row at the threshold is not decided for
    assert (own.true_positive + own.false_positive < torch.tensor((p >= own.threshold.numpy()).sum(0)).double()).all()
    with pytest.raises(ValueError, match="one of them"):
        metrics.class_report(judged, thresholds=0.5, validation=fitted)


def test_a_class_without_rows_has_no_threshold():
    table = Predictions(logits=numpy.eye(3)[[0, 1, 0, 1]], targets=[0, 1, 0, 1])
    report = metrics.class_report(table, validation=table)
    assert math.isnan(report.threshold[2]) and report.false_positive[2] == 0


def test_reports_of_counts():
    report = metrics.class_report_from_counts(([3], [1], [2], [94]))
    assert report.precision.item() == 0.75 and report.recall.item() == 0.6 and report.overflow.item() == 0.2
    assert math.isnan(report.area_under_roc.item())
    for counts in (([1], [1], [1]), ([1], [-1], [1], [1]), ([1, 2], [1], [1], [1])):
        with pytest.raises((ValueError, TypeError)):
            metrics.class_report_from_counts(counts)


# ---- hard classes


def report_of(recall, area):
    return {"recall": torch.tensor(recall), "area_under_roc": torch.tensor(area)}


def test_hard_classes_are_the_references():
    reports = {
        "cross_entropy": [
            report_of([0.9, 0.2, 0.4, 0.2], [0.9, 0.8, 0.7, 0.6]),
            report_of([0.8, 0.4, 0.6, 0.4], [0.9, 0.8, 0.7, 0.6]),
        ],
        "focal": [report_of([0.9, 0.5, 0.4, 0.0], [0.9] * 4), report_of([0.8, 0.5, 0.5, 0.4], [0.9] * 4)],
    }
    found = metrics.hard_classes(reports, "cross_entropy", 3)
    assert found.classes.tolist() == [3, 1, 2] and found.recall.tolist() == pytest.approx([0.3, 0.3, 0.5])
    assert found.change["focal"].tolist() == pytest.approx([-0.1, 0.2, -0.05], abs=1e-7)
    assert found.deviation["focal"].tolist() == pytest.approx([0.1, 0.1, 0.05], abs=1e-7)
    single = metrics.hard_classes({name: folds[0] for name, folds in reports.items()}, "cross_entropy", k=1)
    assert single.change["focal"].tolist() == pytest.approx([-0.2])


@pytest.mark.parametrize(
    ("reference", "k", "words"), [("cross-entropy", 1, "cross_entropy"), ("cross_entropy", 9, "k=9")]
)
def test_bad_hard_classes(reference, k, words):
    with pytest.raises(ValueError, match=words):
        metrics.hard_classes({"cross_entropy": report_of([0.5], [0.5])}, reference, k)
    with pytest.raises(ValueError, match="folds"):
        metrics.hard_classes({"a": report_of([0.5], [0.5]), "b": report_of([0.5, 0.1], [0.5, 0.1])}, "a", 1)


# ---- many, medium, few


def test_shot_accuracy_means_classes():
    counts = [101, 100, 20, 19, 500, 5]
    logits, labels = logits_and_labels(rows=400, classes=6)
    labels[labels == 5] = 0  # the sixth class has no rows here
    table = Predictions(logits=logits, targets=labels)
    right = logits.argmax(1) == labels
    each = [right[labels == k].mean() for k in range(5)]
    found = metrics.shot_accuracy(table, counts)
    assert found == pytest.approx({"many": (each[0] + each[4]) / 2, "medium": (each[1] + each[2]) / 2, "few": each[3]})
    assert metrics.shot_accuracy(table, counts, boundaries=(0, 1000))["medium"] == pytest.approx(numpy.mean(each))
    assert math.isnan(metrics.shot_accuracy(table, [200] * 6)["few"])
    top = Predictions(confidence=softmax(logits).max(1), correct=right, targets=labels)
    assert metrics.shot_accuracy(top, torch.tensor(counts)) == pytest.approx(found)


@pytest.mark.parametrize(
    ("counts", "boundaries", "words"),
    [
        ([1, 2], (20, 100), "class"),
        ([[1] * 4], (20, 100), "one count"),
        ([1, -1, 1, 1], (20, 100), "count"),
        ([1] * 4, (5, 2), "rising"),
    ],
)
def test_bad_counts(counts, boundaries, words):
    with pytest.raises(ValueError, match=words):
        metrics.shot_accuracy(classifier(), counts, boundaries)
