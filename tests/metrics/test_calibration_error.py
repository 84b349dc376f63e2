"""The calibration errors over bins, against loops; the defects of other packages' as tests of ours."""

from __future__ import annotations

import math

import numpy
import pytest
import torch

from metrics.metric_tables import classifier, confidences, labels_table, logits_and_labels, soft_table, softmax
from reweigh import Predictions, metrics
from reweigh.binning import assign, members, split_edges

ALL = (
    "width",
    "mass",
    "mass_interpolated",
    "mass_split",
    "mass_tied",
    "mass_order",
    "sweep",
    "sweep_width",
    "variable",
)


def loop_error(confidence, correct, index, norm=1):
    """(sum_b n_b / n |conf_b - acc_b|^norm)^(1 / norm) row by row."""
    rows_of: dict[int, list[int]] = {}
    for row, b in enumerate(index):
        rows_of.setdefault(int(b), []).append(row)
    rows_of.pop(-1, None)
    gaps = [
        (len(rows) / len(confidence), abs(math.fsum(confidence[r] - correct[r] for r in rows)) / len(rows))
        for rows in rows_of.values()
    ]
    if norm in ("max", "inf"):
        return max(gap for _, gap in gaps)
    return math.fsum(share * gap**norm for share, gap in gaps) ** (1 / norm)


def loop_debiased(confidence, correct, bins, norm):
    edges = split_edges(torch.tensor(confidence), bins)
    index = members(torch.tensor(confidence), edges).tolist()
    total = 0.0
    for b in set(index):
        rows = [row for row, own in enumerate(index) if own == b]
        size, c, a = len(rows), numpy.mean(confidence[rows]), numpy.mean(correct[rows])
        if norm == 2:
            total += size / len(index) * ((c - a) ** 2 - a * (1 - a) / (size - 1) if size > 1 else 0.0)
        else:
            s, d = math.sqrt(a * (1 - a) / size), abs(a - c)
            folded = (
                d
                if s == 0
                else s * math.sqrt(2 / math.pi) * math.exp(-(d**2) / (2 * s**2)) + d * math.erf(d / s / math.sqrt(2))
            )
            total += size / len(index) * (2 * d - folded)
    return math.sqrt(max(total, 0.0)) if norm == 2 else total


def arrays(table):
    return table.top_confidence.numpy(), table.correctness.numpy()


@pytest.mark.parametrize("binning", ALL)
@pytest.mark.parametrize("norm", [1, 2, 3, "max"])
@pytest.mark.parametrize("ties", [False, True])
def test_top_label_error_agrees_with_a_loop(binning, norm, ties):
    table = confidences(rows=157, seed=3, ties=ties)
    confidence, correct = arrays(table)
    for bins in (1, 4, 15):
        index = assign(torch.tensor(confidence), bins=bins, binning=binning, correct=torch.tensor(correct)).index
        found = metrics.expected_calibration_error(table, bins=bins, binning=binning, norm=norm)
        assert found == pytest.approx(loop_error(confidence, correct, index, norm), rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("closed", ["right", "left"])
@pytest.mark.parametrize("norm", [1, 2, "inf"])
@pytest.mark.parametrize("form", ["float32", "float64", "logits", "labels", "one_vs_rest", "soft"])
def test_class_wise_error_agrees_with_a_loop(closed, norm, form):
    logits, labels = logits_and_labels(rows=150, classes=5, seed=2)
    truth = numpy.eye(5)[labels]
    if form == "logits":
        table, probability = Predictions(logits=logits, targets=labels), softmax(logits)
    elif form == "labels":
        table = labels_table()
        probability, truth = 1 / (1 + numpy.exp(-table.logits)), table.targets.astype(float)
    elif form == "one_vs_rest":
        table, probability = Predictions(logits=logits, targets=labels, head="sigmoid"), 1 / (1 + numpy.exp(-logits))
    elif form == "soft":
        table = soft_table()
        probability, truth = softmax(table.logits), table.targets
    else:
        probability = softmax(logits).astype(form)
        # edges of ten bins in the narrow type, its neighbours, and exact zeros
        probability[:4, :2] = numpy.array([[0.1, 0.9], [0.2, 0.8], [0.3, 0.7], [1.0, 0.0]], form)
        probability[:4, 2:] = 0
        table, probability = Predictions(probabilities=probability, targets=labels), probability.astype("f8")
    for bins in (10, 15):
        errors = [
            loop_error(p, y, assign(torch.tensor(p), bins=bins, closed=closed).index, norm)
            for p, y in zip(probability.T, truth.T, strict=True)
        ]
        wanted = max(errors) if norm == "inf" else numpy.mean([error**norm for error in errors]) ** (1 / norm)
        found = metrics.expected_calibration_error(table, bins=bins, closed=closed, norm=norm, scope="class_wise")
        assert found == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("binning", [name for name in ALL if name != "width"])
def test_class_wise_error_of_every_binning(binning):
    table = classifier(rows=120, classes=4, seed=5)
    probability, truth = softmax(table.logits), numpy.eye(4)[table.targets]
    wanted = numpy.mean(
        [
            loop_error(
                p, y, assign(torch.tensor(p.copy()), bins=6, binning=binning, correct=torch.tensor(y.copy())).index
            )
            for p, y in zip(probability.T, truth.T, strict=True)
        ]
    )
    assert metrics.expected_calibration_error(table, bins=6, binning=binning, scope="class_wise") == pytest.approx(
        wanted, rel=1e-9
    )


@pytest.mark.parametrize("norm", [1, 2])
def test_debiased_error_agrees_with_a_loop(norm):
    table = confidences(rows=300, seed=1)
    confidence, correct = arrays(table)
    wanted = loop_debiased(confidence, correct, 15, norm)
    assert metrics.expected_calibration_error(table, debias=True, norm=norm) == pytest.approx(wanted, rel=1e-12)
    classes = classifier(rows=150, seed=4)
    probability, truth = softmax(classes.logits), numpy.eye(4)[classes.targets]
    parts = [loop_debiased(p, y, 8, norm) for p, y in zip(probability.T, truth.T, strict=True)]
    wanted = numpy.mean([part**norm for part in parts]) ** (1 / norm)
    found = metrics.expected_calibration_error(classes, bins=8, debias=True, norm=norm, scope="class_wise")
    assert found == pytest.approx(wanted, rel=1e-9)


def test_debiasing_keeps_a_bin_of_zeros_apart():
    confidence = [0.0] * 45 + [0.2] * 5 + [0.6] * 10
    correct = [False] * 45 + [True] * 2 + [False] * 3 + [True] * 6 + [False] * 4
    # the six chunks end in 0, 0, 0, 0, 0.2, 0.6: bins {0}, (0, 0.4], (0.4, 1] with the gaps 0, 0.2, 0
    square = (5 * (0.2**2 - 0.24 / 4) - 10 * 0.24 / 9) / 60
    assert square < 0
    table = Predictions(confidence=confidence, correct=correct)
    assert metrics.expected_calibration_error(table, bins=6, debias=True, norm=2) == 0
    folded = loop_debiased(numpy.array([0.2] * 5), numpy.array([1.0, 1, 0, 0, 0]), 1, 1) * 5
    folded += loop_debiased(numpy.array([0.6] * 10), numpy.array([1.0] * 6 + [0] * 4), 1, 1) * 10
    assert metrics.expected_calibration_error(table, bins=6, debias=True) == pytest.approx(folded / 60, rel=1e-12)


@pytest.mark.parametrize("bins", ["ten", None, [3], float("nan"), float("inf"), 2.5, 0, True])
@pytest.mark.parametrize("binning", ["width", "mass"])
def test_a_wrong_number_of_bins_is_named(bins, binning):
    table = Predictions(confidence=[0.75, 0.5], correct=[True, False])
    for settings in ({"bins": bins}, {"max_bins": bins}) if bins is not None else ({"bins": bins},):
        with pytest.raises(ValueError, match=f"{next(iter(settings))}=.*whole number of at least 1"):
            metrics.expected_calibration_error(table, binning=binning, **settings)
    with pytest.raises(ValueError, match=r"bins=.*whole number"):
        assign(table.top_confidence, bins=bins, binning=binning)


@pytest.mark.parametrize("settings", [{"parity": "other"}, {"parity": "official", "binning": "width"}])
def test_a_parity_without_a_rule_is_refused(settings):
    with pytest.raises(ValueError, match="parity="):
        metrics.expected_calibration_error(Predictions(confidence=[0.75], correct=[True]), **settings)


def test_debiasing_takes_chance_off():
    errors = []
    for seed in range(40):
        random = numpy.random.default_rng(seed)
        confidence = random.random(400)
        table = Predictions(confidence=confidence, correct=random.random(400) < confidence)  # perfectly calibrated
        errors.append([metrics.expected_calibration_error(table, debias=debias) for debias in (False, True)])
    plain, debiased = numpy.mean(errors, axis=0)
    assert plain > 0.04 and abs(debiased) < 0.7 * plain


def test_maximum_and_average_errors():
    table = confidences(rows=150, seed=7)
    confidence, correct = arrays(table)
    index = assign(torch.tensor(confidence), bins=9).index
    assert metrics.maximum_calibration_error(table, bins=9) == pytest.approx(
        loop_error(confidence, correct, index, "max")
    )
    gaps = [
        abs(confidence[index.numpy() == b].mean() - correct[index.numpy() == b].mean()) for b in set(index.tolist())
    ]
    assert metrics.average_calibration_error(table, bins=9) == pytest.approx(numpy.mean(gaps))
    classes = classifier(rows=100)
    each = [
        metrics.maximum_calibration_error(Predictions(confidence=p, correct=y))
        for p, y in zip(softmax(classes.logits).T, numpy.eye(4)[classes.targets].T, strict=True)
    ]
    assert metrics.maximum_calibration_error(classes, scope="class_wise") == pytest.approx(max(each))


def test_classes_present():
    logits, labels = logits_and_labels(rows=100, classes=6)
    labels = labels % 3
    table = Predictions(logits=logits, targets=labels)
    probability, truth = softmax(logits), numpy.eye(6)[labels]
    each = [loop_error(p, y, assign(torch.tensor(p)).index) for p, y in zip(probability.T, truth.T, strict=True)]
    for binning in ("width", "mass"):
        if binning == "mass":
            each = [
                loop_error(p, y, assign(torch.tensor(p.copy()), binning="mass").index)
                for p, y in zip(probability.T, truth.T, strict=True)
            ]
        settings = {"scope": "class_wise", "binning": binning}
        assert metrics.expected_calibration_error(table, **settings) == pytest.approx(numpy.mean(each))
        assert metrics.expected_calibration_error(table, classes="present", **settings) == pytest.approx(
            numpy.mean(each[:3])
        )


def test_the_published_interpolation_and_ours():
    table = confidences(rows=60, seed=2)
    confidence, correct = arrays(table)
    official = assign(torch.tensor(confidence), binning="mass_interpolated", parity="official").index
    found = metrics.expected_calibration_error(table, binning="mass_interpolated", parity="official")
    assert found == pytest.approx(loop_error(confidence, correct, official), rel=1e-12)


# ---- what other packages get wrong


def test_one_nan_row_is_an_error():
    logits, labels = logits_and_labels(rows=5000)
    logits[4321] = numpy.nan
    with pytest.raises(ValueError, match="row 4321"):
        Predictions(probabilities=softmax(logits), targets=labels)
    with pytest.raises(ValueError, match="row 4321"):
        Predictions(logits=logits, targets=labels)


def test_logits_between_zero_and_one_are_logits():
    random = numpy.random.default_rng(0)
    logits, labels = random.random((500, 4)), random.integers(0, 4, 500)
    confidence = softmax(logits).max(1)
    correct = (logits.argmax(1) == labels).astype(float)
    wanted = loop_error(confidence, correct, assign(torch.tensor(confidence)).index)
    assert metrics.expected_calibration_error(Predictions(logits=logits, targets=labels)) == pytest.approx(wanted)
    with pytest.raises(ValueError, match="sum to"):
        Predictions(probabilities=logits, targets=labels)


def test_a_confidence_of_one_is_in_the_last_bin():
    table = Predictions(confidence=[0.95, 1.0], correct=[True, False])
    for closed in ("right", "left"):
        assert metrics.expected_calibration_error(table, bins=10, closed=closed) == pytest.approx(0.475)


def test_confidences_of_one_share_the_bin_below_them():
    table = Predictions(confidence=[0.95] * 20 + [1.0] * 20, correct=[True] * 36 + [False] * 4)
    assert metrics.expected_calibration_error(table, bins=10) == pytest.approx(0.975 - 0.9)


def test_a_probability_of_zero_is_in_the_lowest_bin():
    table = Predictions(probabilities=[[1.0, 0.0], [1.0, 0.0]], targets=[0, 1])
    for closed in ("right", "left"):
        assert metrics.expected_calibration_error(table, scope="class_wise", closed=closed) == pytest.approx(0.5)


def test_edges_at_tenths_are_not_moved_by_rounding():
    confidence = [k / 10 for k in range(1, 10)]
    low = Predictions(confidence=confidence, correct=[True] * 9)
    index = assign(torch.tensor(confidence, dtype=torch.float64), bins=10).index.tolist()
    assert index == list(range(9)) and metrics.reliability(low, bins=10).count.tolist() == [1.0] * 9 + [0.0]
    assert metrics.reliability(low, bins=10, closed="left").count.tolist() == [0.0] + [1.0] * 9


def test_classes_come_from_the_columns_not_the_labels():
    probability = numpy.full((40, 5), 0.2)
    table = Predictions(probabilities=probability, targets=numpy.arange(40) % 4)  # class 4 never occurs
    assert metrics.expected_calibration_error(table, scope="class_wise") == pytest.approx((4 * 0.05 + 0.2) / 5)


@pytest.mark.parametrize(("confidence", "right", "wanted"), [(0.8, 24, 0.2), (1.0, 34, 0.15)])
def test_tied_confidences_do_not_vanish(confidence, right, wanted):
    correct = numpy.arange(40) < right
    table = Predictions(confidence=numpy.full(40, confidence), correct=correct)
    for binning in ("width", "mass_interpolated", "mass_tied", "mass_order", "variable"):
        assert metrics.expected_calibration_error(table, binning=binning) == pytest.approx(wanted), binning
    assert metrics.expected_calibration_error(table, binning="mass_interpolated", parity="official") == 0.0


def test_two_classes_are_not_guessed_to_be_binary():
    logits, labels = logits_and_labels(rows=300, classes=2)
    probability = softmax(logits)
    confidence = probability.max(1)
    correct = (probability.argmax(1) == labels).astype(float)
    wanted = loop_error(confidence, correct, assign(torch.tensor(confidence)).index)
    table = Predictions(probabilities=probability, targets=labels)
    assert metrics.expected_calibration_error(table) == pytest.approx(wanted)
    only_zero = Predictions(probabilities=probability, targets=0 * labels)
    assert metrics.expected_calibration_error(only_zero) > wanted


def test_fewer_rows_than_bins():
    table = confidences(rows=4)
    gaps = numpy.abs(numpy.subtract(*arrays(table)))
    for binning in ("mass", "mass_split"):
        assert metrics.expected_calibration_error(table, binning=binning) == pytest.approx(gaps.mean())
    assert metrics.expected_calibration_error(confidences(rows=1), binning="mass_order") > 0


def test_a_uniformly_overconfident_model_looks_the_same_to_every_binning():
    random = numpy.random.default_rng(0)
    confidence = random.uniform(0.7, 1, 4000)
    table = Predictions(confidence=confidence, correct=random.random(4000) < confidence - 0.3)
    wanted = table.top_confidence.mean() - table.correctness.mean()
    for binning in ("width", "mass", "mass_split", "mass_tied", "mass_interpolated"):
        assert metrics.expected_calibration_error(table, binning=binning) == pytest.approx(float(wanted), rel=1e-9)


# ---- refusals and the table


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"binning": "masss"}, "mass"),
        ({"scope": "classwise"}, "class_wise"),
        ({"closed": "both"}, "closed"),
        ({"classes": "some"}, "classes"),
        ({"bins": 0}, "bins"),
        ({"norm": 0}, "norm"),
        ({"debias": True, "binning": "sweep"}, "split bins"),
        ({"debias": True, "norm": "max"}, "1 or 2"),
        ({"parity": "official", "binning": "mass"}, "parity"),
    ],
)
def test_bad_settings(settings, words):
    with pytest.raises(ValueError, match=words):
        metrics.expected_calibration_error(confidences(), **settings)


def test_class_wise_needs_all_classes():
    with pytest.raises(ValueError, match=r"targets|logits"):
        metrics.expected_calibration_error(confidences(), scope="class_wise")


@pytest.mark.parametrize("binning", ["width", "mass", "variable"])
def test_reliability_is_what_the_error_sums(binning):
    table = confidences(rows=230)
    rows = metrics.reliability(table, bins=8, binning=binning)
    filled = rows.count > 0
    error = float((rows.count * rows.gap.abs())[filled].sum() / 230)
    assert error == pytest.approx(metrics.expected_calibration_error(table, bins=8, binning=binning))
    assert (rows.low[filled] <= rows.accuracy[filled]).all() and (rows.accuracy[filled] <= rows.high[filled]).all()
    assert ((rows.lower <= rows.confidence) & (rows.confidence <= rows.upper))[filled].all()
    assert torch.isnan(rows.accuracy[~filled]).all()


def test_reliability_of_classes():
    rows = metrics.reliability(classifier(classes=3), bins=5, scope="class_wise")
    assert rows.count.shape == (3, 5) and (rows.count.sum(1) == 200).all() and rows.lower.shape == (3, 5)


def test_equal_widths_stream_within_memory():
    """The sums of a million rows are as many numbers as those of ten."""
    for scope, shape in (("top_label", (15, 3, 2)), ("class_wise", (4, 15, 3, 2))):
        seen = metrics.stream("expected_calibration_error", scope=scope)
        for seed in range(3):
            seen.add(classifier(seed=seed))
        assert seen.sums["bins"].shape == shape
