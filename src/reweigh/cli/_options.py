"""The options that verbs share, each written once."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated

import typer

from ..errors import InputError

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines, errors included.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
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
