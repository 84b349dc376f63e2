"""`reweigh compare FILE...`: models side by side, differences with paired intervals."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .._columns import with_columns
from .._completion import names_of
from .._options import Debug, Import, Json
from .._output import save_json, show

EXAMPLES = """
reweigh compare old.parquet new.parquet
reweigh compare run1 run2 run3 --split test --metric accuracy,ECE
reweigh compare a.npz b.npz --logits scores --json
"""


@with_columns
def verb(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE", help="Prediction files or run folders; the first is what others are compared to."
        ),
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "-m",
            "--metric",
            metavar="NAME,...",
            help="Metrics, as in ECE:bins=10,accuracy.",
            autocompletion=names_of("metric"),
        ),
    ] = None,
    split: Annotated[str | None, typer.Option(metavar="SPLIT", help="Which predictions of run folders.")] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="CODE", help="A check not to run; can be repeated.")
    ] = None,
    interval: Annotated[float, typer.Option(metavar="LEVEL", help="Level of the intervals.")] = 0.95,
    resamples: Annotated[int, typer.Option(metavar="N", help="Resamples behind the intervals.")] = 200,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the resamples.")] = 0,
    cluster: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Group that is resampled as a whole (patients, videos).")
    ] = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="Save the result as JSON, too.")
    ] = None,
    columns: Any = None,
    modules: Import = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Predictions of several models on the same rows, differences with paired intervals."""
    from ... import evaluation

    result = evaluation.compare(
        files,
        ",".join(metric) if metric else None,
        interval=interval,
        resamples=resamples,
        seed=seed,
        cluster=cluster,
        ignore=ignore or (),
        split=split,
        **columns,
    )
    if output:
        save_json(result, output)
    show(result, as_json=json)
