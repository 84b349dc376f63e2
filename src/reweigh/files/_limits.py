"""Memory is asked for only after the file has shown that it is plausible: damaged and hostile files stop here."""

from __future__ import annotations

from pathlib import Path

from ..errors import InputError

ALWAYS_ALLOWED = 64 << 20  # bytes that any file may unfold into
MOST_EXPANSION = 250  # beyond that: real scores hardly shrink, one-hot labels some tenfold, a bomb a thousandfold
MOST_CLASSES = 1 << 24
MOST_ROWS = 1 << 48


def check_expansion(label: str, unfolded: int, stored: int) -> None:
    """Refuse content that unfolds from `stored` into absurdly many bytes, or into more than there is memory."""
    if unfolded > max(ALWAYS_ALLOWED, MOST_EXPANSION * stored):
        raise InputError(
            f"opening {label}: its {stored:,} bytes would unfold into {unfolded:,}, more than {MOST_EXPANSION} times as "
            "many, which no table of predictions does. If the file is sound, write it again uncompressed."
        )
    check_memory(label, unfolded)


def check_memory(label: str, wanted: int) -> None:
    """Refuse what does not fit into the memory that is free now."""
    free = free_memory()
    if free is not None and wanted > free:
        raise InputError(
            f"opening {label}: it needs {wanted / 2**30:.1f} GiB of memory, {free / 2**30:.1f} GiB are free. "
            "Read it in pieces: reweigh.files.batches(path), or evaluate it as a stream."
        )


def check_shape(label: str, name: str, shape: tuple[int, ...]) -> None:
    """Rows, and at most one more axis, of numbers that a table can have."""
    if len(shape) not in (1, 2):
        raise InputError(
            f"opening {label}: {name!r} has the shape {shape}, expected (rows,) or (rows, classes). "
            "Flatten dense predictions to one row a pixel or token first."
        )
    if any(size < 0 for size in shape) or shape[0] > MOST_ROWS or (len(shape) == 2 and shape[1] > MOST_CLASSES):
        raise InputError(f"opening {label}: {name!r} has the impossible shape {shape}.")


def free_memory() -> int | None:
    """Bytes that can still be had without swapping; None where the system does not say."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
