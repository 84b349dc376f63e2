"""Kernels: fused forms of the evidence, one module a device, found by `find`. Same numbers as `evidence.py`.

May import only torch and `errors`. To serve a device, add a module with `serves(tensor, head)` and the
functions of `_cpu.py`, and enter it in `TABLE`; the composite form stays the truth the tests compare with.
A module that can price rules itself (`_cuda.py`) also has `softmax_total` and `sigmoid_total`.
"""

from __future__ import annotations

import importlib
from types import ModuleType

import torch
from torch import Tensor

TABLE = {"cpu": "reweigh.kernels._cpu", "cuda": "reweigh.kernels._cuda"}

_loaded: dict[str, ModuleType | None] = {}


def of(device: torch.device) -> ModuleType | None:
    """The module for this kind of device, whatever it can serve."""
    kind = device.type
    if kind not in _loaded:
        _loaded[kind] = importlib.import_module(TABLE[kind]) if kind in TABLE else None
    return _loaded[kind]


def find(tensor: Tensor, head: str) -> ModuleType | None:
    """The module that serves this tensor, or None: then the composite form runs."""
    module = of(tensor.device)
    return module if module is not None and module.serves(tensor, head) else None


def describe() -> str:
    """Which way losses take on this machine's GPUs, and why."""
    return importlib.import_module(TABLE["cuda"]).describe()
