"""The options that verbs share, each written once."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated

import typer

from ..errors import InputError
from ._completion import names_of

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines, errors included.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "-m",
        "--metric",
        metavar="NAME,...",
        help="Metrics, as in ECE:bins=10,accuracy.",
        autocompletion=names_of("metric"),
    ),
]
Ignore = Annotated[list[str] | None, typer.Option(metavar="CODE", help="A check not to run; can be repeated.")]
Interval = Annotated[float, typer.Option(metavar="LEVEL", help="Level of the intervals.")]
Resamples = Annotated[int, typer.Option(metavar="N", help="Resamples behind the intervals; 0 for no intervals.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Seed of the resamples.")]
Cluster = Annotated[str | None, typer.Option(metavar="GROUP", help="Group resampled as a whole (patients, videos).")]
Split = Annotated[str | None, typer.Option(metavar="SPLIT", help="Which predictions of a run folder.")]
SaveJson = Annotated[str | None, typer.Option("-o", "--output", metavar="FILE", help="Save the result as JSON, too.")]
Output = Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="The file to write.")]


def _import(modules: list[str] | None) -> list[str] | None:
    """Run the user's modules, so that what they register is known by name."""
    if modules and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # an installed command does not look where it is called
    for module in modules or ():
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module.split(".")[0] and error.name != module:
                raise InputError(
                    f"--import {module}: it needs the module {error.name!r}, which is not there."
                ) from error
            raise InputError(f"--import {module}: there is no such module here or among the installed ones.") from error
        except Exception as error:
            raise InputError(f"--import {module}: running it failed with {type(error).__name__}: {error}") from error
    return modules


Import = Annotated[
    list[str] | None,
    typer.Option(
        "--import", metavar="MODULE", callback=_import, help="Python module with your own losses, metrics, ..."
    ),
]
