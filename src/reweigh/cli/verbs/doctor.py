"""`reweigh doctor`: what is installed, what is missing, and how to bring it."""

from __future__ import annotations

import textwrap
from typing import Any

from .._installation import installation
from .._options import Debug, Json
from .._output import show
from .._tables import table, width

EXAMPLES = """
reweigh doctor
reweigh doctor --json           to send with a question
"""


def verb(json: Json = False, debug: Debug = False) -> None:
    """What is installed and what is missing: versions, devices, extras."""
    found = installation()
    show(found if json else _text(found), as_json=json)


def _text(found: dict[str, Any]) -> str:
    facts = [(name, found[name] or "not installed") for name in ("reweigh", "python", "platform", "torch", "numpy")]
    facts += [("device", one) for one in found["devices"]]
    losses = textwrap.fill(f"GPU losses: {found['evidence']}", width(), subsequent_indent="  ")
    return "\n\n".join([table(facts), losses, _extras_text(found["extras"])])


def _extras_text(extras: list[dict[str, Any]]) -> str:
    if not extras:
        return "Extras: unknown (neither installed as a package nor run from a checkout)."
    rows = []
    for extra in extras:
        there = [f"{name} {version}" for name, version in extra["packages"].items() if version]
        rows.append((extra["extra"], "missing" if extra["missing"] else "ready", ", ".join(extra["missing"] or there)))
    commands = [f"  {extra['install']}" for extra in extras if extra["missing"]]
    lacking = "\n\nTo bring what is missing:\n" + "\n".join(commands) if commands else ""
    return table(rows, heading=("EXTRA", "STATE", "PACKAGES")) + lacking
