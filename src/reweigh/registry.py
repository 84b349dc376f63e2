"""Names and aliases of everything that comes one file each: losses, metrics, calibrators, ...

Two ways in, one table out. The package's own files are *read*, not imported: a decorator such as
`@register_loss("focal", aliases=("FL",), ...)` is a literal in the source, so names, aliases and
summaries are known without importing torch (`reweigh list`, completion, nearest names). A user's
own code registers when it runs. `get` imports the one file that is asked for.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from .errors import InputError, bad_input, unknown_name

Registered = TypeVar("Registered", bound=Callable[..., Any])

# kind -> the folder whose files register it
FOLDERS = {
    "loss": "losses",
    "metric": "metrics",
    "calibrator": "calibration",
    "check": "evaluation",
    "format": "files",
    "dataset": "data",
    "model": "models",
    "recipe": "recipes",
    "section": "reports",
    "monitor": "training",
    "tracker": "training",
}


@dataclass(frozen=True)
class Entry:
    """One registered thing, known without importing it."""

    kind: str
    name: str
    module: str
    attribute: str
    aliases: tuple[str, ...] = ()
    summary: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    thing: Any = None  # set for what a user's running code registered

    def load(self) -> Any:
        """The registered function or class itself."""
        if self.thing is not None:
            return self.thing
        return getattr(importlib.import_module(self.module), self.attribute)


def normalized(name: str) -> str:
    """Names are compared without case, hyphens, underscores and blanks: `F-ECE` is `fece`."""
    return "".join(character for character in name.casefold() if character not in "-_ ")


_of_users: dict[str, dict[str, Entry]] = {}


def register(kind: str, name: str, *, aliases: tuple[str, ...] = (), **details: Any):
    """The decorator behind `register_loss` and its siblings: registers, returns its argument unchanged."""

    def decorate(thing: Registered) -> Registered:
        if thing.__module__.startswith("reweigh."):
            return thing  # read from the source by `_of_package`
        taken = {normalized(word): entry.name for entry in entries(kind) for word in (entry.name, *entry.aliases)}
        for word in (name, *aliases):
            owner = taken.get(normalized(word))
            if owner is not None and owner not in _of_users.get(kind, {}):
                raise InputError(
                    f"registering the {kind} {name!r}: the name {word!r} belongs to {owner!r} already. Choose another."
                )
        summary = (thing.__doc__ or "").strip().split("\n")[0]
        entry = Entry(kind, name, thing.__module__, thing.__qualname__, tuple(aliases), summary, details, thing)
        _of_users.setdefault(kind, {})[name] = entry
        return thing

    return decorate


def register_loss(name: str, *, aliases: tuple[str, ...] = (), source: str = "", formula: str = ""):
    """Register a function that returns a `Loss`; `reweigh.loss(name)`, the command line and the tests find it."""
    return register("loss", name, aliases=aliases, source=source, formula=formula)


def register_metric(name: str, *, aliases: tuple[str, ...] = (), **details: Any):
    """Register a function `Predictions -> number`; details: direction, range, heads."""
    return register("metric", name, aliases=aliases, **details)


def register_calibrator(name: str, *, aliases: tuple[str, ...] = (), **details: Any):
    """Register an estimator that repairs confidence."""
    return register("calibrator", name, aliases=aliases, **details)


def register_check(name: str, *, aliases: tuple[str, ...] = (), **details: Any):
    """Register a check that `inspect`, `evaluate` and `compare` run; details: code, severity."""
    return register("check", name, aliases=aliases, **details)


def register_format(name: str, *, aliases: tuple[str, ...] = (), **details: Any):
    """Register a file format; details: the endings of its files."""
    return register("format", name, aliases=aliases, **details)


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def _definitions(kind: str, text: str) -> list[ast.stmt]:
    """The registering definitions of a source file, each cut off after its docstring.

    Parsing costs by the line, and all files together would be felt whenever names are listed or completed.
    """
    pattern = rf'^@register_{kind}\(.*?^(?:def|class) .*?:\n\s+r?""".*?"""'
    pieces = [match[0] for match in re.finditer(pattern, text, re.MULTILINE | re.DOTALL)]
    if len(pieces) == len(re.findall(rf"^@register_{kind}\(", text, re.MULTILINE)):
        try:
            return [node for piece in pieces for node in ast.parse(piece).body]
        except SyntaxError:  # quotes in an unusual place: the whole file tells
            pass
    return ast.parse(text).body


def _read(kind: str, path: Path, module: str) -> list[Entry]:
    """The entries one source file registers, from its text alone."""
    found: list[Entry] = []
    text = path.read_text(encoding="utf-8")
    if f"@register_{kind}(" not in text:
        return found
    for node in _definitions(kind, text):
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            continue
        for call in node.decorator_list:
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
                continue
            if call.func.id != f"register_{kind}" or not call.args:
                continue
            details = {word.arg: _literal(word.value) for word in call.keywords if word.arg}
            aliases = tuple(details.pop("aliases", ()))
            summary = (ast.get_docstring(node) or "").split("\n")[0]
            found.append(Entry(kind, _literal(call.args[0]), module, node.name, aliases, summary, details))
    return found


@cache
def _of_package(kind: str) -> dict[str, Entry]:
    folder = Path(__file__).parent / FOLDERS[kind]
    table: dict[str, Entry] = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        for entry in _read(kind, path, ".".join(("reweigh", *parts))):
            table[entry.name] = entry
    return table


def entries(kind: str) -> list[Entry]:
    """All of one kind, the package's first, in the order of their names."""
    if kind not in FOLDERS:
        raise unknown_name("kind", kind, FOLDERS)
    merged = {**_of_package(kind), **_of_users.get(kind, {})}
    return [merged[name] for name in sorted(merged)]


def names(kind: str) -> list[str]:
    """The full names of one kind."""
    return [entry.name for entry in entries(kind)]


def find(kind: str, name: str) -> Entry:
    """The entry of a name or alias; an unknown one is an error that names the nearest."""
    if not isinstance(name, str):
        raise bad_input(f"looking for a {kind}", came=type(name).__name__, expected="its name, such as 'focal'")
    wanted = normalized(name)
    known = entries(kind)
    for entry in known:
        if wanted in (normalized(entry.name), *map(normalized, entry.aliases)):
            return entry
    raise unknown_name(kind, name, [word for entry in known for word in (entry.name, *entry.aliases)])


def get(kind: str, name: str) -> Any:
    """The registered function or class itself, imported now."""
    return find(kind, name).load()
