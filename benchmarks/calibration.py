"""The calibrators' speed on the CPU beside the packages that are installed.

Run: python benchmarks/calibration.py [--rows-a 1000000] [--threads 2]. Data A is 1,000,000 x 10 and B 50,000 x 1,000
float32 logits, twice too sharp; every time is the best of several runs in one process, every memory the resident peak
above the start, and every ratio a time over ours, measured beside it.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy
import torch

from benchmarks.metrics import best, installed, peak
from reweigh import Predictions, calibration


def data(rows: int, classes: int, seed: int = 0) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Logits twice too sharp, with labels drawn from the unsharpened ones."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, classes, generator=generator)
    labels = torch.multinomial(torch.softmax(logits, 1), 1, generator=generator).squeeze(1)
    return (2 * logits).numpy(), labels.numpy()


def show(
    what: str, function: Callable[[], float], ours: float | None = None, target: str = "", repeats: int = 5
) -> float:
    """Measure one function and print its time over ours."""
    value = function()
    extra = peak(function)
    taken = best(function, repeats)
    ratio = f"x{taken / ours:.2f}" if ours else ""
    print(f"{what:52} {taken:9.1f} ms {ratio:>8} {target:>10} {extra:7.0f} MiB  {value:.9f}", flush=True)
    return taken


def scikit_temperature(logits: numpy.ndarray, labels: numpy.ndarray) -> float:
    """scikit-learn's temperature over a frozen classifier whose decision function is the logits."""
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    class Identity(ClassifierMixin, BaseEstimator):
        def fit(self, X: Any, y: Any) -> Any:
            self.classes_ = numpy.unique(y)
            return self

        def decision_function(self, X: Any) -> Any:
            return X

        def predict(self, X: Any) -> Any:
            return X.argmax(1)

    frozen = FrozenEstimator(Identity().fit(logits, numpy.arange(logits.shape[1])))
    fitted = CalibratedClassifierCV(frozen, method="temperature").fit(logits, labels)
    return 1 / float(fitted.calibrated_classifiers_[0].calibrators[0].beta_)


def temperature(name: str, logits: numpy.ndarray, labels: numpy.ndarray) -> None:
    """One temperature by likelihood, everywhere; the value shown is the temperature."""
    print(f"\ntemperature, {name}: {logits.shape} float32 logits")
    ours = show("reweigh", lambda: calibration.TemperatureScaling().fit(logits, labels).temperature_)
    table = Predictions(logits=logits, targets=labels, ids=numpy.arange(len(labels)))
    show("reweigh, from Predictions with ids", lambda: calibration.TemperatureScaling().fit(table).temperature_, ours)
    show(
        "reweigh, objective='ece' (100 temperatures)",
        lambda: calibration.TemperatureScaling(objective="ece").fit(logits, labels).temperature_,
        ours,
        repeats=1,
    )
    show("scikit-learn", lambda: scikit_temperature(logits, labels), ours, ">= x3.5", repeats=3)
    if installed("probmetrics"):
        show("probmetrics", lambda: _probmetrics(logits, labels), ours, repeats=1)
    if installed("netcal"):
        show("netcal, float64", lambda: _netcal(logits, labels), ours, repeats=1)


def _probmetrics(logits: numpy.ndarray, labels: numpy.ndarray) -> float:
    from probmetrics.calibrators import TemperatureScalingCalibrator
    from probmetrics.distributions import CategoricalLogits

    fitted = TemperatureScalingCalibrator(opt="bisection")
    fitted.fit_torch(CategoricalLogits(torch.from_numpy(logits)), torch.from_numpy(labels))
    return 1 / float(fitted.invtemp_)


def _netcal(logits: numpy.ndarray, labels: numpy.ndarray) -> float:
    from netcal.scaling import TemperatureScaling

    probabilities = torch.softmax(torch.from_numpy(logits).double(), 1).numpy()
    fitted = TemperatureScaling()
    fitted.fit(probabilities, labels, random_state=0)
    return float(numpy.ravel(fitted.temperature)[0])


def others(logits: numpy.ndarray, labels: numpy.ndarray) -> None:
    """Every other repair once; the value shown is the mean log-likelihood of the fitted rows."""
    from reweigh import registry

    print(f"\nevery repair, {logits.shape} float32 logits: fit, then the fitted rows repaired")
    base = None
    for entry in registry.entries("calibrator"):
        if entry.details.get("role") != "repair":
            continue
        fitted = entry.load()().fit(logits, labels)

        def likelihood(fitted: Any = fitted) -> float:
            p = fitted.predict_proba(logits)[numpy.arange(len(labels)), labels]
            return float(numpy.log(numpy.maximum(p, 1e-300)).mean())

        taken = show(
            f"{entry.name}: fit", lambda entry=entry: entry.load()().fit(logits, labels).n_features_in_, base, repeats=3
        )
        show(f"{entry.name}: predict_proba", likelihood, taken, repeats=3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows-a", type=int, default=1_000_000)
    parser.add_argument("--rows-b", type=int, default=50_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=("temperature", "others"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")
    print(f"torch {torch.__version__}, {arguments.threads} threads")
    if arguments.only != "others":
        temperature("A", *data(arguments.rows_a, 10))
        temperature("B", *data(arguments.rows_b, 1000))
    if arguments.only != "temperature":
        others(*data(min(arguments.rows_a, 50_000), 10))


if __name__ == "__main__":
    main()
