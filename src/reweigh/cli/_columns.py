"""The options that say which column is what; every verb that opens prediction files has them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError
from ..grammar import load_yaml

NAME = "NAME"


def _column(what: str) -> Any:
    return Annotated[str | None, typer.Option(metavar=NAME, help=what)]


# in the order of the help; the names are those of `reweigh.open`
OPTIONS: dict[str, tuple[Any, Any]] = {
    "logits": (_column("Columns with logits: a name, a pattern ('z*'), or a,b,c."), None),
    "log_probabilities": (_column("Columns with log-probabilities."), None),
    "probabilities": (_column("Columns with probabilities."), None),
    "confidence": (_column("Column with the confidence of the prediction alone."), None),
    "correct": (_column("With --confidence: whether the prediction was right."), None),
    "prediction": (_column("With --confidence: the class predicted."), None),
    "target": (_column("Column with the true class (several for label matrices)."), None),
    "id": (_column("Column with a name for each row."), None),
    "weight": (_column("Column with a weight for each row."), None),
    "group": (
        Annotated[list[str] | None, typer.Option(metavar=NAME, help="Column that groups rows; can be repeated.")],
        None,
    ),
    "head": (
        Annotated[str | None, typer.Option(metavar="HEAD", help="softmax or sigmoid, where the file does not say.")],
        None,
    ),
    "class_names": (
        Annotated[str | None, typer.Option(metavar="A,B,...", help="Names in the order of the scores, or @file.")],
        None,
    ),
    "binary": (
        Annotated[bool, typer.Option("--binary", help="One column of scores is the second of two classes.")],
        False,
    ),
    "partial": (Annotated[bool, typer.Option("--partial", help="Open what an unfinished recording has left.")], False),
    "format": (
        Annotated[str | None, typer.Option(metavar="FORMAT", help="Format of a file with another ending.")],
        None,
    ),
    "delimiter": (
        Annotated[str | None, typer.Option(metavar="MARK", help="What separates the columns of a CSV.")],
        None,
    ),
}


def with_columns(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The verb with the column options in its signature; it gets them together, as `columns`."""

    @functools.wraps(verb)
    def wrapped(**options: Any) -> Any:
        columns = {name: options.pop(name) for name in OPTIONS}
        return verb(**options, columns=_given(columns))

    signature = inspect.signature(verb, eval_str=True)
    own = [one for one in signature.parameters.values() if one.name != "columns"]
    place = next((number for number, one in enumerate(own) if one.name == "modules"), len(own))
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=kind)
        for name, (kind, value) in OPTIONS.items()
    ]
    parameters = [*own[:place], *added, *own[place:]]
    keyword_only = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    setattr(wrapped, "__signature__", signature.replace(parameters=keyword_only))  # noqa: B010 (what typer reads)
    wrapped.__annotations__ = {one.name: one.annotation for one in parameters}
    return wrapped


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """The keywords of `reweigh.open` for what was said."""
    found = {name: value for name, value in options.items() if value not in (None, False, [])}
    if "class_names" in found:
        found["class_names"] = class_names(found["class_names"])
    if found.get("delimiter") in ("tab", "\\t"):
        found["delimiter"] = "\t"
    return found


def class_names(text: str) -> list[str]:
    """Names separated by commas, or from a file: a YAML list, or one name a line."""
    if not text.startswith("@"):
        return [name.strip() for name in text.split(",")]
    path = Path(text[1:])
    if path.suffix.casefold() in (".yaml", ".yml", ".json"):
        found = load_yaml(path)
        if not isinstance(found, list):
            raise InputError(f"reading the class names in {path}: got {type(found).__name__}, expected a list.")
        return [str(name) for name in found]
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"reading the class names in {path}: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}."
        ) from error
