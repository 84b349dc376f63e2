"""Reweigh: every reweighted loss as a drop-in, and confidence you can check, repair and ship.

Attributes are imported when they are first used, so that `import reweigh` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# public name -> the module that holds it
_PUBLIC = {
    "Loss": "module",
    "Predictions": "predictions",
    "Detections": "predictions",
    "loss": "losses",
    "open": "files",
    "save": "files",
    "record": "files",
    "evaluate": "evaluation",
    "compare_calibrators": "evaluation",
    "register_loss": "registry",
    "register_metric": "registry",
    "register_calibrator": "registry",
}
_ROOMS = (
    "binning", "calibration", "density", "distributed", "errors", "evaluation", "evidence", "files",
    "kernels", "losses", "metrics", "module", "predictions", "ranks", "registry", "rules", "scores", "testing",
)  # fmt: skip

__all__ = sorted([*_PUBLIC, *_ROOMS, "__version__"])

if TYPE_CHECKING:
    from . import losses, metrics, testing
    from .evaluation import compare_calibrators, evaluate
    from .files import open, record, save
    from .losses import loss
    from .module import Loss
    from .predictions import Detections, Predictions
    from .registry import register_calibrator, register_loss, register_metric


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        value = getattr(importlib.import_module(f".{_PUBLIC[name]}", __name__), name)
        globals()[name] = value
        return value
    if name in _ROOMS:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module 'reweigh' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
