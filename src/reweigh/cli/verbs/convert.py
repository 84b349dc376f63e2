"""`reweigh convert FILE -o OUT`: foreign tables into a file of ours, in which damage is noticed."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .._columns import with_columns
from .._options import Debug, Json, Output
from .._output import show

EXAMPLES = """
reweigh convert v.csv --logits 'z*' --target label --id image -o v.parquet
reweigh convert shards/ -o whole.parquet
reweigh convert p.npz --probabilities p --binary --target y -o p.parquet
"""


@with_columns
def verb(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A prediction file or a folder of shards.")],
    output: Output,
    columns: Any = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Bring a foreign table into a file of ours: Parquet, safetensors or NPZ by the ending of OUT."""
    from pathlib import Path

    from ... import files

    counted = {"rows": 0}

    def tables() -> Any:
        for table in files.batches(file, **columns):
            counted["rows"] += len(table)
            counted["form"] = repr(table).partition("rows")[2].removesuffix(")")  # type: ignore[assignment]
            yield table

    files.save(tables(), output)
    found = {"file": output, "rows": counted["rows"], "bytes": Path(output).stat().st_size}
    show(found if json else f"{output}: {counted['rows']:,} rows{counted.get('form', '')}", as_json=json)
