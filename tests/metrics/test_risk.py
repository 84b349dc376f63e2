"""Risk among the most confident: against loops and exact fractions, and the relations between the published forms."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from fractions import Fraction

import numpy
import pytest
import torch

from metrics.metric_tables import classifier, confidences, labels_table, softmax
from reweigh import Predictions, metrics
from reweigh.metrics._influence import area_influence


def descending(table, score="max_probability"):
    order = sorted(range(len(table)), key=lambda row: (-float(table.log_odds[row]), row))
    return [1 - float(table.correctness[row]) for row in order]


def harmonic_area(losses):
    """Mean of the running means, in exact fractions."""
    running, total = Fraction(0), Fraction(0)
    for place, loss in enumerate(losses, 1):
        running += Fraction(loss)
        total += running / place
    return total / len(losses)


def generalized(losses):
    """Trapezoid from 0 of coverage x risk."""
    count = len(losses)
    running = [Fraction(0), *itertools.accumulate(Fraction(loss) for loss in losses)]
    return sum((a + b) / 2 for a, b in itertools.pairwise(running)) / count**2


def every_order(groups):
    """All orders that keep groups of tied losses in place."""
    return [
        functools.reduce(operator.iadd, map(list, parts), [])
        for parts in itertools.product(*(set(itertools.permutations(g)) for g in groups))
    ]


def test_areas_without_ties():
    table = confidences(rows=97)
    losses = descending(table)
    assert metrics.area_under_risk_coverage(table) == pytest.approx(float(harmonic_area(losses)), rel=1e-14)
    assert metrics.area_under_generalized_risk(table) == pytest.approx(float(generalized(losses)), rel=1e-14)
    for ties in ("mean", "threshold", "stable"):
        assert metrics.area_under_risk_coverage(table, ties=ties) == pytest.approx(
            float(harmonic_area(losses)), rel=1e-14
        )


TIED = [(0.9, [1, 0, 0]), (0.7, [0]), (0.6, [1, 1, 0, 0]), (0.2, [1, 0])]


def tied_table():
    confidence = [c for c, losses in TIED for _ in losses]
    correct = [1 - loss for _, losses in TIED for loss in losses]
    return Predictions(confidence=confidence, correct=correct)


def test_tied_means_are_means_over_every_order():
    orders = every_order([losses for _, losses in TIED])
    weight = [math.prod(math.comb(len(g), sum(g)) for _, g in TIED)]
    assert len(orders) == weight[0]
    wanted = sum(harmonic_area(order) for order in orders) / len(orders)
    assert metrics.area_under_risk_coverage(tied_table()) == pytest.approx(float(wanted), rel=1e-14)
    wanted = sum(generalized(order) for order in orders) / len(orders)
    assert metrics.area_under_generalized_risk(tied_table()) == pytest.approx(float(wanted), rel=1e-14)


def test_other_rules_for_ties():
    flat = [loss for _, losses in TIED for loss in losses]
    assert metrics.area_under_risk_coverage(tied_table(), ties="stable") == pytest.approx(float(harmonic_area(flat)))
    total, seen, lost = Fraction(0), 0, 0
    for _, losses in TIED:
        seen, lost = seen + len(losses), lost + sum(losses)
        total += len(losses) * Fraction(lost, seen)
    assert metrics.area_under_risk_coverage(tied_table(), ties="threshold") == pytest.approx(float(total / len(flat)))


def test_two_orders_of_a_thousand_tied_rows():
    """Elsewhere one order gives 0.85 and the other 0.15."""
    for correct in ([True] * 500 + [False] * 500, [False] * 500 + [True] * 500):
        table = Predictions(confidence=[0.5] * 1000, correct=correct)
        assert metrics.area_under_risk_coverage(table) == pytest.approx(0.5, rel=1e-14)
        assert metrics.area_under_generalized_risk(table) == pytest.approx(0.25, rel=1e-14)
    assert metrics.area_under_risk_coverage(
        Predictions(confidence=[0.4] * 50, correct=[True] * 40 + [False] * 10)
    ) == pytest.approx(0.2)


def test_confidences_equal_in_exact_arithmetic_are_tied():
    """The same values in another order of classes, a common shift, and tied maxima."""
    random = numpy.random.default_rng(0)
    base = random.normal(size=(1, 7)) * 3
    rows = numpy.concatenate([base[:, random.permutation(7)] + shift for shift in random.normal(size=50) * 10])
    correct = rows.argmax(1)
    targets = numpy.where(numpy.arange(50) < 20, correct, (correct + 1) % 7)
    for score in ("max_probability", "margin", "negative_entropy", "log_odds"):
        found = metrics.area_under_risk_coverage(Predictions(logits=rows, targets=targets), score=score)
        assert found == pytest.approx(0.6, rel=1e-12), score
        curve = metrics.risk_coverage_curve(Predictions(logits=rows, targets=targets), score=score)
        assert curve.coverage.tolist() == [1.0]
    twins = numpy.concatenate([numpy.array([[a, a, -9.0, b]]) for a, b in random.normal(size=(40, 2)) if a > b])
    targets = numpy.arange(len(twins)) % 2
    table = Predictions(logits=twins, targets=targets)
    assert metrics.area_under_risk_coverage(table, score="margin") == pytest.approx(targets.mean(), rel=1e-12)


def test_saturated_float32_confidences_keep_their_order():
    gaps = numpy.linspace(18, 30, 200)
    logits = numpy.stack([gaps, 0 * gaps], 1).astype("f4")
    correct = numpy.arange(200) >= 60  # the least confident are wrong
    table = Predictions(logits=logits, targets=1 - correct.astype(int))
    assert metrics.excess_area_under_risk_coverage(table) == pytest.approx(0.0, abs=1e-14)
    saturated = Predictions(probabilities=softmax(logits), targets=1 - correct.astype(int))
    assert metrics.excess_area_under_risk_coverage(saturated) == pytest.approx(0.0, abs=1e-14)


@pytest.mark.parametrize("score", ["max_probability", "margin", "negative_entropy", "log_odds"])
@pytest.mark.parametrize("loss", ["error", "cross_entropy"])
def test_scores_and_losses(score, loss):
    table = classifier(rows=150, seed=3)
    p = softmax(table.logits)
    ordered = numpy.sort(p, 1)[:, ::-1]
    by = {
        "max_probability": ordered[:, 0],
        "margin": ordered[:, 0] - ordered[:, 1],
        "negative_entropy": 1 + (p * numpy.log(p)).sum(1) / math.log(4),
        "log_odds": numpy.log(ordered[:, 0] / (1 - ordered[:, 0])),
    }[score]
    own = p[numpy.arange(150), table.targets]
    losses = -numpy.log(own) if loss == "cross_entropy" else (p.argmax(1) != table.targets).astype(float)
    running = numpy.cumsum(losses[numpy.argsort(-by)]) / numpy.arange(1, 151)
    assert metrics.area_under_risk_coverage(table, score=score, loss=loss) == pytest.approx(running.mean(), rel=1e-11)
    best = (numpy.cumsum(numpy.sort(losses)) / numpy.arange(1, 151)).mean()
    found = metrics.excess_area_under_risk_coverage(table, score=score, loss=loss)
    assert found == pytest.approx(running.mean() - best, rel=1e-10)
    curve = metrics.risk_coverage_curve(table, score=score, loss=loss)
    assert curve.risk.tolist() == pytest.approx(running.tolist(), rel=1e-11)
    assert curve.threshold.tolist() == pytest.approx(numpy.sort(by)[::-1].tolist(), rel=1e-9, abs=1e-12)


def test_any_numeric_column_is_a_score():
    random = numpy.random.default_rng(1)
    column = random.normal(size=200)
    table = confidences(rows=200, groups={"sharpness": column, "site": ["a"] * 200})
    losses = (1 - table.correctness.numpy())[numpy.argsort(-column)]
    wanted = (numpy.cumsum(losses) / numpy.arange(1, 201)).mean()
    assert metrics.area_under_risk_coverage(table, score="sharpness") == pytest.approx(wanted)
    assert metrics.area_under_risk_coverage(table, score=column) == pytest.approx(wanted)
    assert metrics.area_under_risk_coverage(table, score=torch.tensor(column)) == pytest.approx(wanted)
    for score, words in (
        ("sharpnes", "sharpness"),
        ("site", "not numeric"),
        (column[:5], "shape"),
        (column * numpy.nan, "row 0"),
    ):
        with pytest.raises(ValueError, match=words):
            metrics.area_under_risk_coverage(table, score=score)


def test_label_decisions_are_ranked_one_by_one():
    table = labels_table(rows=40)
    flat = Predictions(confidence=table.top_confidence, correct=table.correctness)
    for name in ("area_under_risk_coverage", "area_under_generalized_risk", "risk_at_coverage"):
        assert getattr(metrics, name)(table) == pytest.approx(getattr(metrics, name)(flat), rel=1e-13)


# ---- relations


def test_finite_oracle():
    """(1/n) [m - (n - m)(H_n - H_(n-m))]: no score can be below it, the continuous limit is too low."""
    table = confidences(rows=400, seed=5)
    wrong, count = int((1 - table.correctness).sum()), 400
    harmonic = math.fsum(1 / k for k in range(count - wrong + 1, count + 1))
    ideal = (wrong - (count - wrong) * harmonic) / count
    area = metrics.area_under_risk_coverage(table)
    assert metrics.excess_area_under_risk_coverage(table) == pytest.approx(area - ideal, rel=1e-11)
    share = wrong / count
    assert share + (1 - share) * math.log(1 - share) < ideal
    perfect = Predictions(confidence=[0.9] * 7 + [0.1] * 3, correct=[True] * 7 + [False] * 3)
    assert metrics.excess_area_under_risk_coverage(perfect) == pytest.approx(0, abs=1e-15)
    assert metrics.excess_area_under_generalized_risk(perfect) == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("ties", [False, True])
def test_generalized_risk_relations(ties):
    table = confidences(rows=300, seed=2, ties=ties)
    losses, count = 1 - table.correctness.numpy(), 300
    keys = table.log_odds.numpy()
    ranks = numpy.array([(keys < key).sum() + ((keys == key).sum() + 1) / 2 for key in keys])
    sele = (ranks / count * losses).mean()
    found = metrics.area_under_generalized_risk(table)
    assert found == pytest.approx(sele - losses.mean() / (2 * count), rel=1e-12)
    accuracy, area = metrics.accuracy(table), metrics.area_under_roc(table, scope="top_label")
    assert found == pytest.approx(accuracy * (1 - accuracy) * (1 - area) + (1 - accuracy) ** 2 / 2, rel=1e-12)
    assert metrics.excess_area_under_generalized_risk(table) == pytest.approx(
        found - (1 - accuracy) ** 2 / 2, rel=1e-11
    )


def test_relations_to_the_trapezoids():
    """Two published areas by trapezoids: with a flat piece to coverage 0, and from 1/n to 1 divided by 1 - 1/n."""
    losses = numpy.array(descending(confidences(rows=120, seed=9)))
    risk = numpy.cumsum(losses) / numpy.arange(1, 121)
    area = metrics.area_under_risk_coverage(confidences(rows=120, seed=9))
    coverage = numpy.arange(1, 121) / 120
    inner = numpy.trapezoid(risk, coverage)
    assert inner + risk[0] / 120 == pytest.approx(area + (risk[0] - risk[-1]) / 240, rel=1e-12)
    assert inner / (1 - 1 / 120) == pytest.approx((risk.sum() - (risk[0] + risk[-1]) / 2) / 119, rel=1e-12)


def test_weights_view():
    """The area is a weighted mean of losses with weights H_n - H_(n - rank), whose mean is one."""
    losses = descending(confidences(rows=60))
    weights = [math.fsum(1 / k for k in range(place, 61)) for place in range(1, 61)]
    assert math.fsum(weights) / 60 == pytest.approx(1)
    wanted = math.fsum(w * loss for w, loss in zip(weights, losses, strict=True)) / 60
    assert metrics.area_under_risk_coverage(confidences(rows=60)) == pytest.approx(wanted, rel=1e-13)


# ---- points of the curve


def test_points_agree_with_a_search_over_thresholds():
    table = tied_table()
    confidence, losses = table.top_confidence.numpy(), 1 - table.correctness.numpy()
    points = [((confidence >= t).mean(), losses[confidence >= t].mean()) for t in sorted(set(confidence), reverse=True)]
    for level in numpy.linspace(0, 1, 21):
        reached = [coverage for coverage, risk in points if risk <= level + 1e-12]
        found = metrics.coverage_at_risk(table, level)
        assert found == pytest.approx(max(reached)) if reached else math.isnan(found)
        wanted = next(risk for coverage, risk in points if coverage >= level - 1e-12)
        assert metrics.risk_at_coverage(table, level) == pytest.approx(wanted)


def test_coverage_below_a_half_is_found():
    """Elsewhere the answer is NaN whenever the true coverage is at most one half."""
    table = Predictions(confidence=numpy.linspace(0.99, 0.1, 100), correct=numpy.arange(100) < 30)
    assert metrics.coverage_at_risk(table, 0.0) == pytest.approx(0.3)
    assert metrics.coverage_at_risk(table, 0.5) == pytest.approx(0.6)
    worst = Predictions(confidence=[0.9, 0.8], correct=[False, True])
    assert math.isnan(metrics.coverage_at_risk(worst, 0.1))


def test_one_row():
    for correct, wanted in ((True, 0.0), (False, 1.0)):
        table = Predictions(confidence=[0.7], correct=[correct])
        assert metrics.area_under_risk_coverage(table) == wanted
        assert metrics.area_under_generalized_risk(table) == wanted / 2


def test_infinite_costs():
    table = Predictions(probabilities=[[1.0, 0.0], [0.5, 0.5]], targets=[1, 0])
    assert metrics.area_under_risk_coverage(table, loss="cross_entropy") == math.inf
    assert metrics.area_under_generalized_risk(table, loss="cross_entropy") == math.inf


@pytest.mark.parametrize("settings", [{"loss": "squared"}, {"ties": "first"}, {"score": "entropy"}])
def test_bad_settings(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        metrics.area_under_risk_coverage(confidences(), **settings)


@pytest.mark.parametrize(
    ("name", "value"), [("coverage_at_risk", -0.1), ("risk_at_coverage", 1.2), ("coverage_at_risk", math.nan)]
)
def test_bad_points(name, value):
    with pytest.raises(ValueError, match="risk"):
        getattr(metrics, name)(confidences(), value)


def test_confidences_alone_cannot_rank_by_margin():
    with pytest.raises(ValueError, match="confidence and correct alone"):
        metrics.area_under_risk_coverage(confidences(), score="margin")


# ---- influence


@pytest.mark.parametrize("ties", [False, True])
def test_influence_is_the_derivative_with_respect_to_a_rows_weight(ties):
    """Adding a little weight to one row moves the area by its influence, up to terms of the order 1 / n."""
    table = confidences(rows=2000, seed=4, ties=ties)
    influence = area_influence(table, "max_probability", "error")
    assert influence.mean() == pytest.approx(0, abs=2e-3)
    order = numpy.argsort(-table.log_odds.numpy(), kind="stable")
    by_row = numpy.empty(2000)
    from reweigh.metrics._ranking import ranked_by

    by_row[ranked_by(table, "max_probability").order] = influence
    base = metrics.area_under_risk_coverage(table)
    for row in order[[10, 200, 1000, 1999]]:
        weights = numpy.ones(2000)
        weights[row] += 1
        moved = metrics.area_under_risk_coverage(table.reweighted(weights)) - base
        assert moved * 2001 == pytest.approx(by_row[row], abs=0.03)
