"""From arguments to an exit status: every failure becomes one sentence, or JSON under `--json`.

0 done, 1 the input or the run is at fault, 2 wrong usage, 3 a required claim is broken, 4 undecided, 130 interrupted.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import typer

from ..errors import InputError, MissingExtra, nearest
from ._app import build

DONE, AT_FAULT, WRONG_USAGE, BROKEN, UNDECIDED, INTERRUPTED = 0, 1, 2, 3, 4, 130

# typer carries its own copy of click or imports the package, by version: its public subclass leads to the base
_ClickError = typer.BadParameter.__mro__[2]


def run(arguments: Sequence[str] | None) -> int:
    """Run one command; nothing escapes but what the interpreter itself raises."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = given[: given.index("--")] if "--" in given else given
    try:
        with _plain_warnings():
            status = build()(given, prog_name="reweigh", standalone_mode=False)
        sys.stdout.flush()
        if status == INTERRUPTED:  # typer turns the interruption into a status without a word
            raise KeyboardInterrupt
        return status if isinstance(status, int) else DONE
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", "interrupted", INTERRUPTED, options)
    except typer.Exit as leaving:
        return leaving.exit_code
    except BrokenPipeError:
        # whoever read our output has closed it (`reweigh list | head`): the interpreter's last flush must not complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except Exception as error:  # the last resort of a program: a sentence, never a traceback
        if "--debug" in options:
            traceback.print_exc()
        return _fail(*_explained(error), options)


def _explained(error: Exception) -> tuple[str, str, int]:
    """The sentence, the kind and the exit status of an error."""
    if isinstance(error, _ClickError):
        return _usage(error), "usage", WRONG_USAGE
    if isinstance(error, InputError):
        return str(error), "input", AT_FAULT
    if isinstance(error, MissingExtra):
        return str(error), "missing-extra", AT_FAULT
    if isinstance(error, MemoryError):
        return f"not enough memory ({str(error) or 'allocation failed'})", "memory", AT_FAULT
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}", "system", AT_FAULT
    if isinstance(error, (ValueError, TypeError)):
        return " ".join(str(error).split()), "input", AT_FAULT
    text = " ".join(str(error).split())
    return f"unexpected {type(error).__name__}: {text} (--debug shows where)", "unexpected", AT_FAULT


def _usage(error: Exception) -> str:
    """What typer says, with the nearest option by our own rule and the way to the help."""
    text = error.format_message().rstrip(".")  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    wrong = getattr(error, "option_name", None)
    if wrong and context is not None:
        text = f"there is no option {wrong}"
        known = [word for option in context.command.params for word in option.opts if word.startswith("-")]
        guess = nearest(wrong, known)
        text += f". Did you mean {guess}?" if guess else f". Options: {', '.join(sorted(known))}"
    path = context.command_path if context is not None else "reweigh"
    return f"{text[0].lower()}{text[1:]}{'' if text[-1] in '.?!' else '.'} See: {path} --help"


def _fail(text: str, kind: str, status: int, options: Sequence[str]) -> int:
    if "--json" in options:
        print(json.dumps({"error": {"kind": kind, "message": text, "status": status}}, ensure_ascii=False))
    else:
        print(f"reweigh: {text}", file=sys.stderr)
    return status


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """What users should know is said in one line each; what is meant for programmers is not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = _show_warning
        yield


def _show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    """A warning as one line to standard error, without the place in our code."""
    print(f"reweigh: warning: {' '.join(str(message).split())}", file=sys.stderr)
