"""Launching `softmax.cu`: evidence and its gradient in two readings of the logits, or loss and gradient in one."""

from __future__ import annotations

import ctypes
import functools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import _forms
from ._compiler import CompileError, Kernel, has_clusters, load
from ._launch import (
    C_NAMES,
    MOST_BLOCKS,
    MOST_TABLES,
    Pointer,
    assembled,
    scratch,
    stream_of,
    sum_of_weights,
)

FEW = 6  # forms compiled for a rule and a type, before other widths share them
MOST_PLANS = 1024  # shapes remembered
COUNTS_HERE = 2048  # rows up to which every block counts what the mean divides by itself

# The order of `field` in softmax.cu; with the type of each number.
WIDE, INDEX = torch.float64, torch.int64
FIELDS: dict[str, torch.dtype] = {
    **dict.fromkeys(
        ("log_odds", "log_p", "log_miss", "log_rival", "log_next_lower", "sum_log_p", "sum_other_p_squared"),
        torch.float32,
    ),
    **dict.fromkeys(("confidence_log_odds", "log_top", "log_second", "entropy"), WIDE),
    **dict.fromkeys(("rival", "next_lower", "top", "second", "classes"), INDEX),
}
NEEDS = {
    "NEED_RIVAL": {"log_rival", "rival"},
    "NEED_NEXT_LOWER": {"log_next_lower", "next_lower"},
    "NEED_FIRST_CHOICE": {"confidence_log_odds", "log_top", "log_second", "entropy", "top", "second"},
    "NEED_ENTROPY": {"entropy"},
    "NEED_SQUARES": {"sum_other_p_squared"},
    "NEED_SUM_LOG_P": {"sum_log_p"},
    "NEED_CLASSES": {"classes"},
}


class Call(ctypes.Structure):
    """Argument of softmax_rows, as in softmax.cu."""

    _fields_ = [
        *[
            (name, Pointer)
            for name in (
                "logits", "gradient", "target", "kept", "forced", "scale", "offset", "class_weight", "sample_weight",
                "incoming", "denominator", "costs", "partial", "total", "ticket", "flag", "host_flag",
            )
        ],
        ("table", Pointer * MOST_TABLES),
        ("field", Pointer * 20),
        *[
            (name, ctypes.c_longlong)
            for name in (
                "rows", "inner", "row_stride", "class_stride", "inner_stride", "row_out", "class_out", "inner_out",
                "ignored",
            )
        ],
        ("numerator", ctypes.c_double),
        *[(name, ctypes.c_int) for name in ("classes", "incoming_step", "costs_class_weight", "counts_here")],
    ]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Settings:
    """What is compiled in, beside type and form. Made once for a loss, and compared by being the same object."""

    needs: frozenset[str]
    scale: bool = False
    offset: bool = False
    weighted_sum: bool = False
    gradient: bool = False
    extras: bool = True  # weights, incoming gradients, numbers a row
    price: str | None = None  # a rule in C
    fields: tuple[str, ...] = ()  # evidence stored, or differentiated


@dataclass(frozen=True)
class Pricing:
    """A loss in one reading: what the module knows beside logits and targets."""

    price: str  # the rule in C
    needs: tuple[str, ...]
    tables: list[Tensor]
    ignored: int
    numerator: float
    mean: bool  # divide by the weights that count
    scale: Tensor | None = None
    offset: Tensor | None = None
    class_weight: Tensor | None = None
    sample_weight: Tensor | None = None
    weighs_classes: bool = False  # the rule has multiplied by the class weight itself
    denominator: Tensor | None = None  # known already: one float64 number
    flags: tuple[int | None, int | None] = (None, None)


# ---------------------------------------------------------------- compiling


def _macros(dtype: torch.dtype, form: _forms.Form, settings: Settings) -> dict[str, Any]:
    return {
        "LOGIT": C_NAMES[dtype], "SOURCE": form.source, "VECTOR": form.vector, "RAGGED": form.ragged,
        "THREADS": form.threads, "TEAM": form.team, "CLUSTER": form.cluster, "CHUNKS": form.chunks,
        "KEEP": form.keep, "MIN_BLOCKS": form.min_blocks, "SCALE": int(settings.scale),
        "OFFSET": int(settings.offset), "WEIGHTED_SUM": int(settings.weighted_sum),
        "EXTRAS": int(settings.extras), "PRICED": int(settings.price is not None), "GRADIENT": int(settings.gradient),
        **{name: int(bool(words & settings.needs)) for name, words in NEEDS.items()},
        **{f"FIELD_{name}": place for place, name in enumerate(FIELDS)},
        "FIELDS(X)": " ".join(f"X({name})" for name in settings.fields),
    }  # fmt: skip


def source_of(dtype: torch.dtype, form: _forms.Form, settings: Settings) -> str:
    """The CUDA C++ of one kernel."""
    price = ""
    if settings.price is not None:
        head = "const Call& call, i64 row, const Fields& fields, bool leader, float& cost, Slopes& slopes"
        price = f"DEVICE void price({head}) {{\n    memset(&slopes, 0, sizeof(slopes));\n    {settings.price}\n}}\n"
    return assembled("softmax.cu", _macros(dtype, form, settings), price)


@functools.cache
def _kernel(index: int, dtype: torch.dtype, form: _forms.Form, settings: Settings) -> Kernel:
    shared = form.rows_at_once * form.capacity * dtype.itemsize if form.source == _forms.STAGED else 0
    source = source_of(dtype, form, settings)
    return load(source, ["softmax_rows"], index, threads=form.threads, shared=shared, cluster=form.cluster)[0]


_made: dict[Any, list[_forms.Form]] = {}


@functools.cache
def _chosen(index: int, dtype: torch.dtype, rows: _forms.Rows, settings: Settings) -> tuple[_forms.Form, Kernel] | None:
    """The form and kernel for these rows; None where nothing could be compiled."""
    form = _forms.form_of(rows, clusters=has_clusters(index))
    made = _made.setdefault((index, dtype, settings), [])
    if form not in made and len(made) >= FEW:
        able = [other for other in made if other.keep and _forms.serves(other, rows)]
        form = min(able, key=lambda other: other.capacity, default=_forms.general(rows))
    try:
        kernel = _kernel(index, dtype, form, settings)
    except CompileError as error:
        warnings.warn(f"a loss takes its plain form, because its kernel does not compile: {error}", stacklevel=2)
        return None
    if form not in made:
        made.append(form)
    return form, kernel


def _rows_of(z: Tensor, gradient: Tensor | None) -> _forms.Rows:
    """The layout of logits (n, K[, d]) and of the gradient beside them."""
    size, border, side_by_side, packed = z.element_size(), 16, True, z.dim() == 2
    for tensor in (z,) if gradient is None else (z, gradient):
        places = tensor.data_ptr() | tensor.stride(0) * size | border
        if tensor.dim() == 3:
            places |= tensor.stride(2) * size
        border = places & -places
        side_by_side = side_by_side and tensor.stride(1) == 1
        packed = packed and tensor.is_contiguous()
    return _forms.Rows(z.shape[1], size, border, side_by_side, packed)


# ---------------------------------------------------------------- launching


@dataclass(frozen=True)
class _Plan:
    """What launches of one shape have in common."""

    kernel: Kernel
    blocks: int
    call: Call


_plans: dict[Any, _Plan | None] = {}


def _plan(z: Tensor, gradient: Tensor | None, settings: Settings) -> _Plan | None:
    """The kernel and the numbers that describe the layout; None where nothing could be compiled."""
    key = (z.device.index, z.dtype, z.shape, z.stride(), z.data_ptr() & 15, settings)
    if gradient is not None:
        key += (gradient.stride(), gradient.data_ptr() & 15)
    if key not in _plans:
        if len(_plans) >= MOST_PLANS:
            _plans.clear()
        _plans[key] = _new_plan(z, gradient, settings)
    return _plans[key]


def _new_plan(z: Tensor, gradient: Tensor | None, settings: Settings) -> _Plan | None:
    chosen = _chosen(z.device.index, z.dtype, _rows_of(z, gradient), settings)
    if chosen is None:
        return None
    form, kernel = chosen
    deep = z.dim() == 3
    call = Call(rows=z.numel() // z.shape[1], classes=z.shape[1], inner=z.shape[2] if deep else 1, numerator=1.0)
    call.row_stride, call.class_stride, call.inner_stride = z.stride(0), z.stride(1), z.stride(2) if deep else 0
    if gradient is not None:
        call.row_out, call.class_out = gradient.stride(0), gradient.stride(1)
        call.inner_out = gradient.stride(2) if deep else 0
    teams = min(
        -(-call.rows // form.rows_at_once),
        max(1, kernel.blocks_at_once * form.waves // form.cluster),
        MOST_BLOCKS // form.cluster,
    )
    return _Plan(kernel, teams * form.cluster, call)


def run(
    z: Tensor,
    target: Tensor,
    settings: Settings,
    *,
    tensors: Mapping[str, Tensor | None],
    flags: tuple[int | None, int | None],
    tables: Sequence[Tensor] = (),
    fields: Mapping[str, Tensor] | None = None,
    **numbers: Any,
) -> bool:
    """Launch; tensors and numbers go by the names of `Call`. False where there is no kernel: nothing was done."""
    plan = _plan(z, tensors.get("gradient"), settings)
    if plan is None:
        return False
    stream = stream_of(z.device.index)
    ticket, partial = scratch(z.device, stream)
    call = Call.from_buffer_copy(plan.call)
    call.logits, call.target = z.data_ptr(), target.data_ptr()
    call.ticket, call.partial = ticket.data_ptr(), partial.data_ptr()
    call.flag, call.host_flag = flags
    for name, tensor in tensors.items():
        if tensor is not None:
            setattr(call, name, tensor.data_ptr())
    for name, number in numbers.items():
        setattr(call, name, number)
    for place, table in enumerate(tables):
        call.table[place] = table.data_ptr()
    if fields:
        for name, tensor in fields.items():
            call.field[PLACE[name]] = tensor.data_ptr()
    plan.kernel.launch(plan.blocks, call, stream)
    return True


def side_by_side(z: Tensor) -> Tensor:
    """Logits whose classes lie far apart, and are many, copied; others as they are."""
    if z.stride(1) == 1 or z.shape[1] <= _forms.STRIDED_WIDTH:
        return z
    return z.movedim(1, -1).contiguous().movedim(-1, 1)


# ---------------------------------------------------------------- two readings: evidence, and its gradient


@functools.cache
def _evidence_settings(needs: tuple[str, ...], scale: bool, offset: bool, weighted: bool, gradient: bool) -> Settings:
    weighted = weighted and "sum_log_p" in needs
    return Settings(frozenset(needs), scale, offset, weighted, gradient, True, None, needs)


def forward(z: Tensor, target: Tensor, link: Any) -> dict[str, Tensor] | None:
    """The needed fields of each row, in the targets' shape; the rows without an alternative go to `link.forced`."""
    z = side_by_side(z.detach())
    settings = _evidence_settings(
        link.needs, link.scale is not None, link.offset is not None, link.class_weight is not None, False
    )
    fields = {name: torch.empty(target.shape, dtype=FIELDS[name], device=z.device) for name in link.needs}
    forced = torch.empty(target.shape, dtype=torch.bool, device=z.device)
    tensors = {**_tensors(link), "forced": forced}
    if not run(z, target.contiguous(), settings, tensors=tensors, flags=link.flags, fields=fields, ignored=-1):
        return None
    link.forced.append(forced)
    return fields


def backward(z: Tensor, target: Tensor, link: Any, given: Mapping[str, Tensor]) -> Tensor | None:
    """The gradient for the logits, from that for the fields."""
    z = side_by_side(z.detach())
    settings = _evidence_settings(
        tuple(given), link.scale is not None, link.offset is not None, link.class_weight is not None, True
    )
    gradient = torch.empty_like(z)
    fields = {name: value.to(FIELDS[name]).contiguous() for name, value in given.items()}
    tensors = {**_tensors(link), "gradient": gradient}
    done = run(z, target.contiguous(), settings, tensors=tensors, flags=(None, None), fields=fields, ignored=-1)
    return gradient if done else None


def _tensors(link: Any) -> dict[str, Tensor | None]:
    kept = None if link.kept is None else link.kept.contiguous()
    return {
        "kept": kept,
        "scale": _numbers(link.scale),
        "offset": _numbers(link.offset),
        "class_weight": _numbers(link.class_weight),
    }


def _numbers(values: Tensor | None) -> Tensor | None:
    return None if values is None else values.detach().to(torch.float32).contiguous()


# ---------------------------------------------------------------- one reading: the rule in the kernel


@functools.cache
def _pricing_settings(
    price: str, needs: tuple[str, ...], scale: bool, offset: bool, weighted: bool, gradient: bool, extras: bool
) -> Settings:
    return Settings(frozenset(needs), scale, offset, weighted and "sum_log_p" in needs, gradient, extras, price)


def total(
    z: Tensor, target: Tensor, pricing: Pricing, *, gradient: bool, costs: bool, incoming: Tensor | None = None
) -> tuple[Tensor, Tensor | None, None] | None:
    """The sum of the weighted costs, or with `costs` each of them, and the gradient times `incoming`."""
    z = side_by_side(z)
    extras = costs or incoming is not None or pricing.class_weight is not None or pricing.sample_weight is not None
    settings = _pricing_settings(
        pricing.price, pricing.needs, pricing.scale is not None, pricing.offset is not None,
        pricing.class_weight is not None, gradient, extras,
    )  # fmt: skip
    slope = torch.empty_like(z) if gradient else None
    value = torch.empty(target.shape if costs else (), dtype=torch.float32, device=z.device)
    denominator, here = pricing.denominator, 0
    if pricing.mean and denominator is None:
        here = int(target.numel() <= COUNTS_HERE)
        if not here:
            denominator = sum_of_weights(
                target, z.shape[1], pricing.ignored, pricing.class_weight, pricing.sample_weight
            )
    tensors = {
        "gradient": slope, "costs" if costs else "total": value, "denominator": denominator, "incoming": incoming,
        "scale": pricing.scale, "offset": pricing.offset, "class_weight": pricing.class_weight,
        "sample_weight": pricing.sample_weight,
    }  # fmt: skip
    done = run(
        z, target, settings, tensors=tensors, flags=pricing.flags, tables=pricing.tables, ignored=pricing.ignored,
        numerator=pricing.numerator, counts_here=here, costs_class_weight=int(not pricing.weighs_classes),
        incoming_step=int(incoming is not None and incoming.dim() > 0),
    )  # fmt: skip
    return (value, slope, None) if done else None


PLACE = {name: place for place, name in enumerate(FIELDS)}
