"""Costs, benefits, decompositions, slopes, agreement with people, rows from outside."""

from __future__ import annotations

import math

import numpy
import pytest
import torch

from metrics.metric_tables import classifier, confidences, labels_table, logits_and_labels, soft_table, softmax
from reweigh import Predictions, metrics
from reweigh.metrics._isotonic import pooled

MATRIX = numpy.array([[0.0, 1.0, 4.0], [2.0, 0.0, 1.0], [5.0, 3.0, 0.0]])

# ---- cost


@pytest.mark.parametrize("abstain", [None, 0.6])
def test_bayes_decisions_minimise_the_expected_cost(abstain):
    table = classifier(rows=80, classes=3)
    decisions, paid = [], []
    for p, label in zip(softmax(table.logits), table.targets, strict=True):
        expected = [sum(p[k] * MATRIX[k, d] for k in range(3)) for d in range(3)]
        best = int(numpy.argmin(expected))
        left = abstain is not None and expected[best] > abstain
        decisions.append(-1 if left else best)
        paid.append(abstain if left else MATRIX[label, best])
    assert metrics.bayes_decision(table, MATRIX, abstain=abstain).tolist() == decisions
    assert metrics.expected_cost(table, MATRIX, abstain) == pytest.approx(numpy.mean(paid))
    assert abstain is None or -1 in decisions


def test_costs_of_errors_are_the_error_rate():
    table = classifier(classes=3)
    assert metrics.expected_cost(table, 1 - numpy.eye(3)) == pytest.approx(1 - metrics.accuracy(table))
    wide = numpy.concatenate([1 - numpy.eye(3), numpy.full((3, 1), 0.3)], 1)  # a fourth decision: send it to a person
    assert metrics.expected_cost(table, wide) == pytest.approx(metrics.expected_cost(table, 1 - numpy.eye(3), 0.3))


def test_soft_targets_pay_on_average():
    table = soft_table(classes=3)
    decisions = metrics.bayes_decision(table, MATRIX).numpy()
    assert metrics.expected_cost(table, MATRIX) == pytest.approx((table.targets * MATRIX[:, decisions].T).sum(1).mean())


@pytest.mark.parametrize(
    ("matrix", "abstain"), [(MATRIX[:2], None), (MATRIX * numpy.nan, None), (MATRIX, -1.0), (MATRIX[0], None)]
)
def test_bad_costs(matrix, abstain):
    with pytest.raises(ValueError, match="cost"):
        metrics.expected_cost(classifier(classes=3), matrix, abstain)
    with pytest.raises(ValueError, match="softmax"):
        metrics.expected_cost(labels_table(), MATRIX)


def test_net_benefit_is_its_formula():
    logits, labels = logits_and_labels(classes=2)
    table = Predictions(logits=logits, targets=labels)
    p = softmax(logits)[:, 1]
    for threshold in (0.1, 0.5, 0.8):
        treated = p >= threshold
        wanted = (treated & (labels == 1)).mean() - (treated & (labels == 0)).mean() * threshold / (1 - threshold)
        assert metrics.net_benefit(table, threshold) == pytest.approx(wanted)
    one = Predictions(logits=logits[:, 1:] - logits[:, :1], targets=labels[:, None])
    assert metrics.net_benefit(one, 0.3) == pytest.approx(metrics.net_benefit(table, 0.3))
    assert metrics.net_benefit(Predictions(probabilities=[[0.5, 0.5]], targets=[1])) == 1.0
    for threshold in (0.0, 1.0):
        with pytest.raises(ValueError, match="threshold"):
            metrics.net_benefit(table, threshold)
    with pytest.raises(ValueError, match="positive="):
        metrics.net_benefit(classifier())


# ---- the decomposition


def loop_isotonic(values, weights):
    """Pool adjacent violators one at a time."""
    blocks = []
    for value, weight in zip(values, weights, strict=True):
        blocks.append([value, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            right, left = blocks.pop(), blocks.pop()
            weight = left[1] + right[1]
            blocks.append([(left[0] * left[1] + right[0] * right[1]) / weight, weight, left[2] + right[2]])
    return [mean for mean, _, size in blocks for _ in range(size)]


def test_isotonic_regression():
    for seed in range(20):
        random = numpy.random.default_rng(seed)
        values, weights = random.integers(0, 4, 40) / 3, random.random(40) + 0.1
        assert pooled(values, weights).tolist() == pytest.approx(loop_isotonic(values, weights), rel=1e-12)
    assert pooled(numpy.arange(5.0)[::-1], numpy.ones(5)).tolist() == [2.0] * 5


@pytest.mark.parametrize("ties", [False, True])
def test_decomposition_of_the_brier_score(ties):
    table = confidences(rows=200, ties=ties)
    c, a = table.top_confidence.numpy(), table.correctness.numpy()
    values = sorted(set(c))
    share, count = [a[c == v].mean() for v in values], [(c == v).sum() for v in values]
    fitted = dict(zip(values, loop_isotonic(share, count), strict=True))
    recalibrated = numpy.array([fitted[v] for v in c])
    parts = metrics.score_decomposition(table)
    assert parts.score == pytest.approx(((c - a) ** 2).mean())
    assert parts.uncertainty == pytest.approx(a.mean() * (1 - a.mean()))
    assert parts.miscalibration == pytest.approx(parts.score - ((recalibrated - a) ** 2).mean())
    assert parts.score == pytest.approx(parts.miscalibration - parts.discrimination + parts.uncertainty)
    assert parts.miscalibration >= 0 and parts.discrimination >= 0


def test_decomposition_of_the_logarithmic_score():
    table = confidences(rows=300)
    c, a = table.top_confidence.numpy(), table.correctness.numpy()
    parts = metrics.score_decomposition(table, loss="log")
    assert parts.score == pytest.approx(-(a * numpy.log(c) + (1 - a) * numpy.log1p(-c)).mean())
    assert parts.score == pytest.approx(parts.miscalibration - parts.discrimination + parts.uncertainty)
    assert math.isfinite(parts.refinement) and parts.refinement > 0


def test_decomposition_sums_over_classes():
    table = classifier(rows=150, classes=3)
    p, truth = softmax(table.logits), numpy.eye(3)[table.targets]
    each = [metrics.score_decomposition(Predictions(confidence=p[:, k], correct=truth[:, k])) for k in range(3)]
    found = metrics.score_decomposition(table, scope="class_wise")
    assert found == pytest.approx(numpy.sum(each, axis=0).tolist(), rel=1e-8)
    assert found.score == pytest.approx(metrics.brier_score(table))


def test_recalibrate_or_retrain():
    """Distorting the confidences moves miscalibration alone; mixing in noise lowers discrimination."""
    random = numpy.random.default_rng(0)
    chance = random.random(6000)
    correct = random.random(6000) < chance
    right = metrics.score_decomposition(Predictions(confidence=chance, correct=correct))
    bent = metrics.score_decomposition(Predictions(confidence=chance**4, correct=correct))
    blurred = metrics.score_decomposition(Predictions(confidence=(chance + random.random(6000)) / 2, correct=correct))
    assert bent.miscalibration > right.miscalibration + 0.05
    assert bent.discrimination == pytest.approx(right.discrimination, rel=1e-9)
    assert blurred.discrimination < right.discrimination - 0.02
    assert bent.refinement == pytest.approx(right.refinement, abs=2e-3) and blurred.refinement > right.refinement + 0.01
    assert right.refinement >= right.score - right.miscalibration  # judged on other rows, less optimistic


def test_decomposition_refusals():
    assert math.isnan(metrics.score_decomposition(confidences(rows=6)).refinement)
    for settings in ({"loss": "squared"}, {"scope": "all"}, {"folds": 1}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            metrics.score_decomposition(confidences(), **settings)


# ---- slope and intercept


def test_slope_is_the_maximum_of_the_likelihood():
    for table, scope, x, y in _slope_tables():
        slope, intercept = metrics.calibration_slope(table, scope=scope)
        p = 1 / (1 + numpy.exp(-(slope * x + intercept)))
        assert (p - y).sum() == pytest.approx(0, abs=1e-8) and ((p - y) * x).sum() == pytest.approx(0, abs=1e-7)


def _slope_tables():
    logits, labels = logits_and_labels(rows=300, classes=2)
    binary = Predictions(logits=logits, targets=labels)
    yield binary, "positive", logits[:, 1] - logits[:, 0], labels
    one = Predictions(logits=logits[:, 1:] - logits[:, :1], targets=labels[:, None])
    yield one, "positive", logits[:, 1] - logits[:, 0], labels
    many = classifier(rows=300)
    yield many, "top_label", many.log_odds.numpy(), many.correctness.numpy()


def test_slope_finds_a_temperature():
    random = numpy.random.default_rng(0)
    z = random.normal(size=20_000) * 2
    labels = (random.random(20_000) < 1 / (1 + numpy.exp(-z))).astype(int)
    sharp = Predictions(logits=numpy.stack([0 * z, 3 * z - 1], 1), targets=labels)
    slope, intercept = metrics.calibration_slope(sharp)
    assert slope == pytest.approx(1 / 3, rel=0.05) and intercept == pytest.approx(1 / 3, abs=0.05)


def test_slope_refusals():
    with pytest.raises(ValueError, match="top_label"):
        metrics.calibration_slope(classifier())
    with pytest.raises(ValueError, match="top_label"):
        metrics.calibration_slope(confidences())
    with pytest.raises(ValueError, match="separates"):
        metrics.calibration_slope(Predictions(probabilities=[[0.9, 0.1], [0.2, 0.8]], targets=[0, 1]))
    with pytest.raises(ValueError, match="different"):
        metrics.calibration_slope(Predictions(confidence=[0.5, 0.5], correct=[1, 0]), scope="top_label")
    with pytest.raises(ValueError, match="scope"):
        metrics.calibration_slope(classifier(), scope="all")


def test_slope_with_certain_rows():
    table = Predictions(confidence=[1.0, 0.9, 0.7, 0.6, 0.8], correct=[1, 1, 0, 1, 0])
    assert all(map(math.isfinite, metrics.calibration_slope(table, scope="top_label")))


# ---- people


def test_human_agreement():
    table = soft_table()
    p, t = softmax(table.logits), table.targets
    found = metrics.human_agreement(table)
    with numpy.errstate(divide="ignore", invalid="ignore"):
        divergence = numpy.where(t > 0, t * (numpy.log(t) - numpy.log(p)), 0).sum(1).mean()
    assert found["divergence"] == pytest.approx(divergence)
    assert found["cross_entropy"] == pytest.approx(metrics.negative_log_likelihood(table))
    assert found["total_variation"] == pytest.approx(numpy.abs(p - t).sum(1).mean() / 2)
    assert found["top_agreement"] == pytest.approx((p.argmax(1) == t.argmax(1)).mean())
    with pytest.raises(ValueError, match="shares"):
        metrics.human_agreement(classifier())


# ---- outside rows


def outside_tables():
    random = numpy.random.default_rng(0)
    return Predictions(logits=random.normal(size=(150, 5)) * 3), Predictions(logits=random.normal(size=(80, 5)))


def outside_scores(logits, score):
    p = softmax(logits)
    return {
        "entropy": -(p * numpy.log(p)).sum(1),
        "msp": -p.max(1),
        "energy": -numpy.log(numpy.exp(logits).sum(1)),
        "max_logit": -logits.max(1),
    }[score]


@pytest.mark.parametrize("score", ["entropy", "msp", "energy", "max_logit"])
def test_outside_rows_against_loops(score):
    inside, outside = outside_tables()
    i, o = outside_scores(inside.logits, score), outside_scores(outside.logits, score)
    found = metrics.out_of_distribution(inside, outside, score)
    assert found["auroc"] == pytest.approx(((o[:, None] > i) + 0.5 * (o[:, None] == i)).mean())
    threshold = max(t for t in o if (o >= t).mean() >= 0.95)
    assert found["fpr95"] == pytest.approx((i >= threshold).mean())

    def precision_area(positive, negative):
        ordered = numpy.sort(positive)[::-1]
        return numpy.mean([(positive >= t).sum() / ((positive >= t).sum() + (negative >= t).sum()) for t in ordered])

    assert found["aupr_out"] == pytest.approx(precision_area(o, i))
    assert found["aupr_in"] == pytest.approx(precision_area(-i, -o))
    assert set(found) == {"auroc", "aupr_in", "aupr_out", "fpr95"}


def test_saturated_rows_are_told_apart():
    inside = Predictions(logits=numpy.array([[60.0, 0, 0], [50.0, 0, 0]], "f4"))
    outside = Predictions(logits=numpy.array([[40.0, 0, 0], [45.0, 0, 0]], "f4"))
    for score in ("entropy", "msp", "energy", "max_logit"):
        assert metrics.out_of_distribution(inside, outside, score) == {
            "auroc": 1.0,
            "aupr_in": 1.0,
            "aupr_out": 1.0,
            "fpr95": 0.0,
        }


def test_identical_tables_cannot_be_told_apart():
    inside, _ = outside_tables()
    assert metrics.out_of_distribution(inside, inside)["auroc"] == pytest.approx(0.5)


def test_weights_of_outside_rows():
    inside, outside = outside_tables()
    counts = numpy.random.default_rng(1).integers(1, 4, 80)
    repeated = outside[numpy.repeat(numpy.arange(80), counts)]
    weighted = metrics.out_of_distribution(inside, outside.reweighted(counts))
    assert weighted == pytest.approx(metrics.out_of_distribution(inside, repeated), rel=1e-12)


def test_labels_and_confidences_from_outside():
    inside, outside = (Predictions(logits=t.logits, head="sigmoid") for t in outside_tables())
    found = metrics.out_of_distribution(inside, outside, "msp")
    assert found == pytest.approx(metrics.out_of_distribution(inside, outside, "max_logit"), rel=1e-12)
    with pytest.raises(ValueError, match="softmax"):
        metrics.out_of_distribution(inside, outside, "energy")
    tops = [Predictions(confidence=softmax(t.logits).max(1), correct=[1] * len(t)) for t in outside_tables()]
    wanted = metrics.out_of_distribution(*outside_tables(), "msp")
    assert metrics.out_of_distribution(*tops, "msp") == pytest.approx(wanted, rel=1e-9)
    with pytest.raises(ValueError, match="entropy"):
        metrics.out_of_distribution(*tops)
    with pytest.raises(ValueError, match="entropy"):
        metrics.out_of_distribution(*outside_tables(), "entropi")
    with pytest.raises(ValueError, match="row"):
        metrics.out_of_distribution(inside, outside[:0], "msp")


def test_tensors_stay_where_they_are():
    logits = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    table = Predictions(logits=logits, targets=torch.zeros(30, dtype=torch.long))
    assert metrics.bayes_decision(table, 1 - torch.eye(4)).dtype == torch.int64
    assert isinstance(metrics.recall(table), torch.Tensor)
