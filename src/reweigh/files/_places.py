"""From what the user gave, a path, a folder of shards, a pattern, a list or an open table, to the sources to read."""

from __future__ import annotations

import glob
import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import registry
from ..errors import InputError, nearest
from . import _ranks
from ._failures import reading
from ._names import Choice
from ._npy import source_of as npy_source
from ._source import Format, Source
from ._tables import table_source


@dataclass(frozen=True)
class Opened:
    """The sources in their order; of a recording, the same row may come from two ranks."""

    sources: Sequence[Source]
    recorded: bool = False

    @property
    def label(self) -> str:
        return (
            self.sources[0].label
            if len(self.sources) == 1
            else f"{self.sources[0].label} and {len(self.sources) - 1} more"
        )


def opened(given: Any, chosen: Choice) -> Opened:
    """The sources behind a path or a table."""
    if isinstance(given, (str, os.PathLike)):
        return _of_path(Path(os.path.expanduser(os.fspath(given))), chosen)
    with reading("the table", "a table"):
        source = table_source(given)
    if source is not None:
        return Opened([source])
    if isinstance(given, (list, tuple)) and given and all(isinstance(one, (str, os.PathLike)) for one in given):
        parts = [_of_path(Path(os.path.expanduser(os.fspath(one))), chosen) for one in given]
        if any(part.recorded for part in parts) and len(parts) > 1:
            raise InputError("opening several recordings at once: they may hold the same rows. Open each by itself.")
        return Opened([source for part in parts for source in part.sources])
    raise InputError(
        f"opening predictions: got {type(given).__name__}, expected a path, a list of paths, a data frame or table, a "
        "dictionary of columns ({'logits': ..., 'target': ...}), or a list of rows."
    )


def natural(path: Path) -> list[Any]:
    """Sorts shard-2 before shard-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]


def format_of(path: Path, asked: str | None = None) -> Format:
    """The format of a file, by the user's word or its ending."""
    if asked is not None:
        return registry.get("format", asked)()
    ending = path.suffix.casefold()
    known = {one: entry for entry in registry.entries("format") for one in entry.details["endings"]}
    if ending not in known:
        raise InputError(
            f"opening {path}: the ending {ending!r} belongs to no format, expected one of {', '.join(sorted(known))}. "
            "Rename the file, or say its format: format='csv' (--format csv)."
        )
    return known[ending].load()()


def _options(chosen: Choice) -> dict[str, Any]:
    """What a format may need to know before it opens a file."""
    return {**chosen.named, "delimiter": chosen.delimiter}


def _of_path(path: Path, chosen: Choice) -> Opened:
    try:
        is_folder, is_file, there = path.is_dir(), path.is_file(), path.exists()
    except (OSError, ValueError) as error:  # a name too long, a folder without permission, a zero byte
        raise InputError(f"opening {str(path)!r}: {getattr(error, 'strerror', None) or error}.") from error
    if is_folder:
        return _of_folder(path, chosen)
    if is_file:
        _warn_of_parts(path)
        return Opened([_file_source(path, chosen)])
    if there:
        raise InputError(f"opening {path}: it is neither a file nor a folder.")
    return _of_missing(path, chosen)


def _warn_of_parts(path: Path) -> None:
    """A newer recording under this name that was interrupted is said, not passed over."""
    parts = _ranks.parts_folder(path)
    if os.path.isdir(parts) and any(_ranks.rank_of(one) for one in parts.iterdir()):
        warnings.warn(f"{path}: a later recording to it did not end; {_ranks.left(parts)}", stacklevel=2)


def _of_missing(path: Path, chosen: Choice) -> Opened:
    """A pattern of files, an unfinished recording, or a mistake."""
    if any(mark in str(path) for mark in "*?"):
        found = sorted((Path(name) for name in glob.glob(str(path))), key=natural)
        if found:
            return Opened([_file_source(one, chosen) for one in found])
    parts = _ranks.parts_folder(path)
    if os.path.isdir(parts):
        if chosen.partial:
            return _of_folder(parts, chosen)
        raise InputError(
            f"opening {path}: its recording did not end; {_ranks.left(parts)} Open what there is with partial=True (--partial)."
        )
    names = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
    guess = nearest(path.name, names)
    raise InputError(
        f"opening {path}: there is no such file.{f' Did you mean {path.with_name(guess)}?' if guess else ''}"
    )


def _file_source(path: Path, chosen: Choice) -> Source:
    return format_of(path, chosen.format).open(path, _options(chosen))


def _of_folder(folder: Path, chosen: Choice) -> Opened:
    """A recording, NumPy arrays one a file, or shards of one format."""
    files = sorted((one for one in folder.iterdir() if one.is_file() and one.name[0] not in "._"), key=natural)
    recorded = [one for one in files if _ranks.rank_of(one)]
    if recorded:
        sources = [_file_source(one, chosen) for one in _ranks.complete(recorded, folder, partial=chosen.partial)]
        _ranks.check_one_recording(sources, folder)
        return Opened([source for source in sources if not _ranks.is_empty(source)] or sources[:1], recorded=True)
    known = {ending for entry in registry.entries("format") for ending in entry.details["endings"]}
    shards = [one for one in files if chosen.format or one.suffix.casefold() in known]
    endings = sorted({one.suffix.casefold() for one in shards})
    if not shards:
        raise InputError(f"opening {folder}: the folder holds no file of a known format ({', '.join(sorted(known))}).")
    if endings == [".npy"]:
        return Opened([npy_source({one.stem: one for one in shards}, str(folder))])
    if len(endings) > 1 and not chosen.format:
        raise InputError(
            f"opening {folder}: it mixes shards of {' and '.join(endings)}, expected one format. Name a pattern: {folder}/*{endings[0]}"
        )
    return Opened([_file_source(one, chosen) for one in shards])
