"""CSV and TSV: a line of names, then rows; ids and groups are text, scores float64."""

from __future__ import annotations

import csv as csv_module
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy

from ..errors import InputError, need
from ..registry import register_format
from ._arrow import text, to_numpy
from ._failures import reading, stepwise
from ._limits import check_expansion
from ._source import Format, Source, Wanted

WHAT = "a CSV file"
MOST_HEADER = 16 << 20  # bytes of the line of names
MISSING = ["", "NA", "N/A", "null", "NULL", "None", "#N/A"]
MOST_ROWS_AHEAD = 1 << 20  # bytes pyarrow reads at a time


@register_format("csv", endings=(".csv", ".tsv"))
def csv() -> Format:
    """Comma- or tab-separated text with a line of names; read only, because text cannot tell when it is damaged."""
    return Format(open=_open)


def _open(path: Path, options: Mapping[str, Any]) -> Source:
    label = str(path)
    delimiter = options.get("delimiter") or ("\t" if path.suffix.casefold() == ".tsv" else ",")
    with reading(label, WHAT):
        names = _names(path, delimiter, label)
        ended = _ends(path)
    if not ended:  # nothing else in a file of text tells that digits are missing
        warnings.warn(
            f"{label}: the last line has no line end; if the file was cut, its last value is wrong.", stacklevel=2
        )
    return Source(
        label=label,
        columns=dict.fromkeys(names, ""),
        rows=None,
        read=lambda wanted: _read(path, delimiter, wanted),
        batches=lambda wanted, rows: stepwise(lambda: _batches(path, delimiter, wanted, rows), label, WHAT),
    )


def _names(path: Path, delimiter: str, label: str) -> list[str]:
    """The names in the first line."""
    with open(path, "rb") as file:
        first = file.readline(MOST_HEADER)
    if not first.strip():
        raise InputError(f"opening {label}: it is empty, expected a line of column names and rows below it.")
    if len(first) >= MOST_HEADER:
        raise InputError(
            f"opening {label}: its first line is longer than {MOST_HEADER:,} bytes, expected column names."
        )
    names = next(csv_module.reader([first.decode("utf-8-sig")], delimiter=delimiter))
    twice = [name for name in names if names.count(name) > 1] if len(set(names)) < len(names) else []
    if twice:
        raise InputError(f"opening {label}: it has two columns called {twice[0]!r}.")
    if len(names) == 1 and delimiter == ",":
        other = next((mark for mark in ";\t|" if mark in names[0]), None)
        if other:
            raise InputError(
                f"opening {label}: its first line has no comma but {other!r}. Say delimiter={other!r} (--delimiter)."
            )
    if names and all(_is_number(name) for name in names):
        raise InputError(
            f"opening {label}: its first line holds numbers ({', '.join(names[:3])}, ...), expected column names. "
            "Add a line such as z0,z1,label."
        )
    return names


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _ends(path: Path) -> bool:
    """Whether the last line has its end."""
    with open(path, "rb") as file:
        file.seek(-1, 2)
        return file.read(1) in (b"\n", b"\r")


def _settings(delimiter: str, wanted: Wanted) -> dict[str, Any]:
    csv, pyarrow = need("pyarrow.csv", "files", "reading CSV"), need("pyarrow", "files", "reading CSV")
    kinds = {name: pyarrow.float64() if kind == "number" else pyarrow.string() for name, kind in wanted.items()}
    return {
        "parse_options": csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        "convert_options": csv.ConvertOptions(
            column_types=kinds, include_columns=list(wanted), null_values=MISSING, strings_can_be_null=False
        ),
    }


def _read(path: Path, delimiter: str, wanted: Wanted) -> dict[str, numpy.ndarray]:
    label, library = str(path), need("pyarrow.csv", "files", "reading CSV")
    check_expansion(label, path.stat().st_size, path.stat().st_size)
    with reading(label, WHAT):
        settings = _settings(delimiter, wanted)
        try:
            table = library.read_csv(path, **settings)
        except Exception:  # once more on one thread, which knows the row
            table = library.read_csv(path, read_options=library.ReadOptions(use_threads=False), **settings)
        return {name: _typed(table.column(name), name, kind, label) for name, kind in wanted.items()}


def _batches(path: Path, delimiter: str, wanted: Wanted, rows: int) -> Iterator[dict[str, numpy.ndarray]]:
    label, library = str(path), need("pyarrow.csv", "files", "reading CSV")
    options = library.ReadOptions(use_threads=False, block_size=MOST_ROWS_AHEAD)
    with library.open_csv(path, read_options=options, **_settings(delimiter, wanted)) as reader:
        seen = 0
        for batch in reader:
            for start in range(0, batch.num_rows, rows):
                piece = batch.slice(start, rows)
                yield {name: _typed(piece.column(name), name, kind, label, seen) for name, kind in wanted.items()}
                seen += piece.num_rows


def _typed(column: Any, name: str, kind: str, label: str, before: int = 0) -> numpy.ndarray:
    """Scores as they were parsed; labels as whole numbers, floats or text, whichever all of them are."""
    if kind != "label":
        return to_numpy(column, name, label)
    for wanted in ("int64", "float64"):
        try:
            return to_numpy(column.cast(wanted), name, label)
        except ValueError:  # pyarrow's own error is one
            continue
    values = column.to_pylist()
    if "" in values:
        row = before + values.index("")
        raise InputError(f"opening {label}: column {name!r} is empty in row {row}, expected a value in every row.")
    return text(values, name, label)
