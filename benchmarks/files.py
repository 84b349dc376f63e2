"""Opening, streaming and evaluating prediction files, beside the readers underneath, in one run.

Run alone with `python -m benchmarks.files [--quick]`. The table is 1,000,000 x 10 float32 with whole targets. Ratios
are of least wall times; what hashing and the check of ids cost is told apart. Memory is the growth of the resident
set while 100,000,000 rows (one shard, linked a hundred times) are streamed.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet
import safetensors.torch

import reweigh
from reweigh import Predictions

CLASSES = 10


def best(function: Callable[[], Any], repeats: int = 9) -> float:
    """Least wall time in milliseconds; garbage is collected outside."""
    times = []
    for _ in range(repeats):
        gc.collect()
        begun = time.perf_counter()
        kept = function()
        times.append(time.perf_counter() - begun)
        del kept
    return 1000 * min(times)


def paired(ours: Callable[[], Any], theirs: Callable[[], Any], repeats: int = 9) -> tuple[float, float]:
    """Least times of both, measured in turn, so that a busy neighbour falls on both."""
    pairs = [(best(ours, 1), best(theirs, 1)) for _ in range(repeats)]
    return min(one for one, _ in pairs), min(other for _, other in pairs)


def row(what: str, ours: float, theirs: float, target: float | None) -> None:
    ratio = ours / theirs
    verdict = "" if target is None else f"<= {target:.1f}  {'yes' if ratio <= target else 'NO'}"
    print(f"{what:<44} {ours:9.1f} {theirs:9.1f}   x{ratio:5.2f}  {verdict}", flush=True)


def write_all(folder: Path, rows: int) -> tuple[Predictions, numpy.ndarray]:
    """The same table in every format, ours and as others write it."""
    random = numpy.random.default_rng(0)
    logits = random.normal(size=(rows, CLASSES)).astype("float32")
    targets = random.integers(0, CLASSES, rows)
    table = Predictions(logits=logits, targets=targets)
    for ending in ("parquet", "npz", "safetensors"):
        reweigh.save(table, folder / f"own.{ending}")
    reweigh.save(Predictions(logits=logits, targets=targets, ids=numpy.arange(rows)), folder / "ids.parquet")
    numpy.savez(folder / "numpy.npz", logits=logits, targets=targets)
    wide = pyarrow.table({**{f"z{k}": logits[:, k] for k in range(CLASSES)}, "label": targets})
    pyarrow.parquet.write_table(wide, folder / "wide.parquet")
    pyarrow.csv.write_csv(wide, folder / "wide.csv")
    few = {"logits": [part.tolist() for part in logits[: rows // 10]], "label": targets[: rows // 10].tolist()}
    with open(folder / "rows.jsonl", "w") as file:
        file.writelines(f'{{"logits": {z}, "label": {y}}}\n' for z, y in zip(few["logits"], few["label"], strict=True))
    return table, logits


def opening(folder: Path) -> None:
    print(f"\n{'opening':<44} {'ours ms':>9} {'theirs ms':>9}   ratio  target")

    def numpy_arrays() -> Any:
        with numpy.load(folder / "numpy.npz") as archive:
            return archive["logits"], archive["targets"]

    read = pyarrow.parquet.read_table
    own = folder / "own.parquet"
    cases: list[tuple[str, Callable[[], Any], Callable[[], Any], float | None]] = [
        ("own Parquet / pyarrow", lambda: reweigh.open(own), lambda: read(own), 1.5),
        (
            "own Parquet / pyarrow, checksums verified",
            lambda: reweigh.open(own),
            lambda: read(own, page_checksum_verification=True),
            1.5,
        ),
        ("NPZ / numpy", lambda: reweigh.open(folder / "numpy.npz"), numpy_arrays, 1.5),
        ("own NPZ / numpy", lambda: reweigh.open(folder / "own.npz"), numpy_arrays, 1.5),
        (
            "foreign columns, Parquet / pyarrow",
            lambda: reweigh.open(folder / "wide.parquet", logits="z*"),
            lambda: read(folder / "wide.parquet"),
            4.0,
        ),
        (
            "foreign columns, CSV / pyarrow",
            lambda: reweigh.open(folder / "wide.csv", logits="z*"),
            lambda: pyarrow.csv.read_csv(folder / "wide.csv"),
            4.0,
        ),
        (
            "JSON lines, a tenth of the rows / pyarrow",
            lambda: reweigh.open(folder / "rows.jsonl"),
            lambda: pyarrow.json.read_json(folder / "rows.jsonl"),
            4.0,
        ),
        (
            "safetensors, SHA-256 verified / safetensors",
            lambda: reweigh.open(folder / "own.safetensors"),
            lambda: [one.sum() for one in safetensors.torch.load_file(folder / "own.safetensors").values()],
            None,
        ),
    ]
    for what, ours, theirs, target in cases:
        row(what, *paired(ours, theirs), target)


def apart(folder: Path, logits: numpy.ndarray) -> None:
    print("\napart, in ms")
    print(f"{'SHA-256 of the scores':<44} {best(lambda: hashlib.sha256(logits.data)):9.1f}")
    with_ids, without = paired(
        lambda: reweigh.open(folder / "ids.parquet"), lambda: reweigh.open(folder / "ids.parquet", id=False)
    )
    print(f"{'ids read and found to occur once':<44} {with_ids - without:9.1f}")
    table = reweigh.open(folder / "own.parquet")
    for ending in ("parquet", "npz", "safetensors"):
        took = best(lambda ending=ending: reweigh.save(table, folder / f"again.{ending}"), 3)
        print(f"{f'writing {ending}, synced to the disk':<44} {took:9.1f}")


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def streaming(folder: Path, shards: int) -> None:
    """Memory that one shard needs and what a hundred need more."""
    many = folder / "many"
    many.mkdir()
    for number in range(shards):
        os.link(folder / "own.parquet", many / f"s{number}.parquet")
    reweigh.evaluate(many / "s0.parquet", "accuracy,ECE,NLL", engine="stream")
    before, highest, ended = resident(), [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.01):
            highest[0] = max(highest[0], resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    begun = time.perf_counter()
    found = reweigh.evaluate(many, "accuracy,ECE,NLL", engine="stream")
    took = time.perf_counter() - begun
    ended.set()
    watcher.join()
    grown = (highest[0] - before) / 2**20
    print(
        f"\nstreamed {found.rows:,} rows in {took:.0f} s; memory grew by {grown:.0f} MiB (<= 50: {'yes' if grown <= 50 else 'NO'})"
    )


def evaluating() -> None:
    random = numpy.random.default_rng(0)
    targets = random.integers(0, CLASSES, 50_000)
    logits = (random.normal(size=(50_000, CLASSES)) + 2 * numpy.eye(CLASSES)[targets]).astype("float32")

    def run() -> Any:
        return reweigh.evaluate(Predictions(logits=logits, targets=targets))

    took = best(run, 3) / 1000
    print(f"\nevaluate, 50,000 x 10, five metrics, 200 resamples: {took:.2f} s (<= 3: {'yes' if took <= 3 else 'NO'})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows and of the shards")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory(prefix="reweigh-benchmark-") as name:
        folder = Path(name)
        _, logits = write_all(folder, 100_000 if quick else 1_000_000)
        opening(folder)
        apart(folder, logits)
        evaluating()
        streaming(folder, 10 if quick else 100)


if __name__ == "__main__":
    main()
