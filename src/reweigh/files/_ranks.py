"""The files of a recording: who wrote which, whether all ranks are there, and whether they belong together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ..errors import InputError
from ._source import Source

_NAME = re.compile(r"rank-(\d+)-of-(\d+)(?:\.part-(\d+))?(\.\w+)")
CLOCKS_APART = 60.0  # seconds by which the clocks of several machines may differ


def shard_name(rank: int, world: int, ending: str, part: int | None = None) -> str:
    """The name of a rank's shard, or of a part that is written before the rank has ended."""
    middle = "" if part is None else f".part-{part:05d}"
    return f"rank-{rank:05d}-of-{world:05d}{middle}{ending}"


def rank_of(path: Path) -> tuple[int, int, int | None] | None:
    """(rank, world, part or None) of a shard's name; None for any other file."""
    match = _NAME.fullmatch(path.name)
    return (int(match[1]), int(match[2]), int(match[3]) if match[3] else None) if match else None


def parts_folder(path: Path) -> Path:
    """Where a recording by a single process keeps its parts until it ends."""
    return path.with_name(path.name + ".parts")


def left(folder: Path) -> str:
    """What an unfinished recording has left, in words."""
    parts = [one for one in folder.iterdir() if rank_of(one)]
    return f"{len(parts)} whole {'part is' if len(parts) == 1 else 'parts are'} in {folder}."


def complete(files: Sequence[Path], folder: Path, *, partial: bool) -> list[Path]:
    """The files to read: every rank's shard; with `partial` the parts of ranks that did not end as well."""
    named = {path: rank_of(path) for path in files}
    worlds = sorted({world for _, world, _ in named.values()})  # type: ignore[misc]
    if len(worlds) > 1:
        raise InputError(
            f"opening {folder}: it mixes recordings of {' and of '.join(map(str, worlds))} ranks. Delete the files of the older one."
        )
    world = worlds[0]
    ended = {rank: path for path, (rank, _, part) in named.items() if part is None}  # type: ignore[misc]
    missing = [rank for rank in range(world) if rank not in ended]
    started = {rank: [] for rank in missing}
    for path, (rank, _, part) in named.items():  # type: ignore[misc]
        if part is not None and rank in started:
            started[rank].append(path)
    if missing and not partial:
        raise InputError(_incomplete(folder, world, missing, started))
    return [path for rank in range(world) for path in ([ended[rank]] if rank in ended else started[rank])]


def _incomplete(folder: Path, world: int, missing: list[int], started: dict[int, list[Path]]) -> str:
    begun = [f"rank {rank} left {len(paths)} whole parts" for rank, paths in started.items() if paths]
    found = f" ({'; '.join(begun)})" if begun else ""
    return (
        f"opening {folder}: the recording is incomplete, of {world} ranks {'is' if len(missing) == 1 else 'are'} missing: "
        f"{', '.join(map(str, missing))}{found}. Record it again, or open what there is with partial=True (--partial)."
    )


def recording(source: Source) -> dict:
    """What the recorder noted in a shard."""
    return dict((source.manifest or {}).get("recording") or {})


def is_empty(source: Source) -> bool:
    """Whether a rank recorded nothing."""
    return bool(recording(source).get("empty"))


def check_one_recording(sources: Sequence[Source], folder: Path) -> None:
    """Shards of two recordings under the same names are an error: half of the rows would be of an older model."""
    notes = [recording(source) for source in sources]
    for source, note in zip(sources, notes, strict=True):
        if not note or note.get("run") != notes[0].get("run"):
            raise InputError(
                f"opening {folder}: {Path(source.label).name} belongs to another recording than {Path(sources[0].label).name}. "
                "Record all ranks again."
            )
    latest, earliest = max(note["process_started"] for note in notes), min(note["written"] for note in notes)
    if latest > earliest + CLOCKS_APART:
        raise InputError(
            f"opening {folder}: some shards were written before other ranks had started, so they are of different "
            "recordings. Record all ranks again."
        )
