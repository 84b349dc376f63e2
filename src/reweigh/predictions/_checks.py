"""What a table of predictions must satisfy; each check costs one pass, and its message names row and value."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from ..errors import bad_input
from ._columns import is_text, row_blocks, tensor

DOING = "building Predictions"
SCORES = ("logits", "log_probabilities", "probabilities", "confidence")


def row_sum_tolerance(dtype: torch.dtype) -> float:
    """Square root of the type's epsilon; at least 1e-5, because float64 tables often hold what float32 computed."""
    return max(torch.finfo(dtype).eps ** 0.5, 1e-5)


def check_score_choice(given: list[str], correct: Any) -> str:
    """Exactly one of the four scores, and `correct` exactly with `confidence`."""
    if len(given) != 1:
        raise bad_input(
            DOING,
            came=f"{' and '.join(given) or 'no scores'}",
            expected="exactly one of logits, log_probabilities, probabilities and confidence",
        )
    if given == ["confidence"] and correct is None:
        raise bad_input(
            DOING, came="confidence without correct", expected="both", mend="Give correct=, one 0 or 1 a row."
        )
    if given != ["confidence"] and correct is not None:
        raise bad_input(
            DOING, came=f"correct with {given[0]}", expected="targets=", mend="`correct` belongs to confidence= alone."
        )
    return given[0]


def check_floating(values: torch.Tensor, name: str, rank: int) -> None:
    shape = "(rows, classes)" if rank == 2 else "(rows,)"
    if values.ndim != rank:
        mend = "A single binary column is values[:, None] with head='sigmoid'." if values.ndim == 1 else ""
        raise bad_input(DOING, came=f"{name} of shape {tuple(values.shape)}", expected=shape, mend=mend)
    if not values.dtype.is_floating_point:
        raise bad_input(DOING, came=f"{name} of type {values.dtype}", expected="a floating-point type")
    if rank == 2 and values.shape[1] == 0:
        raise bad_input(DOING, came=f"{name} of shape {tuple(values.shape)}", expected="at least one class")


def _first(wrong: torch.Tensor) -> tuple[int, ...]:
    """The index of the first true element, in row order."""
    return tuple(int(i) for i in torch.nonzero(wrong)[0])


def _bad_value(values: torch.Tensor, name: str, wrong, expected: str, mend: str = ""):
    """The error for the first element for which `wrong` holds, found block by block."""
    for rows in row_blocks(values):
        hit = wrong(values[rows])
        if bool(hit.any()):
            place = _first(hit)
            place = (place[0] + rows.start, *place[1:])
            where = f"row {place[0]}" + (f", column {place[1]}" if len(place) > 1 else "")
            return bad_input(DOING, came=f"{float(values[place])!r} in {name} ({where})", expected=expected, mend=mend)
    raise AssertionError(f"{name}: no offending value found")


def _limits(values: torch.Tensor) -> tuple[float, float]:
    """Smallest and largest value in one pass; NaN if there is any."""
    if values.numel() == 0:
        return 0.0, 0.0
    low, high = torch.aminmax(values)
    return float(low), float(high)


def check_scores(values: torch.Tensor, name: str, head: str) -> float:
    """Values and, under softmax, row sums of the column of scores; returns the smallest value."""
    check_floating(values, name, rank=2)
    if head == "softmax" and values.shape[1] == 1:
        raise bad_input(
            DOING,
            came=f"{name} with one column under head='softmax'",
            expected="at least two classes",
            mend="Say head='sigmoid' for a single binary output.",
        )
    low, high = _limits(values)
    if name == "logits":
        _check_logits(values, low, high)
    elif name == "log_probabilities":
        _check_log_probabilities(values, high, head)
    else:
        _check_probabilities(values, low, high, head)
    return low


def _check_logits(values: torch.Tensor, low: float, high: float) -> None:
    if not high < float("inf"):  # NaN fails the comparison, too
        raise _bad_value(values, "logits", lambda block: torch.isnan(block) | (block == float("inf")), "finite numbers")
    if low == float("-inf"):
        for rows in row_blocks(values):
            empty = (values[rows] == float("-inf")).all(1)
            if bool(empty.any()):
                row = rows.start + _first(empty)[0]
                raise bad_input(DOING, came=f"logits that are all -inf in row {row}", expected="one finite logit a row")


def _check_log_probabilities(values: torch.Tensor, high: float, head: str) -> None:
    slack = row_sum_tolerance(values.dtype)
    if not high <= slack:
        mend = "If these are logits, name them so: logits=."
        raise _bad_value(values, "log_probabilities", lambda block: ~(block <= slack), "numbers at most 0", mend)
    if head == "softmax":
        _check_row_sums(values, "log_probabilities", slack, lambda block: torch.logsumexp(block.double(), 1).exp())


def _check_probabilities(values: torch.Tensor, low: float, high: float, head: str) -> None:
    slack = row_sum_tolerance(values.dtype)
    if not (low >= 0 and high <= 1 + slack):
        mend = "If these are logits, name them so: logits=."
        raise _bad_value(
            values, "probabilities", lambda block: ~((block >= 0) & (block <= 1 + slack)), "numbers from 0 to 1", mend
        )
    if head == "softmax":
        single = torch.float64 if values.dtype == torch.float64 else torch.float32
        _check_row_sums(values, "probabilities", slack, lambda block: block.sum(1, dtype=single))


def _check_row_sums(values: torch.Tensor, name: str, slack: float, total_of) -> None:
    for rows in row_blocks(values):
        total = total_of(values[rows])
        wrong = ~((total - 1).abs() <= slack)
        if bool(wrong.any()):
            row = _first(wrong)[0]
            raise bad_input(
                DOING,
                came=f"{name} of row {rows.start + row} that sum to {float(total[row]):.6g}",
                expected=f"rows that sum to 1 (within {slack:.1e} for {str(values.dtype).removeprefix('torch.')})",
                mend="Say head='sigmoid' for independent labels, or name logits as logits=.",
            )


def check_confidence(values: torch.Tensor, correct: torch.Tensor) -> None:
    """Confidences from 0 to 1, and for each whether the prediction was right."""
    check_floating(values, "confidence", rank=1)
    low, high = _limits(values)
    if not (low >= 0 and high <= 1):
        raise _bad_value(values, "confidence", lambda block: ~((block >= 0) & (block <= 1)), "numbers from 0 to 1")
    if correct.ndim != 1:
        raise bad_input(DOING, came=f"correct of shape {tuple(correct.shape)}", expected="one value a row")
    if correct.dtype != torch.bool and not all(0 <= limit <= 1 for limit in _limits(correct)):
        raise _bad_value(correct, "correct", lambda block: ~((block >= 0) & (block <= 1)), "0, 1 or a share between")


def target_form(targets: torch.Tensor) -> str:
    """What the type and the rank of the targets say they are: "index", "multi_hot" or "soft"."""
    whole = not (targets.dtype.is_floating_point or targets.dtype.is_complex)
    if targets.ndim == 1 and whole:
        return "index"
    if targets.ndim == 2 and not targets.dtype.is_complex:
        return "multi_hot" if whole else "soft"
    raise bad_input(
        DOING,
        came=f"targets of shape {tuple(targets.shape)} and type {targets.dtype}",
        expected="whole class numbers (rows,), a whole or boolean matrix (rows, classes), or a floating-point matrix",
        mend="Class numbers that were read as floats are targets.astype(int)." if targets.ndim == 1 else "",
    )


def check_targets(targets: torch.Tensor, form: str, head: str, classes: int | None) -> None:
    """Targets within the classes; matrices of zeros and ones, or rows that sum to one."""
    if form == "index":
        _check_indices(targets, classes)
        return
    if classes is None:
        raise bad_input(DOING, came="a target matrix with confidence=", expected="class numbers, or no targets")
    if targets.shape[1] != classes:
        raise bad_input(
            DOING,
            came=f"targets of shape {tuple(targets.shape)}",
            expected=f"{classes} columns, one a class as the scores have",
        )
    low, high = _limits(targets)
    if form == "multi_hot":
        if targets.dtype != torch.bool and not (low >= 0 and high <= 1):
            raise _bad_value(targets, "targets", lambda block: (block != 0) & (block != 1), "0 or 1")
    elif not (low >= 0 and high <= 1 + row_sum_tolerance(targets.dtype)):
        slack = row_sum_tolerance(targets.dtype)
        raise _bad_value(targets, "targets", lambda block: ~((block >= 0) & (block <= 1 + slack)), "shares from 0 to 1")
    if head == "softmax" and form == "soft":
        _check_row_sums(targets, "targets", row_sum_tolerance(targets.dtype), lambda block: block.double().sum(1))
    elif head == "softmax":
        _check_one_hot(targets)


def _check_one_hot(targets: torch.Tensor) -> None:
    counts = targets.sum(1)
    wrong = counts != 1
    if bool(wrong.any()):
        row = _first(wrong)[0]
        raise bad_input(
            DOING,
            came=f"{int(counts[row])} present labels in row {row} of targets under head='softmax'",
            expected="exactly one",
            mend="Say head='sigmoid' for several labels a row.",
        )


def _check_indices(targets: torch.Tensor, classes: int | None) -> None:
    if targets.numel() == 0:
        return
    if targets.dtype == torch.bool:
        targets = targets.to(torch.int64)
    low, high = _limits(targets)
    if low < 0 or (classes is not None and high >= classes):
        limit = float("inf") if classes is None else classes
        row = _first((targets < 0) | (targets >= limit))[0]
        wanted = "a class number from 0" if classes is None else f"a class number from 0 to {classes - 1}"
        mend = "One label a row is targets[:, None], a matrix of zeros and ones." if classes == 1 else ""
        raise bad_input(DOING, came=f"{int(targets[row])} in targets (row {row})", expected=wanted, mend=mend)


def check_masked(logits: torch.Tensor, targets: torch.Tensor, form: str) -> None:
    """A masked class (logit -inf) cannot be the true one."""
    if form == "index":
        wrong = logits.gather(1, targets.to(torch.int64).unsqueeze(1)).squeeze(1) == float("-inf")
        place = _first(wrong) if bool(wrong.any()) else None
    else:
        wrong = (logits == float("-inf")) & (targets > 0)
        place = _first(wrong) if bool(wrong.any()) else None
    if place is not None:
        raise bad_input(
            DOING,
            came=f"a logit of -inf on the true class of row {place[0]}",
            expected="-inf on masked classes only",
            mend="Unmask the class, or drop the row.",
        )


def check_weights(weights: torch.Tensor) -> None:
    if weights.ndim != 1 or weights.dtype.is_complex:
        raise bad_input(DOING, came=f"weights of shape {tuple(weights.shape)}", expected="one number a row")
    low, high = _limits(weights)
    if weights.dtype != torch.bool and not (low >= 0 and high < float("inf")):
        raise _bad_value(
            weights.double(),
            "weights",
            lambda block: ~((block >= 0) & (block < float("inf"))),
            "finite numbers of at least 0",
        )


def check_length(values: Any, name: str, rows: int) -> None:
    if len(values) != rows:
        raise bad_input(DOING, came=f"{name} with {len(values)} rows", expected=f"{rows}, as the scores have")


def check_ids(ids: Any) -> None:
    """One id a row, each only once."""
    if ids.ndim != 1:
        raise bad_input(DOING, came=f"ids of shape {tuple(ids.shape)}", expected="one id a row")
    plain = ids if is_text(ids) else tensor(ids).cpu().numpy()
    values, first = numpy.unique(plain, return_index=True)
    if len(values) == len(plain):
        return
    again = numpy.ones(len(plain), bool)
    again[first] = False
    row = int(numpy.flatnonzero(again)[0])
    earlier = int(numpy.flatnonzero(plain == plain[row])[0])
    raise bad_input(
        DOING, came=f"the id {plain[row].item()!r} in rows {earlier} and {row}", expected="ids that occur once"
    )


def check_class_names(names: tuple[str, ...], classes: int | None) -> None:
    if classes is not None and len(names) != classes:
        raise bad_input(DOING, came=f"{len(names)} class_names", expected=f"{classes}, one a class")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise bad_input(DOING, came=f"the class name {twice!r} twice", expected="names that occur once")
