"""What a verb says: JSON for machines, text for people, both to standard output and nothing else there."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import typer


def plain(value: Any) -> Any:
    """The same value in what JSON can hold; NaN and infinities, which it cannot, become null and words."""
    if isinstance(value, bool) or value is None or isinstance(value, (int, str)):
        return value
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if hasattr(value, "to_dict"):
        return plain(value.to_dict())
    if hasattr(value, "tolist"):  # arrays and tensors, and their scalars
        return plain(value.tolist())
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(one) for one in value]
    return str(value)


def _number(value: float) -> float | str | None:
    if math.isnan(value):
        return None
    return value if math.isfinite(value) else ("infinity" if value > 0 else "-infinity")


def show(result: Any, *, as_json: bool) -> None:
    """The result of a verb: its `to_dict` as JSON, or its text."""
    if as_json:
        typer.echo(json.dumps(plain(result), ensure_ascii=False, indent=2, allow_nan=False))
    else:
        typer.echo(str(result).rstrip("\n"))


def save_json(result: Any, path: str) -> None:
    """The result as a JSON file that appears whole or not at all."""
    from ..files import replacing

    text = json.dumps(plain(result), ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    with replacing(path) as handle:
        handle.write(text.encode("utf-8"))
