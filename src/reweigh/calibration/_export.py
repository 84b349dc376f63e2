"""Calibrators as ONNX graphs, checked before they are handed over."""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..errors import InputError, bad_input, need

if TYPE_CHECKING:
    from ._calibrator import Calibrator


def export_onnx(calibrator: Calibrator, path: str | Path, *, dtype: torch.dtype = torch.float32) -> None:
    """Write a fitted calibrator as an ONNX graph: `logits` (n, K) in, float64 out, named as the module names them.

    The outputs are `log_probabilities` or `probabilities`, and `accepted` of a SelectiveClassifier, `in_set` of a
    ConformalClassifier. `dtype` is the type of the logits; inside everything is float64, as in `predict_proba`. The
    number of rows is free.
    """
    doing = f"exporting {type(calibrator).__name__} to {path}"
    onnx = need("onnx", "export", doing)
    need("onnxscript", "export", doing)
    if callable(getattr(calibrator, "loss", None)):
        raise bad_input(
            doing, came="a posterior given as a Python function", expected="the name of a loss, whose form ONNX can say"
        )
    module = calibrator.to_module().eval()
    example = torch.zeros(3, calibrator.n_features_in_, dtype=dtype)
    example += torch.arange(calibrator.n_features_in_, dtype=dtype) / calibrator.n_features_in_
    graph = _exported(module, example)
    onnx.checker.check_model(graph, full_check=True)
    _write_whole(Path(path), graph.SerializeToString(), doing)


def _exported(module: torch.nn.Module, example: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own deprecations
        program = torch.onnx.export(
            module,
            (example,),
            dynamo=True,
            input_names=["logits"],
            output_names=list(module.output_names),  # type: ignore[arg-type]
            dynamic_shapes=({0: torch.export.Dim("rows")},),
            verbose=False,
        )
    return program.model_proto  # type: ignore[union-attr]


def _write_whole(path: Path, content: bytes, doing: str) -> None:
    """Write to a temporary name beside the file, sync, rename."""
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise InputError(
            f"{doing} failed: {error.strerror or error}. An earlier file of that name is unchanged."
        ) from error
    finally:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
