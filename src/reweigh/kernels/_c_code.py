"""The operations of a pointwise rule, as C: one line each, in the types that PyTorch computes in.

Comparisons and choices are written so that what is not a number stays so. Functions are those of CUDA's library
(right to the last place or two), never the fast approximations: a rule is priced once a decision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ._tracing import ATEN, Field, Record, Step, Untraceable, reaching

C_TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int64: "i64",
    torch.int32: "int",
    torch.bool: "bool",
}
MOST_TABLES = 16

# {0} and {1} are the arguments, {f} the suffix of C's functions on float.
FUNCTIONS = {
    ATEN.neg: "-{0}",
    ATEN.exp: "exp{f}({0})",
    ATEN.exp2: "exp2{f}({0})",
    ATEN.expm1: "expm1{f}({0})",
    ATEN.log: "log{f}({0})",
    ATEN.log1p: "log1p{f}({0})",
    ATEN.log2: "log2{f}({0})",
    ATEN.abs: "fabs{f}({0})",
    ATEN.sqrt: "sqrt{f}({0})",
    ATEN.rsqrt: "1 / sqrt{f}({0})",
    ATEN.reciprocal: "1 / {0}",
    ATEN.sigmoid: "1 / (1 + exp{f}(-{0}))",
    ATEN.tanh: "tanh{f}({0})",
    ATEN.erf: "erf{f}({0})",
    ATEN.sin: "sin{f}({0})",
    ATEN.cos: "cos{f}({0})",
    ATEN.atan: "atan{f}({0})",
    ATEN.floor: "floor{f}({0})",
    ATEN.ceil: "ceil{f}({0})",
    ATEN.round: "rint{f}({0})",
    ATEN.trunc: "trunc{f}({0})",
    ATEN.lgamma: "lgamma{f}({0})",
    ATEN.sign: "({0} > 0) - ({0} < 0)",
    ATEN.sgn: "({0} > 0) - ({0} < 0)",
    ATEN.relu: "{0} < 0 ? 0 : {0}",
    ATEN.square: "{0} * {0}",
    ATEN.add: "{0} + {1}",
    ATEN.sub: "{0} - {1}",
    ATEN.mul: "{0} * {1}",
    ATEN.div: "{0} / {1}",
    ATEN.maximum: "{0} != {0} || {0} > {1} ? {0} : {1}",
    ATEN.minimum: "{0} != {0} || {0} < {1} ? {0} : {1}",
    ATEN.clamp_min: "{0} < {1} ? {1} : {0}",
    ATEN.clamp_max: "{0} > {1} ? {1} : {0}",
    ATEN.bitwise_and: "{0} & {1}",
    ATEN.bitwise_or: "{0} | {1}",
    ATEN.bitwise_xor: "{0} ^ {1}",
}
# Their arguments are compared in a common type, the result is true or false.
QUESTIONS = {
    ATEN.gt: "{0} > {1}",
    ATEN.ge: "{0} >= {1}",
    ATEN.lt: "{0} < {1}",
    ATEN.le: "{0} <= {1}",
    ATEN.eq: "{0} == {1}",
    ATEN.ne: "{0} != {1}",
    ATEN.logical_and: "{0} && {1}",
    ATEN.logical_or: "{0} || {1}",
    ATEN.logical_xor: "bool({0}) != bool({1})",
    ATEN.logical_not: "!{0}",
    ATEN.isnan: "{0} != {0}",
    ATEN.isinf: "{0} == INFINITE || {0} == -INFINITE",
}
SAME_NUMBERS = (ATEN.detach, ATEN.alias, ATEN.clone, ATEN.lift_fresh_copy, ATEN.lift_fresh, ATEN.contiguous)
SAME_PLACES = (ATEN.view, ATEN._unsafe_view, ATEN.reshape, ATEN.unsqueeze, ATEN.squeeze, ATEN.expand)


class Writer:
    """Goes through what happened, from the first operation to the last, and writes the decisions' own."""

    def __init__(
        self,
        record: Record,
        fields: Mapping[str, Field],
        shape: tuple[int, ...],
        class_code: str,
        first_table: int,
    ) -> None:
        self.record, self.fields, self.shape, self.class_code = record, list(fields.values()), shape, class_code
        self.first_table = first_table
        self.variable: dict[Step, str] = {}
        self.tables: list[Step] = []
        self.lines: list[str] = []

    def written(self) -> str:
        """Everything that cost and slopes depend on."""
        for step, field in zip(self.record.fields, self.fields, strict=True):
            self.variable[step] = field.code
        needed = reaching([self.record.cost, *self.record.slopes])
        for step in self.record.steps:
            if step in needed and step.kind == "own" and step not in self.variable:
                self._write(step)
        self.lines.append(f"cost = {self._value(self.record.cost, torch.float32)};")
        targets = [field.slope for field in self.fields if field.slope]
        for target, slope in zip(targets, self.record.slopes, strict=True):
            if slope is not None:
                self.lines.append(f"{target} = {self._value(slope, torch.float32)};")
        return "\n    ".join(self.lines)

    def _write(self, step: Step) -> None:
        made = step.value
        if made.dtype not in C_TYPES:
            raise Untraceable(f"numbers of type {made.dtype} ({step.packet})")
        if made.numel() != math.prod(self.shape) or (len(self.shape) > 1 and tuple(made.shape) != self.shape):
            raise Untraceable(f"{step.packet} does not give one number a decision")
        if step.packet in (*SAME_NUMBERS, *SAME_PLACES):
            self.variable[step] = self.variable[step.arguments[0]]
            return
        name = f"v{len(self.lines)}"
        self.lines.append(f"const {C_TYPES[made.dtype]} {name} = {self._expression(step, made.dtype)};")
        self.variable[step] = name

    # ------------------------------------------------------------ operations

    def _expression(self, step: Step, dtype: torch.dtype) -> str:
        f, packet, arguments = "f" if dtype == torch.float32 else "", step.packet, step.arguments
        if packet is ATEN._to_copy or "convert_element_type" in str(packet):
            return self._value(arguments[0], dtype)
        if packet in FUNCTIONS and set(step.options) <= {"alpha"}:
            values = [self._value(argument, dtype) for argument in arguments]
            if "alpha" in step.options:
                values[1] = f"({_literal(step.options['alpha'], dtype)} * {values[1]})"
            return FUNCTIONS[packet].format(*values, f=f)
        if packet in QUESTIONS:
            common = self._common(arguments)
            return QUESTIONS[packet].format(*(self._value(argument, common) for argument in arguments))
        name = packet.__name__
        if name not in OTHERS:
            raise Untraceable(f"the operation {packet}")
        return getattr(self, f"_{name}")(step, dtype, f)

    def _where(self, step: Step, dtype: torch.dtype, f: str) -> str:
        condition, yes, no = step.arguments
        if condition.kind == "fixed":
            return self._value(yes if _one_number(condition.value) else no, dtype)
        return f"{self._value(condition, torch.bool)} ? {self._value(yes, dtype)} : {self._value(no, dtype)}"

    def _masked_fill(self, step: Step, dtype: torch.dtype, f: str) -> str:
        values, mask, filling = step.arguments
        return f"{self._value(mask, torch.bool)} ? {self._value(filling, dtype)} : {self._value(values, dtype)}"

    def _clamp(self, step: Step, dtype: torch.dtype, f: str) -> str:
        bounds = dict(zip(("min", "max"), step.arguments[1:], strict=False)) | step.options
        code = self._value(step.arguments[0], dtype)
        for word, sign in (("min", "<"), ("max", ">")):
            if bounds.get(word) is not None:
                bound = self._value(bounds[word], dtype)
                code = f"({code} {sign} {bound} ? {bound} : {code})"
        return code

    def _pow(self, step: Step, dtype: torch.dtype, f: str) -> str:
        base, exponent = (self._value(argument, dtype) for argument in step.arguments)
        if not isinstance(step.arguments[1], Step) and step.arguments[1] in (2, 3):
            return " * ".join([base] * int(step.arguments[1]))
        return f"pow{f}({base}, {exponent})"

    def _bitwise_not(self, step: Step, dtype: torch.dtype, f: str) -> str:
        return f"{'!' if dtype == torch.bool else '~'}{self._value(step.arguments[0], dtype)}"

    def _logaddexp(self, step: Step, dtype: torch.dtype, f: str) -> str:
        a, b = (self._value(argument, dtype) for argument in step.arguments)
        apart = f"({a} == {b} ? 0 : fabs{f}({a} - {b}))"  # equal infinities have no distance
        return f"({a} > {b} ? {a} : {b}) + log1p{f}(exp{f}(-{apart}))"

    # ------------------------------------------------------------ tables

    def _index(self, step: Step, dtype: torch.dtype, f: str) -> str:
        return self._looked_up(step.arguments[0], list(step.arguments[1]), dtype)

    def _gather(self, step: Step, dtype: torch.dtype, f: str) -> str:
        return self._looked_up(step.arguments[0], [step.arguments[2]], dtype)

    def _take(self, step: Step, dtype: torch.dtype, f: str) -> str:
        return self._looked_up(step.arguments[0], [step.arguments[1]], dtype)

    def _index_select(self, step: Step, dtype: torch.dtype, f: str) -> str:
        return self._looked_up(step.arguments[0], [step.arguments[2]], dtype)

    def _looked_up(self, table: Step, places: list[Any], dtype: torch.dtype) -> str:
        if table.kind != "shared" or table.value.dim() != len(places) or None in places:
            raise Untraceable("a look-up in something that is not the rule's state")
        if any(place.value.dtype not in (torch.int64, torch.int32) for place in places):
            raise Untraceable("a look-up by something that is no index")
        code = "0"
        for length, place in zip(table.value.shape, places, strict=True):
            index = self._value(place, torch.int64)
            code = f"({code}) * {length} + ({index} < 0 ? {index} + {length} : {index})"
        return f"{self._table(table)}[{code}]"

    def _bucketize(self, step: Step, dtype: torch.dtype, f: str) -> str:
        return self._bin(step.arguments[0], step.arguments[1], step.options)

    def _searchsorted(self, step: Step, dtype: torch.dtype, f: str) -> str:
        return self._bin(step.arguments[1], step.arguments[0], step.options)

    def _bin(self, value: Any, edges: Step, options: Mapping[str, Any]) -> str:
        if edges.kind != "shared" or edges.value.dim() != 1 or not isinstance(value, Step):
            raise Untraceable("bins whose edges are not the rule's state")
        if options.get("sorter") is not None:
            raise Untraceable("bins in an unusual order")
        right = bool(options.get("right")) or options.get("side") == "right"
        code = self._value(value, edges.value.dtype)
        return f"bin_of({self._table(edges)}, {len(edges.value)}, {code}, {'true' if right else 'false'})"

    def _table(self, step: Step) -> str:
        if step.value.dtype not in C_TYPES:
            raise Untraceable(f"a table of type {step.value.dtype}")
        if step not in self.tables:
            self.tables.append(step)
        place = self.first_table + self.tables.index(step)
        if place >= MOST_TABLES:
            raise Untraceable("more tables than a kernel takes")
        return f"((const {C_TYPES[step.value.dtype]}*)call.table[{place}])"

    # ------------------------------------------------------------ values

    def _value(self, argument: Any, dtype: torch.dtype) -> str:
        """The argument as a C expression of this type."""
        if not isinstance(argument, Step):
            return _literal(argument, dtype)
        if argument.kind == "fixed":
            return _literal(_one_number(argument.value), dtype)
        if argument.kind == "own":
            name = self.variable[argument]
            return name if argument.value.dtype == dtype else f"({C_TYPES[dtype]})({name})"
        return f"({C_TYPES[dtype]}){self._table(argument)}[{self._place(argument.value)}]"

    def _place(self, table: Tensor) -> str:
        """Which entry of a broadcast table a decision sees."""
        if table.numel() == 1:
            return "0"
        padded = (1,) * (len(self.shape) - table.dim()) + tuple(table.shape)
        if len(self.shape) < 2 or padded != (1, self.shape[1], *[1] * (len(self.shape) - 2)):
            raise Untraceable(f"a table of shape {tuple(table.shape)} beside decisions of shape {self.shape}")
        return self.class_code

    def _common(self, arguments: Sequence[Any]) -> torch.dtype:
        """The type in which these are compared."""
        values = [argument.value if isinstance(argument, Step) else argument for argument in arguments]
        dtype = values[0].dtype if len(values) == 1 else torch.result_type(*values)
        if dtype not in C_TYPES:
            raise Untraceable(f"numbers of type {dtype}")
        return dtype


OTHERS = {
    name.removeprefix("_")
    for name in ("_where", "_masked_fill", "_clamp", "_pow", "_bitwise_not", "_logaddexp", "_index", "_gather")
} | {"index_select", "take", "bucketize", "searchsorted"}


def _literal(value: Any, dtype: torch.dtype) -> str:
    if not isinstance(value, bool | int | float):
        raise Untraceable(f"a setting of type {type(value).__name__}")
    kind = C_TYPES[dtype]
    if dtype == torch.bool:
        return "true" if value else "false"
    if not dtype.is_floating_point:
        return f"({kind}){int(value)}ll"
    if math.isnan(value):
        return f"({kind})NOT_A_NUMBER"
    if math.isinf(value):
        return f"({kind})({'-' if value < 0 else ''}INFINITE)"
    return f"({kind})({float(value)!r})"


def _one_number(tensor: Tensor) -> Any:
    """The number that a constant tensor holds everywhere."""
    values = tensor.detach().cpu().reshape(-1)
    if values.numel() == 0 or not bool(((values == values[0]) | values.isnan()).all()):
        raise Untraceable("a constant tensor of different numbers")
    return values[0].item()
