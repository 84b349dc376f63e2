"""Blocks of rows worked on by a few threads, with results in the order of the blocks.

Blocks are small enough that no operation inside is divided further: torch's own division of each operation waits for
all its threads every time, which on a busy machine costs more than the work. Results do not depend on the number of
threads.
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
    on_gpu = rows.logits.device.type != "cpu"  # type: ignore[union-attr]
    step = max(1, (ELEMENTS_ON_GPU if on_gpu else ELEMENTS) // max(1, rows.classes))
    blocks = [slice(start, min(start + step, rows.count)) for start in range(0, rows.count, step)]
    workers = 1 if on_gpu else min(torch.get_num_threads(), len(blocks) // 2)
    if workers < 2:
        return [function(block) for block in blocks]
    share = -(-len(blocks) // workers)
    parts = [blocks[start : start + share] for start in range(0, len(blocks), share)]
    with ThreadPoolExecutor(workers) as pool:
        return [result for part in pool.map(lambda part: [function(block) for block in part], parts) for result in part]
