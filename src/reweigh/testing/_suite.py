"""Running the checks: every variant of a loss, every check, every failure in words."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable
from typing import Literal

import torch

from ..errors import bad_input, unknown_name
from ..module import Loss
from . import (  # each enters its checks in the table
    _claims,
    _derivatives,
    _memory,
    _modules,
    _reductions,
    _shapes,
    _soft_targets,
    _symmetries,
    _transforms,
    _values,
)
from ._checks import TABLE, Check
from ._report import Broken, ContractError, NotApplicable, Report, Result
from ._subject import Subject, aged
from ._variants import Variant, variants

GROUPS = (_values, _derivatives, _symmetries, _reductions, _shapes, _soft_targets, _claims, _modules, _memory, _transforms)  # fmt: skip


def checks() -> dict[str, str]:
    """The name of every check, and what it says."""
    return {name: one.summary for name, one in TABLE.items()}


def check_loss(
    what: Loss | Callable[..., Loss] | str,
    *,
    device: str | torch.device = "cpu",
    profile: Literal["quick", "full"] = "quick",
    only: Iterable[str] | None = None,
    without: Iterable[str] = (),
) -> Report:
    """Run the contract suite; raise `ContractError` with a sentence for everything that fails.

    what: a loss; or a function that returns one, or a registered name: then every form of it that the words and
        switches in its signature offer is checked.
    device: where the loss is computed; what it is compared with is computed on the CPU in float64.
    profile: "quick" takes about two seconds a loss; "full" draws more, compiles with Inductor and varies the numbers.
    only, without: names of checks, as `checks()` lists them.
    """
    if profile not in ("quick", "full"):
        raise bad_input("check_loss(profile=...)", came=repr(profile), expected="'quick' or 'full'")
    chosen = _chosen(only, without)
    full = profile == "full"
    forms = [Variant(what.rule.name, what)] if isinstance(what, Loss) else variants(what, full=full)
    results = []
    for form in forms:
        subject = subject_of(form, device, full=full)
        results += [run(subject, one) for one in chosen]
    report = Report(tuple(results))
    if report.failed:
        raise ContractError(report)
    return report


def _chosen(only: Iterable[str] | None, without: Iterable[str]) -> list[Check]:
    only, without = list(TABLE if only is None else only), list(without)
    for name in (*only, *without):
        if name not in TABLE:
            raise unknown_name("check", name, TABLE)
    return [TABLE[name] for name in TABLE if name in only and name not in without]


def subject_of(form: Variant, device: str | torch.device = "cpu", *, full: bool = False) -> Subject:
    """The loss with some memory, on its device; the loss that was given stays as it is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss = aged(copy.deepcopy(form.loss).to("cpu")).to(device)
    return Subject(form.label, loss, torch.device(device), full)


def run(subject: Subject, one: Check) -> Result:
    """One check on one loss; what a loss warns about is not at issue here."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one.run(subject)
    except NotApplicable as reason:
        return Result(subject.label, one.name, "skipped", str(reason))
    except Broken as sentence:
        return Result(subject.label, one.name, "failed", str(sentence))
    except Exception as error:  # whatever a loss raises where it should answer
        first = str(error).strip().split("\n\n")[0][:600]
        words = f"raised {type(error).__name__} where it should answer: {first}"
        return Result(subject.label, one.name, "failed", words)
    return Result(subject.label, one.name, "passed")
