"""Losses in one reading, on devices whose kernels take a rule in.

A kernel that knows the rule prices every decision while the logits are in registers, and writes the gradient in the
same reading; the backward pass multiplies it by the incoming gradient, or leaves it alone where that is 1. For this
the rule is traced once (`kernels._tracing`). What this serves: pointwise rules with class indices (softmax) or labels
(sigmoid), every reduction, weights, ignored rows, ranks. Everything else, and whatever looks unusual at the door,
goes the plain way of `module`, which also says what is wrong with it.

float16 keeps no gradient of the forward pass, because a scaled loss may need what float16 would have lost: there the
backward pass reads the logits again. So does reduction="none", whose rows are scaled differently.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from . import distributed, kernels
from .evidence import FIRST_CHOICE_FIELDS, INDEX_FIELDS, Evidence, softmax_evidence
from .inputs import INTEGERS, sigmoid_weight, softmax_weight
from .kernels._tracing import Field, Traced, trace
from .rules import Rule, State
from .validation import NOTHING, OUT_OF_RANGE

DECISIONS = 7  # made-up ones, to trace a rule with
MOST_READY = 64  # ways of calling a loss that are remembered


def serves(logits: Any) -> bool:
    """Could there be a kernel for these logits?"""
    return isinstance(logits, Tensor) and logits.is_cuda


def priced(loss: Any, logits: Tensor, target: Any, sample_weight: Any, normalizer: Any) -> Tensor | None:
    """The loss in one reading; None: take the plain way."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return None
    rule = loss.rule
    if rule.head == "boxes" or rule.per_row or rule.normalize_rows is not None:
        return None
    if rule.coupled and (rule.sums is None or rule.head == "sigmoid" or loss.process_group is not None):
        return None
    if not isinstance(target, Tensor) or target.device != logits.device or not logits.numel():
        return None
    way = _softmax if rule.head == "softmax" else _sigmoid
    call = way(loss, logits, target, sample_weight, normalizer)
    if call is None:
        return None
    try:
        value = _Priced.apply(call.logits, call)
    except NoKernel:
        return None
    if loss.validate == "strict":
        assert_fine(loss, logits)
    return value.view(call.shape) if loss.reduction == "none" else value


# ---------------------------------------------------------------------------- the node


class NoKernel(Exception):
    """The compiler refused; the plain way is open."""


class _Call:
    """One call of a loss, for the forward and the backward pass."""

    __slots__ = ("given", "kernel", "logits", "loss", "normalizer", "pricing", "shape", "target", "weight")

    def __init__(self, loss: Any, kernel: Any, pricing: Any, logits: Tensor, target: Tensor, shape: Any) -> None:
        self.loss, self.kernel, self.pricing = loss, kernel, pricing
        self.logits, self.target, self.shape = logits, target, shape
        self.given = target  # these three as the plain way takes them
        self.weight: Any = None
        self.normalizer: Any = None

    def run(self, z: Tensor, *, gradient: bool, incoming: Tensor | None = None) -> Any:
        """(value, gradient, missing factor)."""
        total = self.kernel.softmax_total if self.loss.rule.head == "softmax" else self.kernel.sigmoid_total
        costs = self.loss.reduction == "none"
        found = total(z, self.target, self.pricing, gradient=gradient, costs=costs, incoming=incoming)
        if found is None:
            raise NoKernel
        return found

    def plain(self, z: Tensor) -> Tensor:
        """The same by ordinary operators."""
        return self.loss._plain_price(z, self.given, self.weight, self.normalizer)


class _Priced(torch.autograd.Function):
    """A loss as one node; where it can, the forward pass writes the gradient."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, call: _Call) -> Tensor:
        costs = call.loss.reduction == "none"
        at_once = ctx.needs_input_grad[0] and not costs and z.dtype != torch.float16
        value, ctx.gradient, ctx.missing = call.run(z, gradient=at_once)
        ctx.call = call
        ctx.save_for_backward(z)
        return value

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None]:
        (z,), call = ctx.saved_tensors, ctx.call
        if torch.is_grad_enabled():  # somebody differentiates the gradient
            return _plain_gradient(z, call, incoming, again=True), None
        gradient, ctx.gradient = ctx.gradient, None  # it is handed out, and multiplied in place
        if gradient is not None:
            return call.kernel.multiply(gradient, incoming, ctx.missing), None
        if ctx.missing is not None:
            incoming = incoming * ctx.missing.to(incoming.dtype)
        try:
            return call.run(z, gradient=True, incoming=incoming.contiguous())[1], None
        except NoKernel:
            return _plain_gradient(z, call, incoming, again=False), None


def _plain_gradient(z: Tensor, call: _Call, incoming: Tensor, *, again: bool) -> Tensor:
    leaf = z.view_as(z) if z.requires_grad else z.detach().requires_grad_()
    with torch.enable_grad():
        value = call.plain(leaf)
        return torch.autograd.grad(value, leaf, incoming.view(value.shape), create_graph=again)[0]


# ---------------------------------------------------------------------------- what the two heads have in common


def _scaling(loss: Any, normalizer: Any) -> tuple[float, Tensor | None]:
    """What the sum is multiplied by, and divided by where that is on the device."""
    world = 1 if loss.process_group is None else distributed.world_size(loss.process_group)
    if loss.reduction == "none":
        return 1.0, None
    if isinstance(normalizer, Tensor):
        return float(world), normalizer.detach().double().reshape(())
    return (float(world) if normalizer is None else world / normalizer), None


def flags(loss: Any, logits: Tensor) -> tuple[int | None, int | None]:
    """Where a kernel notes what is bad about these logits."""
    return loss._findings.addresses(logits.device) if loss.validate and serves(logits) else (None, None)


def assert_fine(loss: Any, logits: Tensor) -> None:
    """Stop the device where something bad was noted."""
    torch._assert_async(loss._findings.flag(logits.device) == NOTHING, "reweigh: bad logits or targets")


def legal_targets(loss: Any, target: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Targets on a device, legal everywhere, and which rows count (flat); those out of range are noted."""
    kernel = kernels.of(target.device)
    if kernel is not None and hasattr(kernel, "legal_targets") and kernel.able(target.device):
        return kernel.legal_targets(target, classes, loss.ignore_index, flags(loss, target))
    kept, inside = target != loss.ignore_index, (target >= 0) & (target < classes)
    if loss.validate:
        loss._findings.note(torch.where(kept & ~inside, OUT_OF_RANGE, 0).reshape(-1))
    kept = kept & inside
    return torch.where(kept, target, 0), kept.reshape(-1)


def _vector(values: Tensor | None) -> Tensor | None:
    """(K,) numbers as a kernel reads them."""
    return None if values is None else values.detach().float().contiguous()


def _all_on(device: torch.device, *tensors: Tensor | None) -> bool:
    return all(tensor is None or tensor.device == device for tensor in tensors)


# ---------------------------------------------------------------------------- softmax


def _softmax(loss: Any, logits: Tensor, target: Tensor, sample_weight: Any, normalizer: Any) -> _Call | None:
    shape = (logits.shape[0], *logits.shape[2:])
    if logits.dim() < 2 or target.shape != shape or target.dtype not in INTEGERS:
        return None
    simple = sample_weight is None and normalizer is None and loss.process_group is None
    ready = _ready(loss, logits) if simple else None
    if ready is None:
        ready = _prepared_softmax(loss, logits, target, sample_weight, normalizer, simple)
        if ready is None:
            return None
    kernel, pricing = ready
    z = logits if logits.dim() == 2 else logits.flatten(2)
    target = target if target.dtype == torch.int64 else target.long()
    if target.dim() > 1:
        target = target.flatten(1)
    target = target.contiguous()
    if loss.process_group is not None and pricing.mean:
        own = kernel.sum_of_weights(
            target, z.shape[1], loss.ignore_index, pricing.class_weight, pricing.sample_weight
        )  # fmt: skip
        pricing = replace(pricing, denominator=distributed.total(own, loss.process_group))
    call = _Call(loss, kernel, pricing, z, target, shape)
    if not simple:
        weight = pricing.sample_weight
        call.weight = None if weight is None else weight.view(target.shape)
        call.normalizer = normalizer
    return call


def _prepared_softmax(
    loss: Any, logits: Tensor, target: Tensor, sample_weight: Any, normalizer: Any, simple: bool
) -> tuple[Any, Any] | None:
    """The kernels' module and everything but logits and targets; None: take the plain way."""
    rule, classes = loss.rule, logits.shape[1]
    if classes <= rule.precise or rule.num_classes not in (None, classes):
        return None
    kernel = kernels.find(logits, "softmax")
    if not hasattr(kernel, "softmax_total"):
        return None
    state = loss.state()
    class_weight = loss._weight_of_classes(state, logits)
    scale = None if rule.scale is None else rule.scale(state)
    offset = None if rule.offset is None else rule.offset(state)
    if rule.coupled:
        state = {**state, **_numbers_of_batch(loss, logits, target, scale, offset)}
        rule, simple = rule.after_sums, False
    key = (class_weight is not None, tuple(state))
    traced = _remembered(rule, key, partial(traced_softmax, rule, state))
    if isinstance(traced, str):
        return None
    tables = traced.tables(state)
    weight = None if sample_weight is None else softmax_weight(sample_weight, logits, target.shape, bool(loss.validate))
    numerator, denominator = _scaling(loss, normalizer)
    if not _all_on(logits.device, *tables, scale, offset, class_weight, denominator):
        return None
    mean = loss.reduction == "mean" and normalizer is None
    pricing = kernel.SoftmaxPricing(
        traced.code, rule.needs, tables, loss.ignore_index, numerator, mean, _vector(scale), _vector(offset),
        _vector(class_weight), weight, rule.weighs_classes, denominator, flags(loss, logits),
    )  # fmt: skip
    if simple and scale is None and offset is None and class_weight is None and traced.steady(tables, state):
        _keep_ready(loss, logits, (kernel, pricing))
    return kernel, pricing


def _numbers_of_batch(loss: Any, logits: Tensor, target: Tensor, scale: Any, offset: Any) -> State:
    """What the rows of a coupled rule know of each other, by a first reading of the logits."""
    rule = loss.rule
    z = logits.detach() if logits.dim() == 2 else logits.detach().flatten(2)
    legal, kept = legal_targets(loss, target.long() if target.dim() == 1 else target.long().flatten(1), z.shape[1])
    with torch.no_grad():
        evidence = softmax_evidence(z, legal, needs=rule.needs, scale=scale, offset=offset, kept=kept)
        return rule.sums(evidence, loss.state())


# What a loss needs at every call alike, kept until one of its settings, or the place of its state, is another.
_calls: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()


def _key(loss: Any, logits: Tensor) -> Any:
    places = tuple(value.data_ptr() for value in loss.state().values())
    return logits.dtype, logits.device, logits.shape[1], loss.reduction, loss.ignore_index, loss.validate, places


def _ready(loss: Any, logits: Tensor) -> Any:
    known = _calls.get(loss)
    return None if known is None or loss.class_weight is not None else known.get(_key(loss, logits))


def _keep_ready(loss: Any, logits: Tensor, ready: Any) -> None:
    known = _calls.setdefault(loss, {})
    if len(known) >= MOST_READY:
        known.clear()
    known[_key(loss, logits)] = ready


def traced_softmax(rule: Rule, state: State, weighs: bool, names: tuple[str, ...] = ()) -> Traced | str:
    """A softmax rule in C, or why there is none."""
    fields: dict[str, Field] = {}
    for name in rule.needs:
        if name == "log_probabilities":
            return "it needs the probabilities of all classes"
        if name in INDEX_FIELDS:
            fields[name] = Field(torch.int64, f"fields.{name}")
        else:
            kind = torch.float64 if name in FIRST_CHOICE_FIELDS else torch.float32
            fields[name] = Field(kind, f"fields.{name}", f"slopes.{name}")
    fields["target"] = Field(torch.int64, "fields.target")
    if weighs:
        fields["class_weight"] = Field(torch.float32, "fields.class_weight")
    return trace(partial(_softmax_cost, rule=rule), fields, state, shape=(DECISIONS,))


def _softmax_cost(numbers: dict[str, Tensor], state: State, *, rule: Rule) -> Tensor:
    return rule.cost(Evidence(**numbers), state)


# ---------------------------------------------------------------------------- sigmoid


@dataclass(frozen=True)
class _Sides:
    """A sigmoid rule in C: for present and for absent labels, or its soft form alone."""

    present: Traced
    absent: Traced | None

    def tables(self, state: State) -> list[Tensor]:
        """What both sides look up."""
        return [table for side in (self.present, self.absent) if side is not None for table in side.tables(state)]


def _sigmoid(loss: Any, logits: Tensor, target: Tensor, sample_weight: Any, normalizer: Any) -> _Call | None:
    rule, dims = loss.rule, logits.dim()
    if dims == 0 or (rule.num_classes is not None and (dims < 2 or logits.shape[1] != rule.num_classes)):
        return None
    kernel = kernels.find(logits, "sigmoid")
    if not hasattr(kernel, "sigmoid_total"):
        return None
    labels = _kind_of_labels(rule, logits, target, kernel)
    if labels is None:
        return None
    state = loss.state()
    classes = logits.shape[1] if dims > 1 and state else 3
    shape = (DECISIONS, classes, 5)[: min(dims, 3)]
    sides = _remembered(rule, (logits.dtype, labels == kernel.OWN, shape), partial(traced_sigmoid, rule, state))
    if isinstance(sides, str):
        return None
    tables = sides.tables(state)
    class_weight = loss._weight_of_classes(state, logits)
    offset = None if rule.offset is None else rule.offset(state)
    weight = None if sample_weight is None else sigmoid_weight(sample_weight, logits, bool(loss.validate))
    numerator, denominator = _scaling(loss, normalizer)
    if not _all_on(logits.device, *tables, offset, class_weight, denominator):
        return None
    mean = loss.reduction == "mean" and normalizer is None
    if mean and loss.process_group is not None:
        denominator = distributed.total(_labels_that_count(logits, target, loss.ignore_index), loss.process_group)
    pricing = kernel.SigmoidPricing(
        labels, sides.present.code, sides.absent.code if sides.absent else "", tables, loss.ignore_index, numerator, mean, _vector(offset),
        _vector(class_weight), None if weight is None else weight.expand(logits.shape), denominator,
        flags(loss, logits),
    )  # fmt: skip
    label = target.long() if labels == kernel.INDEX else target
    call = _Call(loss, kernel, pricing, logits, label, tuple(logits.shape))
    call.given, call.weight, call.normalizer = target, weight, normalizer
    return call


def _kind_of_labels(rule: Rule, logits: Tensor, target: Tensor, kernel: Any) -> int | None:
    if rule.index_targets:
        shape = (logits.shape[0], *logits.shape[2:])
        fits = logits.dim() > 1 and target.shape == shape and target.dtype in INTEGERS
        return kernel.INDEX if fits else None
    if target.shape != logits.shape or target.dtype not in kernel.LABELS:
        return None
    if not target.is_floating_point():
        return kernel.HARD
    return {"own": kernel.OWN, "refused": kernel.HARD}.get(rule.soft, kernel.SOFT)


def _labels_that_count(logits: Tensor, target: Tensor, ignored: int) -> Tensor:
    kept = target != ignored if target.dtype != torch.bool else torch.ones_like(target)
    return kept.sum().double() * (logits.numel() // max(1, target.numel()))


def traced_sigmoid(rule: Rule, state: State, dtype: torch.dtype, own: bool, shape: tuple[int, ...]) -> _Sides | str:
    """A sigmoid rule in C, once with every label present and once absent, or why there is none."""
    needs = rule.soft_needs if own else rule.needs
    if not set(needs) <= {"log_odds", "log_p", "log_miss"}:
        return "it needs sums over a row's labels"
    fields = {name: Field(torch.float32, f"fields.{name}", f"slopes.{name}") for name in needs}
    if own:
        fields["soft_target"] = Field(torch.float32, "fields.share")
    cost = partial(_soft_cost if own else _sigmoid_cost, rule=rule, dtype=dtype)
    common = {"shape": shape, "class_code": "spot.k"}
    present = trace(partial(cost, present=True), fields, state, **common)
    if isinstance(present, str):
        return present
    if own:
        return _Sides(present, None)
    absent = trace(partial(cost, present=False), fields, state, first_table=len(present.tables_of.tables), **common)
    return absent if isinstance(absent, str) else _Sides(present, absent)


def _sigmoid_cost(numbers: dict[str, Tensor], state: State, *, rule: Rule, dtype: torch.dtype, present: bool) -> Tensor:
    shape = next(iter(numbers.values())).shape
    positive = torch.full(shape, present, dtype=torch.bool)
    return rule.cost(Evidence(**numbers, positive=positive, gradient_type=dtype), state)


def _soft_cost(numbers: dict[str, Tensor], state: State, *, rule: Rule, dtype: torch.dtype, present: bool) -> Tensor:
    shape = next(iter(numbers.values())).shape
    positive = torch.full(shape, present, dtype=torch.bool)
    return rule.soft_cost(Evidence(**numbers, positive=positive, gradient_type=dtype), state)


# ---------------------------------------------------------------------------- traced once


_known: dict[int, tuple[Any, dict[Any, Any]]] = {}


def _remembered(rule: Rule, key: tuple[Any, ...], make: Callable[..., Any]) -> Any:
    """What `make(*key)` gave for this rule before; forgotten with the rule."""
    number = id(rule)
    if number not in _known:
        _known[number] = (weakref.ref(rule, lambda _: _known.pop(number, None)), {})
    found = _known[number][1]
    if key not in found:
        found[key] = make(*key)
    return found[key]
