"""`reweigh compare FILE...`: models side by side, differences with paired intervals."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .._columns import with_columns
from .._options import Cluster, Debug, Ignore, Import, Interval, Json, Metrics, Resamples, SaveJson, Seed, Split
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
    metric: Metrics = None,
    split: Split = None,
    ignore: Ignore = None,
    interval: Interval = 0.95,
    resamples: Resamples = 200,
    seed: Seed = 0,
    cluster: Cluster = None,
    output: SaveJson = None,
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
