"""Every calibrator that applies, judged by cross-validation on the rows it may be fitted on, and shown on others."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .. import registry
from ..errors import InputError, bad_input
from ..predictions import Predictions
from ._digits import number, with_interval

if TYPE_CHECKING:
    from ..calibration import Calibrator

DOING = "comparing calibrators"
# Full matrices beyond so many classes are fitted only when they are named.
MANY_CLASSES = 200
FULL_MATRICES = ("matrix_scaling", "dirichlet_calibration", "structured_matrix_scaling")


@dataclass(frozen=True)
class CalibratorRow:
    """One calibrator's figures; lower scores are better. The unrepaired model is the row "none"."""

    name: str
    calibrator: Calibrator | None = field(repr=False)  # fitted on all fit rows
    cross_validated: float  # mean score of fit rows, each repaired by a fit without it
    test: float
    test_interval: tuple[float, float]
    difference: float  # test score minus that of the unrepaired model
    difference_interval: tuple[float, float]
    calibration_error: float  # of the test rows' top class, 15 bins of equal width
    accuracy: float  # of the test rows
    changed: float  # share of test rows whose decision is another one
    preserves_accuracy: bool  # what the calibrator declares
    notes: tuple[str, ...] = ()  # warnings of the fit

    @property
    def changes_accuracy(self) -> bool:
        """Whether a decision on the test rows became another one."""
        return self.changed > 0


@dataclass(frozen=True)
class CalibratorComparison:
    """Rows in the order of their cross-validated scores; `str` is a table."""

    rows: tuple[CalibratorRow, ...]
    skipped: Mapping[str, str]  # name -> why it does not apply
    score: str
    interval: float
    fit_rows: int
    test_rows: int

    @property
    def best(self) -> Calibrator:
        """The calibrator with the least cross-validated score, fitted on all fit rows."""
        return next(row.calibrator for row in self.rows if row.calibrator is not None)

    @property
    def best_name(self) -> str:
        return next(row.name for row in self.rows if row.calibrator is not None)

    def __getitem__(self, name: str) -> CalibratorRow:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def __str__(self) -> str:
        return _table(self)


def compare_calibrators(
    fit: Predictions,
    test: Predictions,
    *,
    calibrators: Iterable[Any] | None = None,
    score: str = "negative_log_likelihood",
    folds: int = 5,
    interval: float = 0.95,
    resamples: int = 200,
    seed: int = 0,
) -> CalibratorComparison:
    """Fit every calibrator that applies and rank them by a proper score.

    The order comes from `fit` alone: each calibrator's mean score over stratified folds, every row repaired by a fit
    that has not seen it, so that the scores on `test` stay honest. Those carry intervals from a paired bootstrap over
    test rows: all calibrators are judged on the same resamples. `calibrators` are names (with aliases) or unfitted
    calibrators; by default every registered repair that fits the head, the weights and the number of classes.

    Args:
        score: "negative_log_likelihood" or "brier_score".
        folds: how many parts `fit` is cut into.
        interval: the level of the intervals.
        resamples: how many bootstrap resamples.
        seed: of the resamples.
    """
    loss_of = _loss(score)
    _check_tables(fit, test, folds, interval, resamples)
    chosen, skipped = _chosen(fit, calibrators)
    fold_of = _folds(fit, folds)
    judged: list[tuple[str, Any, float, Predictions, tuple[str, ...]]] = []
    for name, make in chosen.items():
        try:
            judged.append((name, *_judged(make, fit, test, fold_of, loss_of)))
        except InputError as error:
            skipped[name] = str(error)
    if not judged:
        raise bad_input(
            DOING, came="no calibrator that applies " + "; ".join(f"({name}: {why})" for name, why in skipped.items()),
            expected="at least one",
        )  # fmt: skip
    plain = ("none", None, _mean(loss_of(fit), _weights(fit)), test, ())
    rows = _rows([plain, *judged], loss_of, interval, resamples, seed)
    return CalibratorComparison(rows, skipped, score, interval, len(fit), len(test))


# ---- what is compared


def _check_tables(fit: Any, test: Any, folds: int, interval: float, resamples: int) -> None:
    for name, table in (("fit", fit), ("test", test)):
        if not isinstance(table, Predictions):
            raise bad_input(DOING, came=f"{name} of type {type(table).__name__}", expected="Predictions")
        if table.kind == "confidence":
            raise bad_input(DOING, came=f"{name} with confidence alone", expected="class scores")
        if table.targets is None:
            raise bad_input(DOING, came=f"{name} without targets", expected="targets=")
    if fit.head != test.head or fit.classes != test.classes:
        raise bad_input(
            DOING,
            came=f"{fit.classes} {fit.head} classes to fit and {test.classes} {test.head} classes to test",
            expected="the same head and classes in both",
        )
    if not 2 <= folds <= len(fit):
        raise bad_input(DOING, came=f"folds={folds!r}", expected=f"a whole number from 2 to {len(fit)}, the fit rows")
    if not 0 < interval < 1 or resamples < 2:
        raise bad_input(
            DOING,
            came=f"interval={interval!r}, resamples={resamples!r}",
            expected="a level below 1, 2 resamples or more",
        )


def _chosen(fit: Predictions, calibrators: Iterable[Any] | None) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """(name -> a maker of an unfitted calibrator, name -> why it was left out)."""
    if calibrators is not None:
        return dict(_named(item) for item in calibrators), {}
    chosen: dict[str, Callable[[], Any]] = {}
    skipped: dict[str, str] = {}
    for entry in registry.entries("calibrator"):
        if entry.details.get("role", "repair") != "repair":
            continue
        why = _why_not(entry, fit)
        if why:
            skipped[entry.name] = why
        else:
            chosen[entry.name] = entry.load()
    return chosen, skipped


def _named(item: Any) -> tuple[str, Callable[[], Any]]:
    if isinstance(item, str):
        entry = registry.find("calibrator", item)
        return entry.name, entry.load()
    if not hasattr(item, "get_params") or not hasattr(item, "apply"):
        raise bad_input(DOING, came=repr(item), expected="names of calibrators, or calibrators")
    from ..calibration._storage import registered_name

    settings = ", ".join(f"{name}={value!r}" for name, value in _changed_settings(item).items())
    return registered_name(item) + (f"({settings})" if settings else ""), lambda: type(item)(
        **item.get_params(deep=False)
    )


def _changed_settings(item: Any) -> dict[str, Any]:
    import inspect

    usual = inspect.signature(type(item).__init__).parameters
    given = item.get_params(deep=False)
    return {name: value for name, value in given.items() if repr(value) != repr(usual[name].default)}


def _why_not(entry: registry.Entry, fit: Predictions) -> str:
    details = entry.details
    classes = int(fit.classes or 0)
    if fit.head not in details.get("heads", ("softmax",)):
        return f"it repairs {' and '.join(details.get('heads', ('softmax',)))} heads, not {fit.head}"
    if fit.weights is not None and not details.get("weights", True):
        return "it has no weighted form"
    if entry.name in FULL_MATRICES and classes > MANY_CLASSES:
        return f"a full matrix of {classes} classes takes long; name it to have it"
    if entry.name in FULL_MATRICES[:2] and classes * (classes + 1) > len(fit):
        return f"it has {classes * (classes + 1)} parameters for {len(fit)} rows"
    return ""


# ---- judging


def _loss(score: str) -> Callable[[Predictions], np.ndarray]:
    if score == "negative_log_likelihood":
        return _row_likelihood
    if score == "brier_score":
        from ..metrics._brier import squared_distances

        return lambda table: squared_distances(table).cpu().numpy()
    raise bad_input(DOING, came=f"score={score!r}", expected="'negative_log_likelihood' or 'brier_score'")


def _row_likelihood(table: Predictions) -> np.ndarray:
    """(n,) minus the log-likelihood of each row, summed over the labels of a sigmoid head."""
    return -table.log_likelihood.cpu().numpy().reshape(len(table), -1).sum(1)


def _weights(table: Predictions) -> np.ndarray:
    return np.ones(len(table)) if table.row_weights is None else table.row_weights.cpu().numpy()


def _mean(loss: np.ndarray, weight: np.ndarray) -> float:
    return float(loss[weight > 0] @ weight[weight > 0] / weight.sum())


def _folds(fit: Predictions, folds: int) -> np.ndarray:
    """(n,) fold of each row: the rows of each class, shuffled with seed 0, dealt out in turn."""
    order = np.random.default_rng(0).permutation(len(fit))
    if fit.target_form == "index":
        target = fit.targets.cpu().numpy() if isinstance(fit.targets, torch.Tensor) else np.asarray(fit.targets)
        order = order[np.argsort(target[order], kind="stable")]
    fold = np.empty(len(fit), np.int64)
    fold[order] = np.arange(len(fit)) % folds
    return fold


def _judged(
    make: Callable[[], Any],
    fit: Predictions,
    test: Predictions,
    fold_of: np.ndarray,
    loss_of: Callable[[Predictions], np.ndarray],
) -> tuple[Any, float, Predictions, tuple[str, ...]]:
    """(the calibrator fitted on all, its cross-validated score, the repaired test rows, the warnings of the fit)."""
    loss = np.empty(len(fit))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for fold in np.unique(fold_of):
            held = np.flatnonzero(fold_of == fold)
            part = make().fit(fit.take(np.flatnonzero(fold_of != fold)))
            loss[held] = loss_of(part.apply(fit.take(held)))
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        fitted = make().fit(fit)
    notes = tuple(str(warning.message) for warning in heard if issubclass(warning.category, UserWarning))
    return fitted, _mean(loss, _weights(fit)), fitted.apply(test), notes


def _rows(
    judged: list[tuple[str, Any, float, Predictions, tuple[str, ...]]],
    loss_of: Callable[[Predictions], np.ndarray],
    interval: float,
    resamples: int,
    seed: int,
) -> tuple[CalibratorRow, ...]:
    """One row each, the unrepaired model first in `judged`."""
    from ..metrics import expected_calibration_error

    losses = np.stack([loss_of(table) for _, _, _, table, _ in judged])  # (calibrators, n)
    plain = judged[0][3]
    weight = _weights(plain)
    values, draws = _bootstrap(losses, weight, resamples, seed)
    tail = 100 * (1 - interval) / 2
    decided = plain.predicted
    rows = []
    for place, (name, fitted, cross_validated, table, notes) in enumerate(judged):
        with np.errstate(invalid="ignore"):
            away = draws[place] - draws[0]
        rows.append(
            CalibratorRow(
                name,
                fitted,
                cross_validated,
                float(values[place]),
                _ends(draws[place], tail),
                float(values[place] - values[0]) if place else 0.0,
                _ends(away, tail) if place else (0.0, 0.0),
                float(expected_calibration_error(table)),
                _mean(table.correctness.cpu().numpy().reshape(len(table), -1).mean(1), weight),
                float((table.predicted != decided).double().mean()),
                fitted is None or bool(fitted.preserves_accuracy),
                notes,
            )
        )
    return tuple(sorted(rows, key=lambda row: row.cross_validated))


def _bootstrap(losses: np.ndarray, weight: np.ndarray, resamples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """((m,) weighted means, (m, resamples) those of the same resampled rows); an infinite loss makes its mean infinite."""
    endless = np.isinf(losses)
    finite = np.where(endless, 0.0, losses)
    generator = np.random.default_rng(seed)
    count = losses.shape[1]

    def mean(mass: np.ndarray) -> np.ndarray:
        value = finite @ mass / mass.sum()
        return np.where((endless * mass).sum(1) > 0, np.inf, value)

    draws = np.empty((len(losses), resamples))
    for resample in range(resamples):
        times = np.bincount(generator.integers(0, count, count), minlength=count)
        mass = weight * times
        draws[:, resample] = mean(mass) if mass.any() else np.nan
    return mean(weight), draws


def _ends(draws: np.ndarray, tail: float) -> tuple[float, float]:
    """Percentiles of the draws, infinite ones included."""
    kept = np.sort(draws[~np.isnan(draws)])
    if len(kept) == 0:
        return float("nan"), float("nan")
    low, high = np.percentile(kept, [tail, 100 - tail], method="nearest")
    return float(low), float(high)


# ---- the table


def _table(found: CalibratorComparison) -> str:
    head: tuple[str, ...] = (
        "calibrator",
        "cross-validated",
        "test",
        "",
        "minus none",
        "",
        "error",
        "accuracy",
        "changed",
    )
    lines: list[tuple[str, ...]] = [head]
    for row in found.rows:
        value, ends = with_interval(row.test, *row.test_interval)
        away, away_ends = with_interval(row.difference, *row.difference_interval)
        lines.append(
            (
                row.name,
                number(row.cross_validated),
                value,
                ends,
                away if row.calibrator is not None else "",
                away_ends if row.calibrator is not None else "",
                f"{row.calibration_error:.4f}",
                f"{row.accuracy:.4f}",
                f"{row.changed:.2%}" if row.changed else "no",
            )
        )
    widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
    text = [
        f"{found.score.replace('_', ' ')}, lower is better: order by cross-validation on {found.fit_rows:,} fit rows; "
        f"{found.interval:.0%} intervals by paired bootstrap over {found.test_rows:,} test rows",
        "",
    ]
    for line in lines:
        cells = [cell.ljust(width) if place == 0 else cell.rjust(width) for place, (cell, width) in enumerate(zip(line, widths, strict=True))]  # fmt: skip
        text.append("  ".join(cells).rstrip())
    text += (
        ["", *(f"{row.name}: {note}" for row in found.rows for note in row.notes)]
        if any(r.notes for r in found.rows)
        else []
    )
    text += ["", *(f"left out {name}: {why}" for name, why in found.skipped.items())] if found.skipped else []
    return "\n".join(text)
