"""`reweigh inspect FILE`: what a file holds and whether it is sound."""

from __future__ import annotations

import textwrap
from typing import Annotated, Any

import typer

from .._columns import with_columns
from .._options import Debug, Ignore, Import, Json
from .._output import show
from .._tables import table, width

EXAMPLES = """
reweigh inspect val.parquet
reweigh inspect val.csv --logits 'z*' --target label
reweigh inspect temperature.json
"""


@with_columns
def verb(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A prediction file, a folder of shards, or a calibrator.")
    ],
    ignore: Ignore = None,
    columns: Any = None,
    modules: Import = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """What a file holds and whether it is sound."""
    found = _calibrator(file) if file.endswith(".json") else _predictions(file, columns, ignore or [])
    show(found if json else _text(found), as_json=json)


def _calibrator(file: str) -> dict[str, Any]:
    from ... import calibration
    from .._calibrators import fitted_values

    calibrator = calibration.load(file)
    fitted_on = calibrator.fitted_on_
    return {
        "file": file,
        "holds": f"a fitted {type(calibrator).__name__}",
        "settings": calibrator.get_params(deep=False),
        "fitted": fitted_values(calibrator),
        "fitted_on": {name: fitted_on[name] for name in ("rows", "weight", "class_counts")},
        "preserves_accuracy": calibrator.preserves_accuracy,
        "findings": [],
    }


def _predictions(file: str, columns: dict[str, Any], ignore: list[str]) -> dict[str, Any]:
    from ... import files
    from ...errors import InputError
    from ...evaluation import Context, run_checks

    described = files.describe(file, **columns)
    try:
        found = files.open(file, **columns)
    except InputError as error:
        if not described["unresolved"]:
            raise
        return {
            **described,
            "holds": "columns of which none is recognised as scores",
            "hint": _hint(str(error)),
            "findings": [],
        }
    findings = run_checks(Context(table=found, label=file), ignore=ignore)
    facts = {"holds": repr(found).removeprefix("Predictions(").removesuffix(")"), **_facts(found)}
    return {**described, **facts, "findings": [finding.to_dict() for finding in findings]}


def _hint(message: str) -> str:
    """What to do, without the columns that the table below lists anyway."""
    _, how, rest = message.partition("Say what holds the scores")
    return textwrap.fill(how + rest if how else message, width())


def _facts(found: Any) -> dict[str, Any]:
    """Counts that tell a sound file from an odd one."""
    facts: dict[str, Any] = {"about": found.about, "class_names": found.class_names}
    if found.target_form == "index" and found.classes:
        import torch

        counts = torch.bincount(found.target_tensor.cpu().long(), minlength=found.classes)
        facts["rows_a_class"] = {
            "fewest": int(counts.min()),
            "most": int(counts.max()),
            "absent_classes": int((counts == 0).sum()),
        }
    if len(found):
        facts["mean_confidence"] = float(found.top_confidence.mean())
        low, high = float(found.scores.min()), float(found.scores.max())
        facts["range_of_scores"] = [low, high]
    return facts


def _text(found: dict[str, Any]) -> str:
    rows = [
        (key.replace("_", " "), _words(value))
        for key, value in found.items()
        if key not in HIDDEN and value not in (None, {}, [], "")
    ]
    parts = [table(rows)]
    if found.get("columns"):
        parts.append("Columns:\n" + table([(name, words) for name, words in found["columns"].items()], indent=2))
    if found.get("hint"):
        parts.append(found["hint"])
    parts += [
        f"{one['severity']} {one['code']} ({one['name']}): {one['detected']}\n  {one['mend']}"
        for one in found["findings"]
    ]
    if not found["findings"] and not found.get("hint"):
        parts.append("No check found anything.")
    return "\n\n".join(parts)


HIDDEN = ("columns", "findings", "hint", "unresolved")


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {_words(one)}" for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_words, value[:12])) + (", ..." if len(value) > 12 else "")
    return (
        f"{value:,}"
        if isinstance(value, int) and not isinstance(value, bool)
        else f"{value:.6g}"
        if isinstance(value, float)
        else str(value)
    )
