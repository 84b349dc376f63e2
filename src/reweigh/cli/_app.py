"""The typer application, built from the files in `verbs/`."""

from __future__ import annotations

import importlib
from typing import Annotated

import typer

# in the order in which help lists them; the file of `kedro-init` is `verbs/kedro_init.py`
VERBS = ("list", "show", "doctor", "inspect", "convert", "evaluate", "calibrate", "apply", "export", "compare")

ABOUT = """Reweighted losses, and confidence you can check, repair and ship.

\b
Try:
  reweigh evaluate val.npz
  reweigh calibrate temperature val.npz -o temperature.json
  reweigh apply temperature.json test.npz -o repaired.parquet

Every verb explains itself: reweigh VERB --help"""


def _version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        typer.echo(f"reweigh {__version__}")
        raise typer.Exit


def _top(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


def _epilog(examples: str) -> str:
    """Examples as they are written, not wrapped like prose (what the mark \\b asks for)."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in examples.strip().splitlines())


def build() -> typer.Typer:
    """The application with every verb; nothing but typer is imported for it."""
    app = typer.Typer(
        name="reweigh",
        rich_markup_mode=None,  # plain text: the same on a terminal, in a file and in a log
        invoke_without_command=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    )
    app.callback(help=ABOUT)(_top)
    for name in VERBS:
        module = importlib.import_module(f".verbs.{name.replace('-', '_')}", __package__)
        app.command(name, epilog=_epilog(module.EXAMPLES))(module.verb)
    return app
