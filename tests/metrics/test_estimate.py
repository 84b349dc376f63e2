"""Intervals: closed forms against their definitions, resampling against itself, pairs against shuffles."""

from __future__ import annotations

import math

import numpy
import pytest
import torch

from metrics.metric_tables import classifier, confidences, labels_table, logits_and_labels, soft_table
from reweigh import Predictions, metrics
from reweigh.metrics._estimate import _flat, resampled
from reweigh.metrics._intervals import normal_quantile, wilson
from reweigh.metrics._resampling import drawn_rows, draws

# ---- closed forms


def test_normal_quantiles():
    assert normal_quantile(0.95) == pytest.approx(1.959963984540054, rel=1e-12)


@pytest.mark.parametrize(("right", "count"), [(0, 10), (10, 10), (3, 10), (81, 90)])
def test_wilson_solves_its_equation(right, count):
    low, high = (float(limit) for limit in wilson(torch.tensor(right), torch.tensor(count), 0.95))
    share, z = right / count, normal_quantile(0.95)
    for limit in (low, high):
        if 0 < limit < 1:
            assert (share - limit) ** 2 == pytest.approx(z**2 * limit * (1 - limit) / count)
    assert low <= share <= high
    assert [float(limit) for limit in wilson(torch.tensor(0), torch.tensor(0), 0.95)] == [0.0, 1.0]


def test_shares_have_wilsons_interval():
    table = classifier(rows=120)
    right = int(table.correctness.sum())
    found = metrics.estimate("accuracy", table, interval=0.9)
    low, high = wilson(torch.tensor(right), torch.tensor(120), 0.9)
    assert found == pytest.approx((right / 120, float(low), float(high)))
    recall = metrics.estimate(metrics.recall, table)
    support = torch.from_numpy(numpy.bincount(table.targets, minlength=4))
    low, high = wilson(recall.value * support, support, 0.95)
    assert torch.allclose(recall.low, low) and torch.allclose(recall.high, high)
    one = metrics.estimate("recall", table, positive=2)
    assert one.low == pytest.approx(float(low[2])) and isinstance(one.value, float)


def test_delong_against_its_definition():
    logits, labels = logits_and_labels(rows=60, classes=2, ties=True)
    table = Predictions(logits=logits, targets=labels)
    score = logits[:, 1] - logits[:, 0]
    positive, negative = score[labels == 1], score[labels == 0]
    kernel = (positive[:, None] > negative) + 0.5 * (positive[:, None] == negative)
    variance = kernel.mean(1).var(ddof=1) / len(positive) + kernel.mean(0).var(ddof=1) / len(negative)
    found = metrics.estimate("area_under_roc", table, positive=1)
    assert found.value == pytest.approx(kernel.mean())
    assert found.high - found.value == pytest.approx(normal_quantile(0.95) * math.sqrt(variance))


@pytest.mark.parametrize("ties", [False, True])
def test_area_interval_covers(ties):
    values, inside = [], 0
    tables = []
    for seed in range(120):
        random = numpy.random.default_rng(seed)
        confidence = random.random(400) ** 0.4
        confidence = confidence.round(1) if ties else confidence
        tables.append(Predictions(confidence=confidence, correct=random.random(400) < confidence))
        values.append(metrics.area_under_risk_coverage(tables[-1]))
    truth = numpy.mean(values)
    widths = []
    for table in tables:
        value, low, high = metrics.estimate("area_under_risk_coverage", table)
        inside += low <= truth <= high
        widths.append((high - low) / 2 / normal_quantile(0.95))
        assert low <= value <= high
    assert numpy.mean(widths) == pytest.approx(numpy.std(values), rel=0.2)
    assert inside >= 105


# ---- resampling


def test_draws_are_seeded_and_shared():
    table = confidences(rows=50)
    first = [counts.tolist() for counts in draws(table, 5, 0, None)]
    assert first == [counts.tolist() for counts in draws(confidences(rows=50), 5, 0, None)]
    assert first != [counts.tolist() for counts in draws(table, 5, 1, None)]
    assert all(sum(counts) == 50 for counts in first)


@pytest.mark.parametrize(
    "name",
    [
        "negative_log_likelihood",
        "expected_calibration_error",
        "area_under_risk_coverage",
        "area_under_roc",
        "brier_score",
        "f_score",
    ],
)
def test_weights_stand_for_drawn_rows(name):
    table, metric = classifier(rows=80, ids=list(range(80))), getattr(metrics, name)
    counts = list(draws(table, 6, 3, None))
    bare = Predictions(logits=table.logits, targets=table.targets)
    for drawn, found in zip(counts, resampled(metric, table, counts, {}), strict=True):
        assert torch.allclose(_flat(metric(bare.take(drawn_rows(drawn)))), found, rtol=1e-10)


@pytest.mark.parametrize(
    "settings", [{"binning": "mass"}, {"binning": "mass", "scope": "class_wise"}, {"debias": True}]
)
def test_metrics_without_weights_are_resampled_by_rows(settings):
    table = classifier(rows=150, ids=list(range(150)))
    value, low, high = metrics.estimate("expected_calibration_error", table, resamples=20, **settings)
    assert low <= value <= high and high > low
    counts = list(draws(table, 3, 0, None))
    bare = Predictions(logits=table.logits, targets=table.targets)
    metric = metrics.expected_calibration_error
    for drawn, found in zip(counts, resampled(metric, table, counts, settings), strict=True):
        assert float(found) == pytest.approx(metric(bare.take(drawn_rows(drawn)), **settings), rel=1e-9)


def test_resampled_likelihood_is_as_wide_as_its_deviation():
    table = classifier(rows=600)
    value, low, high = metrics.estimate("negative_log_likelihood", table, resamples=400)
    deviation = float(table.log_likelihood.std()) / math.sqrt(600)
    assert (high - low) / 2 == pytest.approx(normal_quantile(0.95) * deviation, rel=0.15)
    assert low < value < high


def test_groups_are_drawn_whole():
    """Each row four times tells no more than each row once, if the four are drawn together."""
    plain = classifier(rows=100)
    rows = numpy.repeat(numpy.arange(100), 4)
    copies = Predictions(
        logits=plain.logits[rows], targets=plain.targets[rows], groups={"patient": [f"p{row}" for row in rows]}
    )
    wanted = metrics.estimate("brier_score", plain)
    grouped = metrics.estimate("brier_score", copies, by="patient")
    naive = metrics.estimate("brier_score", copies)
    assert grouped.high - grouped.low == pytest.approx(wanted.high - wanted.low, rel=0.25)
    assert naive.high - naive.low < 0.7 * (grouped.high - grouped.low)
    assert metrics.estimate("accuracy", copies, by="patient").high > metrics.estimate("accuracy", copies).high
    with pytest.raises(ValueError, match="patient"):
        metrics.estimate("accuracy", copies, by="ward")


def test_weighted_rows_keep_their_weights():
    weights = numpy.random.default_rng(0).integers(1, 5, 200)
    table = classifier(weights=weights)
    value, low, high = metrics.estimate("accuracy", table)
    assert value == metrics.accuracy(table) and low < value < high


def test_biased_errors_are_not_left_beside_their_interval():
    random = numpy.random.default_rng(0)
    confidence = random.random(500)
    table = Predictions(confidence=confidence, correct=random.random(500) < confidence)  # calibrated: the truth is 0
    value, low, high = metrics.estimate("expected_calibration_error", table)
    assert 0 <= low <= value <= high <= 1 and low < 0.02


def test_named_results_have_named_estimates():
    found = metrics.estimate("score_decomposition", confidences(rows=150), resamples=20)
    assert set(found) == {"miscalibration", "discrimination", "uncertainty", "refinement", "score"}
    assert found["score"].low < found["score"].value < found["score"].high
    shots = metrics.estimate("shot_accuracy", classifier(), resamples=20, class_counts=[500, 50, 5, 5])
    assert shots["many"].low <= shots["many"].value <= shots["many"].high
    agreement = metrics.estimate("human_agreement", soft_table(), resamples=10)
    assert agreement["total_variation"].low > 0


def test_tensors_have_tensors():
    found = metrics.estimate("average_precision", classifier(rows=100), resamples=30)
    assert found.low.shape == (4,) and (found.low <= found.value).all() and (found.value <= found.high).all()
    area = metrics.estimate(
        "area_under_roc", Predictions(logits=numpy.eye(3)[[0, 1, 0, 1] * 5], targets=[0, 1, 1, 0] * 5)
    )
    assert torch.isnan(area.value[2]) and torch.isnan(area.low[2])


def test_several_at_once():
    found = metrics.estimates(["accuracy", metrics.brier_score], labels_table(rows=60), resamples=20)
    assert set(found) == {"accuracy", "brier_score"} and all(
        part.low < part.value < part.high for part in found.values()
    )


def test_a_function_of_ones_own():
    def share_of_sure_rows(predictions):
        return float((predictions.top_confidence > 0.9).double().mean())

    value, low, high = metrics.estimate(share_of_sure_rows, classifier(rows=300))
    assert low < value < high
    with pytest.raises(ValueError, match="a result of type str"):
        metrics.estimate(lambda predictions: "good", classifier())


def test_resamples_that_lack_what_is_needed():
    table = Predictions(confidence=[0.9, 0.8, 0.6, 0.7, 0.65, 0.95, 0.75], correct=[1, 0, 1, 0, 1, 1, 1])
    slope = metrics.estimate("calibration_slope", table, scope="top_label")["slope"]
    assert slope.low <= slope.value <= slope.high


@pytest.mark.parametrize("options", [{"interval": 95}, {"interval": 0}, {"resamples": 1}])
def test_bad_options(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        metrics.estimate("accuracy", classifier(), **options)


# ---- pairs


def two_models(rows=400, **columns):
    logits, labels = logits_and_labels(rows=rows)
    noise = numpy.random.default_rng(9).normal(size=logits.shape)
    return Predictions(logits=logits, targets=labels, **columns), Predictions(
        logits=logits + 0.7 * noise, targets=labels, **columns
    )


def test_pairs_are_resampled_together():
    first, second = two_models()
    found = metrics.compare_pairs("negative_log_likelihood", first, second)
    assert found.value == pytest.approx(found.second - found.first)
    assert found.first == metrics.negative_log_likelihood(first)
    assert found.low < found.value < found.high and found.low > 0 and found.better == 0.0
    apart = [metrics.estimate("negative_log_likelihood", table) for table in (first, second)]
    unpaired = math.hypot(*(part.high - part.low for part in apart))
    assert found.high - found.low < 0.6 * unpaired
    back = metrics.compare_pairs("negative_log_likelihood", second, first)
    assert back.value == pytest.approx(-found.value) and back.better == 1.0


def test_pairs_are_matched_by_id():
    names = [f"image {k}" for k in range(400)]
    first, second = two_models(ids=names)
    shuffled = second[numpy.random.default_rng(0).permutation(400)]
    for name in ("accuracy", "area_under_risk_coverage", "expected_calibration_error", "recall"):
        wanted, found = (metrics.compare_pairs(name, first, other, resamples=20) for other in (second, shuffled))
        for a, b in zip(wanted, found, strict=True):
            assert torch.allclose(torch.as_tensor(a).double(), torch.as_tensor(b).double(), rtol=1e-9, equal_nan=True)


def test_a_model_against_itself():
    first, _ = two_models()
    found = metrics.compare_pairs("brier_score", first, first)
    assert tuple(found)[:3] == (0.0, 0.0, 0.0) and found.better == 0.5


def test_pairs_of_named_results():
    found = metrics.compare_pairs("score_decomposition", *two_models(rows=150), resamples=10)
    assert found["miscalibration"].low <= found["miscalibration"].value
    assert math.isnan(found["score"].better)  # no direction is declared


def test_pairs_that_do_not_match():
    first, second = two_models(ids=list(range(400)))
    bare = two_models()[0]
    other = Predictions(logits=second.logits, targets=second.targets, ids=list(range(1, 401)))
    twisted = Predictions(logits=second.logits, targets=(second.targets + 1) % 4, ids=list(range(400)))
    for table, words in ((second[:-1], "399"), (bare, "ids in one table"), (other, "the id 0"), (twisted, r"row 0")):
        with pytest.raises(ValueError, match=words):
            metrics.compare_pairs("accuracy", first, table)


def test_pairs_by_group():
    groups = {"patient": [row // 10 for row in range(400)]}
    first, second = two_models(groups=groups)
    found = metrics.compare_pairs("accuracy", first, second, by="patient")
    assert found.low <= found.value <= found.high
