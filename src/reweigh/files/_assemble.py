"""Columns and their roles become Predictions; what the table refuses is said with the name of the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch

from ..errors import InputError
from ..predictions import Predictions
from ._names import Choice, Roles

BLOCK_ROWS = 8192  # stacking columns: a block of rows of every column stays in the cache


def assemble(
    columns: Mapping[str, Any], roles: Roles, chosen: Choice, manifest: Mapping[str, Any] | None, label: str
) -> Predictions:
    """The table that these columns make."""
    said = manifest or {}
    try:
        table = _table(columns, roles, chosen, said, label)
    except InputError as error:
        text = str(error)
        raise error if text.startswith("opening ") else InputError(f"opening {label}: {text}") from error
    return table


def _table(
    columns: Mapping[str, Any], roles: Roles, chosen: Choice, said: Mapping[str, Any], label: str
) -> Predictions:
    head = chosen.head or (said.get("head") if said.get("score") == roles.score else None)
    names = roles.class_names or (tuple(said["class_names"]) if said.get("class_names") else None)
    _same_length(columns, roles, label)
    flat = {
        role: _flat(columns[roles.columns[role][0]])
        for role in ("id", "weight", "correct", "prediction")
        if role in roles.columns
    }
    scores: dict[str, Any] = {}
    if roles.score == "confidence":
        scores["confidence"] = _flat(columns[roles.columns["confidence"][0]])
        classes = None
    else:
        matrix = _scores([columns[name] for name in roles.columns[roles.score]], roles, chosen, head, label)
        scores[roles.score], classes = matrix, matrix.shape[1]
        if names and len(names) != classes and chosen.binary:
            names = None
    targets = None
    if "target" in roles.columns:
        targets = _targets([columns[name] for name in roles.columns["target"]], names, classes, head, label)
    if roles.score == "confidence":
        scores["correct"] = _correct(flat, targets, names, label)
    return Predictions(
        **scores,
        targets=targets,
        head=head,
        weights=flat.get("weight"),
        ids=flat.get("id"),
        groups={group: _flat(columns[name]) for group, name in roles.groups.items()},
        class_names=names,
        about=said.get("about"),
    )


def _same_length(columns: Mapping[str, Any], roles: Roles, label: str) -> None:
    names = [*(name for found in roles.columns.values() for name in found), *roles.groups.values()]
    lengths = {name: len(columns[name]) for name in names}
    first = names[0]
    for name, length in lengths.items():
        if length != lengths[first]:
            raise InputError(
                f"opening {label}: {name!r} has {length} rows and {first!r} has {lengths[first]}, expected as many."
            )


def _flat(values: Any) -> Any:
    """(rows, 1) as (rows,); everything else as it is."""
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def stacked(parts: Sequence[Any]) -> Any:
    """Vectors beside one another as (rows, K), in the type that holds them all."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], torch.Tensor):
        return torch.stack([part.to(parts[0].device) for part in parts], dim=1)
    out = numpy.empty((len(parts[0]), len(parts)), numpy.result_type(*parts))
    for start in range(0, len(out), BLOCK_ROWS):
        for place, part in enumerate(parts):
            out[start : start + BLOCK_ROWS, place] = part[start : start + BLOCK_ROWS]
    return out


def _is_text(values: Any) -> bool:
    return isinstance(values, numpy.ndarray) and values.dtype.kind in "USTO"


def _is_floating(values: Any) -> bool:
    return values.dtype.is_floating_point if isinstance(values, torch.Tensor) else values.dtype.kind == "f"


def _scores(parts: list[Any], roles: Roles, chosen: Choice, head: str | None, label: str) -> Any:
    """(rows, K) of scores; a single column only on the user's word."""
    for name, part in zip(roles.columns[roles.score], parts, strict=True):
        if _is_text(part):
            raise InputError(
                f"opening {label}: column {name!r} holds text such as {str(part[0])!r}, expected numbers."
                if len(part)
                else f"opening {label}: column {name!r} holds text, expected numbers."
            )
        if len(parts) > 1 and part.ndim != 1:
            raise InputError(
                f"opening {label}: column {name!r} has the shape {tuple(part.shape)}, expected one number a row beside the others."
            )
    matrix = stacked(parts)
    if matrix.ndim == 1:
        matrix = matrix[:, None]
    if matrix.ndim != 2 or matrix.shape[1] != 1:
        if chosen.binary and matrix.ndim == 2:
            raise InputError(
                f"opening {label}: binary is for one column of scores, and {roles.score} has {matrix.shape[1]}."
            )
        return matrix
    if chosen.binary:
        return two_classes(matrix, roles.score)
    if head != "sigmoid":
        name = roles.columns[roles.score][0]
        raise InputError(
            f"opening {label}: {name!r} is one column. If it belongs to the second of two classes, say binary=True "
            "(--binary); if it is one label that is present or absent, say head='sigmoid' (--head sigmoid)."
        )
    return matrix


def two_classes(column: Any, score: str) -> Any:
    """(rows, 1) of the second class's score as (rows, 2), in the column's type."""
    library: Any = torch if isinstance(column, torch.Tensor) else numpy
    if score == "logits":
        first = library.zeros_like(column)  # softmax of (0, z) is the sigmoid of z
    elif score == "probabilities":
        first = 1 - column
    else:
        near = column > -0.6931471805599453  # log(1 - exp(x)), exact on both sides of ln 2
        with numpy.errstate(all="ignore"):
            first = library.where(near, library.log(-library.expm1(column)), library.log1p(-library.exp(column)))
    return library.concatenate([first, column], 1) if library is numpy else torch.cat([first, column], 1)


def _targets(parts: list[Any], names: Sequence[str] | None, classes: int | None, head: str | None, label: str) -> Any:
    """Class numbers or a matrix; text through the class names, whole numbers stored as floats as numbers."""
    if len(parts) > 1 and any(_is_text(part) for part in parts):
        raise InputError(f"opening {label}: several target columns of which one holds text, expected numbers.")
    targets = stacked(parts)
    if targets.ndim == 2 and targets.shape[1] == 1 and classes != 1:
        targets = targets[:, 0]
    if _is_text(targets):
        return _numbered(targets, names, label)
    if targets.ndim == 1 and classes == 1 and head == "sigmoid":
        return _whole(targets, label)[:, None] if _is_floating(targets) else targets[:, None]
    return _whole(targets, label) if targets.ndim == 1 and _is_floating(targets) else targets


def _whole(values: Any, label: str) -> Any:
    """Whole numbers that a table kept as floats (a column with a gap once, a CSV with `3.0`)."""
    plain = values.detach().cpu().double().numpy() if isinstance(values, torch.Tensor) else values
    wrong = ~(numpy.isfinite(plain) & (plain == numpy.floor(plain)) & (numpy.abs(plain) < 2**53))
    if wrong.any():
        row = int(numpy.flatnonzero(wrong)[0])
        raise InputError(
            f"opening {label}: the target of row {row} is {float(plain[row])!r}, expected a class number. "
            "Shares are given as one column a class."
        )
    return values.long() if isinstance(values, torch.Tensor) else values.astype(numpy.int64)


def _numbered(texts: numpy.ndarray, names: Sequence[str] | None, label: str) -> numpy.ndarray:
    """Class numbers of class names."""
    if names is None:
        example = ", ".join(sorted(map(str, numpy.unique(texts[:1000])))[:5])
        raise InputError(
            f"opening {label}: the targets are text ({example}, ...) and no class names are known. Give them in the order "
            "of the scores: class_names=['first', 'second', ...] (on the command line --class-names first,second,...)."
        )
    number = {name: place for place, name in enumerate(names)}
    values, places = numpy.unique(texts, return_inverse=True)
    known = numpy.array([number.get(str(value), -1) for value in values], dtype=numpy.int64)
    numbers = known[places] if len(values) else numpy.empty(0, numpy.int64)
    if (numbers < 0).any():
        row = int(numpy.flatnonzero(numbers < 0)[0])
        raise InputError(
            f"opening {label}: the target of row {row} is {str(texts[row])!r}, expected one of the class names ({', '.join(names[:12])})."
        )
    return numbers


def _correct(flat: Mapping[str, Any], targets: Any, names: Sequence[str] | None, label: str) -> Any:
    """Whether each prediction was right: given, or from prediction and target."""
    if "correct" in flat:
        correct = flat["correct"]
        if not _is_text(correct):
            return correct
        words = {"true": True, "false": False}
        found = [words.get(str(value).strip().casefold()) for value in correct]
        if None in found:
            row = found.index(None)
            raise InputError(
                f"opening {label}: correct is {str(correct[row])!r} in row {row}, expected true or false, 1 or 0."
            )
        return numpy.array(found, dtype=bool)
    prediction = flat["prediction"]
    if targets.ndim != 1:
        raise InputError(f"opening {label}: prediction= needs one class number a row as target, got a matrix.")
    prediction = _targets([prediction], names, None, None, label)
    both = [value.cpu().numpy() if isinstance(value, torch.Tensor) else value for value in (prediction, targets)]
    return both[0] == both[1]
