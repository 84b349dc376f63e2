"""Metrics on the CPU: times over one row maximum, extra memory, and the packages that are installed, in one run.

Run alone with `python -m benchmarks.metrics [--quick]`. Data A is 1,000,000 x 10 and B 50,000 x 1,000 float32
probabilities. Times are the least of the process's own time on one thread, so that neighbours on the machine do not
count; memory is the resident peak above the start.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

# without these the allocator gives large buffers back at every step, and times vary tenfold
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "4294967296"}

import numpy  # noqa: E402
import torch  # noqa: E402

from reweigh import Predictions, metrics  # noqa: E402

PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE


def peak(function: Callable[[], Any]) -> float:
    """MiB above the start while the function runs, sampled every half millisecond."""
    highest, running = resident(), True
    start = highest

    def watch() -> None:
        nonlocal highest
        while running:
            highest = max(highest, resident())
            time.sleep(0.0005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        function()
    finally:
        running = False
        watcher.join()
    return (highest - start) / 2**20


def best(function: Callable[[], Any], repeats: int = 7, patience: float = 20.0) -> float:
    """Least of the process's own time over several runs in milliseconds, fewer runs if they are long."""
    times, begun = [], time.perf_counter()
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
        if time.perf_counter() - begun > patience:
            break
    return 1e3 * min(times)


def data(rows: int, classes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities twice too sharp, with labels drawn from the unsharpened ones."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, classes, generator=generator)
    labels = torch.multinomial(torch.softmax(logits, 1), 1, generator=generator).squeeze(1)
    return torch.softmax(2 * logits, 1), labels


def installed(name: str) -> Any:
    """A module, or None."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


class Table:
    """Rows of the report: times, or, with the allocator that gives memory back, the extra memory."""

    def __init__(self, memory: bool) -> None:
        self.memory = memory
        print(f"\n{'':44} " + ("extra MiB   limit" if memory else "        ms   ratio   target  value"))

    def row(
        self, what: str, function: Callable[[], Any], base: float | None = None, target: str = "", limit: str = ""
    ) -> float:
        """Measure one function and print it beside the base."""
        if self.memory:
            print(f"{what:44} {peak(function):9.0f} {limit:>7}", flush=True)
            return 1.0
        value = function()
        taken = best(function)
        ratio = f"x{taken / base:.2f}" if base else ""
        print(
            f"{what:44} {taken:10.1f} {ratio:>7} {target:>8}  {f'{value:.8f}' if isinstance(value, float) else ''}",
            flush=True,
        )
        return taken


def top_label(table: Table, name: str, p: torch.Tensor, y: torch.Tensor, classes: int) -> None:
    """Top-label error over fifteen bins against one row maximum."""
    print(f"\ntop-label calibration error, {name}: {tuple(p.shape)} float32 probabilities")
    base = table.row("torch row maximum (values and indices)", lambda: p.max(1))
    table.row("torch row maximum (values alone)", lambda: p.amax(1), base)
    table.row("reweigh: the table's checks", lambda: Predictions(probabilities=p, targets=y), base)
    checked = Predictions(probabilities=p, targets=y)
    table.row("reweigh", lambda: metrics.expected_calibration_error(checked[:]), base, "<= x2", "128")
    table.row(
        "reweigh, checks included",
        lambda: metrics.expected_calibration_error(Predictions(probabilities=p, targets=y)),
        base,
    )
    if torchmetrics := installed("torchmetrics.functional.classification"):
        error = torchmetrics.multiclass_calibration_error
        table.row("torchmetrics", lambda: float(error(p, y, num_classes=classes, n_bins=15, validate_args=False)), base)
    if netcal := installed("netcal.metrics"):
        arrays = p.numpy(), y.numpy()
        table.row("netcal", lambda: float(netcal.ECE(15).measure(*arrays)), base)


def class_wise(table: Table, p: torch.Tensor, y: torch.Tensor) -> None:
    """Class-wise error, every class and every probability."""
    print("\nclass-wise calibration error, B")
    base = table.row("torch row maximum (values and indices)", lambda: p.max(1))
    checked = Predictions(probabilities=p, targets=y)
    table.row(
        "reweigh, probabilities",
        lambda: metrics.expected_calibration_error(checked[:], scope="class_wise"),
        base,
        "400 ms",
    )
    logits = Predictions(logits=p.clamp(min=1e-30).log(), targets=y)
    table.row("reweigh, logits", lambda: metrics.expected_calibration_error(logits[:], scope="class_wise"), base)
    if uncertainty := installed("torch_uncertainty.metrics.classification"):
        error = uncertainty.CalibrationError

        def adaptive() -> float:
            metric = error(task="multiclass", num_classes=p.shape[1], num_bins=15)
            metric.update(p, y)
            return float(metric.compute())

        table.row("torch-uncertainty (top-label)", adaptive, base)


def ranks(table: Table, p: torch.Tensor, y: torch.Tensor) -> None:
    """Rank metrics of a million rows."""
    print("\nrank metrics, A")
    checked = Predictions(probabilities=p, targets=y)
    top = Predictions(confidence=checked.top_confidence, correct=checked.correctness)
    base = table.row("numpy argsort of a million float64", lambda: numpy.argsort(top.confidence.numpy()))
    table.row("reweigh AURC, probabilities", lambda: metrics.area_under_risk_coverage(checked[:]), base, "<= 100ms")
    table.row("reweigh AURC, confidences", lambda: metrics.area_under_risk_coverage(top[:]), base)
    table.row("reweigh AUGRC, confidences", lambda: metrics.area_under_generalized_risk(top[:]), base)
    if uncertainty := installed("torch_uncertainty.metrics.classification"):

        def aurc() -> float:
            metric = uncertainty.AURC()
            metric.update(p, y)
            return float(metric.compute())

        table.row("torch-uncertainty AURC", aurc, base)
    if sklearn := installed("sklearn.metrics"):
        columns = top.correctness.numpy(), top.confidence.numpy()
        table.row("scikit-learn failure AUROC", lambda: float(sklearn.roc_auc_score(*columns)), base)
        table.row("reweigh failure AUROC", lambda: metrics.area_under_roc(top[:], scope="top_label"), base)


DEFAULTS = (
    "accuracy",
    "negative_log_likelihood",
    "brier_score",
    "expected_calibration_error",
    "maximum_calibration_error",
    "kolmogorov_smirnov_calibration",
    "smooth_calibration_error",
    "area_under_risk_coverage",
    "excess_area_under_risk_coverage",
    "area_under_generalized_risk",
    "coverage_at_risk",
    "risk_at_coverage",
    "area_under_roc",
    "average_precision",
    "precision",
    "recall",
    "f_score",
)


def bootstrap(table: Table) -> None:
    """Every default metric with 200 resamples of 50,000 x 10."""
    print("\nintervals by 200 resamples, 50,000 x 10")
    p, y = data(50_000, 10, seed=1)
    checked = Predictions(probabilities=p, targets=y)
    for name in DEFAULTS:
        table.row(f"estimate({name!r})", lambda name=name: metrics.estimate(name, checked[:]) and None)
    table.row(
        f"all {len(DEFAULTS)} together", lambda: metrics.estimates(DEFAULTS, checked[:]) and None, None, "3000 ms"
    )


def stream(rows: int) -> None:
    """A stream's state does not grow."""
    print(f"\na stream of {rows:,} rows in parts of 1,000,000")
    p, y = data(1_000_000, 10)
    part = Predictions(probabilities=p, targets=y)

    def run() -> float:
        seen = metrics.stream("expected_calibration_error")
        for _ in range(rows // len(part)):
            seen.add(part[:])
        return seen.value()

    run()
    print(f"{'resident peak above the start':44} {peak(run):9.0f} {'50':>7}")


def measure(scale: int, memory: bool) -> None:
    """The whole report in one of its two readings."""
    table = Table(memory)
    a, b = data(1_000_000 // scale, 10), data(50_000 // scale, 1_000)
    top_label(table, "A", *a, 10)
    top_label(table, "B", *b, 1_000)
    class_wise(table, *b)
    ranks(table, *a)
    if memory:
        stream(20_000_000 // scale)
    else:
        bootstrap(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    scale = 10 if parser.parse_args().quick else 1
    torch.set_num_threads(1)
    if all(os.environ.get(name) == value for name, value in ALLOCATOR.items()):
        measure(scale, memory=False)
        return
    print(f"torch {torch.__version__}, one thread")
    measure(scale, memory=True)
    command = [sys.executable, "-m", "benchmarks.metrics", *sys.argv[1:]]
    os.execve(sys.executable, command, os.environ | ALLOCATOR)


if __name__ == "__main__":
    main()
