"""Which column is what: recognised names, names by keyword, and what is said when neither helps."""

from __future__ import annotations

import numpy
import pytest
import torch

import reweigh
from reweigh.errors import InputError

RANDOM = numpy.random.default_rng(0)
LOGITS = RANDOM.normal(size=(12, 3)).astype("float32")
LABELS = numpy.arange(12) % 3


@pytest.mark.parametrize("target", ["target", "targets", "label", "labels", "y"])
@pytest.mark.parametrize("identity", ["id", "ids"])
@pytest.mark.parametrize("weight", ["weight", "weights"])
def test_recognised_unasked(target, identity, weight):
    table = reweigh.open(
        {"logits": LOGITS, target: LABELS, identity: numpy.arange(12), weight: numpy.ones(12), "group.site": LABELS}
    )
    assert table.targets.tolist() == LABELS.tolist()
    assert table.ids.tolist() == list(range(12))
    assert table.weights.tolist() == [1.0] * 12
    assert table.groups["site"].tolist() == LABELS.tolist()


@pytest.mark.parametrize("score", ["logits", "log_probabilities", "probabilities"])
def test_scores_are_what_their_name_says(score):
    values = numpy.full((4, 2), 0.5) if score == "probabilities" else numpy.full((4, 2), numpy.log(0.5))
    assert reweigh.open({score: values}).kind == score


def test_nothing_is_guessed_from_values():
    probabilities = numpy.full((4, 2), 0.5)
    assert reweigh.open({"logits": probabilities}).kind == "logits"
    with pytest.raises(InputError, match=r"'p' \(4 x 2 float64\), and none is called logits.*logits='p'"):
        reweigh.open({"p": probabilities})
    with pytest.raises(InputError, match=r"it holds logits and probabilities, expected one kind of scores"):
        reweigh.open({"logits": LOGITS, "probabilities": probabilities})


def test_a_named_score_wins_over_a_recognised_one():
    table = reweigh.open({"logits": LOGITS, "other": LOGITS + 1}, logits="other")
    assert numpy.array_equal(table.logits, LOGITS + 1)
    assert reweigh.open({"logits": LOGITS, "p": numpy.full((12, 2), 0.5)}, probabilities="p").kind == "probabilities"


def test_two_columns_of_one_meaning_are_ambiguous():
    with pytest.raises(InputError, match=r"'target' and 'label', which all mean target.*target='target'"):
        reweigh.open({"logits": LOGITS, "label": LABELS, "target": LABELS})
    assert (
        reweigh.open({"logits": LOGITS, "label": LABELS, "target": LABELS + 9}, target="label").targets.tolist()
        == LABELS.tolist()
    )


def wide(order, start=0):
    return {f"z{number}": LOGITS[:, number - start] for number in order}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 3), (3, 1, 2)])
def test_a_pattern_orders_columns_by_number(order):
    table = reweigh.open(wide(order, start=min(order)), logits="z*")
    assert numpy.array_equal(table.logits, LOGITS)


def test_ten_comes_after_nine():
    columns = {f"z{number}": numpy.full(3, float(number)) for number in (0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9)}
    assert reweigh.open(columns, logits="z*").logits[0].tolist() == list(map(float, range(12)))


def test_a_missing_number_would_shift_classes():
    with pytest.raises(InputError, match=r"jumps from 1 to 3 \(column 'z3'\)"):
        reweigh.open({f"z{number}": LOGITS[:, 0] for number in (0, 1, 3)}, logits="z*")
    with pytest.raises(InputError, match=r"begins at 4, expected 0 or 1"):
        reweigh.open({f"z{number}": LOGITS[:, 0] for number in (4, 5)}, logits="z*")


def test_a_pattern_of_words_names_the_classes():
    columns = {"p_cat": LOGITS[:, 0], "p_dog": LOGITS[:, 1], "label": numpy.array(["dog", "cat"] * 6)}
    table = reweigh.open(columns, logits="p_*")
    assert table.class_names == ("cat", "dog")
    assert table.targets.tolist() == [1, 0] * 6
    assert reweigh.open(columns, logits="p_*", class_names=["dog", "cat"]).targets.tolist() == [0, 1] * 6


@pytest.mark.parametrize("given", ["b,a", "b, a", ["b", "a"], ("b", "a")])
def test_a_list_gives_the_order(given):
    table = reweigh.open({"a": LOGITS[:, 0], "b": LOGITS[:, 1]}, logits=given)
    assert numpy.array_equal(table.logits, LOGITS[:, [1, 0]])


def test_brackets_and_stars_in_names_are_names():
    table = reweigh.open({"z[0]": LOGITS[:, 0], "z[1]": LOGITS[:, 1], "z*": LOGITS[:, 2]}, logits="z[*]")
    assert numpy.array_equal(table.logits, LOGITS[:, :2])
    with pytest.raises(InputError, match=r"one column"):
        reweigh.open({"z[0]": LOGITS[:, 0], "z*": LOGITS[:, 2]}, logits="z*")


MISTAKES = {
    "unknown keyword": ({"logit": "a"}, "there is no keyword 'logit'. Did you mean 'logits'"),
    "unknown column": ({"logits": "aa"}, "there is no column 'aa' for logits"),
    "nearest column": ({"logits": "a", "target": "labl"}, "no column 'labl' for target. Did you mean 'label'"),
    "no match": ({"logits": "q*"}, "no column matches logits='q\\*'"),
    "a column twice": ({"logits": "a,a"}, "names a column twice"),
    "two scores": ({"logits": "a", "probabilities": "b"}, "got logits and probabilities, expected one"),
    "correct without confidence": ({"logits": "a,b", "correct": "label"}, "correct= goes with confidence="),
    "two ids": ({"logits": "a,b", "id": "a,b"}, "names 2 columns, expected one"),
    "a number": ({"logits": 3}, "logits is 3, expected the name of a column"),
    "unknown group": ({"logits": "a,b", "group": "sit"}, "no column 'sit' for group"),
    "class names as text": ({"logits": "a,b", "class_names": "ab"}, "expected a list of names"),
    "binary of two": ({"logits": "a,b", "binary": True}, "binary is for one column of scores"),
    "a wrong head": ({"logits": "a,b", "head": "soft"}, "expected 'softmax' or 'sigmoid'"),
    "names for other classes": ({"logits": "a,b", "class_names": ["x"]}, "1 class_names"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(mistake):
    keywords, message = MISTAKES[mistake]
    with pytest.raises(InputError, match=message):
        reweigh.open({"a": LOGITS[:, 0], "b": LOGITS[:, 1], "label": LABELS % 2, "site": LABELS}, **keywords)


def test_a_role_can_be_left_out():
    table = reweigh.open(
        {"logits": LOGITS, "label": LABELS, "id": numpy.zeros(12, int), "group.a": LABELS},
        id=False,
        target="",
        group=False,
    )
    assert table.ids is None
    assert table.targets is None
    assert table.groups == {}


@pytest.mark.parametrize(
    ("given", "names"),
    [("site", {"site", "own"}), (["site", "ward"], {"site", "ward", "own"}), ("site,ward", {"site", "ward", "own"})]
    + [({"hospital": "site"}, {"hospital", "own"}), ("*r*", {"own", "ward", "group.own"})],
)
def test_groups(given, names):
    table = reweigh.open({"logits": LOGITS, "site": LABELS, "ward": LABELS, "group.own": LABELS}, group=given)
    assert set(table.groups) == names


def test_one_column_needs_a_word():
    probability = numpy.array([0.9, 0.2, 0.5])
    columns = {"p": probability, "y": numpy.array([1, 0, 1])}
    with pytest.raises(InputError, match=r"'p' is one column.*binary=True.*head='sigmoid'"):
        reweigh.open(columns, probabilities="p")
    two = reweigh.open(columns, probabilities="p", binary=True)
    assert numpy.array_equal(two.probabilities, numpy.stack([1 - probability, probability], 1))
    assert (two.head, two.targets.tolist()) == ("softmax", [1, 0, 1])
    one = reweigh.open(columns, probabilities="p", head="sigmoid")
    assert (one.classes, one.target_form, one.targets.tolist()) == (1, "multi_hot", [[1], [0], [1]])


@pytest.mark.parametrize("score", ["logits", "probabilities", "log_probabilities"])
@pytest.mark.parametrize("library", [numpy.asarray, torch.as_tensor])
def test_two_classes_from_one_column_agree(score, library):
    logit = numpy.linspace(-30, 30, 61)
    p = 1 / (1 + numpy.exp(-logit))
    column = {"logits": logit, "probabilities": p, "log_probabilities": -numpy.logaddexp(0, -logit)}[score]
    table = reweigh.open({"s": library(column)}, binary=True, **{score: "s"})
    (found,) = [block for _, block in table.probability_blocks()]
    assert numpy.allclose(found.numpy()[:, 1], p, rtol=1e-9, atol=0)
    assert numpy.allclose(found.numpy()[:, 0], 1 - p, rtol=1e-6, atol=1e-13)


def test_confidence_alone():
    confidence, prediction, truth = numpy.array([0.9, 0.8, 0.7]), numpy.array([1, 2, 0]), numpy.array([1, 0, 0])
    table = reweigh.open({"confidence": confidence, "correct": prediction == truth})
    assert table.correct.tolist() == [True, False, True]
    table = reweigh.open({"confidence": confidence, "prediction": prediction, "label": truth})
    assert (table.correct.tolist(), table.targets.tolist()) == ([True, False, True], [1, 0, 0])
    named = reweigh.open({"c": confidence, "p": prediction, "t": truth}, confidence="c", prediction="p", target="t")
    assert named.correct.tolist() == [True, False, True]
    with pytest.raises(InputError, match=r"confidence needs whether each prediction was right"):
        reweigh.open({"confidence": confidence, "label": truth})


TARGETS = {
    "floats": (numpy.array([0.0, 2.0, 1.0]), [0, 2, 1]),
    "a column": (numpy.array([[0], [2], [1]]), [0, 2, 1]),
    "unsigned": (numpy.array([0, 2, 1], "uint64"), [0, 2, 1]),
    "truths": (numpy.array([False, True, True]), [0, 1, 1]),
}


@pytest.mark.parametrize("form", TARGETS)
def test_forms_of_class_numbers(form):
    given, wanted = TARGETS[form]
    table = reweigh.open({"logits": LOGITS[:3], "label": given})
    assert (table.target_form, [int(one) for one in table.targets]) == ("index", wanted)


WRONG_TARGETS = {
    "a share": ([0.0, 0.5, 1.0], "target of row 1 is 0.5, expected a class number"),
    "missing": ([0.0, 1.0, numpy.nan], "target of row 2 is nan"),
    "too large": ([0, 1, 3], r"got 3 in targets \(row 2\), expected a class number from 0 to 2"),
    "negative": ([0, -1, 1], r"got -1 in targets \(row 1\)"),
    "text": (["a", "b", "c"], "targets are text .*class_names="),
}


@pytest.mark.parametrize("form", WRONG_TARGETS)
def test_wrong_targets_are_named_with_their_row(form):
    given, message = WRONG_TARGETS[form]
    with pytest.raises(InputError, match=f"opening the dictionary.*{message}"):
        reweigh.open({"logits": LOGITS[:3], "label": numpy.array(given)})


def test_text_targets_by_their_names():
    columns = {"logits": LOGITS[:3], "label": numpy.array(["b", "c", "a"])}
    assert reweigh.open(columns, class_names="a b c".split()).targets.tolist() == [1, 2, 0]
    with pytest.raises(InputError, match=r"target of row 1 is 'c', expected one of the class names"):
        reweigh.open(columns, class_names=["a", "b", "d"])


def test_several_target_columns_are_labels_or_shares():
    labels = {"t0": numpy.array([1, 0]), "t1": numpy.array([1, 1]), "z0": LOGITS[:2, 0], "z1": LOGITS[:2, 1]}
    table = reweigh.open(labels, logits="z*", target="t*")
    assert (table.head, table.target_form) == ("sigmoid", "multi_hot")
    shares = {**labels, "t0": numpy.array([0.25, 1.0]), "t1": numpy.array([0.75, 0.0])}
    table = reweigh.open(shares, logits="z*", target="t*")
    assert (table.head, table.target_form) == ("softmax", "soft")


def test_unequal_lengths_name_both():
    with pytest.raises(InputError, match=r"'label' has 11 rows and 'logits' has 12"):
        reweigh.open({"logits": LOGITS, "label": LABELS[:11]})
