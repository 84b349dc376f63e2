"""`reweigh show [KIND] NAME`: one thing's formula, settings, source, from the source files alone."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer

from ... import registry
from ...errors import InputError, unknown_name
from .._completion import names_of
from .._options import Debug, Import, Json
from .._output import show
from .._signature import Setting, documentation, settings
from .._tables import table, width
from .list import _kind

EXAMPLES = """
reweigh show focal
reweigh show loss F-ECE
reweigh show metric expected_calibration_error --json
"""


def verb(
    words: Annotated[
        list[str], typer.Argument(metavar="[KIND] NAME", help="A name or abbreviation.", autocompletion=names_of())
    ],
    modules: Import = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """One thing's formula, settings with their defaults, source and documentation."""
    entry = _find(words)
    if json:
        show(_record(entry), as_json=True)
    else:
        show(_text(entry), as_json=False)


def _find(words: list[str]) -> registry.Entry:
    if len(words) > 2:
        raise typer.BadParameter(f"got {len(words)} words, expected [KIND] NAME")
    if len(words) == 2:
        return registry.find(_kind(words[0]), words[1])
    return _anywhere(words[0])


def _anywhere(name: str) -> registry.Entry:
    """The one thing of that name among all kinds."""
    wanted = registry.normalized(name)
    known = [entry for kind in registry.FOLDERS for entry in registry.entries(kind)]
    hits = [entry for entry in known if wanted in map(registry.normalized, (entry.name, *entry.aliases))]
    if not hits:
        raise unknown_name("thing", name, {word for entry in known for word in (entry.name, *entry.aliases)})
    if len(hits) > 1:
        choices = ", ".join(f"{entry.kind} {entry.name}" for entry in hits)
        raise InputError(f"{name!r} is the name of several things: {choices}. Say which: reweigh show KIND NAME")
    return hits[0]


def _record(entry: registry.Entry) -> dict:
    return {
        "kind": entry.kind,
        "name": entry.name,
        "aliases": list(entry.aliases),
        "summary": entry.summary,
        **entry.details,
        "settings": [{"name": one.name, "default": one.default, "type": one.type} for one in settings(entry)],
        "documentation": documentation(entry),
        "module": entry.module,
    }


def _text(entry: registry.Entry) -> str:
    also = f"  (also {', '.join(entry.aliases)})" if entry.aliases else ""
    parts = [f"{entry.kind} {entry.name}{also}"]
    parts.append(documentation(entry) or entry.summary)
    facts = [(key.replace("_", " "), _words(value)) for key, value in entry.details.items() if value not in ("", None)]
    if facts:
        parts.append("\n".join(_fact(key, value) for key, value in facts))
    parts.append(_settings_text(settings(entry)))
    return "\n\n".join(parts)


def _words(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _fact(key: str, value: str) -> str:
    return textwrap.fill(f"{key}: {value}", width(), subsequent_indent="  ", break_long_words=False)


def _settings_text(known: list[Setting]) -> str:
    own = [(one.name, one.default, one.type) for one in known if one.default != "(common)"]
    common = [one.name for one in known if one.default == "(common)"]
    parts = []
    if own:
        parts.append("Settings:\n" + table(own, heading=("NAME", "DEFAULT", "TYPE"), indent=2))
    if common:
        line = "Common to all: " + ", ".join(common)
        parts.append(textwrap.fill(line, width(), subsequent_indent="  "))
    return "\n\n".join(parts) or "No settings."
