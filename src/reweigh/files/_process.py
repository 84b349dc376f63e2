"""Who this process is among the ranks of a recording, and which recording it is."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import torch

from ..errors import bad_input

DOING = "recording predictions"
_COUNTS: dict[tuple[str, int], int] = {}  # how often this process has recorded to a path


def place_of(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """This process's rank and the number of ranks."""
    if (rank is None) != (world_size is None):
        raise bad_input(DOING, came=f"rank={rank} and world_size={world_size}", expected="both or neither")
    if rank is None or world_size is None:
        group = torch.distributed
        if group.is_available() and group.is_initialized():
            rank, world_size = group.get_rank(), group.get_world_size()
        else:
            rank, world_size = (
                int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"))
            )
    if not 0 <= rank < world_size:
        raise bad_input(
            DOING, came=f"rank={rank} of world_size={world_size}", expected="a rank from 0 to world_size - 1"
        )
    return rank, world_size


def run_name(path: Path, rank: int) -> str:
    """The same on all ranks of one recording: the launcher's names for the run, and how often it recorded here."""
    key = (os.path.abspath(path), rank)
    _COUNTS[key] = _COUNTS.get(key, 0) + 1
    names = (
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT",
        "MASTER_ADDR",
        "MASTER_PORT",
        "SLURM_JOB_ID",
        "SLURM_STEP_ID",
    )
    words = [os.environ.get(name, "") for name in names] + [str(_COUNTS[key])]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


_LOADED = time.time()


def process_started() -> float:
    """When this process began, in seconds since the epoch; when this module was loaded where the system does not say."""
    try:
        ticks = int(
            Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[19]
        )
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
        booted = next(int(line.split()[1]) for line in lines if line.startswith("btime"))
        return booted + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, StopIteration):
        return _LOADED
