"""`reweigh calibrate METHOD FILE -o CALIBRATOR.json`: fit a repair of confidence."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .._columns import with_columns
from .._completion import names_of
from .._options import Debug, Import, Json, Output
from .._output import show
from .._tables import table

EXAMPLES = """
reweigh calibrate temperature val.npz -o temperature.json
reweigh calibrate temperature:objective=ece,bins=15 val.npz -o t.json
reweigh calibrate isotonic val.csv --logits 'z*' --target label -o i.json
"""


@with_columns
def verb(
    method: Annotated[
        str,
        typer.Argument(
            metavar="METHOD", help="NAME:key=value,... (reweigh list calibrator)", autocompletion=names_of("calibrator")
        ),
    ],
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Predictions with targets, which the model was not trained on.")
    ],
    output: Output,
    columns: Any = None,
    modules: Import = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Fit a repair of confidence on predictions with targets."""
    from ... import files
    from .._calibrators import build, check_target, fitted_values, in_words

    check_target(output)
    named, calibrator = build(method)
    predictions = files.open(file, **columns)
    calibrator.fit(predictions)
    calibrator.save(output)
    fitted = fitted_values(calibrator)
    if json:
        show({"file": output, "calibrator": str(named), "rows": len(predictions), "fitted": fitted}, as_json=True)
        return
    rows = [(name.replace("_", " "), in_words(value)) for name, value in fitted.items()]
    show(
        f"{named} fitted on {len(predictions):,} rows of {file}\n\n{table(rows)}\n\n"
        f"{output} repairs other predictions of the same model:\n  reweigh apply {output} FILE -o repaired.parquet",
        as_json=False,
    )
