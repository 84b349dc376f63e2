"""`reweigh evaluate FILE...`: metrics with intervals, per group, against outside rows, and claims that gate a build."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .._columns import with_columns
from .._options import Cluster, Debug, Ignore, Import, Interval, Json, Metrics, Resamples, SaveJson, Seed, Split
from .._output import save_json, show
from .._progress import track

EXAMPLES = """
reweigh evaluate val.npz
reweigh evaluate val.csv --logits 'z*' --target label --id image
reweigh evaluate val.parquet --metric ECE:bins=10,accuracy --by hospital
reweigh evaluate val.parquet --outside other.parquet
reweigh evaluate new.npz --require 'accuracy>=0.9' --reference old.npz
reweigh evaluate shards/ --engine ray --json
"""


@with_columns
def verb(
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="Prediction files, folders of shards, or runs.")],
    metric: Metrics = None,
    by: Annotated[
        list[str] | None, typer.Option(metavar="GROUP", help="Look at each value of a group, or of 'class'.")
    ] = None,
    outside: Annotated[
        str | None, typer.Option(metavar="FILE", help="Rows from outside the training distribution.")
    ] = None,
    fit: Annotated[
        str | None, typer.Option(metavar="FILE", help="Rows that a calibrator was fitted on, for the checks.")
    ] = None,
    require: Annotated[
        list[str] | None, typer.Option(metavar="CLAIM", help="A claim such as 'accuracy>=0.9'; can be repeated.")
    ] = None,
    reference: Annotated[
        str | None, typer.Option(metavar="FILE", help="An earlier result that this one must not be worse than.")
    ] = None,
    ignore: Ignore = None,
    interval: Interval = 0.95,
    resamples: Resamples = 200,
    seed: Seed = 0,
    cluster: Cluster = None,
    engine: Annotated[str | None, typer.Option(metavar="ENGINE", help="memory, stream or ray.")] = None,
    split: Split = None,
    output: SaveJson = None,
    columns: Any = None,
    modules: Import = None,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """How right, how calibrated and how selective predictions are, with intervals.

    Exit status 3 if a required claim is broken, 4 if one is undecided.
    """
    from ... import evaluation

    settings = {
        "metrics": ",".join(metric) if metric else None,
        "interval": interval if resamples else None,
        "resamples": resamples or 2,
        "by": by,
        "outside": outside,
        "fit": fit,
        "require": require,
        "reference": reference,
        "ignore": ignore or (),
        "seed": seed,
        "cluster": cluster,
        "engine": engine,
        "split": split,
    }
    results = [evaluation.evaluate(file, **settings, progress=track, **columns) for file in files]
    whole = results[0] if len(results) == 1 else results
    if output:
        save_json(whole, output)
    show(whole if json or len(results) == 1 else "\n\n\n".join(map(str, results)), as_json=json)
    outcomes = {verdict.outcome for result in results for verdict in result.verdicts}
    return 3 if "broken" in outcomes else 4 if "undecided" in outcomes else 0
