"""The grammar `NAME:key=value,key=value` for a loss, metric or calibrator with settings.

In a list, a piece `key=value` continues the NAME before it: `focal:gamma=3,alpha=1,F-ECE` is two. Values are YAML
scalars (YAML 1.2: `1e-3` is a number, `no` is a word), or `@file.yaml` for lists, counts and nested losses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import InputError, need

DEEPEST = 64
MOST_BYTES = 16 << 20  # of an @file; settings are small, and YAML is read as a whole


@dataclass(frozen=True)
class Named:
    """A name with its settings."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        words = ",".join(f"{key}={value}" for key, value in self.settings.items())
        return f"{self.name}:{words}" if words else self.name


def parse_list(text: str) -> list[Named]:
    """All names of a comma-separated list, each with the settings that follow it."""
    found: list[Named] = []
    for piece in _pieces(text):
        name, colon, first = _head(piece)
        if colon or "=" not in piece:
            if not name:
                raise _wrong(text, f"{piece!r} has no name before the colon")
            found.append(Named(name))
            piece = first
        if piece:
            if not found:
                raise _wrong(text, f"{piece!r} comes before any name")
            key, value = _setting(piece, text)
            if key in found[-1].settings:
                raise _wrong(text, f"{key!r} is given twice for {found[-1].name!r}")
            found[-1].settings[key] = value
    return found


def parse_one(text: str) -> Named:
    """The one name of `text`; a list of several is an error."""
    found = parse_list(text)
    if len(found) != 1:
        raise _wrong(text, f"it names {len(found)} things ({', '.join(one.name for one in found)}), one is wanted")
    return found[0]


def _wrong(text: str, why: str) -> InputError:
    return InputError(f"reading {text!r}: {why}. Write NAME:key=value,key=value, as in focal:gamma=3")


def _pieces(text: str) -> list[str]:
    """The text cut at commas that are not inside quotes."""
    pieces, piece, quote = [], "", ""
    for character in text:
        if character == "," and not quote:
            pieces.append(piece.strip())
            piece = ""
            continue
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'" and piece.rstrip().endswith("="):
            quote = character
        piece += character
    pieces.append(piece.strip())
    if quote:
        raise _wrong(text, f"the quote {quote} is not closed")
    if not all(pieces):
        raise _wrong(text, "a piece between commas is empty")
    return pieces


def _head(piece: str) -> tuple[str, str, str]:
    """`NAME:rest` where the colon comes before any `=`; otherwise the piece as a bare name."""
    name, colon, rest = piece.partition(":")
    if colon and "=" not in name:
        return name.strip(), colon, rest.strip()
    return piece, "", ""


def _setting(piece: str, text: str) -> tuple[str, Any]:
    key, equals, value = (part.strip() for part in piece.partition("="))
    if not equals or not key.isidentifier():
        raise _wrong(text, f"{piece!r} is not of the form key=value")
    if not value:
        raise _wrong(text, f"{key!r} has no value (write {key}=null for none)")
    if value.startswith("@"):
        return key, load_yaml(Path(value[1:]))
    found = _yaml(value, f"the value of {key!r}")
    if isinstance(found, (list, dict)) or (found is None and value.casefold() not in ("null", "~")):
        raise _wrong(
            text, f"the value of {key!r} is not a single value; put lists into a file and write {key}=@file.yaml"
        )
    return key, found


def load_yaml(path: Path) -> Any:
    """The content of a YAML file: plain values only, no tag can build an object."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"reading {path}: it has {path.stat().st_size} bytes, at most {MOST_BYTES} are read.")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"reading {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"reading {path}: it is not UTF-8 text (byte {error.start}).") from error
    return _yaml(text, str(path))


def _yaml(text: str, what: str) -> Any:
    yaml = need("yaml", "cli", "reading settings")
    try:
        loader = _loader(yaml)
        _check_events(yaml, yaml.parse(text, Loader=loader))
        return yaml.load(text, Loader=loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        why = getattr(error, "problem", None) or str(error) or "nested too deeply"
        raise InputError(f"reading {what}: it is not plain YAML: {' '.join(why.split())}{where}.") from error


def _check_events(yaml: Any, events: Iterable[Any]) -> None:
    """Refuse what makes a small file large: references to its own parts, and nesting that nobody writes."""
    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("it refers to a part of itself (*name); write the part out")
        if depth > DEEPEST:
            raise ValueError(f"it nests more than {DEEPEST} lists and mappings")


# The scalars of YAML 1.2. PyYAML's own are those of 1.1: there `1e-3` is text, `no` false and `12:30` a number.
_SCALARS = (
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", "~nN\0"),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
)


def _loader(yaml: Any) -> Any:
    loader = type("PlainLoader", (yaml.SafeLoader,), {"yaml_implicit_resolvers": {}})
    for tag, pattern, first in _SCALARS:
        characters = ["" if character == "\0" else character for character in first]
        loader.add_implicit_resolver(tag, re.compile(rf"^(?:{pattern})$"), characters)
    loader.add_constructor("tag:yaml.org,2002:int", lambda reader, node: int(reader.construct_scalar(node)))
    loader.add_constructor("tag:yaml.org,2002:map", _mapping)
    return loader


def _mapping(reader: Any, node: Any) -> dict[Any, Any]:
    """A mapping in which no key comes twice."""
    found: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = reader.construct_object(key_node, deep=True)
        if not isinstance(key, (str, int, float, bool, type(None))):
            raise ValueError(f"a mapping's key must be a single value (line {key_node.start_mark.line + 1})")
        if key in found:
            raise ValueError(f"the key {key!r} comes twice (line {key_node.start_mark.line + 1})")
        found[key] = reader.construct_object(value_node, deep=True)
    return found
