"""Kernels: fused forms of the evidence, one module a device, found by `find`. Same numbers as `evidence.py`.

May import only torch and `errors`. To serve a device, add a module with `serves(tensor, head)` and the
functions of `_cpu.py`, and enter it in `TABLE`; the composite form stays the truth the tests compare with.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from torch import Tensor

TABLE = {"cpu": "reweigh.kernels._cpu"}

_loaded: dict[str, ModuleType | None] = {}


def find(tensor: Tensor, head: str) -> ModuleType | None:
    """The module that serves this tensor, or None: then the composite form runs."""
    device = tensor.device.type
    if device not in _loaded:
        _loaded[device] = importlib.import_module(TABLE[device]) if device in TABLE else None
    module = _loaded[device]
    return module if module is not None and module.serves(tensor, head) else None
