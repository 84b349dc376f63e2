"""Names for the shell's completion, read from the source files: no torch, no numpy."""

from __future__ import annotations

from collections.abc import Callable

from .. import registry


def names_of(*kinds: str) -> Callable[[str], list[tuple[str, str]]]:
    """A completion of the names of these kinds (all kinds without any), each with its summary; in a list, of its last."""

    def complete(incomplete: str) -> list[tuple[str, str]]:
        before, comma, last = incomplete.rpartition(",")
        return [
            (f"{before}{comma}{word}", entry.summary)
            for kind in kinds or registry.FOLDERS
            for entry in registry.entries(kind)
            for word in (entry.name, *entry.aliases)
            if word.casefold().startswith(last.casefold())
        ]

    return complete


def kinds(incomplete: str) -> list[str]:
    """The kinds that begin so."""
    return [kind for kind in registry.FOLDERS if kind.startswith(incomplete.casefold())]
