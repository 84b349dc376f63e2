"""Launching `sigmoid.cu`: cost and gradient of every label in one reading."""

from __future__ import annotations

import ctypes
import functools
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ._compiler import CompileError, Kernel, load
from ._launch import C_NAMES, LABEL_NAMES, MOST_BLOCKS, MOST_TABLES, Pointer, assembled, scratch, stream_of

THREADS = 256
HARD, SOFT, OWN, INDEX = 0, 1, 2, 3  # kinds of labels


class Strides(ctypes.Structure):
    """Of a tensor seen as (n, classes, inner)."""

    _fields_ = [(name, ctypes.c_longlong) for name in ("row", "of_class", "inner")]


PLACED = ("logits", "gradient", "label", "weight", "incoming", "costs")


class Call(ctypes.Structure):
    """Argument of sigmoid_elements, as in sigmoid.cu."""

    _fields_ = [
        *[
            (name, Pointer)
            for name in (
                "logits", "gradient", "label", "offset", "class_weight", "sample_weight", "incoming", "denominator",
                "costs", "partial", "total", "ratio", "ticket", "flag", "host_flag",
            )
        ],
        ("table", Pointer * MOST_TABLES),
        *[(f"{name}_at", Strides) for name in PLACED],
        *[(name, ctypes.c_longlong) for name in ("count", "classes", "inner", "ignored")],
        ("numerator", ctypes.c_double),
        ("ignored_label", ctypes.c_float),
        ("incoming_step", ctypes.c_int),
    ]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Settings:
    """What is compiled in, beside types and access. Made once for a loss, and compared by being the same object."""

    labels: int
    present: str  # a rule in C; for OWN its soft form
    absent: str
    places: bool
    offset: bool
    class_weight: bool
    sample_weight: bool
    ignores: bool
    gradient: bool


@dataclass(frozen=True)
class Pricing:
    """A loss in one reading: what the module knows beside logits and labels."""

    labels: int
    present: str
    absent: str
    tables: list[Tensor]
    ignored: int
    numerator: float
    mean: bool  # divide by the labels that count, which the kernel counts
    offset: Tensor | None = None
    class_weight: Tensor | None = None
    sample_weight: Tensor | None = None  # broadcast to the logits
    denominator: Tensor | None = None  # known already: one float64 number
    flags: tuple[int | None, int | None] = (None, None)


def source_of(dtype: torch.dtype, label: torch.dtype, vector: int, settings: Settings) -> str:
    """The CUDA C++ of one kernel."""
    head = "const Call& call, const Spot& spot, const Fields& fields, float& cost, Slopes& slopes"
    names = ("price_soft",) if settings.labels == OWN else ("price_present", "price_absent")
    price = "".join(
        f"DEVICE void {name}({head}) {{\n    memset(&slopes, 0, sizeof(slopes));\n    {code}\n}}\n"
        for name, code in zip(names, (settings.present, settings.absent), strict=False)
    )
    macros = {
        "LOGIT": C_NAMES[dtype], "LABEL": LABEL_NAMES[label], "LABELS": settings.labels, "VECTOR": vector,
        "SYMMETRIC": int(settings.present == settings.absent), "PLACES": int(settings.places or settings.labels == INDEX),
        "OFFSET": int(settings.offset), "CLASS_WEIGHT": int(settings.class_weight),
        "SAMPLE_WEIGHT": int(settings.sample_weight), "IGNORES": int(settings.ignores),
        "GRADIENT": int(settings.gradient), "THREADS": THREADS, "MIN_BLOCKS": 4,
    }  # fmt: skip
    return assembled("sigmoid.cu", macros, price)


@functools.cache
def _kernel(index: int, dtype: torch.dtype, label: torch.dtype, vector: int, settings: Settings) -> Kernel | None:
    try:
        return load(source_of(dtype, label, vector, settings), ["sigmoid_elements"], index, threads=THREADS)[0]
    except CompileError as error:
        warnings.warn(f"a loss takes its plain form, because its kernel does not compile: {error}", stacklevel=2)
        return None


@functools.cache
def _settings(
    labels: int, present: str, absent: str, offset: bool, class_weight: bool, sample_weight: bool, ignores: bool, gradient: bool
) -> Settings:  # fmt: skip
    looks_up = any("call.table" in code for code in (present, absent))
    places = looks_up or offset or class_weight or sample_weight
    return Settings(labels, present, absent, places, offset, class_weight, sample_weight, ignores, gradient)


def _shape(z: Tensor) -> tuple[int, int]:
    """Classes, and what follows them; logits of one dimension are one class."""
    if z.dim() == 1:
        return 1, 1
    inner = 1
    for length in z.shape[2:]:
        inner *= length
    return z.shape[1], inner


def strides_of(tensor: Tensor | None) -> Strides | None:
    """The tensor as (n, classes, inner); None where its inner dimensions do not fold into one."""
    if tensor is None:
        return Strides(0, 0, 0)
    if tensor.dim() == 1:
        return Strides(tensor.stride(0), 0, 0)
    inner = 0
    if tensor.dim() > 2:
        lengths, steps = tensor.shape[2:], tensor.stride()[2:]
        for place in range(len(lengths) - 1):
            if lengths[place] != 1 and steps[place] != steps[place + 1] * lengths[place + 1]:
                return None
        inner = steps[-1]
    return Strides(tensor.stride(0), tensor.stride(1), inner)


def _folded(tensor: Any) -> Any:
    return tensor if tensor is None or strides_of(tensor) is not None else tensor.contiguous()


def total(
    z: Tensor, label: Tensor, pricing: Pricing, *, gradient: bool, costs: bool, incoming: Tensor | None = None
) -> tuple[Tensor, Tensor | None, Tensor | None] | None:
    """The sum of the weighted costs, or with `costs` each of them; the gradient times `incoming`; its missing factor."""
    z, label = _folded(z.detach()), label.contiguous() if pricing.labels == INDEX else _folded(label)
    device, index = z.device, z.device.index
    ignores = label.dtype != torch.bool
    settings = _settings(
        pricing.labels, pricing.present, pricing.absent, pricing.offset is not None, pricing.class_weight is not None,
        pricing.sample_weight is not None, ignores, gradient,
    )  # fmt: skip
    slope = torch.empty_like(z) if gradient else None
    value = torch.empty(z.shape, dtype=torch.float32, device=device) if costs else torch.empty((), device=device)
    single = incoming is not None and incoming.dim() == 0
    alike = (
        z,
        slope,
        None if pricing.labels == INDEX else label,
        value if costs else None,
        None if single else incoming,
    )
    vector = 16 // z.element_size() if _lie_alike(alike) else 1
    kernel = _kernel(index, z.dtype, label.dtype, vector, settings)
    if kernel is None:
        return None
    counts = pricing.mean and pricing.denominator is None and ignores
    ratio = torch.empty((), dtype=torch.float64, device=device) if counts else None
    stream = stream_of(index)
    ticket, partial = scratch(device, stream)
    call = Call(ticket=ticket.data_ptr(), partial=partial.data_ptr())
    sample_weight = _folded(pricing.sample_weight)
    pointers = {
        "logits": z, "gradient": slope, "label": label, "offset": pricing.offset, "class_weight": pricing.class_weight,
        "sample_weight": sample_weight, "incoming": incoming, "denominator": pricing.denominator, "ratio": ratio,
        "costs" if costs else "total": value,
    }  # fmt: skip
    for name, tensor in pointers.items():
        if tensor is not None:
            setattr(call, name, tensor.data_ptr())
    for place, table in enumerate(pricing.tables):
        call.table[place] = table.data_ptr()
    placed = (
        z,
        slope,
        None if pricing.labels == INDEX else label,
        sample_weight,
        None if single else incoming,
        value if costs else None,
    )
    for name, tensor in zip(PLACED, placed, strict=True):
        setattr(call, f"{name}_at", strides_of(tensor))
    call.flag, call.host_flag = pricing.flags
    call.count, call.ignored, call.ignored_label = z.numel(), pricing.ignored, float(pricing.ignored)
    call.classes, call.inner = _shape(z)
    call.numerator = pricing.numerator
    if pricing.mean and pricing.denominator is None:
        call.numerator = pricing.numerator / z.numel()
    call.incoming_step = int(incoming is not None and not single)
    blocks = min(kernel.blocks_at_once, MOST_BLOCKS, -(-z.numel() // (THREADS * vector)))
    kernel.launch(blocks, call, stream)
    return value, slope, ratio


def _lie_alike(tensors: tuple[Tensor | None, ...]) -> bool:
    """Densely, contiguous, each beginning at a 16-byte border: then all are read by one running number."""
    return all(tensor is None or (tensor.is_contiguous() and tensor.data_ptr() % 16 == 0) for tensor in tensors)
