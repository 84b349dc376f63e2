"""What every launch needs: a stream, a little memory that stays, a compiled kernel, and a place to note bad values."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ._compiler import Kernel, load

MOST_BLOCKS = 16_384
MOST_TABLES = 16
TICKETS = 1024  # for launches in captured graphs
C_NAMES = {torch.float32: "float", torch.bfloat16: "bfloat16", torch.float16: "float16"}
LABEL_NAMES = {
    **C_NAMES,
    torch.float64: "double",
    torch.int64: "i64",
    torch.int32: "int",
    torch.int16: "short",
    torch.int8: "signed char",
    torch.uint8: "unsigned char",
    torch.bool: "unsigned char",
}
Pointer = ctypes.c_void_p

_streams: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
_tickets: dict[int, list[Tensor]] = {}


def stream_of(index: int) -> int:
    """The stream that PyTorch queues its work on."""
    return torch._C._cuda_getCurrentRawStream(index)


def scratch(device: torch.device, stream: int) -> tuple[Tensor, Tensor]:
    """A ticket that is 0 between launches, and room for the blocks' partial sums.

    Launches on one stream follow each other and share them. A graph that is being captured may be replayed beside
    other work, so each of its launches gets a ticket of its own, set to 0 before: nothing is added to the graph.
    """
    if torch.cuda.is_current_stream_capturing():
        waiting = _tickets.get(device.index) or [torch.zeros(1, dtype=torch.int32, device=device)]
        return waiting.pop(), _room(device)
    key = (device.index, stream)
    if key not in _streams:
        own, *others = torch.zeros(TICKETS + 1, dtype=torch.int32, device=device).split(1)
        _tickets.setdefault(device.index, []).extend(others)
        _streams[key] = own, _room(device)
    return _streams[key]


def _room(device: torch.device) -> Tensor:
    return torch.empty(2 * MOST_BLOCKS, dtype=torch.float64, device=device)


@functools.cache
def source(name: str) -> str:
    """A file of kernels."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def assembled(name: str, settings: dict[str, Any], price: str = "") -> str:
    """The whole of what is compiled: settings as macros, the hardware's names, the kernels with a rule put in."""
    head = "".join(f"#define {key} {value}\n" for key, value in settings.items())
    return head + source("device.cuh") + source(name).replace("// PRICE\n", price)


@functools.cache
def row_kernels(index: int) -> dict[str, Kernel]:
    """The errands of `rows.cu`."""
    names = ["sum_of_weights", "legal_targets", "multiply_float", "multiply_bfloat16", "multiply_float16"]
    return dict(zip(names, load(assembled("rows.cu", {}), names, index, threads=256), strict=True))


def address(tensor: Tensor | None) -> int | None:
    """Where a tensor's numbers are."""
    return None if tensor is None else tensor.data_ptr()


class Product(ctypes.Structure):
    """Argument of multiply_..., as in rows.cu."""

    _fields_ = [("data", Pointer), ("incoming", Pointer), ("ratio", Pointer), ("count", ctypes.c_longlong)]


def multiply(data: Tensor, incoming: Tensor, ratio: Tensor | None) -> Tensor:
    """data *= incoming * ratio, both single numbers on the device; not even read where that is exactly 1."""
    index = data.device.index
    kernel = row_kernels(index)[f"multiply_{C_NAMES[data.dtype]}"]
    call = Product(data.data_ptr(), incoming.data_ptr(), address(ratio), data.numel())
    blocks = min(kernel.blocks_at_once, -(-data.numel() // 2048))
    kernel.launch(blocks, call, stream_of(index))
    return data


class Weights(ctypes.Structure):
    """Argument of sum_of_weights, as in rows.cu."""

    _fields_ = [
        *[(name, Pointer) for name in ("target", "class_weight", "sample_weight", "partial", "sum", "ticket")],
        *[(name, ctypes.c_longlong) for name in ("rows", "classes", "ignored")],
    ]


def sum_of_weights(
    target: Tensor, classes: int, ignored: int, class_weight: Tensor | None, sample_weight: Tensor | None
) -> Tensor:
    """What a mean divides by: the weights of the rows that count; a float64 number on the device."""
    index = target.device.index
    kernel, stream = row_kernels(index)["sum_of_weights"], stream_of(index)
    ticket, partial = scratch(target.device, stream)
    total = torch.empty((), dtype=torch.float64, device=target.device)
    call = Weights(
        target.data_ptr(), address(class_weight), address(sample_weight), partial.data_ptr(), total.data_ptr(),
        ticket.data_ptr(), target.numel(), classes, ignored,
    )  # fmt: skip
    kernel.launch(max(1, min(kernel.blocks_at_once, target.numel() // 1024)), call, stream)
    return total


class Legal(ctypes.Structure):
    """Argument of legal_targets, as in rows.cu."""

    _fields_ = [
        *[(name, Pointer) for name in ("target", "legal", "kept", "flag", "host_flag")],
        *[(name, ctypes.c_longlong) for name in ("rows", "classes", "ignored")],
    ]


def legal_targets(
    target: Tensor, classes: int, ignored: int, flags: tuple[int | None, int | None]
) -> tuple[Tensor, Tensor]:
    """Targets that are legal everywhere, and which rows count (flat); what is out of range is noted."""
    target = target.contiguous()
    index = target.device.index
    legal, kept = torch.empty_like(target), torch.empty(target.numel(), dtype=torch.bool, device=target.device)
    call = Legal(
        target.data_ptr(), legal.data_ptr(), kept.data_ptr(), *flags, target.numel(), classes, ignored
    )  # fmt: skip
    kernel = row_kernels(index)["legal_targets"]
    kernel.launch(max(1, min(kernel.blocks_at_once, -(-target.numel() // 256))), call, stream_of(index))
    return legal, kept
