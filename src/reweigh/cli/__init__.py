"""The `reweigh` command: one file a verb in `verbs/`, what they share beside it; may import every room above.

`--help`, `list`, `show` and completion import neither torch nor numpy: a verb imports what it needs when it runs.
A new verb is a file in `verbs/` with a function `verb` and its `EXAMPLES`, and its name in `_app.VERBS`.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (`sys.argv` without `arguments`) and return its exit status."""
    try:
        import typer
    except ImportError:
        import sys

        print(
            "reweigh: the command line needs the package 'typer', which is not installed. "
            "Install it with: pip install 'reweigh[cli]'",
            file=sys.stderr,
        )
        return 1
    from ._run import run

    return run(arguments)


__all__ = ["main"]
