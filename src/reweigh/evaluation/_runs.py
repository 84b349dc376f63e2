"""Run folders: their predictions are in `predictions/SPLIT.parquet`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..errors import InputError


def of_run(source: Any, split: str | None, doing: str) -> Any:
    """The prediction file of a run folder; any other source as it is."""
    if not isinstance(source, (str, os.PathLike)):
        return source
    folder = Path(source) / "predictions"
    if not folder.is_dir():
        return source
    found = {path.stem: path for path in sorted(folder.glob("*.parquet"))}
    if split is None and len(found) == 1:
        return next(iter(found.values()))
    if split in found:
        return found[split]
    came = "no split named" if split is None else f"split={split!r}"
    raise InputError(
        f"{doing} the run {source}: {came}, expected one of {', '.join(found) or 'none, it has no predictions'} (--split)."
    )
