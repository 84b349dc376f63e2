"""Whatever a library says of broken bytes becomes one sentence with the name of the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import InputError, MissingExtra


@contextmanager
def reading(label: str, what: str) -> Iterator[None]:
    """Errors inside say that `label` could not be read as `what`.

    Every exception is taken: on damaged bytes decoders raise whatever their internals meet, and the reader's
    user needs the file's name and the reason, not the decoder's stack.
    """
    try:
        yield
    except (InputError, MissingExtra):
        raise
    except MemoryError as error:
        raise InputError(f"opening {label}: there is not enough memory for what it claims to hold.") from error
    except FileNotFoundError as error:
        raise InputError(f"opening {label}: there is no such file.") from error
    except Exception as error:
        why = getattr(error, "strerror", None) or str(error).strip().split("\n")[0] or type(error).__name__
        raise InputError(f"opening {label}: it is damaged or not {what} ({why[:300].rstrip('.')}).") from error


def stepwise(batches: Callable[[], Iterator[Any]], label: str, what: str) -> Iterator[Any]:
    """The same for an iterator: only its own steps are watched, not what the caller does between them."""
    with reading(label, what):
        steps = iter(batches())
    while True:
        with reading(label, what):
            try:
                step = next(steps)
            except StopIteration:
                return
        yield step
