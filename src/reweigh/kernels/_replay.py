"""Arithmetic on blocks: recorded once, repeated without autograd, without unused steps and without new memory.

What happens to a first block is written down as a list of PyTorch's operators, those of the backward pass
included. Later blocks of the same shape repeat the list and write into a few buffers, which stay in the
cache. Only what depends on shapes alone is repeated: a function that looks at values runs as it is written,
and no list is trusted before it has reproduced a second block bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

WORTHWHILE = 4  # blocks from which recording pays

# What else than the operators that PyTorch calls pointwise depends on shapes alone. Views share their input's memory.
ALSO_POINTWISE = {"hardtanh_backward", "softplus_backward"}
VIEWS = {"alias", "detach", "expand", "permute", "select", "slice", "squeeze", "transpose", "unsqueeze", "view"}
PLAIN = {
    "_to_copy", "amax", "bucketize", "clone", "empty_like", "full_like", "gather",
    "ones_like", "scalar_tensor", "searchsorted", "sum", "take", "zeros_like",
}  # fmt: skip
PLAIN_IN_PLACE = {"copy_", "fill_", "zero_"}

ATEN = torch.ops.aten
WITH_SCALAR = {
    ATEN.add.Scalar: ATEN.add.Tensor,
    ATEN.div.Scalar: ATEN.div.Tensor,
    ATEN.mul.Scalar: ATEN.mul.Tensor,
    ATEN.sub.Scalar: ATEN.sub.Tensor,
}

Results = tuple[Tensor, ...]


class _Form(NamedTuple):
    """What blocks must share to be treated alike."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def _form(tensor: Tensor) -> _Form:
    return _Form(tensor.dtype, tuple(tensor.shape), tensor.stride())


def _memory(form: _Form) -> Tensor:
    return torch.empty_strided(form.shape, form.stride, dtype=form.dtype)


class _Slot(NamedTuple):
    """Stands for a tensor that differs from block to block."""

    number: int


@dataclass
class _Step:
    """One operator; a pointwise one writes into a buffer, the last result into memory given with the block."""

    operator: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    nature: str
    slot: int  # of the result
    form: _Form
    buffer: Tensor | None = None
    given: bool = False
    written: str = ""  # the name of the operator's argument for memory

    def reads(self) -> list[int]:
        """The slots it reads."""
        return [one.number for one in self.arguments if isinstance(one, _Slot)]


# ---------------------------------------------------------------------------- recording


class _Recorder(TorchDispatchMode):
    """Sees every operator below autograd. What came out stays alive here, so that no address is used twice."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here; importing the compiler to say so takes seconds

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)
        self.seen: list[tuple[Any, tuple, dict, Any]] = []

    def __torch_dispatch__(self, operator: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        options = options or {}
        result = operator(*arguments, **options)
        self.seen.append((operator, arguments, options, result))
        return result


@cache
def _nature(operator: Any) -> str:
    """ "pointwise", "in place", "view", "plain", or "" for what cannot be repeated."""
    name = operator._schema.name.removeprefix("aten::")
    pointwise = torch.Tag.pointwise in operator.tags or name in ALSO_POINTWISE
    if operator._schema.is_mutable:
        return "in place" if name in PLAIN_IN_PLACE or (pointwise and name.endswith("_")) else ""
    if name in VIEWS:
        return "view"
    if pointwise and _writing(operator) is not None:
        return "pointwise"
    return "plain" if pointwise or name in PLAIN else ""


@cache
def _writing(operator: Any) -> tuple[Any, str] | None:
    """The form of an operator that writes into given memory, and the name of that argument."""
    own = [(argument.name, str(argument.type)) for argument in operator._schema.arguments]
    for name in operator.overloadpacket.overloads():
        other = getattr(operator.overloadpacket, name)
        written = [argument.name for argument in other._schema.arguments if argument.is_out]
        if len(written) == 1 and own == [(a.name, str(a.type)) for a in other._schema.arguments if not a.is_out]:
            return other, written[0]
    return None


class _Slots:
    """Numbers tensors by their memory: autograd hands saved ones back as new objects."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[int, _Form], int] = {}

    def of(self, tensor: Tensor) -> int:
        """The tensor's number, a new one if it has none."""
        return self.numbers.setdefault((tensor.data_ptr(), _form(tensor)), len(self.numbers))

    def argument(self, value: Any) -> Any:
        """A slot for what the block brought or an operator made; constants stay themselves."""
        if not isinstance(value, Tensor):
            return value
        number = self.numbers.get((value.data_ptr(), _form(value)))
        return value if number is None else _Slot(number)


def _plainer(operator: Any, arguments: tuple) -> tuple[Any, tuple]:
    """The same operation in a form whose writing into memory is no detour."""
    if operator in WITH_SCALAR:
        return WITH_SCALAR[operator], arguments
    if operator is ATEN.rsub.Scalar and len(arguments) == 2:
        tensor, number = arguments
        return ATEN.sub.Tensor, (torch.tensor(number, dtype=tensor.dtype), tensor)
    return operator, arguments


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, (list, tuple)) and any(map(_holds_tensors, value)))


def _listed(seen: Sequence[tuple[Any, tuple, dict, Any]], slots: _Slots) -> list[_Step] | None:
    """The steps in order, or None if one of them cannot be repeated."""
    steps = []
    for operator, arguments, options, result in seen:
        operator, arguments = _plainer(operator, arguments)
        nature = _nature(operator)
        hidden = any(_holds_tensors(value) for value in options.values())
        hidden = hidden or any(_holds_tensors(one) for one in arguments if not isinstance(one, Tensor))
        if not nature or hidden or not isinstance(result, Tensor):
            return None
        found = tuple(slots.argument(value) for value in arguments)
        steps.append(_Step(operator, found, options, nature, slots.of(result), _form(result)))
    return steps


# ---------------------------------------------------------------------------- repeating


class Program:
    """A recorded function of blocks; call it with other blocks of the same forms."""

    def __init__(self, steps: list[_Step], inputs: list[int], outputs: list[int]) -> None:
        self.inputs, self.outputs = inputs, outputs
        self.memory_of: dict[int, int] = {}  # a view's slot: the slot whose memory it shares
        for step in steps:
            source = step.reads()[:1]
            if step.nature == "view" and source and source[0] != step.slot:
                self.memory_of[step.slot] = self._memory(source[0])
        self.steps = self._needed(steps)
        self._give_buffers()

    def __call__(self, *blocks: Tensor, into: Tensor | None) -> Results:
        """The function's results; the last one in `into`, if an operator could write it there."""
        tensors = dict(zip(self.inputs, blocks, strict=True))
        for step in self.steps:
            found = [tensors[one.number] if type(one) is _Slot else one for one in step.arguments]
            if step.written:
                memory = into if step.given and into is not None else step.buffer
                tensors[step.slot] = step.operator(*found, **step.options, **{step.written: memory})
            else:
                tensors[step.slot] = step.operator(*found, **step.options)
        return tuple(tensors[number] for number in self.outputs)

    def _memory(self, slot: int) -> int:
        return self.memory_of.get(slot, slot)

    def _touches(self, step: _Step) -> set[int]:
        return {self._memory(slot) for slot in (step.slot, *step.reads())}

    def _needed(self, steps: list[_Step]) -> list[_Step]:
        """Without the steps that no result depends on."""
        wanted, kept = {self._memory(slot) for slot in self.outputs}, []
        for step in reversed(steps):
            if self._memory(step.slot) in wanted:
                wanted |= self._touches(step)
                kept.append(step)
        return kept[::-1]

    def _give_buffers(self) -> None:
        """Every pointwise step gets memory that nobody reads any more, often that of its own argument."""
        last = {slot: place for place, step in enumerate(self.steps) for slot in self._touches(step)}
        last.update({self._memory(slot): len(self.steps) for slot in (*self.inputs, *self.outputs)})
        free: dict[_Form, list[Tensor]] = {}
        held: dict[int, Tensor] = {}  # the buffer that a slot's memory is
        for place, step in enumerate(self.steps):
            ending = [slot for slot in self._touches(step) if last[slot] == place]
            if step.nature == "pointwise" and self._memory(step.slot) not in self.inputs:
                # An element is read before it is written, so a result may take the place of an argument.
                for slot in ending:
                    if slot in held:
                        free.setdefault(_form(held[slot]), []).append(held.pop(slot))
                step.operator, step.written = _writing(step.operator)  # type: ignore
                step.given = step.slot == self.outputs[-1]
                spare = None if step.given else free.get(step.form)
                step.buffer = spare.pop() if spare else _memory(step.form)
                if not step.given:
                    held[self._memory(step.slot)] = step.buffer
            for slot in ending:
                if slot in held:
                    free.setdefault(_form(held[slot]), []).append(held.pop(slot))


def record(function: Callable[..., Results], *blocks: Tensor) -> tuple[Results, Program | None]:
    """The function's results, and the program that repeats it (None: it cannot be repeated)."""
    if _get_current_dispatch_mode() is not None:  # somebody else is watching the operators
        return function(*blocks), None
    recorder, slots = _Recorder(), _Slots()
    inputs = [slots.of(block) for block in blocks]
    with recorder:
        results = function(*blocks)
    steps = _listed(recorder.seen, slots)
    outputs = [slots.argument(result) for result in results]
    if steps is None or len(set(inputs)) < len(inputs) or not all(isinstance(one, _Slot) for one in outputs):
        return results, None
    return results, Program(steps, inputs, [one.number for one in outputs])


class Repeated:
    """A function of blocks: recorded on the first, compared on the second, repeated on the others of that form.

    Kept for a later call (`begin`), it is compared again on that call's first block.
    """

    def __init__(self) -> None:
        self.function: Callable[..., Results] | None = None
        self.stage = "new"
        self.forms: list[_Form] = []
        self.program: Program | None = None

    def begin(self, function: Callable[..., Results], *, blocks: int) -> Repeated:
        """A new call, of so many blocks, with the function as it now is."""
        self.function = function
        if self.program is not None:
            self.stage = "recorded"
        elif self.stage == "new" and blocks < WORTHWHILE:
            self.stage = "as written"
        return self

    def __call__(self, *blocks: Tensor, into: Tensor | None) -> Results:
        """The results for these blocks; the last one may be `into`."""
        assert self.function is not None
        forms = [_form(block) for block in blocks]
        if self.stage == "new":
            results, self.program = record(self.function, *blocks)
            self.stage, self.forms = "as written" if self.program is None else "recorded", forms
            return results
        if self.program is None or forms != self.forms:
            return self.function(*blocks)
        if self.stage == "proved":
            return self.program(*blocks, into=into)
        results = self.function(*blocks)
        again = self.program(*blocks, into=into)
        if all(torch.equal(one, two) for one, two in zip(results, again, strict=True)):
            self.stage = "proved"
        else:
            self.stage, self.program = "as written", None
        return results


class Programs:
    """What was recorded in earlier calls of a loss. A program is taken out while in use: calls may overlap."""

    MOST = 8

    def __init__(self) -> None:
        self.kept: dict[Any, Repeated] = {}

    def take(self, key: Any, function: Callable[..., Results], *, blocks: int) -> Repeated:
        """The recording of that key, or a new one, ready for a call."""
        return self.kept.pop(key, Repeated()).begin(function, blocks=blocks)

    def put(self, key: Any, repeated: Repeated) -> None:
        """Keep a recording for later calls, with its buffers."""
        repeated.function = None  # which holds on to this call's tensors
        if repeated.program is not None:
            if len(self.kept) >= self.MOST:
                self.kept.clear()
            self.kept[key] = repeated
