"""The contract suite over every registered loss and every form that its signature offers."""

from __future__ import annotations

import pytest

from reweigh import registry
from reweigh.testing import check_loss, checks, variants

NAMES = [entry.name for entry in registry.entries("loss") if entry.thing is None]
COMPILING = ("compiles", "compiles_with_inductor")


def forms():
    """Every form of every loss; a loss that cannot be built becomes a test that fails, not one that is missing."""
    for name in NAMES:
        try:
            built = variants(name)
        except Exception as error:
            yield pytest.param(error, id=name)
        else:
            yield from (pytest.param(form, id=form.label) for form in built)


def loss_of(form):
    if isinstance(form, Exception):
        raise form
    return form.loss


FORMS = list(forms())


def test_the_package_has_losses_and_the_suite_has_checks():
    assert len(NAMES) >= 7 and len(FORMS) > len(NAMES)
    assert len(checks()) >= 40 and all(summary.endswith(".") for summary in checks().values())


@pytest.mark.parametrize("form", FORMS)
def test_keeps_its_contract(form):
    report = check_loss(loss_of(form), without=COMPILING)
    passed = {result.check for result in report.results if result.outcome == "passed"}
    # whatever a loss is, these apply to it
    assert {"values_and_gradients", "reductions", "sample_weight", "nothing_counts", "copies", "same_bits"} <= passed


@pytest.mark.parametrize("name", NAMES)
def test_compiles_without_a_break(name):
    check_loss(variants(name)[0].loss, only=["compiles"])


@pytest.mark.nightly
@pytest.mark.parametrize("form", FORMS)
def test_every_form_compiles(form):
    check_loss(loss_of(form), only=["compiles"])


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_compiles_to_machine_code(name):
    check_loss(variants(name)[0].loss, only=["compiles_with_inductor"], profile="full")


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_keeps_its_contract_in_the_full_profile(name):
    """Numbers halved and doubled, words in pairs, up to 1,000 classes."""
    check_loss(name, profile="full", without=COMPILING)


@pytest.mark.nightly
@pytest.mark.parametrize("classes", [2, 3, 1000])
@pytest.mark.parametrize("name", NAMES)
def test_keeps_its_contract_with_another_number_of_classes(name, classes):
    """For losses whose state is sized by classes; the others draw their own numbers of classes."""
    sized = [form for form in variants(name, classes=classes) if form.loss.rule.num_classes == classes]
    for form in sized:
        check_loss(form.loss, only=["values_and_gradients", "saturation", "masked_classes", "memory", "ignored_rows"])
