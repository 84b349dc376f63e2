"""What a calibrator is given, read once at the boundary: logits, what was true, weights, identity.

Arrays are softmax logits (n, K) unless the calibrator itself says otherwise; `Predictions` say what they are.
Values are checked here and nowhere else: NaN and +inf never pass, -inf only as a mask of classes that are not true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..errors import bad_input, need

Tensor = torch.Tensor
# elements of one block of rows: its float64 copies stay in the cache (2 MiB each)
BLOCK_ELEMENTS = 1 << 18


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows behind one boundary; every column has one entry a row."""

    logits: Tensor | None  # (n, K) in the type it came in; None where only confidences are known
    highest: Tensor | None = None  # (n,) largest logit
    head: str = "softmax"
    target: Tensor | None = None  # (n,) int64 class numbers
    share: Tensor | None = None  # (n, K) float64 shares, or zeros and ones of each label
    weight: Tensor | None = None  # (n,) float64; None is one a row
    confidence: Tensor | None = None  # (n,) float64, where there are no logits
    correct: Tensor | None = None  # (n,) float64, with `confidence`
    ids: Any = None
    groups: Mapping[str, Any] | None = None

    @property
    def count(self) -> int:
        return len(self.logits if self.logits is not None else self.confidence)  # type: ignore[arg-type]

    @property
    def classes(self) -> int:
        return int(self.logits.shape[1])  # type: ignore[union-attr]

    @property
    def total(self) -> float:
        """The sum of the weights."""
        return float(self.count) if self.weight is None else float(self.weight.sum())

    def blocks(self):
        """Slices of rows that cut the logits into blocks of about `BLOCK_ELEMENTS`."""
        step = max(1, BLOCK_ELEMENTS // max(1, self.classes))
        for start in range(0, self.count, step):
            yield slice(start, min(start + step, self.count))

    def take(self, rows: Any) -> Rows:
        """The given rows: a slice, row numbers or a mask."""
        chosen = {}
        for name in ("logits", "highest", "target", "share", "weight", "confidence", "correct"):
            values = getattr(self, name)
            chosen[name] = None if values is None else values[rows]
        if self.ids is not None:
            keep = rows.cpu().numpy() if isinstance(rows, Tensor) else rows
            chosen["ids"] = np.asarray(self.ids)[keep]
        return replace(self, **chosen, groups=None)


def binary_logits(values: Any) -> Any:
    """Two columns of logits [0, z] from one column of binary logits, the explicit word for 1-D input.

    >>> binary_logits([1.5, -2.0]).tolist()
    [[0.0, 1.5], [0.0, -2.0]]
    """
    if isinstance(values, Tensor):
        column = values.reshape(len(values), -1)
        pair = torch.cat([torch.zeros_like(column), column], dim=1)
    else:
        column = np.asarray(values)
        column = column.astype(np.float64) if column.dtype.kind not in "f" else column
        column = column.reshape(len(column), -1)
        pair = np.concatenate([np.zeros_like(column), column], axis=1)
    if pair.shape[1] != 2:
        raise bad_input(
            "making two columns of binary logits",
            came=f"values of shape {tuple(np.shape(values))}",
            expected="one number a row: (n,) or (n, 1)",
        )
    return pair


def as_tensor(array: np.ndarray) -> Tensor:
    """The same numbers as a tensor, memory shared where the layout allows it."""
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype == np.longdouble and array.dtype != np.float64:
        array = array.astype(np.float64)
    if array.dtype.kind not in "fiub":
        array = array.astype(np.float64)
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        # torch warns of memory it could not write to; it is only read here
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return torch.from_numpy(array if all(stride >= 0 for stride in array.strides) else array.copy())
    return torch.from_numpy(array)


# ---- logits


def read_logits(estimator: Any, X: Any, *, reset: bool) -> Tensor:
    """(n, K) logits from an array, a table or a tensor; sets or checks `n_features_in_`."""
    doing = f"{'fitting' if reset else 'using'} {type(estimator).__name__}"
    if isinstance(X, Tensor):
        return _read_tensor(estimator, X.detach(), doing, reset)
    if isinstance(X, np.ndarray) and X.ndim == 1:
        raise bad_input(
            doing,
            came=f"X of shape {np.shape(X)}",
            expected="logits of shape (n, K) (a 2D array: one column a class)",
            mend="Reshape your data, or say binary_logits(X) if these are logits of one binary output.",
        )
    validation = need("sklearn.utils.validation", "calibration", "reading logits")
    array = validation.validate_data(
        estimator, X, reset=reset, dtype="numeric", ensure_all_finite=False, accept_large_sparse=False
    )
    logits = as_tensor(array)
    return logits if logits.is_floating_point() else logits.double()


def _read_tensor(estimator: Any, X: Tensor, doing: str, reset: bool) -> Tensor:
    if X.ndim != 2 or X.shape[0] == 0 or X.shape[1] == 0:
        mend = "Say binary_logits(X) for logits of one binary output." if X.ndim == 1 else ""
        raise bad_input(doing, came=f"a tensor of shape {tuple(X.shape)}", expected="logits of shape (n, K)", mend=mend)
    if X.is_complex() or X.layout != torch.strided:
        raise bad_input(doing, came=f"a tensor of type {X.dtype} ({X.layout})", expected="dense real logits")
    if reset:
        estimator.n_features_in_ = int(X.shape[1])
        if hasattr(estimator, "feature_names_in_"):
            del estimator.feature_names_in_
    elif X.shape[1] != estimator.n_features_in_:
        raise _other_width(estimator, int(X.shape[1]), doing)
    return X if X.is_floating_point() else X.double()


def _other_width(estimator: Any, columns: int, doing: str) -> Exception:
    return bad_input(
        doing, came=f"{columns} columns", expected=f"{estimator.n_features_in_}, one a class as it was fitted on"
    )


def highest_logit(logits: Tensor, doing: str) -> Tensor:
    """(n,) largest logit of each row; NaN, +inf and rows without a finite logit are errors."""
    highest = logits.amax(1)
    bad = ~torch.isfinite(highest)
    if bool(bad.any()):
        row = int(torch.nonzero(bad)[0, 0])
        _raise_bad_row(logits[row], row, doing)
    return highest


def _raise_bad_row(values: Tensor, row: int, doing: str) -> None:
    nan, high = torch.isnan(values), values == float("inf")
    if bool(nan.any()) or bool(high.any()):
        what = "NaN" if bool(nan.any()) else "infinity"
        column = int(torch.nonzero(nan | high)[0, 0])
        raise bad_input(
            doing,
            came=f"X that contains {what} (row {row}, column {column})",
            expected="finite logits, or -inf for a masked class",
        )
    raise bad_input(doing, came=f"X whose row {row} is all -inf (infinity)", expected="at least one unmasked class")


# ---- labels and weights


def read_labels(
    y: Any, logits: Tensor, doing: str, *, soft: bool, head: str = "softmax"
) -> tuple[Tensor | None, Tensor | None]:
    """(target, share): class numbers (n,), or shares (n, K) where the calibrator takes them."""
    classes = int(logits.shape[1])
    if isinstance(y, Tensor):
        y = y.detach().cpu().numpy()
    array = np.asarray(y) if not hasattr(y, "to_numpy") else y.to_numpy()
    if array.ndim == 2 and array.shape[1] == classes and classes > 1:
        if not soft:
            raise bad_input(
                doing, came=f"soft labels of shape {array.shape}", expected="class numbers of shape (n,)",
                mend="TemperatureScaling, VectorScaling, MatrixScaling and DirichletCalibration take soft labels.",
            )  # fmt: skip
        return None, _read_shares(array, logits, doing, head)
    count = len(logits)
    if classes == 1:  # one sigmoid head: the labels themselves
        target = _read_classes(y, array, count, 2, "absent or present: X has 1 feature(s), one head", doing)
        return None, target.to(logits.device).double().unsqueeze(1)
    return _read_classes(y, array, count, classes, "one of the columns of X", doing).to(logits.device), None


def _read_classes(y: Any, array: np.ndarray, count: int, classes: int, meaning: str, doing: str) -> Tensor:
    """(n,) int64 class numbers."""
    if array.ndim != 1 or array.dtype.kind not in "iub":
        array = _column_of_labels(y, doing)
    if len(array) != count:
        raise bad_input(doing, came=f"{len(array)} labels for {count} rows of logits", expected="one label a row")
    target = as_tensor(np.ascontiguousarray(array)).to(torch.int64)
    low, high = (int(limit) for limit in torch.aminmax(target))
    if low < 0 or high >= classes:
        row = int(torch.nonzero((target < 0) | (target >= classes))[0, 0])
        raise bad_input(
            doing,
            came=f"the label {int(target[row])} in row {row} of y",
            expected=f"a class number from 0 to {classes - 1}, {meaning}",
        )
    return target


def _column_of_labels(y: Any, doing: str) -> np.ndarray:
    """(n,) whole numbers from whatever scikit-learn calls classification targets."""
    utils = need("sklearn.utils", "calibration", "reading labels")
    multiclass = need("sklearn.utils.multiclass", "calibration", "reading labels")
    column = utils.column_or_1d(y, warn=True)
    if column.dtype.kind == "f":
        utils.assert_all_finite(column, input_name="y")
    multiclass.check_classification_targets(column)
    if column.dtype.kind in "iub":
        return column
    if column.dtype.kind == "f":
        return column.astype(np.int64)
    try:
        whole = np.array([int(value) for value in column]) if column.dtype.kind == "O" else None
    except (TypeError, ValueError):
        whole = None
    if whole is not None and all(
        not isinstance(value, str) and value == number for value, number in zip(column, whole, strict=True)
    ):
        return whole
    raise bad_input(
        doing,
        came=f"labels such as {getattr(column[0], 'item', lambda: column[0])()!r}",
        expected="class numbers 0, 1, ..., one for each column of X",
        mend="Replace each name by the number of its column.",
    )


def _read_shares(array: np.ndarray, logits: Tensor, doing: str, head: str) -> Tensor:
    """(n, K) float64 shares; under softmax rows sum to 1."""
    share = as_tensor(array).double().to(logits.device)
    if len(share) != len(logits):
        raise bad_input(doing, came=f"{len(share)} rows of labels", expected=f"{len(logits)}, as X has")
    good = ((share >= 0) & (share <= 1 + 1e-5)).all(1)
    if head == "softmax":
        good &= (share.sum(1) - 1).abs() <= 1e-5
    if not bool(good.all()):
        row = int(torch.nonzero(~good)[0, 0])
        raise bad_input(
            doing,
            came=f"shares in row {row} of y from {float(share[row].min()):.6g} to {float(share[row].max()):.6g}"
            f" that sum to {float(share[row].sum()):.6g}",
            expected="shares from 0 to 1" + (" that sum to 1" if head == "softmax" else ""),
        )
    return share


def check_masks(rows: Rows, doing: str) -> None:
    """A masked class cannot be the true one."""
    if rows.target is not None:
        true = rows.logits.gather(1, rows.target.unsqueeze(1)).squeeze(1)  # type: ignore[union-attr]
        wrong = true == float("-inf")
        if bool(wrong.any()):
            raise _masked_truth(int(torch.nonzero(wrong)[0, 0]), doing)
    elif rows.share is not None:
        for block in rows.blocks():
            wrong = ((rows.logits[block] == float("-inf")) & (rows.share[block] > 0)).any(1)  # type: ignore[index]
            if bool(wrong.any()):
                raise _masked_truth(block.start + int(torch.nonzero(wrong)[0, 0]), doing)


def _masked_truth(row: int, doing: str) -> Exception:
    return bad_input(
        doing,
        came=f"a logit of -inf on the true class of row {row}",
        expected="-inf on masked classes only",
        mend="Unmask the class, or drop the row.",
    )


def read_weights(sample_weight: Any, count: int, doing: str) -> Tensor | None:
    """(n,) float64 weights; finite, at least 0, not all 0."""
    if sample_weight is None:
        return None
    if isinstance(sample_weight, Tensor):
        sample_weight = sample_weight.detach().cpu().numpy()
    weight = np.asarray(sample_weight)
    if weight.shape != (count,):
        raise bad_input(doing, came=f"sample_weight of shape {weight.shape}", expected=f"({count},), one weight a row")
    try:
        weight = weight.astype(np.float64)
    except (TypeError, ValueError):
        raise bad_input(doing, came=f"sample_weight of type {weight.dtype}", expected="numbers") from None
    good = np.isfinite(weight) & (weight >= 0)
    if not good.all():
        row = int(np.flatnonzero(~good)[0])
        raise bad_input(
            doing, came=f"{float(weight[row])!r} in sample_weight (row {row})", expected="finite weights of at least 0"
        )
    if not weight.any():
        raise bad_input(doing, came="sample_weight that is all zero", expected="at least one positive weight")
    return torch.from_numpy(weight)
