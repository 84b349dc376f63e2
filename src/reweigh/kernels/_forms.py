"""How the threads of a GPU share rows: a small table, measured, by width, type and layout; no search at run time.

A row is kept in registers, 32 numbers a thread, so that it is read once. Up to 32 threads that is some lanes of a
warp, then a block, then (from compute capability 9) a cluster of blocks that exchange their sums. Rows that start
anywhere (an odd width in bfloat16, say) are taken in whole 16-byte accesses but for their ends. Narrow rows of odd
width go through shared memory, so that they too move in whole accesses. Classes that lie apart in memory, as in
(n, K, height, width), give each row to one thread: its neighbours' rows lie beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

DIRECT, STAGED, STRIDED = 0, 1, 2
REGISTERS = 32  # logits that a thread keeps
WARPS_A_BLOCK = 4
STAGED_WIDTH = 64  # up to here, rows that do not start at 16 bytes go through shared memory
STRIDED_WIDTH = 2048  # beyond, classes that lie apart are better copied side by side
LARGEST_BLOCK = 512  # threads; larger teams are clusters where there are any
LARGEST_CLUSTER = 16


@dataclass(frozen=True)
class Form:
    """Settings of `softmax.cu` that say who reads what."""

    source: int = DIRECT
    vector: int = 4  # logits in one access
    ragged: int = 0
    threads: int = 128
    team: int = 32
    cluster: int = 1
    chunks: int = 1
    keep: int = 1
    min_blocks: int = 6  # on a multiprocessor, which bounds the registers of a thread
    waves: int = 1  # times the blocks that fit on the device at once

    @property
    def capacity(self) -> int:
        """Logits that fit into a team's registers."""
        return self.vector * self.chunks * self.team * self.cluster

    @property
    def rows_at_once(self) -> int:
        """Rows that a block, or a cluster, works on together."""
        return self.threads // self.team


@dataclass(frozen=True)
class Rows:
    """What a form must suit."""

    classes: int
    size: int  # bytes of a logit
    border: int  # bytes that every row's start is a multiple of, at most 16, for logits and gradient
    side_by_side: bool  # the classes of a row
    packed: bool  # and the rows, one after the other


def power_of_two(number: int) -> int:
    """The next power of two that is not smaller."""
    return 1 << max(0, number - 1).bit_length()


def form_of(rows: Rows, *, clusters: bool) -> Form:
    """The form for these rows."""
    if not rows.side_by_side:
        return _strided(rows)
    fits = rows.classes * rows.size % rows.border == 0
    if rows.packed and rows.classes <= STAGED_WIDTH and not (rows.border == 16 and fits):
        return _staged(rows)
    if rows.border == 8 and fits and rows.classes * rows.size <= 32 * REGISTERS * 2:
        return _direct(rows, 8 // rows.size, 0, clusters)
    return _direct(rows, 16 // rows.size, 0 if rows.border == 16 and fits else 1, clusters)


def _strided(rows: Rows) -> Form:
    keep = rows.classes <= REGISTERS
    chunks = _rounded(rows.classes) if keep else 1
    return Form(STRIDED, 1, 0, 128, 1, 1, chunks, int(keep), 6)


def _staged(rows: Rows) -> Form:
    team = power_of_two(math.ceil(rows.classes / REGISTERS))
    return Form(STAGED, 1, 0, 128, team, 1, _rounded(math.ceil(rows.classes / team)), 1, 6)


def _direct(rows: Rows, vector: int, ragged: int, clusters: bool) -> Form:
    accesses = math.ceil(rows.classes / vector) + ragged
    most = REGISTERS // vector
    team = power_of_two(math.ceil(accesses / most))
    if team <= 32:
        chunks = _rounded(math.ceil(accesses / team))
        return Form(DIRECT, vector, ragged, 32 * WARPS_A_BLOCK, team, 1, chunks, 1, 6)
    threads = min(team, LARGEST_BLOCK if clusters else 1024)
    cluster = team // threads
    if cluster > (LARGEST_CLUSTER if clusters else 1):
        return general(rows)
    chunks = _rounded(math.ceil(accesses / team))
    return Form(DIRECT, vector, ragged, threads, threads, cluster, chunks, 1, max(1, 768 // threads))


def general(rows: Rows) -> Form:
    """Any width: read again at each step instead of kept."""
    if not rows.side_by_side:
        return Form(STRIDED, 1, 0, 128, 1, 1, 1, 0, 6)
    return Form(DIRECT, 16 // rows.size, 1, 512, 512, 1, 1, 0, 2)


def serves(form: Form, rows: Rows) -> bool:
    """Can a form made for another width take these rows?"""
    if form.source == STRIDED or not rows.side_by_side:
        return form.source == STRIDED and not rows.side_by_side and rows.classes <= form.capacity
    if form.source == STAGED:
        return rows.packed and rows.classes <= form.capacity and rows.classes <= STAGED_WIDTH
    if not form.ragged and (rows.border < form.vector * rows.size or rows.classes % form.vector):
        return False
    return form.keep == 0 or rows.classes + form.ragged * form.vector <= form.capacity


def _rounded(chunks: int) -> int:
    """A few sizes instead of all, so that a new width seldom needs a new kernel."""
    sizes = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32)
    return next(size for size in sizes if size >= chunks)
