"""Blocks of rows worked on by a few threads, with results in the order of the blocks.

Blocks are small enough that torch has no reason to divide an operation further: its own division of each operation
waits for all its threads every time, which on a busy machine costs many times the work. For the same reason the work
is done beside the main thread even where one worker is enough. Results do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from ._rows import Rows

Result = TypeVar("Result")
# torch divides operations from 32,768 elements on
ELEMENTS = 32_000
# a GPU wants few large blocks
ELEMENTS_ON_GPU = 1 << 24


def over_blocks(rows: Rows, function: Callable[[slice], Result]) -> list[Result]:
    """[function(block) for each block of rows]."""
    return over_slices(rows.count, rows.classes, rows.logits.device, function)  # type: ignore[union-attr]


def over_slices(count: int, width: int, device: torch.device, function: Callable[[slice], Result]) -> list[Result]:
    """[function(part) for each part of `count` rows of `width` numbers]."""
    parts = slices(count, width, device)
    workers = min(torch.get_num_threads(), len(parts))
    if torch.get_num_threads() == 1 or device.type != "cpu":
        return [function(part) for part in parts]
    share = -(-len(parts) // workers)
    runs = [parts[start : start + share] for start in range(0, len(parts), share)]
    with ThreadPoolExecutor(workers) as pool:
        return [result for run in pool.map(lambda run: [function(part) for part in run], runs) for result in run]


def slices(count: int, width: int, device: torch.device) -> list[slice]:
    """Parts of `count` rows of `width` numbers, of a size that suits the device."""
    step = max(1, (ELEMENTS if device.type == "cpu" else ELEMENTS_ON_GPU) // max(1, width))
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]
