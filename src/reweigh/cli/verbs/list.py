"""`reweigh list [KIND]`: the names there are, from the source files alone."""

from __future__ import annotations

from typing import Annotated

import typer

from ... import registry
from .._completion import kinds
from .._options import Debug, Import, Json
from .._output import show
from .._tables import table

EXAMPLES = """
reweigh list                    every kind of thing, and how many there are
reweigh list loss               all losses
reweigh list metric --json      for machines
"""


def verb(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="loss, metric, calibrator, ...", autocompletion=kinds)
    ] = "",
    modules: Import = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """What there is: losses, metrics, calibrators, checks, file formats, ..."""
    if json:
        show({one: [_record(entry) for entry in registry.entries(one)] for one in _kinds(kind)}, as_json=True)
    else:
        show(_listing(_kind(kind)) if kind else _overview(), as_json=False)


def _kind(word: str) -> str:
    """The kind, also from its plural and in any case."""
    folded = word.casefold()
    folded = {"losses": "loss"}.get(folded, folded)
    if folded not in registry.FOLDERS and folded.removesuffix("s") in registry.FOLDERS:
        return folded.removesuffix("s")
    registry.entries(folded)  # an unknown one is refused there
    return folded


def _kinds(word: str) -> list[str]:
    return [_kind(word)] if word else [kind for kind in registry.FOLDERS if registry.entries(kind)]


def _record(entry: registry.Entry) -> dict:
    return {"name": entry.name, "aliases": list(entry.aliases), "summary": entry.summary}


def _overview() -> str:
    counted = [(kind, len(registry.entries(kind))) for kind in registry.FOLDERS]
    rows = [(kind, str(count), ", ".join(registry.names(kind))) for kind, count in counted if count]
    return table(rows, heading=("KIND", "COUNT", "NAMES"), right=(1,)) + "\n\nreweigh list KIND says what each is."


def _listing(kind: str) -> str:
    entries = registry.entries(kind)
    if not entries:
        return f"There is no {kind} yet."
    rows = [(entry.name, ", ".join(entry.aliases), entry.summary) for entry in entries]
    heading = ["NAME", "ALSO", "WHAT IT IS"]
    if not any(row[1] for row in rows):
        rows, heading = [(row[0], row[2]) for row in rows], ["NAME", "WHAT IT IS"]
    return table(rows, heading=heading) + f"\n\nreweigh show {kind} NAME says more about one."
