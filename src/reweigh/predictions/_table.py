"""`Predictions`: what a classifier said about each row, what was true, and who the row was; one frozen table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy
import torch

from ..errors import bad_input
from . import _checks, _derived
from ._columns import column, is_text, join, numeric, take, tensor

_ROWS = ("logits", "log_probabilities", "probabilities", "confidence", "correct", "targets", "weights", "ids")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Predictions:
    """The predictions of a classifier, with as much truth and identity as is known.

    Exactly one of `logits`, `log_probabilities`, `probabilities` (all of shape (rows, classes)) and `confidence`
    (rows,) is given; `confidence` goes with `correct` (rows,) and serves top-label and selective metrics. NumPy
    arrays and tensors are kept as they are, type included; nothing is guessed from values.

    `targets` are class numbers (rows,), a whole or boolean matrix (several labels a row), a floating-point matrix
    (shares; under softmax they sum to one) or absent. `head` is "softmax" or "sigmoid"; unsaid it is "sigmoid" for
    a whole or boolean matrix of targets and "softmax" otherwise. Sigmoid with class numbers means one-vs-rest heads.

    >>> import numpy
    >>> table = Predictions(probabilities=numpy.array([[0.9, 0.1], [0.4, 0.6]]), targets=[0, 0])
    >>> len(table), table.predicted.tolist(), table.correctness.tolist()
    (2, [0, 1], [1.0, 0.0])
    """

    logits: Any = None
    log_probabilities: Any = None
    probabilities: Any = None
    confidence: Any = None
    correct: Any = None
    targets: Any = None
    head: str | None = None
    weights: Any = None
    ids: Any = None
    groups: Mapping[str, Any] | None = None
    class_names: Sequence[str] | None = None
    about: Mapping[str, Any] | None = None
    _checked: bool = field(default=True)

    def __post_init__(self) -> None:
        put = object.__setattr__  # the only place that writes a frozen field
        for name in _ROWS:
            put(self, name, (column if name == "ids" else numeric)(getattr(self, name), name))
        put(
            self,
            "groups",
            {str(name): column(values, f"the group {name}") for name, values in (self.groups or {}).items()},
        )
        put(self, "class_names", None if self.class_names is None else tuple(str(name) for name in self.class_names))
        put(self, "about", dict(self.about or {}))
        given = [name for name in _checks.SCORES if getattr(self, name) is not None]
        put(self, "_kind", _checks.check_score_choice(given, self.correct))
        form = None if self.targets is None else _checks.target_form(tensor(self.targets))
        put(self, "_target_form", form)
        put(self, "_memory", {})
        if self.head is None:
            put(self, "head", "sigmoid" if form == "multi_hot" else "softmax")
        if self.head not in ("softmax", "sigmoid"):
            raise bad_input(_checks.DOING, came=f"head={self.head!r}", expected="'softmax' or 'sigmoid'")
        if self._checked:
            self._check()

    def _check(self) -> None:
        scores = self.scores
        low = 0.0
        if self.kind == "confidence":
            _checks.check_confidence(scores, tensor(self.correct))
            _checks.check_length(self.correct, "correct", len(scores))
        else:
            low = _checks.check_scores(scores, self.kind, str(self.head))
        named = {"targets": self.targets, "weights": self.weights, "ids": self.ids}
        named |= {f"the group {name!r}": values for name, values in (self.groups or {}).items()}
        for name, values in named.items():
            if values is not None:
                if values.ndim == 0:
                    raise bad_input(_checks.DOING, came=f"{name} as a single value", expected="one entry a row")
                _checks.check_length(values, name, len(scores))
        if self.targets is not None:
            targets = tensor(self.targets).to(scores.device)
            _checks.check_targets(targets, str(self.target_form), str(self.head), self.classes)
            if self.kind == "logits" and low == float("-inf"):
                _checks.check_masked(scores, targets, str(self.target_form))
        if self.weights is not None:
            _checks.check_weights(tensor(self.weights))
        if self.ids is not None:
            _checks.check_ids(self.ids)
        if self.class_names is not None:
            _checks.check_class_names(tuple(self.class_names), self.classes)

    # ---- what there is

    @property
    def kind(self) -> str:
        """Which of the four scores this table has."""
        return self._kind  # type: ignore[attr-defined]

    @property
    def target_form(self) -> str | None:
        """ "index", "multi_hot", "soft", or None without targets."""
        return self._target_form  # type: ignore[attr-defined]

    @property
    def scores(self) -> torch.Tensor:
        """The given scores as a tensor, sharing memory."""
        return tensor(getattr(self, self.kind))

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(getattr(self, self.kind))

    @property
    def classes(self) -> int | None:
        """The number of classes; None for confidences alone, unless class names tell it."""
        if self.kind == "confidence":
            return None if self.class_names is None else len(self.class_names)
        return int(getattr(self, self.kind).shape[1])

    @property
    def per_label(self) -> bool:
        """Whether every (row, class) is a decision of its own: sigmoid heads without class numbers."""
        return self.head == "sigmoid" and self.target_form != "index" and self.kind != "confidence"

    def __len__(self) -> int:
        return self.rows

    # ---- what follows, one float64 entry a decision

    @cached_property
    def target_tensor(self) -> torch.Tensor:
        """The targets as a tensor beside the scores; True and False as 1 and 0."""
        if self.targets is None:
            raise bad_input("reading targets", came="Predictions without targets", expected="targets=")
        targets = tensor(self.targets).to(self.scores.device)
        return targets.to(torch.uint8) if targets.dtype == torch.bool else targets

    @cached_property
    def largest_score(self) -> torch.Tensor:
        """The largest score of each row, in the scores' own type."""
        return self.scores.amax(1)

    @cached_property
    def odds_against(self) -> torch.Tensor:
        """(1 - c) / c of the top class under softmax."""
        return _derived.odds_against(self)

    @cached_property
    def normalizers(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Top logit and log of the sum of ratios to it, one a row."""
        return _derived.normalizers(self)

    @cached_property
    def top_confidence(self) -> torch.Tensor:
        """The confidence of each decision."""
        return _derived.confidence(self)

    @cached_property
    def predicted(self) -> torch.Tensor:
        """The class decided for (0 or 1 per label), ties to the lowest."""
        return _derived.predicted(self)

    @cached_property
    def correctness(self) -> torch.Tensor:
        """1 where the decision is right, 0 where it is wrong; the predicted class's share for soft targets."""
        return _derived.correctness(self)

    @cached_property
    def log_odds(self) -> torch.Tensor:
        """log c - log(1 - c) of the confidence, which ranks where c itself rounds to 1."""
        return _derived.log_odds(self)

    @cached_property
    def margin_key(self) -> torch.Tensor:
        """-log(1 - margin) of the two largest probabilities."""
        return _derived.margin_key(self)

    @cached_property
    def entropy_key(self) -> torch.Tensor:
        """-log of the entropy as a share of ln K."""
        return _derived.entropy_key(self)

    @cached_property
    def log_likelihood(self) -> torch.Tensor:
        """The log-probability of what happened."""
        return _derived.log_likelihood(self)

    @cached_property
    def row_weights(self) -> torch.Tensor | None:
        """The weights in float64 beside the scores, or None."""
        return None if self.weights is None else tensor(self.weights).to(self.scores.device).double()

    @property
    def decision_weights(self) -> torch.Tensor | None:
        """The weights, repeated for every decision of a row."""
        if self.row_weights is None or not self.per_label:
            return self.row_weights
        return self.row_weights.repeat_interleave(int(self.classes or 1))

    def probability_blocks(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """Pairs of a slice of rows and its (b, K) probabilities in float64: the whole matrix never exists."""
        return _derived.probability_blocks(self)

    def log_probability_matrix(self) -> torch.Tensor:
        """(rows, classes) softmax log-probabilities in float64, all at once: for metrics that need every pair."""
        return _derived.log_probability_matrix(self)

    def class_probabilities(self, columns: slice) -> torch.Tensor:
        """(rows, columns) probabilities of some classes in float64."""
        return _derived.class_probabilities(self, columns)

    def class_log_odds(self, columns: slice) -> torch.Tensor:
        """(rows, columns) log p - log(1 - p) of some classes in float64."""
        return _derived.class_log_odds(self, columns)

    # ---- other tables

    def take(self, rows: Any) -> Predictions:
        """The given rows: a slice, row numbers, or a mask."""
        rows = _selection(rows, len(self))
        chosen = {name: take(getattr(self, name), rows) for name in _ROWS}
        if self.ids is not None and not isinstance(rows, slice):
            _checks.check_ids(chosen["ids"])
        groups = {name: take(values, rows) for name, values in (self.groups or {}).items()}
        return replace(self, **chosen, groups=groups, _checked=False)

    __getitem__ = take

    def by(self, group: str) -> dict[Any, Predictions]:
        """One table for each value of a group, in the order of the values."""
        if group not in (self.groups or {}):
            known = ", ".join(self.groups or {}) or "none"
            raise bad_input(
                "splitting Predictions", came=f"the group {group!r}", expected=f"one of its groups ({known})"
            )
        values = self.groups[group]  # type: ignore[index]
        plain = values if is_text(values) else tensor(values).cpu().numpy()
        return {value.item(): self.take(numpy.flatnonzero(plain == value)) for value in numpy.unique(plain)}

    def reweighted(self, weights: Any) -> Predictions:
        """The same rows with other weights; whatever was derived from the scores is shared, so this costs nothing."""
        twin = object.__new__(Predictions)
        twin.__dict__.update(self.__dict__)
        twin.__dict__.pop("row_weights", None)
        twin.__dict__["weights"] = weights
        return twin

    def remember(self, key: Any, compute: Callable[[], Any]) -> Any:
        """What `compute` returns, computed once for this table and its reweighted twins: orders, bins, costs."""
        memory: dict[Any, Any] = self._memory  # type: ignore[attr-defined]
        if key not in memory:
            memory[key] = compute()
        return memory[key]

    def __getstate__(self) -> dict[str, Any]:
        """The columns alone: what was derived from them is derived again."""
        kept = {name: self.__dict__[name] for name in (*FIELDS, "_checked", "_kind", "_target_form")}
        return {**kept, "_memory": {}}

    def with_scores(self, **scores: Any) -> Predictions:
        """The same rows with other scores: `table.with_scores(probabilities=repaired)`."""
        empty = dict.fromkeys((*_checks.SCORES, "correct"))
        return replace(self, **{**empty, **scores}, _checked=True)

    @staticmethod
    def concatenate(tables: Sequence[Predictions]) -> Predictions:
        """The rows of several tables of one form below one another."""
        tables = list(tables)
        if not tables:
            raise bad_input("joining Predictions", came="no tables", expected="at least one")
        first = tables[0]
        for number, table in enumerate(tables[1:], 1):
            _same_form(first, table, number)
        columns = {name: join([getattr(t, name) for t in tables]) for name in _ROWS if getattr(first, name) is not None}
        groups = {name: join([t.groups[name] for t in tables]) for name in first.groups or {}}  # type: ignore[index]
        if first.ids is not None:
            _checks.check_ids(columns["ids"])
        return replace(first, **columns, groups=groups, _checked=False)

    def __repr__(self) -> str:
        of = "" if self.kind == "confidence" else f" x {self.classes} classes"
        kept = [
            f"{self.head} {self.kind} ({str(self.scores.dtype).removeprefix('torch.')})",
            f"{str(self.target_form).replace('_', '-')} targets" if self.targets is not None else "no targets",
            *(name for name in ("weights", "ids") if getattr(self, name) is not None),
            *(f"group {name}" for name in self.groups or {}),
        ]
        if self.kind == "confidence":
            kept[0] = "confidence and correct"
        return f"Predictions({len(self):,} rows{of}: {', '.join(kept)})"


def _selection(rows: Any, count: int) -> Any:
    """A slice, an array of row numbers or a mask, checked against the number of rows."""
    if isinstance(rows, slice):
        return rows
    if isinstance(rows, (int, numpy.integer)):
        rows = [int(rows)]
    plain = rows.cpu().numpy() if isinstance(rows, torch.Tensor) else numpy.asarray(rows)
    plain = plain.astype(numpy.int64) if plain.size == 0 and plain.dtype != bool else plain
    if plain.dtype == bool:
        if plain.shape != (count,):
            raise bad_input("selecting rows", came=f"a mask of shape {plain.shape}", expected=f"({count},)")
        return numpy.flatnonzero(plain)
    if plain.ndim != 1 or plain.dtype.kind not in "iu":
        raise bad_input(
            "selecting rows", came=f"{plain.dtype} of shape {plain.shape}", expected="row numbers or a mask"
        )
    outside = (plain < -count) | (plain >= count)
    if outside.any():
        raise bad_input("selecting rows", came=f"row {int(plain[outside][0])}", expected=f"a row from 0 to {count - 1}")
    return numpy.where(plain < 0, plain + count, plain).astype(numpy.int64)


def _same_form(first: Predictions, other: Predictions, number: int) -> None:
    """Tables can be joined when they mean the same."""
    for name in ("kind", "head", "target_form", "classes", "class_names"):
        mine, theirs = getattr(first, name), getattr(other, name)
        if mine != theirs:
            raise bad_input(
                "joining Predictions", came=f"{name} {theirs!r} in table {number}", expected=f"{mine!r}, as in table 0"
            )
    for name in ("weights", "ids"):
        if (getattr(first, name) is None) != (getattr(other, name) is None):
            raise bad_input(
                "joining Predictions", came=f"{name} in only one of the tables 0 and {number}", expected="all or none"
            )
    if set(first.groups or {}) != set(other.groups or {}):
        raise bad_input(
            "joining Predictions",
            came=f"groups {sorted(other.groups or {})} in table {number}",
            expected=f"{sorted(first.groups or {})}, as in table 0",
        )


FIELDS = tuple(item.name for item in fields(Predictions) if not item.name.startswith("_"))
