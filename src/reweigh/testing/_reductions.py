"""Sums, means and their denominators; rows that do not count; nothing at all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..module import Loss
from ._checks import apply_if, check
from ._compare import demand, demand_close, demand_equal
from ._reference import Priced, priced
from ._subject import Data, Subject, draw

TIGHT: dict[str, Any] = {"relative": 1e-9, "absolute": 1e-12}


def _value_and_gradient(loss: Loss, logits: Tensor, target: Tensor, **keywords: Any) -> tuple[Tensor, Tensor]:
    logits = logits.detach().requires_grad_()
    value = loss(logits, target, **keywords)
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    return value.detach(), gradient


def _all_reductions(subject: Subject, data: Data, what: str, common: dict[str, Any], **weights: Any) -> None:
    """none, sum and mean of the loss, with gradients, against the loops of the reference."""
    logits = data.logits.clone().requires_grad_()
    held = {name: value for name, value in common.items() if value is not None}
    right = priced(subject.loss, logits, data.target, **held, **weights)
    given = {name: subject.place(value) for name, value in weights.items()}
    for reduction, expected in (("none", right.none()), ("sum", right.sum()), ("mean", right.mean())):
        loss = subject.built(reduction=reduction, **common)
        value, gradient = _value_and_gradient(loss, subject.place(data.logits), subject.place(data.target), **given)
        (slope,) = torch.autograd.grad(expected.sum(), logits, retain_graph=True)
        shape = _shape_of_none(subject, data)
        demand_close(value.reshape(expected.shape), expected, f"{what}: reduction={reduction!r}", **TIGHT)
        demand_close(gradient, slope, f"{what}: the gradient of reduction={reduction!r}", relative=1e-8, absolute=1e-11)
        if reduction == "none":
            demand(value.shape == shape, f"{what}: reduction='none' has shape {tuple(value.shape)}, expected {shape}.")


def _shape_of_none(subject: Subject, data: Data) -> tuple[int, ...]:
    if subject.whole_rows:
        return (data.logits.shape[0], *data.logits.shape[2:])
    return tuple(data.logits.shape)


@check("reductions")
def reductions(subject: Subject) -> None:
    """none, sum and mean agree with loops over the rows."""
    _all_reductions(subject, draw(subject, 6, seed=20), "no weights", {})


@check("sample_weight")
def sample_weight(subject: Subject) -> None:
    """sample_weight, of rows or of places, multiplies costs and enters the mean's denominator as PyTorch's does."""
    data = draw(subject, 6, seed=21)
    weight = torch.tensor([0.5, 0.0, 2.0, 1.0, 3.0, 0.25], dtype=torch.float64)
    shaped = weight if subject.whole_rows else weight.unsqueeze(1).expand(data.logits.shape)
    expected = priced(subject.loss, data.logits, data.target, sample_weight=shaped)
    _against(subject, data, expected, "sample_weight of shape (n,)", weight)
    if not subject.whole_rows:
        each = weight.unsqueeze(1) * torch.linspace(0.5, 1.5, data.logits.shape[1], dtype=torch.float64)
        expected = priced(subject.loss, data.logits, data.target, sample_weight=each)
        _against(subject, data, expected, "sample_weight of the logits' shape", each)
    zero = subject.place(weight * 0)
    nothing = subject.built()(subject.place(data.logits), subject.place(data.target), sample_weight=zero)
    demand(nothing.item() == 0, f"weights that sum to 0 give a mean of {nothing.item()!r}, expected 0.")


def _against(subject: Subject, data: Data, expected: Priced, what: str, weight: Tensor) -> None:
    z, y, w = subject.place(data.logits), subject.place(data.target), subject.place(weight)
    for reduction, right in (("none", expected.none()), ("sum", expected.sum()), ("mean", expected.mean())):
        value = subject.built(reduction=reduction)(z, y, sample_weight=w)
        demand_close(value, right, f"{what}, reduction={reduction!r}", **TIGHT)


@check("class_weight")
def class_weight(subject: Subject) -> None:
    """class_weight multiplies each class's cost; a softmax mean divides by the weights of the true classes."""
    apply_if(subject.rule.head != "boxes" and not subject.rule.per_row, "no price of a class to weigh")
    data = draw(subject, 6, seed=22)
    weight = torch.linspace(0.2, 2.0, data.logits.shape[1], dtype=torch.float64)
    _all_reductions(subject, data, "class_weight", {"class_weight": weight})
    zero = weight.clone()
    zero[0] = 0.0
    _all_reductions(subject, data, "class_weight with a 0", {"class_weight": zero})


@check("both_weights")
def both_weights(subject: Subject) -> None:
    """class_weight, sample_weight and ignored rows together: the denominator counts what is left."""
    apply_if(subject.rule.head == "softmax", "denominators of several factors are a softmax's")
    data = draw(subject, 7, seed=23)
    target = data.target.clone()
    target[3] = -100
    weight = torch.linspace(0.2, 2.0, data.logits.shape[1], dtype=torch.float64)
    rows = torch.tensor([0.5, 1.0, 2.0, 9.0, 3.0, 0.25, 1.5], dtype=torch.float64)
    _all_reductions(
        subject, Data(data.logits, target), "class_weight, sample_weight and an ignored row",
        {"class_weight": weight}, sample_weight=rows,
    )  # fmt: skip


@check("ignored_rows")
def ignored_rows(subject: Subject) -> None:
    """Ignored rows, wherever they stand and whatever they hold, count like rows that are not there."""
    apply_if(subject.rule.head != "boxes", "boxes are not ignored")
    data = draw(subject, 8, seed=24)
    for ignore_index in (-100, 255):
        for places in ([0], [7], [2, 3, 6]):
            _ignored_equal_dropped(subject, data, places, ignore_index)


def _ignored_equal_dropped(subject: Subject, data: Data, places: list[int], ignore_index: int) -> None:
    stay = torch.tensor([row not in places for row in range(len(data.logits))])
    target, logits = data.target.clone(), data.logits.clone()
    target[~stay] = ignore_index
    logits[places[0]] = 3e4  # whatever a padded place holds
    what = f"rows {places} ignored (ignore_index={ignore_index})"
    for reduction in ("mean", "sum", "none"):
        loss = subject.built(reduction=reduction, ignore_index=ignore_index)
        value, gradient = _value_and_gradient(loss, subject.place(logits), subject.place(target))
        short = _value_and_gradient(loss, subject.place(logits[stay]), subject.place(target[stay]))
        demand(not bool(gradient[~stay].any()), f"{what}: an ignored row gets a gradient.")
        demand_close(gradient[stay], short[1], f"{what}: the gradient of reduction={reduction!r}", **TIGHT)
        if reduction == "none":
            demand(not bool(value[~stay].any()), f"{what}: an ignored row has a cost.")
            value = value[stay]
        demand_close(value, short[0], f"{what}: reduction={reduction!r}", **TIGHT)


@check("ignored_garbage")
def ignored_garbage(subject: Subject) -> None:
    """NaN and infinite logits in an ignored row are nobody's business: no error, no cost, no gradient."""
    apply_if(subject.rule.head != "boxes", "boxes are not ignored")
    data = draw(subject, 6, seed=25)
    for garbage in (float("nan"), float("inf"), -float("inf")):
        logits, target = data.logits.clone(), data.target.clone()
        logits[2], target[2] = garbage, -100
        for dtype in (torch.float32, torch.float64):
            value, gradient = _value_and_gradient(subject.built(), subject.place(logits, dtype), subject.place(target))
            logits_0 = torch.where(torch.isfinite(logits), logits, 0.0)
            clean = _value_and_gradient(subject.built(), subject.place(logits_0, dtype), subject.place(target))
            what = f"logits of {garbage} in an ignored row"
            demand_close(value, clean[0], what, relative=1e-5, absolute=1e-7)
            demand_close(gradient, clean[1], f"{what}: the gradient", relative=1e-4, absolute=1e-7)


@check("nothing_counts")
def nothing_counts(subject: Subject) -> None:
    """No rows, or none that count: 0, with zero gradient, for every reduction."""
    data = draw(subject, 4, seed=26)
    none = Data(data.logits[:0], data.target[:0])
    cases = [("no rows", none)]
    if subject.rule.head != "boxes":
        cases.append(("every row ignored", Data(data.logits, torch.full_like(data.target, -100))))
    for what, case in cases:
        for reduction in ("mean", "sum", "none"):
            loss = subject.built(reduction=reduction)
            for dtype in (torch.float32, torch.float64):
                logits = subject.place(case.logits, dtype).requires_grad_()
                value = loss(logits, subject.place(case.target))
                zero = torch.zeros(_shape_of_none(subject, case) if reduction == "none" else ())
                demand_equal(value.detach().cpu().to(zero.dtype), zero, f"{what}, reduction={reduction!r}", mend="")
                value.sum().backward()
                fine = logits.grad is not None and not bool(logits.grad.any())
                demand(fine, f"{what}, reduction={reduction!r}: the gradient is not zero.")


@check("normalizer")
def normalizer(subject: Subject) -> None:
    """With normalizer= micro-batches that hold ignored rows add up to the whole batch."""
    data = draw(subject, 9, seed=27)
    target = data.target.clone()
    if subject.rule.head != "boxes":
        target[4] = target[8] = -100
    whole = priced(subject.loss, data.logits, target)
    number = float(whole.share.sum())
    expected = whole.mean()
    z, y = subject.place(data.logits), subject.place(target)
    given = (number, torch.tensor(number))
    for one in given:
        value = subject.built()(z, y, normalizer=one)
        demand_close(value, expected, f"the mean with normalizer={one!r}, its own denominator", **TIGHT)
    apply_if(not subject.rule.coupled and subject.rule.normalize_rows is None, "batch statistics are per micro-batch")
    parts = [subject.built()(z[part], y[part], normalizer=number) for part in (slice(0, 4), slice(4, 5), slice(5, 9))]
    demand_close(torch.stack(parts).sum(), expected, "micro-batches with normalizer=", **TIGHT)
