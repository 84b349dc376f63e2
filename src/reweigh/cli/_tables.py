"""Plain-text tables that fit the terminal; no colour, no lines, aligned for people."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

NARROW, WIDE = 40, 100


def width() -> int:
    """Columns there are to fill: the terminal's, 80 where the output is no terminal."""
    if not sys.stdout.isatty():
        return 80
    return max(NARROW, min(WIDE, shutil.get_terminal_size((80, 24)).columns))


def shortened(text: str, limit: int) -> str:
    """The text on one line of at most `limit` characters, cut with an ellipsis."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: max(limit - 1, 0)].rstrip() + "…"


def table(
    rows: Sequence[Sequence[str]], *, heading: Sequence[str] = (), indent: int = 0, right: Sequence[int] = ()
) -> str:
    """Rows of cells in aligned columns, the last one shortened to fit; `right` lists columns aligned to the right."""
    lines = [list(map(str, row)) for row in ([heading] if heading else []) + list(rows)]
    if not lines:
        return ""
    columns = max(map(len, lines))
    lines = [line + [""] * (columns - len(line)) for line in lines]
    widths = [max(len(line[column]) for line in lines) for column in range(columns)]
    room = width() - indent - sum(widths[:-1]) - 2 * (columns - 1)
    if columns > 1:
        widths[-1] = min(widths[-1], max(room, 10))
    said = []
    for line in lines:
        line[-1] = shortened(line[-1], widths[-1])
        cells = [
            cell.rjust(size) if place in right else cell.ljust(size)
            for place, (cell, size) in enumerate(zip(line, widths, strict=True))
        ]
        said.append((" " * indent + "  ".join(cells)).rstrip())
    return "\n".join(said)
