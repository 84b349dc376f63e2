"""Bad input to the losses: none silent, each answered by a sentence that helps.

A case names what must stand in the sentence: the argument, what came, the first offending place, and how to mend it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
import pytest
import torch

import reweigh
from reweigh import registry
from reweigh.errors import InputError

NAN, INF = float("nan"), float("inf")
NAMES = [entry.name for entry in registry.entries("loss") if entry.thing is None]


@dataclass(frozen=True)
class Case:
    """`act` must raise a sentence that holds all of `words`."""

    kind: str
    act: Callable[[], Any]
    words: tuple[str, ...]


CASES: list[Case] = []


def bad(kind: str, *words: str):
    """Enter the decorated function as a case."""

    def enter(act: Callable[[], Any]) -> Callable[[], Any]:
        CASES.append(Case(kind, act, words))
        return act

    return enter


def logits(rows: int = 4, classes: int = 3, *dense: int) -> torch.Tensor:
    return torch.linspace(-1, 1, rows * classes * max(1, *dense, 1)).reshape(rows, classes, *dense)


def indices(rows: int = 4) -> torch.Tensor:
    return torch.arange(rows) % 3


def labels(rows: int = 4) -> torch.Tensor:
    return torch.eye(3, dtype=torch.int64)[indices(rows)]


def with_value(tensor: torch.Tensor, place: tuple[int, ...], value: float) -> torch.Tensor:
    changed = tensor.clone()
    changed[place] = value
    return changed


focal = reweigh.losses.focal
sigmoid = reweigh.losses.focal_exponential

# ------------------------------------------------------------------ logits of a softmax


@bad("NaN in logits", "focal", "logits", "nan", "row 2", "class 1", "finite")
def _():
    focal()(with_value(logits(), (2, 1), NAN), indices())


@bad("+inf in logits", "logits", "inf", "row 3", "class 0", "finite")
def _():
    focal()(with_value(logits(), (3, 0), INF), indices())


@bad("-inf on the target", "target", "class 1", "row 1", "-inf", "not masked")
def _():
    focal()(with_value(logits(), (1, 1), -INF), indices())


@bad("NaN in dense logits", "logits", "nan", "(1, 2)", "class 0")
def _():
    focal()(with_value(torch.zeros(2, 3, 4), (1, 0, 2), NAN), torch.zeros(2, 4, dtype=torch.int64))


@bad("NaN in logits beside masked ones", "logits", "nan", "row 0")
def _():
    focal()(with_value(with_value(logits(), (0, 1), -INF), (0, 2), NAN), indices())


@bad("NaN in half-precision logits", "logits", "nan", "row 2")
def _():
    focal()(with_value(logits().half(), (2, 1), NAN), indices())


@bad("NaN in logits of a rule that needs all classes", "logits", "nan", "row 2")
def _():
    reweigh.losses.bi_tempered()(with_value(logits(), (2, 1), NAN), indices())


@bad("NaN in logits with soft targets", "logits", "nan")
def _():
    focal()(with_value(logits(), (2, 1), NAN), torch.full((4, 3), 1 / 3))


@bad("NaN in logits of a batch-coupled loss", "logits", "nan", "row 2")
def _():
    reweigh.losses.selective_risk(estimator="exact")(with_value(logits(), (2, 1), NAN), indices())


@bad("integer logits", "logits", "int64", "float32", ".float()")
def _():
    focal()(torch.ones(4, 3, dtype=torch.int64), indices())


@bad("boolean logits", "logits", "bool", "float32")
def _():
    focal()(torch.ones(4, 3, dtype=torch.bool), indices())


@bad("complex logits", "logits", "complex64", "float32")
def _():
    focal()(torch.ones(4, 3, dtype=torch.complex64), indices())


@bad("logits that are no tensor", "logits", "ndarray", "tensor")
def _():
    focal()(numpy.ones((4, 3)), indices())


@bad("logits without a dimension", "logits", "(n, K)")
def _():
    focal()(torch.tensor(1.0), torch.tensor(0))


@bad("one class", "logits", "1 class", "at least 2", "sigmoid")
def _():
    focal()(torch.ones(4, 1), torch.zeros(4, dtype=torch.int64))


@bad("no class", "logits", "0 class", "at least 2")
def _():
    focal()(torch.ones(4, 0), torch.zeros(4, dtype=torch.int64))


@bad("another number of classes than class_counts", "logits", "3 classes", "5")
def _():
    reweigh.losses.seesaw(class_counts=[5, 4, 3, 2, 1])(logits(), indices())


@bad("another number of classes than alpha", "logits", "3 classes", "2")
def _():
    focal(alpha=[1.0, 2.0])(logits(), indices())


# ------------------------------------------------------------------ targets of a softmax


@bad("target out of range", "target", "class 3", "row 2", "0 to 2", "ignore_index=-100")
def _():
    focal()(logits(), with_value(indices(), (2,), 3))


@bad("negative target that is not ignore_index", "target", "class -1", "row 1", "0 to 2")
def _():
    focal()(logits(), with_value(indices(), (1,), -1))


@bad("-100 when ignore_index is another", "target", "class -100", "row 1", "ignore_index=255")
def _():
    focal(ignore_index=255)(logits(), with_value(indices(), (1,), -100))


@bad("dense target out of range", "target", "class 9", "(1, 2)")
def _():
    focal()(torch.zeros(2, 3, 4), with_value(torch.zeros(2, 4, dtype=torch.int64), (1, 2), 9))


@bad("too many targets", "target", "(5,)", "(4,)")
def _():
    focal()(logits(), indices(5))


@bad("a column of targets", "target", "(4, 1)", "(4,)")
def _():
    focal()(logits(), indices().unsqueeze(1))


@bad("floating class indices", "target", "float32", "(4,)", ".long()")
def _():
    focal()(logits(), indices().float())


@bad("one-hot integers given to a softmax loss", "target", "int64", "(4, 3)", ".float()")
def _():
    focal()(logits(), labels())


@bad("boolean class indices", "target", "bool", "integer")
def _():
    focal()(logits(), indices().bool())


@bad("a target that is no tensor", "target", "list", "torch.as_tensor")
def _():
    focal()(logits(), [0, 1, 2, 0])


@bad("a target on another device", "target", "meta", "cpu", ".to(")
def _():
    focal()(logits(), indices().to("meta"))


@bad("dense targets of another size", "target", "(2, 5)", "(2, 4)")
def _():
    focal()(torch.zeros(2, 3, 4), torch.zeros(2, 5, dtype=torch.int64))


@bad("soft targets that do not sum to one", "target", "0.9", "row 2", "sum to 1", "sigmoid")
def _():
    focal()(logits(), with_value(torch.full((4, 3), 1 / 3), (2, 1), 0.9 - 2 / 3))


@bad("a negative share", "target", "-0.5", "(1, 0)", "at least 0")
def _():
    share = with_value(with_value(torch.full((4, 3), 1 / 3), (1, 0), -0.5), (1, 1), 1.5 - 1 / 3)
    focal()(logits(), share)


@bad("a share that is NaN", "target", "nan", "row 1")
def _():
    focal()(logits(), with_value(torch.full((4, 3), 1 / 3), (1, 0), NAN))


@bad("a share on a masked class", "target", "(1, 0)", "-inf", "masked")
def _():
    focal()(with_value(logits(), (1, 0), -INF), torch.full((4, 3), 1 / 3))


@bad("soft targets where they are refused", "seesaw", "soft targets", "class indices")
def _():
    reweigh.losses.seesaw(num_classes=3)(logits(), torch.full((4, 3), 1 / 3))


# ------------------------------------------------------------------ a sigmoid head


@bad("class indices given to a sigmoid loss", "target", "(4,)", "(4, 3)", "targets='index'")
def _():
    sigmoid()(logits(), indices())


@bad("a label of 2", "target", "2", "(1, 2)", "0 and 1")
def _():
    sigmoid()(logits(), with_value(labels(), (1, 2), 2))


@bad("a label of -1", "target", "-1", "(1, 2)", "ignore_index=-100")
def _():
    sigmoid()(logits(), with_value(labels(), (1, 2), -1))


@bad("a soft label above 1", "target", "1.5", "(1, 2)", "0 to 1")
def _():
    sigmoid()(logits(), with_value(labels().float(), (1, 2), 1.5))


@bad("a label that is NaN", "target", "nan", "(1, 2)")
def _():
    sigmoid()(logits(), with_value(labels().float(), (1, 2), NAN))


@bad("NaN in logits of a sigmoid head", "logits", "nan", "(2, 1)")
def _():
    sigmoid()(with_value(logits(), (2, 1), NAN), labels())


@bad("+inf in logits of a sigmoid head", "logits", "inf", "(2, 1)", "absent")
def _():
    sigmoid()(with_value(logits(), (2, 1), INF), labels())


@bad("-inf on a label that is present", "logits", "-inf", "(1, 1)", "absent")
def _():
    sigmoid()(with_value(logits(), (1, 1), -INF), labels())


@bad("labels of another shape", "target", "(4,)", "(4, 1)", "view_as")
def _():
    sigmoid()(torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64).float())


@bad("labels where indices were announced", "target", "(4, 3)", "targets='index'")
def _():
    sigmoid(targets="index")(logits(), labels())


@bad("an index out of range under a sigmoid head", "target", "class 3", "row 0", "0 to 2")
def _():
    sigmoid(targets="index")(logits(), with_value(indices(), (0,), 3))


@bad("indices for logits without classes", "logits", "(4,)", "(n, K")
def _():
    sigmoid(targets="index")(torch.zeros(4), indices())


@bad("labels on another device", "target", "meta", "cpu")
def _():
    sigmoid()(logits(), labels().to("meta"))


# ------------------------------------------------------------------ weights


@bad("sample_weight of wrong length", "sample_weight", "(3,)", "(4,)")
def _():
    focal()(logits(), indices(), sample_weight=torch.ones(3))


@bad("a negative sample_weight", "sample_weight", "-1", "index 2", "at least 0")
def _():
    focal()(logits(), indices(), sample_weight=with_value(torch.ones(4), (2,), -1))


@bad("a sample_weight that is NaN", "sample_weight", "nan", "index 2")
def _():
    focal()(logits(), indices(), sample_weight=with_value(torch.ones(4), (2,), NAN))


@bad("an infinite sample_weight", "sample_weight", "inf", "index 2", "finite")
def _():
    sigmoid()(logits(), labels(), sample_weight=with_value(torch.ones(4), (2,), INF))


@bad("sample_weight on another device", "sample_weight", "meta", "cpu")
def _():
    focal()(logits(), indices(), sample_weight=torch.ones(4, device="meta"))


@bad("sample_weight that is no number", "sample_weight", "str")
def _():
    focal()(logits(), indices(), sample_weight="balanced")


@bad("sample_weight of a wrong shape under a sigmoid head", "sample_weight", "(3,)", "(4,)", "(4, 3)")
def _():
    sigmoid()(logits(), labels(), sample_weight=torch.ones(3))


@bad("class_weight of wrong length", "class_weight", "2 weights", "3 classes")
def _():
    focal(class_weight=[1.0, 2.0])(logits(), indices())


@bad("class_weight of wrong length under a sigmoid head", "class_weight", "2 weights", "3 classes")
def _():
    sigmoid(class_weight=[1.0, 2.0])(logits(), labels())


@bad("a negative class_weight", "class_weight", "-1", "class 1", "at least 0")
def _():
    focal(class_weight=[1.0, -1.0, 1.0])


@bad("a class_weight that is NaN", "class_weight", "nan", "class 2")
def _():
    focal(class_weight=[1.0, 1.0, NAN])


@bad("a matrix of class weights", "class_weight", "(2, 2)", "(K,)")
def _():
    focal(class_weight=torch.ones(2, 2))


@bad("class_weight that is no number", "class_weight", "'balanced'")
def _():
    focal(class_weight="balanced")


@bad("normalizer 0", "normalizer", "0", "above 0")
def _():
    focal()(logits(), indices(), normalizer=0)


@bad("a negative normalizer", "normalizer", "-3", "above 0")
def _():
    focal()(logits(), indices(), normalizer=torch.tensor(-3.0))


@bad("a normalizer that is NaN", "normalizer", "nan", "above 0")
def _():
    focal()(logits(), indices(), normalizer=NAN)


@bad("a normalizer of several numbers", "normalizer", "(2,)", "one number")
def _():
    focal()(logits(), indices(), normalizer=torch.ones(2))


@bad("a normalizer that is no number", "normalizer", "'all'", "number")
def _():
    focal()(logits(), indices(), normalizer="all")


@bad("a normalizer for a sum", "normalizer", "'sum'", "'mean'")
def _():
    focal(reduction="sum")(logits(), indices(), normalizer=4)


# ------------------------------------------------------------------ settings


@bad("reduction misspelt", "focal", "reduction", "'avg'", "'mean'", "'sum'", "'none'")
def _():
    focal(reduction="avg")


@bad("a reduction that is no word", "reduction", "['mean']")
def _():
    focal(reduction=["mean"])


@bad("ignore_index that is no integer", "ignore_index", "1.5", "integer")
def _():
    focal(ignore_index=1.5)


@bad("validate misspelt", "validate", "'strickt'", "'strict'")
def _():
    focal(validate="strickt")


@bad("process_group misspelt", "process_group", "'wrold'", '"world"')
def _():
    focal(process_group="wrold")


@bad("a process_group that is none", "process_group", "3", '"world"')
def _():
    focal(process_group=3)


@bad("no torch.distributed job", "process_group", "init_process_group")
def _():
    focal(process_group="world")(logits(), indices())


@bad("gamma below 0", "focal", "gamma", "-1", "at least 0")
def _():
    focal(gamma=-1)


@bad("gamma that is NaN", "gamma", "nan", "at least 0")
def _():
    focal(gamma=NAN)


@bad("an infinite gamma", "gamma", "inf", "at most")
def _():
    focal(gamma=INF)


@bad("gamma that is no number", "gamma", "'high'", "number")
def _():
    focal(gamma="high")


@bad("coverage above 1", "coverage", "1.5", "at most 1")
def _():
    reweigh.losses.selective_risk(coverage=1.5)


@bad("coverage below 0", "coverage", "-0.1", "at least 0")
def _():
    reweigh.losses.selective_risk(coverage=-0.1)


@bad("smoothing 0", "smoothing", "0", "above 0")
def _():
    reweigh.losses.selective_risk(smoothing=0)


@bad("one bin", "bins", "1", "at least 2")
def _():
    reweigh.losses.adaptive_focal(bins=1)


@bad("half a bin", "bins", "2.5", "whole")
def _():
    reweigh.losses.adaptive_focal(bins=2.5)


@bad("bins that are no number", "bins", "'many'")
def _():
    reweigh.losses.adaptive_focal(bins="many")


@bad("an unknown variant", "variant", "'max'", "'max_other'", "'next_lower'")
def _():
    reweigh.losses.dual_focal(variant="max")


@bad("an unknown score", "score", "'maximum'", "'max_probability'")
def _():
    reweigh.losses.selective_risk(score="maximum")


@bad("an unknown estimator", "estimator", "'exakt'", "'exact'")
def _():
    reweigh.losses.selective_risk(estimator="exakt")


@bad("a word that is a list", "variant", "['max_other']")
def _():
    reweigh.losses.dual_focal(variant=["max_other"])


@bad("a running decay above 1", "decay", "2", "at most 1")
def _():
    reweigh.losses.selective_risk(decay=2)


@bad("a setting of another form", "batch_size", "8", "parity='official'")
def _():
    reweigh.losses.selective_risk(batch_size=8)


@bad("gamma_min above 0", "gamma_min", "1", "at most 0")
def _():
    reweigh.losses.adaptive_focal(gamma_min=1)


@bad("an unknown setting by name", "focal", "'gama'", "'gamma'")
def _():
    reweigh.loss("focal", gama=2)


@bad("an unknown setting", "focal", "'gama'", "reduction")
def _():
    focal(gama=2)


@bad("an unknown common keyword", "focal", "'reductoin'", "'reduction'")
def _():
    focal(reductoin="sum")


@bad("an unknown loss", "loss", "'focall'", "'focal'")
def _():
    reweigh.loss("focall")


@bad("an unknown loss as an attribute", "loss", "'focall'", "'focal'")
def _():
    reweigh.losses.focall  # noqa: B018


# ------------------------------------------------------------------ class counts


@bad("a negative count", "class_counts", "-1", "class 1", "at least 0")
def _():
    reweigh.losses.seesaw(class_counts=[3, -1, 2])


@bad("a count that is NaN", "class_counts", "nan", "class 1")
def _():
    reweigh.losses.seesaw(class_counts=[3, NAN, 2])


@bad("counts of one class", "class_counts", "1 class", "at least 2")
def _():
    reweigh.losses.seesaw(class_counts=[3])


@bad("counts that are all 0", "class_counts", "zeros", "at least one")
def _():
    reweigh.losses.seesaw(class_counts=[0, 0, 0])


@bad("a matrix of counts", "class_counts", "(1, 2)", "(K,)")
def _():
    reweigh.losses.seesaw(class_counts=[[3, 2]])


@bad("counts that are no numbers", "class_counts", "one number a class")
def _():
    reweigh.losses.seesaw(class_counts="long-tailed")


@bad("neither counts nor a number of classes", "seesaw", "neither", "class_counts", "num_classes")
def _():
    reweigh.losses.seesaw()


@bad("both counts and a number of classes", "seesaw", "both", "class_counts", "num_classes")
def _():
    reweigh.losses.seesaw(class_counts=[1, 2], num_classes=2)


@bad("num_classes 1", "num_classes", "1", "at least 2")
def _():
    reweigh.losses.seesaw(num_classes=1)


@bad("a negative alpha", "alpha", "-1", "class 0")
def _():
    focal(alpha=[-1.0, 1.0])


# ------------------------------------------------------------------ memory


@bad("state of another bin count", "adaptive_focal", "edges", "(11,)", "(16,)", "bins")
def _():
    reweigh.losses.adaptive_focal().load_state_dict(reweigh.losses.adaptive_focal(bins=10).state_dict())


@bad("state of another number of classes", "seesaw", "class_counts", "(4,)", "(3,)")
def _():
    reweigh.losses.seesaw(num_classes=3).load_state_dict(reweigh.losses.seesaw(num_classes=4).state_dict())


@bad("state of another loss", "edges")
def _():
    reweigh.losses.adaptive_focal().load_state_dict(focal().state_dict())


@bad("observing with a loss without memory", "focal", "observes nothing")
def _():
    focal().observe(logits(), indices())


@bad("observing logits without targets", "observe", "without target", "observe(logits, target)")
def _():
    reweigh.losses.adaptive_focal().observe(logits())


@bad("observing no rows", "adaptive_focal", "no rows", "at least one row")
def _():
    reweigh.losses.adaptive_focal().observe(logits()[:0], indices()[:0])


@bad("observing an empty list", "observe", "list")
def _():
    reweigh.losses.adaptive_focal().observe([])


@bad("observing a list of something else", "observe", "evidence")
def _():
    reweigh.losses.adaptive_focal().observe([1, 2])


@bad("observing something else", "observe", "dict", "Predictions")
def _():
    reweigh.losses.adaptive_focal().observe({"logits": logits()})


@bad("observing NaN", "logits", "nan", "row 2")
def _():
    reweigh.losses.adaptive_focal().observe(with_value(logits(), (2, 1), NAN), indices())


@bad("observing soft targets", "soft targets", "class indices")
def _():
    reweigh.losses.adaptive_focal().observe(logits(), torch.full((4, 3), 1 / 3))


@bad("observing evidence of another loss", "observe", "confidence_log_odds")
def _():
    seen = reweigh.losses.seesaw(num_classes=3).evidence(logits(), indices())
    reweigh.losses.adaptive_focal().observe(seen)


@bad("observing predictions without targets", "adaptive_focal", "targets")
def _():
    reweigh.losses.adaptive_focal().observe(reweigh.Predictions(logits=logits()))


@bad("observing confidences where all scores are needed", "seesaw", "confidence", "scores of all classes")
def _():
    seen = reweigh.Predictions(confidence=torch.tensor([0.5, 0.9]), correct=torch.tensor([True, False]))
    reweigh.losses.seesaw(num_classes=3).observe(seen)


@bad("a negative epoch", "advance", "-1", "at least 0")
def _():
    focal().advance(-1)


@bad("an epoch that is no whole number", "advance", "1.5", "whole")
def _():
    focal().advance(1.5)


def run(case: Case) -> BaseException:
    with pytest.raises((ValueError, TypeError, AttributeError, RuntimeError)) as caught:
        case.act()
    return caught.value


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kind)
def test_is_answered_by_a_sentence(case):
    error = run(case)
    text = str(error)
    assert all(word in text for word in case.words), text
    assert text[0] != " " and len(text) < 600, text
    if isinstance(error, InputError):
        assert text.rstrip().endswith((".", "?")), text


def test_there_are_many_kinds():
    kinds = [case.kind for case in CASES]
    assert len(set(kinds)) == len(kinds) >= 100


def test_after_an_error_the_loss_works_as_before():
    loss = focal()
    right = loss(logits(), indices())
    for value, target in ((with_value(logits(), (2, 1), NAN), indices()), (logits(), indices(5))):
        with pytest.raises(InputError):
            loss(value, target)
    assert torch.equal(loss(logits(), indices()), right)


def test_unchecked_values_are_the_callers_business():
    """`validate=False` prices what it is given; the shapes are checked all the same."""
    assert torch.isnan(focal(validate=False)(with_value(logits(), (2, 1), NAN), indices()))
    with pytest.raises(InputError, match="target"):
        focal(validate=False)(logits(), indices(5))


@pytest.mark.parametrize("name", NAMES)
def test_every_loss_refuses_nan_and_strange_targets(name):
    """The boundary is the same for all: two values and two shapes, for every loss and in training or not."""
    from reweigh.testing import variants

    loss = variants(name, classes=3)[0].loss
    if loss.rule.head == "boxes":
        good = torch.tensor([[0.0, 0, 5, 5]] * 4), torch.tensor([[0.0, 0, 6, 6]] * 4)
    elif loss.rule.head == "softmax" or loss.rule.index_targets:
        good = logits(), indices()
    else:
        good = logits(), labels()
    loss(*good)
    for value in (NAN, INF):
        with pytest.raises(InputError, match=r"(nan|inf).*(row|position)"):
            loss(with_value(good[0], (2, 1), value), good[1])
    with pytest.raises(InputError, match="target"):
        loss(good[0], good[1][:3])
    with pytest.raises(InputError, match=r"logits|boxes"):
        loss(good[0].long(), good[1])
