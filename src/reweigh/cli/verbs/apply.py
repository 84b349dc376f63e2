"""`reweigh apply CALIBRATOR.json FILE -o OUT`: predictions with repaired confidence."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .._columns import with_columns
from .._options import Debug, Json, Output
from .._output import show

EXAMPLES = """
reweigh apply temperature.json test.npz -o repaired.parquet
reweigh apply i.json test.csv --logits 'z*' --target label -o repaired.npz
"""


@with_columns
def verb(
    calibrator: Annotated[str, typer.Argument(metavar="CALIBRATOR", help="What `reweigh calibrate` has written.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="Predictions of the same model.")],
    output: Output,
    columns: Any = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Repair the confidence of predictions with a fitted calibrator."""
    from ... import calibration, files
    from ...evaluation import Context, run_checks

    repair = calibration.load(calibrator)
    before = files.open(file, **columns)
    after = repair.apply(before)
    files.save(after, output)
    findings = [
        finding for finding in run_checks(Context(table=after, label=file)) if finding.code in ("RW101", "RW105")
    ]
    changed = None if before.kind == "confidence" else int((before.predicted != after.predicted).sum())
    if json:
        found = {"file": output, "rows": len(after), "kind": after.kind, "changed_decisions": changed}
        show({**found, "findings": [finding.to_dict() for finding in findings]}, as_json=True)
        return
    decisions = "" if changed is None else f", {changed:,} decisions changed"
    form = repr(after).removeprefix("Predictions(").removesuffix(")")
    show("\n\n".join([f"{output}: {form}{decisions}", *map(str, findings)]), as_json=False)
