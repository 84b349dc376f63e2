"""From a rule to a few lines of C: its cost and derivatives, traced once, for a kernel to price decisions in registers.

A pointwise rule is an elementwise graph on a few numbers a decision, and so is its derivative. `trace` runs the rule
and autograd once on a handful of made-up decisions, writes down every operation that PyTorch carries out, and sorts
the operations into three kinds:

- *fixed*: no decision and no state goes in (a constant). It becomes a number in the code.
- *shared*: only the rule's state goes in (`edges[1:-1]`, `class_counts.log()`). PyTorch computes it before each launch
  and hands it to the kernel as a table; what is looked up by an index (a gamma by its bin, an alpha by its class) is
  read there.
- *own*: a decision's numbers go in. `_c_code` writes one line of C for each.

What this does not know (sums over the batch, matrices, a look at values) ends the attempt: `trace` returns the
reason in words, and the caller takes the plain form, which is always right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as held
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

ATEN = torch.ops.aten


def _log_sigmoid(x: Tensor) -> tuple[Tensor, Tensor]:
    small = torch.exp(-x.abs())
    return x.clamp(max=0.0) - torch.log1p(small), small


def _log_sigmoid_backward(gradient: Tensor, x: Tensor, small: Tensor) -> Tensor:
    small = torch.exp(-x.abs())
    return gradient * torch.where(x < 0, 1.0 / (1.0 + small), small / (1.0 + small))


def _softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    scaled = x * beta
    smooth = (scaled.clamp(min=0.0) + torch.log1p(torch.exp(-scaled.abs()))) / beta
    return torch.where(scaled > threshold, x, smooth)


def _softplus_backward(gradient: Tensor, x: Tensor, beta: float, threshold: float) -> Tensor:
    scaled = x * beta
    return torch.where(scaled > threshold, gradient, gradient * torch.sigmoid(scaled))


def _sigmoid_backward(gradient: Tensor, y: Tensor) -> Tensor:
    return gradient * (y * (1.0 - y))


def _tanh_backward(gradient: Tensor, y: Tensor) -> Tensor:
    return gradient * (1.0 - y * y)


def _threshold_backward(gradient: Tensor, x: Tensor, threshold: float) -> Tensor:
    return torch.where(x <= threshold, 0.0, gradient)


# Written down in simpler operations; the rarer ones as PyTorch itself explains them, which takes it seconds to import.
COMPOUND: dict[Any, Callable[..., Any]] = {
    ATEN.log_sigmoid_forward.default: _log_sigmoid,
    ATEN.log_sigmoid_backward.default: _log_sigmoid_backward,
    ATEN.softplus.default: _softplus,
    ATEN.softplus_backward.default: _softplus_backward,
    ATEN.sigmoid_backward.default: _sigmoid_backward,
    ATEN.tanh_backward.default: _tanh_backward,
    ATEN.threshold_backward.default: _threshold_backward,
}
RARE = [ATEN.threshold, ATEN.logit, ATEN.logit_backward, ATEN.xlogy, ATEN.lerp, ATEN.addcmul, ATEN.addcdiv]
RARE += [ATEN.hardtanh, ATEN.hardtanh_backward, ATEN.elu, ATEN.elu_backward, ATEN.silu, ATEN.silu_backward, ATEN.rsub]

# Only the shape of their argument matters.
FILLED = (ATEN.ones_like, ATEN.zeros_like, ATEN.full_like, ATEN.new_zeros, ATEN.new_ones, ATEN.new_full)


class Untraceable(Exception):
    """This rule takes the plain form; the message says why."""


@dataclass(frozen=True)
class Field:
    """A number of each decision: its C expression, and where the cost's derivative for it goes."""

    dtype: torch.dtype
    code: str
    slope: str | None = None


@dataclass(eq=False)
class Step:
    """One operation that was carried out; arguments that are tensors are the steps they came from."""

    function: Any  # an operator of PyTorch; None: given from outside
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    value: Tensor  # what came out
    kind: str  # "fixed", "shared" or "own"

    @property
    def packet(self) -> Any:
        """The operator without its overload."""
        return self.function.overloadpacket


@dataclass
class Record:
    """What happened, in order."""

    steps: list[Step] = held(default_factory=list)
    fields: list[Step] = held(default_factory=list)
    state: list[Step] = held(default_factory=list)
    cost: Step | None = None
    slopes: list[Step | None] = held(default_factory=list)


@dataclass(frozen=True)
class Traced:
    """Lines of C that set `cost` and the slopes, and the tables they read."""

    code: str
    tables_of: Tables

    def tables(self, state: Mapping[str, Tensor]) -> list[Tensor]:
        """The tables for the state as it is now."""
        if not self.tables_of.tables:
            return []
        with torch.no_grad():
            return [table.contiguous() for table in self.tables_of.read(list(state.values()))]

    def steady(self, tables: Sequence[Tensor], state: Mapping[str, Tensor]) -> bool:
        """Are these tables parts of the state itself, so that they hold what it holds from now on?"""
        places = {value.untyped_storage().data_ptr() for value in state.values()}
        return all(table.untyped_storage().data_ptr() in places for table in tables)


def trace(
    cost_of: Callable[[dict[str, Tensor], dict[str, Tensor]], Tensor],
    fields: Mapping[str, Field],
    state: Mapping[str, Tensor],
    *,
    shape: tuple[int, ...],
    class_code: str = "0",
    first_table: int = 0,
) -> Traced | str:
    """The rule as C, or the reason why not. `shape` is that of one field; its second dimension is the class."""
    from ._c_code import Writer

    try:
        record = _record(cost_of, fields, state, shape)
        writer = Writer(record, fields, shape, class_code, first_table)
        code = writer.written()
        return Traced(code, Tables(record, writer.tables))
    except Untraceable as reason:
        return str(reason)
    except Exception as error:  # whatever a user's rule does, its plain form will say it better
        return f"{type(error).__name__}: {error}".splitlines()[0]


def _record(cost_of: Any, fields: Mapping[str, Field], state: Any, shape: tuple[int, ...]) -> Record:
    """The rule and its derivative for every field that wants one, on numbers nobody looks at."""
    recorder = _Recorder()
    record = recorder.record
    leaves = {name: torch.ones(shape, dtype=field.dtype) for name, field in fields.items()}
    tensors = {name: torch.ones(tensor.shape, dtype=tensor.dtype) for name, tensor in state.items()}
    record.fields = [recorder.given(leaf, "own") for leaf in leaves.values()]
    record.state = [recorder.given(tensor, "shared") for tensor in tensors.values()]
    wanted = [leaves[name].requires_grad_() for name, field in fields.items() if field.slope]
    with torch.enable_grad(), recorder:
        cost = cost_of(dict(leaves), tensors)
        if tuple(cost.shape) != shape:
            raise Untraceable(f"a cost of shape {tuple(cost.shape)}")
        slopes: Sequence[Tensor | None] = [None] * len(wanted)
        if cost.requires_grad:
            slopes = torch.autograd.grad(cost.sum(), wanted, allow_unused=True)
    record.cost = recorder.step_for(cost)
    record.slopes = [recorder.step_for(slope) for slope in slopes]
    return record


class _Recorder(TorchDispatchMode):
    """Writes down what PyTorch does, below autograd, so that derivatives are seen as well."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here; importing the compiler to say so takes seconds

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)
        self.record = Record()
        self.step_of: dict[int, Step] = {}

    def given(self, value: Tensor, kind: str) -> Step:
        """A tensor from outside."""
        return self._noted(Step(None, (), {}, value, kind))

    def step_for(self, value: Any) -> Any:
        """Where a tensor came from; anything else as it is."""
        if not isinstance(value, Tensor):
            return value
        return self.step_of[id(value)] if id(value) in self.step_of else self.given(value, "fixed")

    def _noted(self, step: Step) -> Step:
        self.step_of[id(step.value)] = step
        self.record.steps.append(step)  # which also keeps the tensor, so that its id stays its own
        return step

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self:
            if function in COMPOUND:
                return COMPOUND[function](*args, **kwargs)
            if function.overloadpacket in RARE:
                return torch._decomp.get_decompositions([function])[function](*args, **kwargs)  # type: ignore[attr-defined]
            made = function.decompose(*args, **kwargs)
        if made is not NotImplemented:
            return made
        arguments, options = tree_map(self.step_for, args), tree_map(self.step_for, kwargs)
        made = function(*args, **kwargs)
        if not isinstance(made, Tensor) or torch.Tag.nondeterministic_seeded in function.tags:
            raise Untraceable(f"the operation {function}")
        if function._schema.is_mutable:  # the result takes the place of what it was written over
            function = getattr(ATEN, function.overloadpacket.__name__.removesuffix("_")).default
        if function.overloadpacket in FILLED:
            kind = "fixed"
        else:
            kinds = {entry.kind for entry in flat((arguments, options)) if isinstance(entry, Step)}
            kind = next((kind for kind in ("own", "shared") if kind in kinds), "fixed")
        self._noted(Step(function, arguments, options, made, kind))
        return made


def flat(value: Any) -> list[Any]:
    """The leaves of nested arguments."""
    if isinstance(value, list | tuple):
        return [leaf for entry in value for leaf in flat(entry)]
    return flat(list(value.values())) if isinstance(value, dict) else [value]


def reaching(ends: Sequence[Step | None]) -> set[Step]:
    """The steps that these depend on, themselves included."""
    found: set[Step] = set()
    waiting = [end for end in ends if end is not None]
    while waiting:
        step = waiting.pop()
        if step not in found:
            found.add(step)
            if step.kind != "fixed":  # whose value is known
                waiting += [entry for entry in flat((step.arguments, step.options)) if isinstance(entry, Step)]
    return found


class Tables:
    """Carries out the steps between state and tables again, on the state as it is now."""

    def __init__(self, record: Record, tables: list[Step]) -> None:
        needed = reaching(tables)
        self.state, self.tables = record.state, tables
        self.steps = [step for step in record.steps if step in needed and step.kind == "shared" and step.function]
        self.fixed = [step for step in record.steps if step in needed and step.kind == "fixed"]
        self.moved: dict[torch.device, dict[Step, Tensor]] = {}  # constants, taken to a device once

    def read(self, state: Sequence[Tensor]) -> list[Tensor]:
        """The tables; only views and small vectors are made."""
        device = state[0].device
        if device not in self.moved:
            self.moved[device] = {step: _at(step.value, device) for step in self.fixed}
        known = {**self.moved[device], **dict(zip(self.state, state, strict=True))}

        def now(argument: Any) -> Any:
            if isinstance(argument, Step):
                return known[argument]
            return device if isinstance(argument, torch.device) else argument

        for step in self.steps:
            known[step] = step.function(*tree_map(now, step.arguments), **tree_map(now, step.options))
        return [known[step] for step in self.tables]


def _at(value: Tensor, device: torch.device) -> Tensor:
    """Single numbers stay on the host, where every operator takes them."""
    return value.to(device) if value.dim() else value
