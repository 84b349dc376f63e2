"""`reweigh export WHAT -o OUT.onnx`: a fitted calibrator for any runtime."""

from __future__ import annotations

from typing import Annotated

import typer

from .._options import Debug, Json, Output
from .._output import show

EXAMPLES = """
reweigh export temperature.json -o temperature.onnx
"""


def verb(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="A calibrator that `reweigh calibrate` has written.")],
    output: Output,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Ship a fitted calibrator as ONNX."""
    from pathlib import Path

    from ... import calibration
    from ...errors import InputError
    from .._calibrators import check_target

    if not output.endswith(".onnx"):
        raise InputError(f"exporting {what}: got -o {output}, expected a name that ends in .onnx.")
    check_target(output)
    calibrator = calibration.load(what)
    calibration.export_onnx(calibrator, output)
    size = Path(output).stat().st_size
    found = {"file": output, "calibrator": type(calibrator).__name__, "bytes": size}
    show(found if json else f"{output}: {type(calibrator).__name__} as ONNX, {size:,} bytes", as_json=json)
