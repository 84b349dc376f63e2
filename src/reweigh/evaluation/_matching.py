"""The same rows in two tables: by id, whatever the ids' type, or by content."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from ..predictions import Predictions


def plain_ids(table: Predictions) -> numpy.ndarray | None:
    """The ids as an array on the CPU."""
    ids: Any = table.ids
    return ids.detach().cpu().numpy() if isinstance(ids, torch.Tensor) else ids


def comparable_ids(first: Predictions, second: Predictions) -> tuple[numpy.ndarray, numpy.ndarray] | None:
    """The ids of both, as text where only one of the files knows numbers; None without ids in both."""
    mine, theirs = plain_ids(first), plain_ids(second)
    if mine is None or theirs is None:
        return None
    if (mine.dtype.kind in "iu") != (theirs.dtype.kind in "iu"):
        return mine.astype(str), theirs.astype(str)
    return mine, theirs


def common_rows(first: Predictions, second: Predictions) -> tuple[numpy.ndarray, numpy.ndarray] | None:
    """Row numbers in both of the ids they share, in the order of the first; None without ids."""
    ids = comparable_ids(first, second)
    if ids is None:
        return None
    mine, theirs = ids
    if not len(mine) or not len(theirs):
        return numpy.empty(0, numpy.int64), numpy.empty(0, numpy.int64)
    order = numpy.argsort(theirs, kind="stable")
    place = order[numpy.minimum(numpy.searchsorted(theirs, mine, sorter=order), len(order) - 1)]
    shared = theirs[place] == mine
    return numpy.flatnonzero(shared), place[shared]


def row_hashes(table: Predictions) -> numpy.ndarray:
    """(n,) 64 bits of each row's scores: rows of the same bits have the same hash."""
    scores = table.scores.detach().cpu()
    if scores.dtype in (torch.float16, torch.bfloat16):
        scores = scores.float()
    matrix = scores.reshape(len(scores), -1).numpy()
    bits = (
        matrix.view(f"u{matrix.dtype.itemsize}")
        if matrix.flags.c_contiguous
        else numpy.ascontiguousarray(matrix).view(f"u{matrix.dtype.itemsize}")
    )
    total = numpy.full(len(bits), 0x9E3779B97F4A7C15, numpy.uint64)
    for column in range(bits.shape[1]):
        total = (total ^ bits[:, column].astype(numpy.uint64)) * numpy.uint64(0x9FB21C651E98DF25)
        total ^= total >> numpy.uint64(29)
    return total


def same_targets(first: Predictions, second: Predictions) -> numpy.ndarray:
    """(n,) whether the targets of two tables of the same rows agree."""
    one, other = (table.target_tensor.cpu() for table in (first, second))
    if one.shape != other.shape:
        return numpy.zeros(len(first), bool)
    equal = one == other
    return (equal if equal.ndim == 1 else equal.all(1)).numpy()
