"""The table of predictions: what it takes, what it refuses, what follows from it."""

from __future__ import annotations

import functools
import pickle

import mpmath
import numpy
import pytest
import torch

from reweigh import Detections, Predictions

INFINITY = float("inf")


def softmax_rows(rows=6, classes=4, seed=0, scale=3.0):
    return numpy.random.default_rng(seed).normal(size=(rows, classes)) * scale


def exact_probabilities(row):
    powers = [mpmath.exp(mpmath.mpf(float(z))) if z > -INFINITY else mpmath.mpf(0) for z in row]
    total = mpmath.fsum(powers)
    return [power / total for power in powers]


# ---- what is kept


@pytest.mark.parametrize("dtype", [numpy.float16, numpy.float32, numpy.float64])
def test_arrays_stay_as_they_are(dtype):
    logits = softmax_rows().astype(dtype)
    table = Predictions(logits=logits, targets=numpy.zeros(6, numpy.uint8))
    assert table.logits is logits and table.targets.dtype == numpy.uint8
    assert table.top_confidence.dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_tensors_stay_as_they_are(dtype):
    logits = torch.tensor(softmax_rows(), dtype=dtype, requires_grad=True)
    table = Predictions(logits=logits, targets=torch.zeros(6, dtype=torch.int32))
    assert table.logits is logits
    assert not table.top_confidence.requires_grad and table.correctness.shape == (6,)


def test_awkward_memory_is_read():
    base = softmax_rows(8, 4)
    targets = numpy.arange(8) % 4
    wanted = Predictions(logits=base, targets=targets).log_likelihood
    frozen = base.copy()
    frozen.setflags(write=False)
    swapped = base.astype(base.dtype.newbyteorder())
    wide = numpy.zeros((8, 8))
    wide[:, ::2] = base
    for logits in (frozen, swapped, numpy.asfortranarray(base), wide[:, ::2], base[::-1][::-1]):
        assert torch.equal(Predictions(logits=logits, targets=targets).log_likelihood, wanted)


def test_lists_and_text_become_arrays():
    table = Predictions(
        probabilities=[[0.5, 0.5], [0.25, 0.75]],
        targets=[0, 1],
        ids=["a", "b"],
        groups={"site": ["x", "y"]},
        class_names=["no", "yes"],
    )
    assert table.probabilities.dtype == numpy.float64 and table.ids.tolist() == ["a", "b"]
    assert table.class_names == ("no", "yes") and len(table) == 2 and table.classes == 2


@pytest.mark.parametrize(
    ("targets", "head", "form", "per_label"),
    [
        ([0, 1], "softmax", "index", False),
        (numpy.array([[1, 0, 1], [0, 0, 0]]), "sigmoid", "multi_hot", True),
        (numpy.array([[True, False, True], [False, False, True]]), "sigmoid", "multi_hot", True),
        (numpy.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]), "softmax", "soft", False),
        (None, "softmax", None, False),
    ],
)
def test_default_heads(targets, head, form, per_label):
    table = Predictions(logits=numpy.zeros((2, 3)), targets=targets)
    assert (table.head, table.target_form, table.per_label) == (head, form, per_label)


def test_frozen():
    table = Predictions(logits=softmax_rows())
    with pytest.raises(AttributeError):
        table.logits = None


def test_repr_is_one_line():
    text = repr(
        Predictions(logits=softmax_rows().astype("f4"), targets=[0] * 6, weights=[1.0] * 6, groups={"site": [1] * 6})
    )
    assert text == "Predictions(6 rows x 4 classes: softmax logits (float32), index targets, weights, group site)"
    assert repr(Predictions(confidence=[0.5], correct=[1])) == "Predictions(1 rows: confidence and correct, no targets)"


def test_pickle_keeps_columns_and_drops_what_follows():
    table = Predictions(logits=softmax_rows(), targets=[0] * 6, ids=list(range(6)), about={"run": 1})
    table.remember("a", lambda: 1)
    again = pickle.loads(pickle.dumps(table))  # noqa: S301
    assert torch.equal(again.log_odds, table.log_odds) and again.about == {"run": 1}
    assert again.remember("a", lambda: 2) == 2


# ---- what is refused

GOOD = numpy.array([[1.0, 2.0, 0.5], [0.0, -1.0, 3.0], [2.0, 2.0, 2.0]])
SHARES = numpy.array([[0.2, 0.3, 0.5], [0.1, 0.1, 0.8], [0.4, 0.4, 0.2]])


def spoiled(values, place, value):
    values = numpy.array(values, copy=True)
    values[place] = value
    return values


BAD = {
    "no scores": ({}, "no scores"),
    "two scores": ({"logits": GOOD, "probabilities": SHARES}, "exactly one"),
    "confidence alone": ({"confidence": [0.5]}, "without correct"),
    "correct with logits": ({"logits": GOOD, "correct": [1, 1, 1]}, "correct with logits"),
    "integer logits": ({"logits": [[1, 2], [3, 4]]}, "floating-point"),
    "text logits": ({"logits": [["a", "b"]]}, ""),
    "object logits": ({"logits": numpy.array([[1.0, None]], dtype=object)}, "objects"),
    "ragged logits": ({"logits": [[1.0, 2.0], [3.0]]}, "unequal length"),
    "one-dimensional logits": ({"logits": [1.0, 2.0]}, "shape"),
    "three-dimensional logits": ({"logits": numpy.zeros((2, 3, 4))}, "shape"),
    "no classes": ({"logits": numpy.zeros((2, 0))}, "at least one class"),
    "one class": ({"logits": numpy.zeros((3, 1))}, "at least two classes"),
    "nan logit": ({"logits": spoiled(GOOD, (1, 2), numpy.nan)}, "row 1, column 2"),
    "infinite logit": ({"logits": spoiled(GOOD, (2, 0), INFINITY)}, "row 2, column 0"),
    "all masked": ({"logits": spoiled(GOOD, 1, -INFINITY)}, "row 1"),
    "masked target": ({"logits": spoiled(GOOD, (1, 0), -INFINITY), "targets": [0, 0, 0]}, "row 1"),
    "nan probability": ({"probabilities": spoiled(SHARES, (0, 1), numpy.nan)}, "row 0, column 1"),
    "negative probability": ({"probabilities": spoiled(SHARES, (2, 1), -0.1)}, "-0.1"),
    "row of 1.1": ({"probabilities": spoiled(SHARES, (1, 2), 0.9)}, "row 1 that sum to 1.1"),
    "logits as probabilities": ({"probabilities": GOOD}, "logits="),
    "positive log-probability": ({"log_probabilities": GOOD}, "at most 0"),
    "log-probabilities of 0.9": ({"log_probabilities": numpy.log(SHARES * 0.9)}, "sum to 0.9"),
    "nan log-probability": ({"log_probabilities": spoiled(numpy.log(SHARES), (0, 0), numpy.nan)}, "row 0"),
    "confidence above 1": ({"confidence": [0.5, 1.5], "correct": [1, 0]}, "row 1"),
    "nan confidence": ({"confidence": [numpy.nan, 0.5], "correct": [1, 0]}, "row 0"),
    "correct of 2": ({"confidence": [0.5, 0.6], "correct": [1, 2]}, "row 1"),
    "correct too short": ({"confidence": [0.5, 0.6], "correct": [1]}, "1 rows"),
    "confidence matrix": ({"confidence": SHARES, "correct": [1, 1, 1]}, "shape"),
    "label too large": ({"logits": GOOD, "targets": [0, 3, 1]}, "row 1"),
    "negative label": ({"logits": GOOD, "targets": [0, 1, -1]}, "row 2"),
    "float labels": ({"logits": GOOD, "targets": [0.0, 1.0, 2.0]}, "astype"),
    "too few labels": ({"logits": GOOD, "targets": [0, 1]}, "2 rows"),
    "scalar label": ({"logits": GOOD, "targets": 1}, "targets"),
    "wide multi-hot": ({"logits": GOOD, "targets": numpy.zeros((3, 4), int)}, "3 columns"),
    "multi-hot of 2": ({"logits": GOOD, "targets": spoiled(numpy.zeros((3, 3), int), (1, 1), 2)}, "row 1, column 1"),
    "two labels under softmax": (
        {"logits": GOOD, "targets": numpy.ones((3, 3), int), "head": "softmax"},
        "3 present labels",
    ),
    "shares of 0.9": ({"logits": GOOD, "targets": SHARES * 0.9}, "sum to 0.9"),
    "negative share": ({"logits": GOOD, "targets": spoiled(SHARES, (0, 0), -0.2)}, "row 0, column 0"),
    "nan share": ({"logits": GOOD, "targets": spoiled(SHARES, (0, 0), numpy.nan)}, "row 0, column 0"),
    "unknown head": ({"logits": GOOD, "head": "relu"}, "head='relu'"),
    "negative weight": ({"logits": GOOD, "weights": [1.0, -1.0, 1.0]}, "row 1"),
    "nan weight": ({"logits": GOOD, "weights": [1.0, 1.0, numpy.nan]}, "row 2"),
    "infinite weight": ({"logits": GOOD, "weights": [INFINITY, 1.0, 1.0]}, "row 0"),
    "too many weights": ({"logits": GOOD, "weights": [1.0] * 4}, "4 rows"),
    "weight matrix": ({"logits": GOOD, "weights": GOOD**2}, "shape"),
    "duplicate ids": ({"logits": GOOD, "ids": ["a", "b", "a"]}, "'a' in rows 0 and 2"),
    "too few ids": ({"logits": GOOD, "ids": [1, 2]}, "2 rows"),
    "short group": ({"logits": GOOD, "groups": {"site": [1, 2]}}, "site"),
    "class names too few": ({"logits": GOOD, "class_names": ["a", "b"]}, "2 class_names"),
    "class name twice": ({"logits": GOOD, "class_names": ["a", "b", "a"]}, "'a' twice"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_bad_input_is_one_sentence(name, as_tensor):
    columns, words = BAD[name]
    if as_tensor:
        columns = {
            key: torch.from_numpy(value) if isinstance(value, numpy.ndarray) and value.dtype != object else value
            for key, value in columns.items()
        }
    with pytest.raises(ValueError) as caught:
        Predictions(**columns)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("dtype", "off"), [(numpy.float16, 2e-3), (numpy.float32, 2e-5), (numpy.float64, 2e-6)])
def test_row_sums_have_the_tolerance_of_their_type(dtype, off):
    table = spoiled(SHARES, (1, 2), 0.8 + off).astype(dtype)
    assert len(Predictions(probabilities=table)) == 3
    with pytest.raises(ValueError, match="sum to"):
        Predictions(probabilities=spoiled(SHARES, (1, 2), 0.8 + 0.1).astype(dtype))


def test_sigmoid_rows_need_not_sum_to_one():
    assert Predictions(probabilities=[[0.9, 0.9]], head="sigmoid").per_label
    assert Predictions(logits=[[0.3]], targets=numpy.array([[1]])).classes == 1


# ---- what follows

EXTREME = [
    [0.0, 0.0, 0.0, 0.0],
    [1e4, 0.0, -1e4, 5.0],
    [20.0, 0.0, 0.0, 0.0],
    [37.5, 0.0, -1.0, 2.0],
    [800.0, 799.0, 0.0, 0.0],
    [900.0, 0.0, 0.0, 0.0],
    [3.0, 3.0, -5.0, 1.0],
    [1e-12, 0.0, 0.0, 0.0],
    [2.0, -INFINITY, 1.0, -INFINITY],
]


@functools.cache
def exact_keys(number):
    row = EXTREME[number]
    finite = [z for z in row if z > -INFINITY]
    with mpmath.workdps(60 + int(max(finite) - sorted(finite)[-2])):  # the digits of what the top one leaves over
        p = exact_probabilities(row)
        kept = [value for value, z in zip(p, row, strict=True) if z > -INFINITY]
        ordered = sorted(p, reverse=True)
        rest = mpmath.fsum(ordered[1:])
        entropy = -mpmath.fsum(value * mpmath.log(value) for value in kept)
        return {
            "log_odds": float(mpmath.log(ordered[0] / rest)),
            "margin_key": float(-mpmath.log(rest + ordered[1])),
            "entropy_key": float(-mpmath.log(entropy / mpmath.log(len(kept)))),
            "top_confidence": float(ordered[0]),
        }


@pytest.mark.parametrize("name", ["log_odds", "margin_key", "entropy_key", "top_confidence"])
def test_keys_agree_with_all_digits(name):
    wanted = [exact_keys(number)[name] for number in range(len(EXTREME))]
    found = getattr(Predictions(logits=numpy.array(EXTREME)), name)
    assert found.tolist() == pytest.approx(wanted, rel=1e-12, abs=2e-15)


def test_log_likelihood_agrees_with_all_digits():
    for target in range(4):
        rows = [row for row in EXTREME if row[target] > -INFINITY]
        found = Predictions(logits=numpy.array(rows), targets=[target] * len(rows)).log_likelihood
        with mpmath.workdps(60):
            wanted = [float(mpmath.log(exact_probabilities(row)[target])) for row in rows]
        assert found.tolist() == pytest.approx(wanted, rel=1e-12, abs=0)


def test_three_forms_of_one_distribution_agree():
    logits = softmax_rows(50, 5)
    log_p = torch.log_softmax(torch.tensor(logits), 1)
    tables = [
        Predictions(logits=logits, targets=[1] * 50),
        Predictions(log_probabilities=log_p, targets=[1] * 50),
        Predictions(probabilities=log_p.exp(), targets=[1] * 50),
    ]
    for name in (
        "top_confidence",
        "log_odds",
        "margin_key",
        "entropy_key",
        "log_likelihood",
        "correctness",
        "predicted",
    ):
        first, *others = (getattr(table, name).double() for table in tables)
        for other in others:
            assert torch.allclose(first, other, rtol=1e-12, atol=1e-12), name
    columns = [table.class_log_odds(slice(1, 3)) for table in tables]
    assert torch.allclose(columns[0], columns[1], rtol=1e-9) and torch.allclose(columns[0], columns[2], rtol=1e-9)


def test_saturated_confidences_keep_their_order():
    gaps = numpy.linspace(20, 60, 100).astype("f4")
    table = Predictions(logits=numpy.stack([gaps, 0 * gaps, 0 * gaps], 1))
    assert len(numpy.unique(table.top_confidence.numpy())) < 100
    assert (
        (table.log_odds.diff() > 0).all()
        and (table.margin_key.diff() > 0).all()
        and (table.entropy_key.diff() > 0).all()
    )


def test_ties_go_to_the_lowest_class():
    logits = numpy.array([[1.0, 1.0, 0.0], [0.0, 2.0, 2.0], [3.0, 3.0, 3.0], [0.0, 0.0, 40.0]])
    for targets, wanted in (([0, 1, 0, 2], [1, 1, 1, 1]), ([1, 2, 2, 1], [0, 0, 0, 0])):
        table = Predictions(logits=logits, targets=targets)
        assert table.predicted.tolist() == [0, 1, 0, 2] and table.correctness.tolist() == wanted
        halves = Predictions(probabilities=numpy.array([[0.5, 0.5]]), targets=[targets[0]])
        assert halves.correctness.tolist() == [wanted[0]]


def test_correctness_without_the_index_equals_the_index():
    random = numpy.random.default_rng(3)
    logits = random.integers(-2, 3, size=(3000, 6)).astype("f4")
    targets = random.integers(0, 6, 3000)
    wanted = logits.argmax(1) == targets
    for table in (
        Predictions(logits=logits, targets=targets),
        Predictions(probabilities=torch.softmax(torch.tensor(logits), 1), targets=targets),
        Predictions(logits=logits, targets=targets, head="sigmoid"),
    ):
        assert (table.correctness.numpy() == wanted).all()


def test_soft_targets_share_correctness_and_likelihood():
    table = Predictions(
        probabilities=SHARES, targets=numpy.array([[0.5, 0.5, 0.0], [0.25, 0.0, 0.75], [1.0, 0.0, 0.0]])
    )
    assert table.correctness.tolist() == [0.0, 0.75, 1.0]
    wanted = [
        0.5 * numpy.log(0.2) + 0.5 * numpy.log(0.3),
        0.25 * numpy.log(0.1) + 0.75 * numpy.log(0.8),
        numpy.log(0.4),
    ]
    assert table.log_likelihood.tolist() == pytest.approx(wanted, rel=1e-14)


def test_one_hot_under_softmax_is_a_class():
    targets = numpy.eye(3, dtype=int)[[2, 0, 1]]
    one_hot = Predictions(logits=GOOD, targets=targets, head="softmax")
    index = Predictions(logits=GOOD, targets=[2, 0, 1])
    assert torch.equal(one_hot.correctness, index.correctness)
    assert torch.allclose(one_hot.log_likelihood, index.log_likelihood, rtol=1e-14)


def test_labels_are_decisions_of_their_own():
    logits = numpy.array([[2.0, -3.0], [0.0, 50.0]])
    table = Predictions(logits=logits, targets=numpy.array([[1, 1], [1, 0]]))
    assert table.predicted.tolist() == [1, 0, 0, 1] and table.correctness.tolist() == [1, 0, 0, 0]
    assert table.log_odds.tolist() == [2.0, 3.0, 0.0, 50.0]
    sigmoid = 1 / (1 + numpy.exp(-numpy.array([2.0, 3.0, 0.0, 50.0])))
    assert table.top_confidence.tolist() == pytest.approx(sigmoid.tolist(), rel=1e-15)
    wanted = [-numpy.log1p(numpy.exp(-2.0)), -numpy.log1p(numpy.exp(3.0)), -numpy.log(2.0), -50.0]
    assert table.log_likelihood.tolist() == pytest.approx(wanted, rel=1e-14)
    by_probability = Predictions(probabilities=1 / (1 + numpy.exp(-logits)), targets=numpy.array([[1, 1], [1, 0]]))
    assert by_probability.predicted.tolist() == [1, 0, 0, 1]
    assert by_probability.log_odds[:3].tolist() == pytest.approx([2.0, 3.0, 0.0], abs=1e-14)


def test_one_vs_rest_heads_do_not_renormalise():
    table = Predictions(logits=numpy.array([[2.0, 1.0, -4.0]]), targets=[0], head="sigmoid")
    assert table.log_odds.tolist() == [2.0] and table.predicted.tolist() == [0]
    assert table.top_confidence.item() == pytest.approx(1 / (1 + numpy.exp(-2.0)), rel=1e-15)
    assert len(table.log_likelihood) == 3
    p1, p2 = 1 / (1 + numpy.exp(-2.0)), 1 / (1 + numpy.exp(-1.0))
    assert table.margin_key.item() == pytest.approx(-numpy.log(1 - p1 + p2), rel=1e-13)
    with pytest.raises(ValueError, match="one distribution"):
        _ = table.entropy_key


def test_label_keys_are_those_of_two_classes():
    z = numpy.array([[0.5], [-3.0], [12.0], [0.0], [800.0]])
    labels = Predictions(logits=z, targets=numpy.ones((5, 1), int))
    classes = Predictions(logits=numpy.concatenate([0 * z, z], 1), targets=[1] * 5)
    for name in ("log_odds", "margin_key", "entropy_key", "top_confidence"):
        assert getattr(labels, name).tolist() == pytest.approx(getattr(classes, name).tolist(), rel=1e-12, abs=1e-15), (
            name
        )


def test_confidences_alone_know_their_limits():
    table = Predictions(confidence=[0.5, 1.0, 0.75], correct=[True, False, True])
    assert table.log_odds.tolist() == pytest.approx([0.0, INFINITY, numpy.log(3)])
    for name in ("predicted", "margin_key", "entropy_key", "log_likelihood"):
        with pytest.raises(ValueError, match=r"confidence and correct alone|targets"):
            getattr(table, name)


def test_blocks_and_columns_are_the_softmax():
    logits = softmax_rows(3000, 100, scale=5.0).astype("f4")
    table = Predictions(logits=logits)
    wanted = torch.softmax(torch.tensor(logits).double(), 1)
    found = torch.cat([block for _, block in table.probability_blocks()])
    assert torch.allclose(found, wanted, rtol=1e-12, atol=0)
    assert torch.equal(table.class_probabilities(slice(3, 7)), found[:, 3:7])
    assert torch.allclose(table.log_probability_matrix(), wanted.log(), rtol=1e-12)


# ---- other tables


def full_table():
    return Predictions(
        logits=softmax_rows().astype("f4"),
        targets=[0, 1, 2, 3, 0, 1],
        weights=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        ids=["a", "b", "c", "d", "e", "f"],
        groups={"site": ["x", "y", "x", "y", "x", "z"]},
    )


@pytest.mark.parametrize(
    "rows",
    [
        slice(1, 4),
        [1, 2, 3],
        numpy.array([1, 2, 3]),
        torch.tensor([1, 2, 3]),
        [-5, -4, -3],
        [False, True, True, True, False, False],
    ],
)
def test_taking_rows(rows):
    part = full_table()[rows]
    assert part.ids.tolist() == ["b", "c", "d"] and part.weights.tolist() == [2.0, 3.0, 4.0]
    assert part.groups["site"].tolist() == ["y", "x", "y"] and part.logits.dtype == numpy.float32
    assert torch.equal(part.log_odds, full_table().log_odds[1:4])


def test_taking_from_tensors():
    table = Predictions(logits=torch.tensor(softmax_rows()), targets=torch.tensor([0, 1, 2, 3, 0, 1]))
    assert table[numpy.array([5, 0])].targets.tolist() == [1, 0] and len(table[2]) == 1


@pytest.mark.parametrize(
    ("rows", "words"), [([6], "row 6"), ([[0]], "shape"), ([True], "mask"), ([0.5], "float64"), ([0, 0], "'a'")]
)
def test_bad_rows(rows, words):
    with pytest.raises(ValueError, match=words):
        full_table().take(rows)


def test_splitting_by_group():
    parts = full_table().by("site")
    assert list(parts) == ["x", "y", "z"] and parts["x"].ids.tolist() == ["a", "c", "e"]
    with pytest.raises(ValueError, match="'ward'"):
        full_table().by("ward")


def test_joining():
    table = full_table()
    again = Predictions.concatenate([table[:2], table[2:2], table[2:]])
    assert again.ids.tolist() == table.ids.tolist() and torch.equal(again.log_odds, table.log_odds)
    with pytest.raises(ValueError, match="'a'"):
        Predictions.concatenate([table, table])
    with pytest.raises(ValueError, match="classes 3"):
        Predictions.concatenate([Predictions(logits=numpy.zeros((1, 2))), Predictions(logits=numpy.zeros((1, 3)))])
    with pytest.raises(ValueError, match="weights"):
        Predictions.concatenate([Predictions(logits=GOOD), Predictions(logits=GOOD, weights=[1, 1, 1])])


def test_other_scores_for_the_same_rows():
    table = full_table().with_scores(probabilities=torch.full((6, 4), 0.25))
    assert table.kind == "probabilities" and table.ids.tolist() == full_table().ids.tolist()
    with pytest.raises(ValueError, match=r"5 rows|6 rows"):
        full_table().with_scores(probabilities=torch.full((5, 4), 0.25))


def test_reweighted_twins_share_what_was_derived():
    table = full_table()
    odds = table.log_odds
    twin = table.reweighted(numpy.arange(6.0))
    assert (
        twin.log_odds is odds
        and twin.row_weights.tolist() == list(range(6))
        and table.row_weights.tolist() != list(range(6))
    )
    assert twin.remember("x", lambda: 7) == 7 and table.remember("x", lambda: 8) == 7


def test_no_rows():
    table = Predictions(logits=numpy.zeros((0, 3)), targets=numpy.zeros(0, int))
    assert len(table) == 0 and len(table.top_confidence) == 0 and len(table.correctness) == 0


# ---- detections


def found_boxes():
    return Detections(
        boxes=[[0, 0, 10, 10], [0, 0, 9, 10], [20, 20, 30, 30], [0, 0, 10, 10], [50, 50, 60, 60.0]],
        scores=[0.8, 0.9, 0.7, 0.6, 0.5],
        labels=[1, 1, 1, 2, 1],
        image_ids=["a", "a", "a", "a", "b"],
    )


def test_matching_is_greedy_within_image_and_class():
    truth = Detections(boxes=[[0, 0, 10, 10], [20, 20, 30, 31.0]], labels=[1, 1], image_ids=["a", "a"])
    table = found_boxes().match(truth)
    assert table.correct.tolist() == [False, True, True, False, False]
    assert table.confidence.tolist() == [0.8, 0.9, 0.7, 0.6, 0.5]
    assert table.groups["image"].tolist() == ["a", "a", "a", "a", "b"] and table.groups["class"].tolist() == [
        1,
        1,
        1,
        2,
        1,
    ]
    assert found_boxes().match(truth, iou=0.95).correct.tolist() == [True, False, False, False, False]


def test_crowds_and_ignored_objects_drop_what_matches_them():
    crowd = Detections(boxes=[[0, 0, 100, 100.0]], labels=[1], image_ids=["a"], crowd=[True])
    assert found_boxes().match(crowd).confidence.tolist() == [0.6, 0.5]
    ignored = Detections(boxes=[[0, 0, 10, 10.0]], labels=[1], image_ids=["a"], ignore=[True])
    assert found_boxes().match(ignored).confidence.tolist() == [0.8, 0.7, 0.6, 0.5]


def test_matching_keeps_tensors():
    found = Detections(
        boxes=torch.tensor([[0.0, 0, 1, 1]]),
        scores=torch.tensor([0.5]),
        labels=torch.tensor([0]),
        image_ids=torch.tensor([3]),
    )
    table = found.match(
        Detections(boxes=torch.zeros(0, 4), labels=torch.zeros(0, dtype=torch.long), image_ids=torch.zeros(0))
    )
    assert isinstance(table.confidence, torch.Tensor) and table.correct.tolist() == [False]
    assert repr(found) == "Detections(1 found boxes in 1 images)"


BAD_BOXES = {
    "three numbers": ({"boxes": [[0, 0, 1.0]]}, "shape"),
    "nan": ({"boxes": [[0, 0, 1, numpy.nan]]}, "box 0"),
    "x2 below x1": ({"boxes": [[5, 0, 1, 1.0]]}, "x1 <= x2"),
    "labels short": ({"labels": []}, "labels"),
    "float labels": ({"labels": [0.5]}, "whole class numbers"),
    "nan score": ({"scores": [numpy.nan]}, "scores"),
    "negative area": ({"areas": [-1.0]}, "areas"),
    "label without name": ({"class_names": [], "labels": [0]}, "labels"),
}


@pytest.mark.parametrize("name", BAD_BOXES)
def test_bad_boxes(name):
    columns, words = BAD_BOXES[name]
    with pytest.raises(ValueError, match=words):
        Detections(**({"boxes": [[0, 0, 1, 1.0]], "labels": [0], "image_ids": [0]} | columns))


def test_bad_matching():
    truth = Detections(boxes=[[0, 0, 1, 1.0]], labels=[0], image_ids=[0])
    for found, other, iou in ((truth, truth, 0.5), (found_boxes(), found_boxes(), 0.5), (found_boxes(), truth, 0.0)):
        with pytest.raises(ValueError, match="matching detections"):
            found.match(other, iou=iou)
