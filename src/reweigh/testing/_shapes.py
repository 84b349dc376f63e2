"""PyTorch's shapes: dense places, single decisions, any shape of a sigmoid head, class indices against the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..module import Loss
from ._checks import apply_if, check
from ._compare import demand, demand_close
from ._subject import Data, Subject, draw

TIGHT: dict[str, Any] = {"relative": 1e-9, "absolute": 1e-12}


def _costs_and_gradient(loss: Loss, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    logits = logits.detach().requires_grad_()
    cost = loss(logits, target)
    (gradient,) = torch.autograd.grad(cost.sum(), logits)
    return cost.detach(), gradient


@check("dense_shapes")
def dense_shapes(subject: Subject) -> None:
    """(n, K, d1, ...) costs what its places cost as rows."""
    apply_if(subject.rule.head != "boxes", "boxes are not dense")
    for dense in ((3,), (2, 3)):
        data = draw(subject, 3, dense=dense, seed=30)
        target = data.target.clone()
        target[(0,) * target.dim()] = -100  # one place ignored
        z, y = subject.place(data.logits), subject.place(target)
        rows = z.movedim(1, -1).flatten(0, -2)
        flat = y.flatten() if y.dim() < z.dim() else y.movedim(1, -1).flatten(0, -2)
        for reduction in ("none", "sum", "mean"):
            loss = subject.built(reduction=reduction)
            cost, gradient = _costs_and_gradient(loss, z, y)
            right, slope = _costs_and_gradient(loss, rows, flat)
            if reduction == "none":
                if not subject.whole_rows:
                    cost = cost.movedim(1, -1).flatten(0, -2)
                demand(cost.numel() == right.numel(), f"dense costs have shape {tuple(cost.shape)}.")
                cost = cost.reshape(right.shape)
            what = f"logits of shape {tuple(z.shape)}, reduction={reduction!r}"
            demand_close(cost, right, what, **TIGHT)
            demand_close(gradient.movedim(1, -1).flatten(0, -2), slope, f"{what}: the gradient", **TIGHT)


@check("dense_weights")
def dense_weights(subject: Subject) -> None:
    """Dense inputs take sample weights of rows or of places, and class weights."""
    apply_if(subject.rule.head != "boxes", "boxes are not dense")
    data = draw(subject, 3, dense=(4,), seed=31)
    z, y = subject.place(data.logits), subject.place(data.target)
    rows = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64, device=z.device)
    places = rows.unsqueeze(1) * torch.linspace(0.5, 1.5, 4, dtype=torch.float64, device=z.device)
    weight = torch.linspace(0.2, 2.0, z.shape[1], dtype=torch.float64)
    common: dict[str, Any] = {} if subject.rule.per_row else {"class_weight": weight}
    loss = subject.built(**common)
    flat_y = y.flatten() if y.dim() < z.dim() else y.movedim(1, -1).flatten(0, -2)
    flat_z = z.movedim(1, -1).flatten(0, -2)
    for what, given, flat in (
        ("rows", rows, rows.unsqueeze(1).expand(3, 4).flatten()),
        ("places", places, places.flatten()),
    ):
        value = loss(z, y, sample_weight=given)
        demand_close(value, loss(flat_z, flat_y, sample_weight=flat), f"dense, sample_weight of {what}", **TIGHT)


@check("single_decision")
def single_decision(subject: Subject) -> None:
    """One decision without a batch dimension, (K,) with (), costs what it costs as a batch of one."""
    apply_if(subject.rule.head == "softmax", "a batch dimension is a softmax's affair")
    data = draw(subject, 1, seed=32)
    for reduction in ("none", "mean"):
        loss = subject.built(reduction=reduction)
        cost, gradient = _costs_and_gradient(loss, subject.place(data.logits[0]), subject.place(data.target[0]))
        right, slope = _costs_and_gradient(loss, subject.place(data.logits), subject.place(data.target))
        demand(cost.dim() == 0, f"one decision has a cost of shape {tuple(cost.shape)}, expected ().")
        demand_close(cost, right.reshape(()), "one decision", **TIGHT)
        demand_close(gradient, slope[0], "the gradient of one decision", **TIGHT)


@check("any_shape")
def any_shape(subject: Subject) -> None:
    """A sigmoid head takes any shape, (), (n,) and (n, 1) included."""
    rule = subject.rule
    apply_if(rule.head == "sigmoid" and not rule.per_row and not rule.index_targets, "not a head of single elements")
    apply_if(subject.classes is None and not rule.coupled, "the rule looks at classes or at the whole batch")
    data = draw(subject, 6, classes=4, seed=33)
    loss = subject.built(reduction="none")
    right, slope = _costs_and_gradient(loss, subject.place(data.logits), subject.place(data.target))
    for shape in ((24,), (24, 1), (2, 3, 4), (1, 24), (2, 2, 3, 2)):
        z, y = data.logits.reshape(shape), data.target.reshape(shape)
        cost, gradient = _costs_and_gradient(loss, subject.place(z), subject.place(y))
        demand(tuple(cost.shape) == shape, f"logits of shape {shape} have costs of shape {tuple(cost.shape)}.")
        demand_close(cost.reshape(right.shape), right, f"logits of shape {shape}", **TIGHT)
        demand_close(gradient.reshape(right.shape), slope, f"logits of shape {shape}: the gradient", **TIGHT)
    cost, _ = _costs_and_gradient(loss, subject.place(data.logits[0, 0]), subject.place(data.target[0, 0]))
    demand_close(cost, right[0, 0], "a single element", **TIGHT)


@check("kinds_of_labels")
def kinds_of_labels(subject: Subject) -> None:
    """Labels or class indices mean the same in every integer type, labels also as booleans and floats."""
    apply_if(subject.rule.head != "boxes", "boxes have no labels")
    data = draw(subject, 6, seed=34)
    z, y = subject.place(data.logits), subject.place(data.target)
    loss = subject.built(reduction="none")
    right = loss(z, y).detach()
    kinds = [torch.int32, torch.int16, torch.int8, torch.uint8]
    if subject.rule.head == "sigmoid" and not subject.rule.index_targets:
        kinds += [torch.bool, torch.float32, torch.float64]
    for dtype in kinds:
        demand_close(loss(z, y.to(dtype)), right, f"targets of type {dtype}", **TIGHT)


@check("index_targets")
def index_targets(subject: Subject) -> None:
    """Class indices under a sigmoid head are one label that is present and K - 1 that are absent."""
    apply_if(subject.rule.index_targets, "the loss takes no class indices under a sigmoid head")
    data = draw(subject, 6, seed=35)
    labels = torch.nn.functional.one_hot(data.target, data.logits.shape[1])
    plain = replace(subject.rule, index_targets=False)
    for reduction in ("none", "mean"):
        by_index = _costs_and_gradient(
            subject.built(reduction=reduction), subject.place(data.logits), subject.place(data.target)
        )
        by_label = _costs_and_gradient(
            subject.built(plain, reduction=reduction), subject.place(data.logits), subject.place(labels)
        )
        demand_close(by_index[0], by_label[0], "class indices, and one-hot labels", **TIGHT)
        demand_close(by_index[1], by_label[1], "the gradient of class indices, and of one-hot labels", **TIGHT)


def labelled(data: Data) -> Tensor:
    """The targets as a float matrix of the logits' shape."""
    if data.target.dim() == data.logits.dim():
        return data.target.double()
    return torch.nn.functional.one_hot(data.target, data.logits.shape[1]).double()
