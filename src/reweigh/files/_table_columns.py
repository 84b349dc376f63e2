"""The columns of a table in our layout: `logits` | `log_probabilities` | `probabilities` | `confidence` and `correct`,
then `target`, `id`, `weight`, `group.NAME`; as NumPy arrays in native byte order."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from ..predictions import Predictions
from ._names import GROUP_PREFIX


def as_numpy(values: Any) -> numpy.ndarray:
    """A column as files hold it; bfloat16, which NumPy and Arrow lack, as float32 without loss."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    if values.dtype.name == "bfloat16":
        return values.astype(numpy.float32)
    if values.dtype.name in ("longdouble", "float128"):
        return values.astype(numpy.float64)
    if values.dtype.kind == "S":
        return values.astype(str)
    if values.dtype.kind == "T":  # NumPy's text of variable width
        return numpy.array(values.tolist(), dtype=str)
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


def columns_of(predictions: Predictions) -> dict[str, Any]:
    """Name in our files -> the table's column, as it is."""
    found = {predictions.kind: getattr(predictions, predictions.kind)}
    others = {"correct": "correct", "target": "targets", "id": "ids", "weight": "weights"}
    found |= {name: getattr(predictions, attribute) for name, attribute in others.items()}
    found |= {GROUP_PREFIX + group: values for group, values in (predictions.groups or {}).items()}
    return {name: values for name, values in found.items() if values is not None}
