"""Sets of classes that contain the true one with a promised chance."""

from __future__ import annotations

import math
import warnings
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import bad_input
from ..predictions import Predictions
from ..registry import register_calibrator
from ._calibrator import Calibrator
from ._maps import MINUS_INFINITY, LogitMap, buffer
from ._rows import Rows
from ._score_setting import score_setting
from ._settings import one_of, share

SCORES = ("lac", "aps", "raps")
SCOPES = ("marginal", "class", "group")


@register_calibrator(
    "conformal_classifier",
    aliases=("conformal",),
    role="decision",
    preserves_accuracy=True,
    heads=("softmax",),
    weights=True,
    formula="{k : score(x, k) <= the ceil((n + 1) coverage)-th smallest score of the fitted rows}",
)
class ConformalClassifier(Calibrator):
    """Prediction sets {k : s_k <= q} that hold the true class with a chance of at least `coverage`.

    Split conformal prediction: q is the ceil((n + 1) coverage)-th smallest score of the n fitted rows (infinite
    where there are too few), which makes the promise exact for exchangeable rows. Scores: "lac" 1 - p_k; "aps" the
    probability of all classes at least as likely, k's own included; "raps" that plus `penalty` for every rank beyond
    `free_ranks`. No score is randomised. Scope: "marginal" one q; "class" one for each class, promised class by
    class; "group" one for each value of a group (`groups` in `fit` and `predict_set`, or the Predictions' group,
    named by `group` where there are several). Weights count rows. Masked classes are in no set, and a set may be
    empty. `predict` and `predict_proba` are those of the softmax.

    Fitted: `quantiles_` in units of the score, `key_quantiles_` (the same in a scale that does not round to 1),
    `groups_` (the values of the group, else None).

    Reference: Sadinle, Lei and Wasserman 2019 (LAC); Romano, Sesia and Candès 2020 (APS); Angelopoulos et al. 2021
    (RAPS).
    """

    _state = ("quantiles_", "key_quantiles_", "groups_")
    score = score_setting(Calibrator.score)  # type: ignore

    def __init__(
        self,
        *,
        score: str = "lac",
        scope: str = "marginal",
        coverage: float = 0.9,
        penalty: float = 0.01,
        free_ranks: int = 5,
        group: str | None = None,
    ) -> None:
        self.score = score  # type: ignore[misc]
        self.scope = scope
        self.coverage = coverage
        self.penalty = penalty
        self.free_ranks = free_ranks
        self.group = group

    @property
    def preserves_accuracy(self) -> bool:
        """True: probabilities stay as they are."""
        return True

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, *, groups: Any = None) -> Self:
        """Fit on logits (n, K) and labels, or on Predictions."""
        one_of(self.score, "score", "ConformalClassifier", SCORES)
        one_of(self.scope, "scope", "ConformalClassifier", SCOPES)
        share(self.coverage, "coverage", "ConformalClassifier")
        if not 0 <= self.penalty < math.inf:
            raise bad_input("fitting ConformalClassifier", came=f"penalty={self.penalty!r}", expected="at least 0")
        whole_rows = len(X) if hasattr(X, "__len__") else None
        values = self._group_values(X, groups, whole_rows)
        rows = self._read(X, y, sample_weight)
        if values is not None and len(values) != rows.count:  # rows of weight 0 were dropped
            values = values[self._positive(X, sample_weight)]
        key = self._true_keys(rows)
        mass = np.ones(rows.count) if rows.weight is None else rows.weight.cpu().numpy()
        self.groups_ = None
        if self.scope == "marginal":
            found = [quantile(key, mass, self.coverage)]
        elif self.scope == "class":
            target = rows.target.cpu().numpy()  # type: ignore[union-attr]
            found = [quantile(key[target == k], mass[target == k], self.coverage) for k in range(rows.classes)]
        else:
            self.groups_ = [value.item() for value in np.unique(values)]  # type: ignore[arg-type]
            found = [quantile(key[values == value], mass[values == value], self.coverage) for value in self.groups_]
        self.key_quantiles_ = np.array(found)
        self.quantiles_ = -np.expm1(-self.key_quantiles_) if self._score == "lac" else 1 + self.key_quantiles_
        self._warn_few()
        return self

    def _warn_few(self) -> None:
        endless = np.flatnonzero(np.isinf(self.key_quantiles_))
        if len(endless):
            what = {"marginal": "the fit", "class": f"class {endless[0]}"}.get(self.scope)
            what = what or f"group {self.groups_[endless[0]]!r}"  # type: ignore[index]
            least = math.ceil(self.coverage / (1 - self.coverage) - 1e-9)
            warnings.warn(
                f"ConformalClassifier: {what} ({len(endless)} in all) has fewer than the {least} rows that coverage "
                f"{self.coverage:g} needs, so every class is in its sets.",
                UserWarning,
                stacklevel=3,
            )

    def _group_values(self, X: Any, groups: Any, count: int | None) -> np.ndarray | None:
        doing = "reading the groups of ConformalClassifier"
        if self.scope != "group":
            if groups is not None:
                raise bad_input(doing, came=f"groups with scope={self.scope!r}", expected="scope='group'")
            return None
        if isinstance(X, Predictions) and groups is None:
            known = X.groups or {}
            name = self.group if self.group is not None else next(iter(known)) if len(known) == 1 else None
            if name not in known:
                raise bad_input(
                    doing, came=f"groups {sorted(known)} and group={self.group!r}", expected="a group, named by group="
                )
            groups = known[str(name)]
        if groups is None:
            raise bad_input(doing, came="no groups", expected="groups=, one value a row")
        values = groups.detach().cpu().numpy() if isinstance(groups, Tensor) else np.asarray(groups)
        if values.ndim != 1 or (count is not None and len(values) != count):
            raise bad_input(doing, came=f"groups of shape {values.shape}", expected=f"({count},), one value a row")
        return values

    @staticmethod
    def _positive(X: Any, sample_weight: Any) -> np.ndarray:
        weight = X.weights if isinstance(X, Predictions) else sample_weight
        return np.asarray(weight.cpu() if isinstance(weight, Tensor) else weight) > 0

    def _true_keys(self, rows: Rows) -> np.ndarray:
        """(n,) key of the true class."""
        score = SetKeys(self._score, self.penalty, self.free_ranks)
        keys = []
        for block in rows.blocks():
            table = score(rows.logits[block].double())  # type: ignore[index]
            keys.append(table.gather(1, rows.target[block].unsqueeze(1)).squeeze(1))  # type: ignore[index]
        return torch.cat(keys).cpu().numpy()

    def predict_set(self, X: Any, groups: Any = None) -> np.ndarray:
        """(n, K) whether a class is in the row's set."""
        logits = self._to_use(X)
        values = self._group_values(X, groups, len(logits))
        score = SetKeys(self._score, self.penalty, self.free_ranks)
        limit = self._limits(values)
        out = np.empty(tuple(logits.shape), dtype=bool)
        for block in Rows(logits=logits).blocks():
            z = logits[block].double()
            keys = torch.where(z == MINUS_INFINITY, math.nan, score(z)).cpu().numpy()
            out[block] = keys <= (limit if values is None else limit[block])
        return out

    def _limits(self, values: np.ndarray | None) -> np.ndarray:
        """(1,), (K,) or (n, 1) largest key that enters a set."""
        if values is None:
            return self.key_quantiles_
        known = np.array(self.groups_)
        unknown = ~np.isin(values, known)
        if unknown.any():
            raise bad_input(
                "predicting sets",
                came=f"the group {values[unknown][0].item()!r} in row {int(np.flatnonzero(unknown)[0])}",
                expected=f"one of the fitted groups {self.groups_}",
            )
        return self.key_quantiles_[np.searchsorted(known, values)][:, None]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The settings."""
        return {name: vars(self)[name] for name in self._get_param_names()}

    @property
    def _score(self) -> str:
        return vars(self)["score"]

    def _build(self) -> torch.nn.Module:
        return LogitMap(nn.Identity())

    def _ship(self) -> torch.nn.Module:
        if self.scope == "group":
            return self._build()  # a module sees no groups
        return SetMap(SetKeys(self._score, self.penalty, self.free_ranks), self.key_quantiles_)


class SetKeys(nn.Module):
    """(n, K) keys that grow with the score: -log p for LAC; minus the mass of less likely classes for APS and RAPS."""

    def __init__(self, score: str, penalty: float, free_ranks: int) -> None:
        super().__init__()
        self.score = score
        self.penalty = penalty if score == "raps" else 0.0
        self.free_ranks = free_ranks

    def forward(self, logits: Tensor) -> Tensor:
        log_p = nn.functional.log_softmax(logits, dim=1)
        if self.score == "lac":
            return -log_p
        ordered, order = torch.sort(log_p, dim=1, descending=False, stable=True)
        p = ordered.exp()
        tail = torch.cumsum(p, dim=1) - p  # mass of the classes that are less likely
        rank = torch.arange(logits.shape[1], 0, -1, device=logits.device, dtype=torch.float64)  # 1 is the likeliest
        keys = self.penalty * (rank - self.free_ranks).clamp(min=0.0) - tail
        return torch.zeros_like(log_p).scatter(1, order, keys)


class SetMap(nn.Module):
    """Logits in, log-probabilities (n, K) and whether each class is in the set (n, K) out."""

    output = "log_probabilities"
    output_names = ("log_probabilities", "in_set")
    quantiles: Tensor

    def __init__(self, keys: SetKeys, quantiles: np.ndarray) -> None:
        super().__init__()
        self.map = LogitMap(nn.Identity())
        self.keys = keys
        self.register_buffer("quantiles", buffer(quantiles))

    def forward(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        inside = (self.keys(logits.double()) <= self.quantiles) & (logits != MINUS_INFINITY)
        return self.map(logits), inside


def quantile(key: np.ndarray, mass: np.ndarray, coverage: float) -> float:
    """The smallest key up to which the mass reaches (n + 1) coverage, n the whole mass; infinite if none does."""
    order = np.argsort(key, kind="stable")
    reached = np.cumsum(mass[order])
    total = reached[-1] if len(reached) else 0.0
    wanted = (total + 1) * coverage
    place = int(np.searchsorted(reached, wanted - 1e-9 * max(1.0, wanted), side="left"))
    return float(key[order[place]]) if place < len(key) else math.inf
