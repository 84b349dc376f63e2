"""Progress to standard error: a bar on a terminal, a line every tenth otherwise, silence for what is quick."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")

QUIET_SECONDS = 1.0  # what takes less needs no progress


@contextmanager
def _bar(label: str, total: int) -> Iterator:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=total)
        yield lambda done: progress.update(task, completed=done)


@contextmanager
def _lines(label: str, total: int) -> Iterator:
    started, said = time.monotonic(), 0

    def update(done: int) -> None:
        nonlocal said
        tenth = 10 * done // max(total, 1)
        if tenth > said and time.monotonic() - started > QUIET_SECONDS:
            said = tenth
            print(f"{label}: {done} of {total}", file=sys.stderr, flush=True)

    yield update


def track(items: Iterable[Item], label: str, total: int) -> Iterator[Item]:
    """The items, one after another, with progress said on the way."""
    with (_bar if sys.stderr.isatty() else _lines)(label, total) as update:
        for done, item in enumerate(items, 1):
            yield item
            update(done)
