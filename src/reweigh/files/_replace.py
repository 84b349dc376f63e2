"""Files appear whole or not at all: temporary name in the same folder, synced, renamed, folder synced."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ..errors import InputError


def _sentence(path: Path, error: OSError, was_there: bool) -> InputError:
    why = error.strerror or str(error).splitlines()[0]
    if not path.parent.is_dir():
        why = f"there is no folder {path.parent}"
    kept = " The file that was there is untouched." if was_there else ""
    return InputError(f"writing {path}: {why}.{kept}")


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write; only when the block ends well does it take the place of `path`."""
    target = Path(os.path.realpath(path))  # through a link, so that the link stays one
    was_there = os.path.lexists(target)
    if was_there and not target.is_file():
        what = "a folder" if target.is_dir() else "not a regular file"
        raise InputError(f"writing {path}: it is {what}. Choose another name.")
    temporary = target.with_name(f".reweigh-{secrets.token_hex(6)}.part")
    try:
        with open(temporary, "xb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, target)
        sync_folder(target.parent)
    except OSError as error:
        raise _sentence(Path(path), error, was_there) from error
    finally:
        try:
            temporary.unlink(missing_ok=True)
        except OSError:
            pass  # the folder is gone or read-only: the first error says so


def sync_folder(folder: Path) -> None:
    """Make a rename in this folder survive a power cut, where the system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass  # some network file systems refuse; the rename itself is done
    finally:
        os.close(handle)
