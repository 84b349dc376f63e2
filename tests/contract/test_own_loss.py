"""A user's own loss passes the suite; a loss that is wrong in a known way is refused by the check meant for it."""

from __future__ import annotations

from functools import partial
from typing import Literal

import pytest
import torch

import reweigh
from reweigh.errors import InputError
from reweigh.rules import Rule, log_loss, weighted
from reweigh.testing import ContractError, check_loss, checks, variants

QUICK = ("compiles", "compiles_with_inductor")


# ------------------------------------------------------------------ somebody's own loss


def patient_weight(evidence, state, *, patience):
    return torch.sigmoid(evidence.log_miss - torch.log(torch.tensor(patience)).item())


def impatient_weight(evidence, state, *, patience):
    return torch.exp(evidence.log_miss / patience)


@reweigh.register_loss("patient_test_loss", aliases=("PTL",), source="this test", formula="-m / (m + patience) log p")
def patient_test_loss(*, patience: float = 0.1, form: Literal["slow", "fast"] = "slow", held: bool = False, **common):
    """Patience, for a test."""
    weight = partial({"slow": patient_weight, "fast": impatient_weight}[form], patience=patience)
    cost = weighted(weight, log_loss, detached=held)
    return reweigh.Loss(Rule("patient_test_loss", cost, needs=("log_p", "log_miss"), holds_constants=held), **common)


def test_own_loss_passes_by_name_by_function_and_as_a_loss():
    by_name = check_loss("PTL", without=QUICK)
    by_function = check_loss(patient_test_loss, without=QUICK)
    as_loss = check_loss(patient_test_loss(), without=QUICK)
    assert not by_name.failed and not as_loss.failed
    assert len(by_name.results) == len(by_function.results) == 3 * len(as_loss.results)
    assert {result.loss for result in by_name.results} == {
        "PTL", "PTL:form=fast", "PTL:held=true",
    }  # fmt: skip


def test_own_loss_compiles():
    assert check_loss(patient_test_loss(), only=["compiles"]).results[0].outcome == "passed"


def test_the_loss_that_was_given_is_left_as_it_was():
    loss = reweigh.losses.adaptive_focal()
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    check_loss(loss, only=["observing", "forward_changes_nothing", "saved_state"])
    assert all(torch.equal(value, before[name]) for name, value in loss.state_dict().items())


# ------------------------------------------------------------------ what a signature offers


def needs_one_of_two(*, class_counts=None, num_classes=None, switch: bool = False, word: Literal["a", "b"] = "a"):
    if (class_counts is None) == (num_classes is None):
        raise InputError("give one of class_counts and num_classes")
    if word == "b" and switch:
        raise InputError("not together")
    return reweigh.losses.focal()


def test_variants_come_from_the_signature():
    labels = {form.label for form in variants(needs_one_of_two)}
    name = "needs_one_of_two"
    assert labels == {
        f"{name}:{base}{other}"
        for base in ("class_counts=[7]", "num_classes=7")
        for other in ("", ",switch=true", ",word=b")
    }
    assert not any("switch=true,word=b" in form.label for form in variants(needs_one_of_two, full=True))


def test_variants_of_another_size():
    (form,) = [form for form in variants("focal", classes=3) if "alpha" in form.label]
    assert form.loss.rule.num_classes == 3


# ------------------------------------------------------------------ wrong in a known way


def epsilon_inside(evidence, state):
    return -torch.log(torch.exp(evidence.log_p) + 1e-8)


def one_minus_probability(evidence, state):
    return (1 - torch.exp(evidence.log_p)) ** 2 * -evidence.log_p


def root_of_a_miss(evidence, state):
    return torch.sqrt(1 - torch.exp(evidence.log_p)) * -evidence.log_p


def infinite_when_hopeless(evidence, state):
    return torch.exp(-evidence.log_p)


def zero_times_infinity(evidence, state):
    return torch.exp(evidence.log_miss) / torch.exp(evidence.log_miss)


def only_the_wrong_ones(evidence, state):
    return (-evidence.log_p)[evidence.log_odds < 0].mean().expand(evidence.log_p.shape)


def looks_at_values(evidence, state):
    return -evidence.log_p if evidence.log_p.sum() > -10 else -2 * evidence.log_p


def against_the_batch(evidence, state):
    return evidence.log_p.detach().mean() - evidence.log_p


def quietly_detached(evidence, state):
    return torch.exp(evidence.log_miss).detach() * -evidence.log_p


def pulled_to_mistakes(evidence, state):
    return evidence.log_miss.exp() * evidence.log_p


def favours_class_zero(evidence, state):
    return -evidence.log_p * torch.where(evidence.target == 0, 2.0, 1.0)


def noisy(evidence, state):
    return -evidence.log_p * (1 + 0.01 * torch.rand_like(evidence.log_p))


def squared(evidence, state):
    return evidence.log_p**2


def counts_calls(evidence, state):
    state["calls"].add_(1)
    return -evidence.log_p


def calls():
    return {"calls": torch.zeros(1)}


def counted_twice(evidence, state):
    return {"calls": state["calls"] + 0}


def half_the_batch(evidence, state):
    weight = torch.linspace(0, 1, max(len(evidence.log_p), 1), dtype=evidence.log_p.dtype)[: len(evidence.log_p)]
    return -evidence.log_p * weight


def reduced(evidence, state):
    return (-evidence.log_p).mean()


def sum_of_probabilities(evidence, state):
    return -evidence.log_p + evidence.log_probabilities.exp().pow(2).sum(1)


def counts_ignored_rows(evidence, state):
    return -evidence.log_p + evidence.log_p.mean()


BOTH = ("log_p", "log_miss")
BROKEN = {
    "epsilon inside": (Rule("epsilon", epsilon_inside, needs=("log_p",)), "saturation"),
    "1 - exp(log_p)": (Rule("focal_by_hand", one_minus_probability, needs=("log_p",)), "saturation"),
    "root at 0": (Rule("root", root_of_a_miss, needs=("log_p",)), "saturation"),
    "infinite": (Rule("infinite", infinite_when_hopeless, needs=("log_p",)), "saturation"),
    "0 / 0": (Rule("nothing", zero_times_infinity, needs=("log_miss",)), "saturation"),
    "data-dependent shape": (Rule("shape", only_the_wrong_ones, needs=("log_p", "log_odds"), coupled=True), "batched_gradient"),
    "control flow over values": (Rule("flow", looks_at_values, needs=("log_p",), coupled=True), "batched_gradient"),
    "coupled, not declared": (Rule("batch", against_the_batch, needs=("log_p",)), "coupling"),
    "declared coupled, is not": (Rule("alone", log_loss, needs=("log_p",), coupled=True), "coupling"),
    "detached, not declared": (Rule("held", quietly_detached, needs=BOTH), "gradcheck"),
    "declared held, is not": (Rule("free", log_loss, needs=("log_p",), holds_constants=True), "holds_constants"),
    "rewards errors, not declared": (Rule("pulled", pulled_to_mistakes, needs=BOTH), "rewards_errors"),
    "declared rewarding, is not": (Rule("good", log_loss, needs=("log_p",), rewards_errors=True), "rewards_errors"),
    "a class of its own": (Rule("zero", favours_class_zero, needs=("log_p",)), "class_order"),
    "random": (Rule("noisy", noisy, needs=("log_p",)), "same_bits"),
    "not linear": (Rule("squared", squared, needs=("log_p",), soft="linear"), "linear_in_log_p"),
    "needs what it never reads": (Rule("idle", log_loss, needs=BOTH), "needs"),
    "writes its state in cost": (Rule("calls", counts_calls, needs=("log_p",), init=calls), "forward_changes_nothing"),
    "observes nothing new": (
        Rule("idle_memory", log_loss, needs=("log_p",), init=calls, observes="training", observe=counted_twice,
             observe_needs=("log_p",)),
        "observing",
    ),
    "depends on the place in the batch": (Rule("places", half_the_batch, needs=("log_p",)), "row_order"),
    "already reduced": (Rule("reduced", reduced, needs=("log_p",)), "reductions"),
    "counts ignored rows": (Rule("padding", counts_ignored_rows, needs=("log_p",), coupled=True), "ignored_rows"),
    "takes soft targets it cannot": (
        Rule("matrix", sum_of_probabilities, needs=("log_p", "log_probabilities")), "soft_targets",
    ),
    "not the same through pickle": (Rule("lambda", lambda evidence, state: -evidence.log_p, needs=("log_p",)), "copies"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_loss_is_refused_by_the_check_meant_for_it(what):
    rule, meant = BROKEN[what]
    assert meant in checks()
    with pytest.raises(ContractError) as caught:
        check_loss(reweigh.Loss(rule), without=QUICK)
    failed = {result.check: result.words for result in caught.value.report.failed}
    assert meant in failed, failed
    assert f"{rule.name}: {meant}: {failed[meant]}" in str(caught.value)
    assert len(failed[meant].split()) > 5


def squared_margin(evidence, state):
    return torch.where(evidence.positive, 1.0, 1.0) * torch.nn.functional.softplus(-evidence.log_odds) ** 2


def wrong_side(evidence, state):
    return torch.where(evidence.positive, evidence.log_p, -evidence.log_p)


def eager_overflow(evidence, state):
    return torch.exp(-evidence.log_odds)


@pytest.mark.parametrize(
    ("cost", "needs", "meant"),
    [
        (wrong_side, ("log_p",), "rewards_errors"),
        (eager_overflow, ("log_odds",), "saturation"),
        (one_minus_probability, ("log_p",), "saturation"),
    ],
)
def test_a_broken_sigmoid_loss_is_refused(cost, needs, meant):
    with pytest.raises(ContractError) as caught:
        check_loss(reweigh.Loss(Rule("broken", cost, needs=needs, head="sigmoid")), without=QUICK)
    assert meant in {result.check for result in caught.value.report.failed}


def test_a_sound_sigmoid_loss_passes():
    rule = Rule("squared_log", squared_margin, needs=("log_odds",), head="sigmoid")
    assert not check_loss(reweigh.Loss(rule), without=QUICK).failed


def test_what_the_suite_is_asked_for_is_checked_too():
    with pytest.raises(InputError, match="values_and_gradients"):
        check_loss("focal", only=["values_and_gradient"])
    with pytest.raises(InputError, match="quick"):
        check_loss("focal", profile="fast")
    with pytest.raises(InputError, match="focal"):
        check_loss("focall")
