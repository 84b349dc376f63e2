"""Settings, defaults and documentation of a registered thing, read from its source file without importing it."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..registry import Entry

REQUIRED = "(required)"


@dataclass(frozen=True)
class Setting:
    """One keyword of a function: its default as written, its type as written."""

    name: str
    default: str
    type: str = ""


def _node_of(entry: Entry) -> tuple[ast.FunctionDef | ast.ClassDef, Path] | None:
    """The definition in the package's own source; None for what a user's code registered."""
    path = Path(__file__).parents[1].joinpath(*entry.module.split(".")[1:]).with_suffix(".py")
    if entry.thing is not None or not path.is_file():
        return None
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == entry.attribute:
            return node, path
    return None


def settings(entry: Entry) -> list[Setting]:
    """What can be set, in the order of the signature; a class is asked for its `__init__` or its fields."""
    found = _node_of(entry)
    if found is None:
        return _settings_of(entry.load())
    node, path = found
    if isinstance(node, ast.ClassDef):
        method = next((one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)
        if method is None:
            return [
                Setting(one.target.id, ast.unparse(one.value) if one.value else REQUIRED, ast.unparse(one.annotation))
                for one in node.body
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
            ]
        return _of_arguments(method.args, skip=("self",))
    skip = ("predictions",) if entry.kind in ("metric", "check") else ()
    return _of_arguments(node.args, skip) + _common(node.args, path)


def _of_arguments(arguments: ast.arguments, skip: tuple[str, ...]) -> list[Setting]:
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[Any] = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    pairs = [*zip(positional, defaults, strict=True), *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    return [
        Setting(
            one.arg,
            ast.unparse(value) if value is not None else REQUIRED,
            ast.unparse(one.annotation) if one.annotation else "",
        )
        for one, value in pairs
        if one.arg not in skip
    ]


def _common(arguments: ast.arguments, path: Path) -> list[Setting]:
    """The keywords of `**common: Unpack[Common]`: the fields of that class, which the file imports or defines."""
    if arguments.kwarg is None or arguments.kwarg.annotation is None:
        return []
    name = ast.unparse(arguments.kwarg.annotation).removeprefix("Unpack[").removesuffix("]")
    for place in (path, *sorted(path.parents[1].glob("*.py"))):
        found = _fields(place, name)
        if found:
            return [Setting(field, "(common)", kind) for field, kind in found]
    return []


@cache
def _fields(place: Path, name: str) -> list[tuple[str, str]]:
    """Name and type of the fields of a class in a source file."""
    text = place.read_text(encoding="utf-8")
    if f"class {name}" not in text:
        return []
    bodies = [node.body for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == name]
    return [
        (ast.unparse(one.target), ast.unparse(one.annotation))
        for body in bodies
        for one in body
        if isinstance(one, ast.AnnAssign)
    ]


def _settings_of(thing: Any) -> list[Setting]:
    """The same of something that is in memory."""
    kinds = inspect.Parameter
    return [
        Setting(
            one.name,
            REQUIRED if one.default is kinds.empty else repr(one.default),
            "" if one.annotation is kinds.empty else str(one.annotation),
        )
        for one in inspect.signature(thing).parameters.values()
        if one.kind not in (kinds.VAR_KEYWORD, kinds.VAR_POSITIONAL)
    ]


def documentation(entry: Entry) -> str:
    """The whole docstring."""
    found = _node_of(entry)
    if found is None:
        return inspect.getdoc(entry.load()) or ""
    return ast.get_docstring(found[0]) or ""
