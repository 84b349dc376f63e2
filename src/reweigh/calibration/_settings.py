"""Checks of settings that several calibrators share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..errors import bad_input


def whole(value: Any, name: str, of: str, lowest: int = 1) -> int:
    """A whole number of at least `lowest`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < lowest:
        raise bad_input(f"fitting {of}", came=f"{name}={value!r}", expected=f"a whole number of at least {lowest}")
    return int(value)


def share(value: Any, name: str, of: str) -> float:
    """A number strictly between 0 and 1."""
    number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not number or not 0 < value < 1:
        raise bad_input(f"fitting {of}", came=f"{name}={value!r}", expected="a number between 0 and 1")
    return float(value)


def one_of(value: Any, name: str, of: str, known: tuple[str, ...]) -> str:
    """One of the known words."""
    if value not in known:
        raise bad_input(f"fitting {of}", came=f"{name}={value!r}", expected=" or ".join(map(repr, known)))
    return value


def draw(random_state: Any, count: int, size: int) -> np.ndarray:
    """(size,) distinct row numbers below `count`, ascending, from a seed, a NumPy or torch generator, or fresh entropy."""
    if isinstance(random_state, torch.Generator):
        chosen = torch.randperm(count, generator=random_state)[:size].numpy()
    elif isinstance(random_state, np.random.RandomState):
        chosen = random_state.permutation(count)[:size]
    else:
        chosen = np.random.default_rng(random_state).permutation(count)[:size]
    return np.sort(chosen.astype(np.int64))


def row_numbers(rows: Any, count: int, name: str, doing: str) -> np.ndarray:
    """(m,) distinct row numbers from numbers or a mask."""
    array = rows.detach().cpu().numpy() if isinstance(rows, torch.Tensor) else np.asarray(rows)
    if array.dtype == bool and array.shape == (count,):
        array = np.flatnonzero(array)
    if array.ndim != 1 or len(array) == 0 or array.dtype.kind not in "iu":
        raise bad_input(
            doing, came=f"{name} of shape {array.shape} and type {array.dtype}", expected="row numbers or a mask"
        )
    outside = (array < 0) | (array >= count)
    if outside.any():
        raise bad_input(doing, came=f"row {int(array[outside][0])} in {name}", expected=f"a row from 0 to {count - 1}")
    unique = np.unique(array)
    if len(unique) < len(array):
        values, counts = np.unique(array, return_counts=True)
        raise bad_input(
            doing, came=f"row {int(values[counts > 1][0])} in {name} twice", expected="rows that occur once"
        )
    return unique.astype(np.int64)
