"""Launching `statistics.cu`: numbers of a whole batch that losses weigh its rows by, without waiting for the device."""

from __future__ import annotations

import ctypes
import functools

import torch
from torch import Tensor

from ._compiler import Kernel, load
from ._launch import Pointer, address, assembled, scratch, stream_of

THREADS, DIGITS, PASSES = 256, 2048, 7
MOST_BINS = 4096


@functools.cache
def _kernels(index: int) -> dict[str, Kernel]:
    names = ["count_in_bins", "select_pass", "cubic_pieces"]
    shared = 4 * MOST_BINS
    return dict(
        zip(names, load(assembled("statistics.cu", {}), names, index, threads=THREADS, shared=shared), strict=True)
    )


def _blocks(rows: int) -> int:
    return max(1, min(128, -(-rows // (4 * THREADS))))


class Bins(ctypes.Structure):
    """Argument of count_in_bins."""

    _fields_ = [
        *[(name, Pointer) for name in ("scores", "kept", "counter", "counts", "ticket")],
        ("rows", ctypes.c_longlong),
        ("bins", ctypes.c_int),
    ]


def count_in_bins(scores: Tensor, kept: Tensor | None, bins: int) -> Tensor:
    """Counts of scores in [k / bins, (k + 1) / bins), the last bin closed; float64."""
    scores, kept = scores.detach().double().contiguous(), None if kept is None else kept.contiguous()
    index = scores.device.index
    stream = stream_of(index)
    ticket, _ = scratch(scores.device, stream)
    counter = torch.zeros(bins, dtype=torch.int32, device=scores.device)
    counts = torch.empty(bins, dtype=torch.float64, device=scores.device)
    call = Bins(
        scores.data_ptr(), address(kept), counter.data_ptr(), counts.data_ptr(), ticket.data_ptr(), scores.numel(), bins
    )
    _kernels(index)["count_in_bins"].launch(_blocks(scores.numel()), call, stream)
    return counts


class Select(ctypes.Structure):
    """Argument of select_pass."""

    _fields_ = [
        *[(name, Pointer) for name in ("scores", "kept", "counter", "search", "quantile", "ticket")],
        ("rows", ctypes.c_longlong),
        ("level", ctypes.c_double),
        ("number", ctypes.c_int),
    ]


def quantile(scores: Tensor, kept: Tensor | None, level: float) -> Tensor:
    """The quantile at position level (n - 1) of the kept scores, interpolated linearly; a float64 number."""
    scores, kept = scores.detach().double().contiguous(), None if kept is None else kept.contiguous()
    index = scores.device.index
    stream = stream_of(index)
    ticket, _ = scratch(scores.device, stream)
    counter = torch.zeros(DIGITS + 16, dtype=torch.int32, device=scores.device)  # and behind it the search
    found = torch.empty((), dtype=torch.float64, device=scores.device)
    call = Select(
        scores.data_ptr(), address(kept), counter.data_ptr(), counter[DIGITS:].data_ptr(), found.data_ptr(),
        ticket.data_ptr(), scores.numel(), level, 0,
    )  # fmt: skip
    kernel = _kernels(index)["select_pass"]
    for number in range(PASSES):
        call.number = number
        kernel.launch(_blocks(scores.numel()), call, stream)
    return found


class Cubics(ctypes.Structure):
    """Argument of cubic_pieces."""

    _fields_ = [
        *[(name, Pointer) for name in ("counts", "below", "above", "place", "inverse_there")],
        ("smoothing", ctypes.c_double),
        ("bins", ctypes.c_int),
        ("pieces", ctypes.c_int),
    ]


def cubic_pieces(counts: Tensor, smoothing: float, pieces: int, place: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """G and 1 - G, the distribution that a histogram of [0, 1] stands for under logistic steps, (4, pieces) each.

    And 1 / G at one place.
    """
    counts, place = counts.detach().double().contiguous(), place.detach().double().contiguous()
    index = counts.device.index
    below, above = torch.empty(2, 4, pieces, dtype=torch.float64, device=counts.device)
    there = torch.empty((), dtype=torch.float64, device=counts.device)
    call = Cubics(
        counts.data_ptr(), below.data_ptr(), above.data_ptr(), place.data_ptr(), there.data_ptr(), smoothing,
        counts.numel(), pieces,
    )  # fmt: skip
    _kernels(index)["cubic_pieces"].launch(-(-(pieces + 1) // THREADS), call, stream_of(index))
    return below, above, there
