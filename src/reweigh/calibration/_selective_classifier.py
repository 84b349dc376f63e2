"""Answer where the model is sure, abstain elsewhere, at a target coverage or a certified risk."""

from __future__ import annotations

import math
import warnings
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import bad_input, need
from ..registry import register_calibrator
from ._calibrator import Calibrator
from ._grid_error import top_correct
from ._maps import LogitMap, buffer
from ._rows import Rows
from ._score_keys import SCORES, ScoreKey, value_of_key
from ._score_setting import score_setting
from ._settings import draw, one_of, row_numbers, share

# Thresholds that are tried, and the share of the rows that chooses their sequence.
CANDIDATES = 200
DESIGN_SHARE = 0.25


@register_calibrator(
    "selective_classifier",
    aliases=("selective",),
    role="decision",
    preserves_accuracy=False,
    heads=("softmax",),
    weights=True,
    formula="argmax z where the confidence score is at least a threshold, else -1",
)
class SelectiveClassifier(Calibrator):
    """The predicted class where a confidence score reaches a threshold, and -1 (abstain) elsewhere.

    `coverage`: the highest threshold that accepts at least that share of the fitted rows (1, all of them, if neither
    target is given). `risk`: the lowest threshold whose error rate among accepted rows is certified: over random fit sets, the
    chance that the true rate exceeds `risk` is at most `level`. A quarter of the rows, drawn by `random_state`,
    chooses a sequence of thresholds, from the one easiest to certify to ever lower ones; the others test them in
    that order with the exact binomial test at `level` and stop at the first that fails (fixed-sequence testing).
    `certification_rows` in `fit` names the testing rows instead. Where nothing is certified every row is refused,
    with a warning. Rows must be independent; `risk` has no weighted form. Probabilities stay those of the softmax.

    Fitted: `threshold_` in units of `score` (a row is accepted if its score is at least that), `key_threshold_` (the
    same in log-odds grade, which decides where scores round to 1), `coverage_` and `risk_` (shares on the rows that
    chose or tested the threshold), `certified_`.

    Reference: Angelopoulos et al., Learn then Test, 2021.
    """

    _state = ("threshold_", "key_threshold_", "coverage_", "risk_", "certified_")
    score = score_setting(Calibrator.score)  # type: ignore

    def __init__(
        self,
        *,
        coverage: float | None = None,
        risk: float | None = None,
        score: str = "max_probability",
        level: float = 0.05,
        random_state: Any = 0,
    ) -> None:
        self.coverage = coverage
        self.risk = risk
        self.score = score  # type: ignore[misc]
        self.level = level
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, *, certification_rows: Any = None) -> Self:
        """Fit on logits (n, K) and labels, or on Predictions."""
        self._check_settings(certification_rows)
        rows = self._read(X, y, sample_weight)
        if self.risk is not None and rows.weight is not None:
            raise bad_input(
                "fitting SelectiveClassifier with a target risk",
                came="weights",
                expected="no sample_weight: an exact test counts rows",
            )
        key = keys_of(rows, self._score)
        wrong = 1.0 - top_correct(rows).cpu().numpy()
        if self.risk is None:
            self._fit_coverage(key, wrong, None if rows.weight is None else rows.weight.cpu().numpy())
        else:
            self._fit_risk(key, wrong, self._testing_rows(certification_rows, rows.count))
        self.threshold_ = value_of_key(self._score, self.key_threshold_)
        return self

    def _check_settings(self, certification_rows: Any) -> None:
        one_of(self.score, "score", "SelectiveClassifier", SCORES)
        if self.coverage is not None and self.risk is not None:
            raise bad_input(
                "fitting SelectiveClassifier",
                came=f"coverage={self.coverage!r} and risk={self.risk!r}",
                expected="one of them",
            )
        if self.coverage is not None and self.coverage != 1:
            share(self.coverage, "coverage", "SelectiveClassifier")
        if self.risk is not None:
            share(self.risk, "risk", "SelectiveClassifier")
            share(self.level, "level", "SelectiveClassifier")
        elif certification_rows is not None:
            raise bad_input(
                "fitting SelectiveClassifier", came="certification_rows without risk=", expected="a target risk"
            )

    def _fit_coverage(self, key: np.ndarray, wrong: np.ndarray, weight: np.ndarray | None) -> None:
        wanted = 1.0 if self.coverage is None else float(self.coverage)
        mass = np.ones(len(key)) if weight is None else weight
        order = np.argsort(-key, kind="stable")
        reached = np.cumsum(mass[order])
        place = int(np.searchsorted(reached, wanted * reached[-1] * (1 - 1e-12), side="left"))
        self.key_threshold_ = float(key[order[min(place, len(key) - 1)]])
        self.certified_ = False
        self._describe(key, wrong, mass)

    def _testing_rows(self, given: Any, count: int) -> np.ndarray:
        if given is not None:
            return row_numbers(given, count, "certification_rows", "fitting SelectiveClassifier")
        design = draw(self.random_state, count, max(1, int(count * DESIGN_SHARE)))
        return np.setdiff1d(np.arange(count), design)

    def _fit_risk(self, key: np.ndarray, wrong: np.ndarray, testing: np.ndarray) -> None:
        design = np.setdiff1d(np.arange(len(key)), testing)
        if len(design) == 0 or len(testing) == 0:
            raise bad_input(
                "fitting SelectiveClassifier with a target risk",
                came=f"{len(design)} rows to choose thresholds and {len(testing)} to test them",
                expected="some of both",
            )
        risk, level = float(self.risk), float(self.level)  # type: ignore[arg-type]
        sequence = threshold_sequence(key[design], wrong[design], risk, len(testing) / len(design))
        passed = certified_prefix(sequence, key[testing], wrong[testing], risk, level)
        self.certified_ = passed > 0
        self.key_threshold_ = float(sequence[passed - 1]) if passed else math.inf
        self._describe(key[testing], wrong[testing], np.ones(len(testing)))
        if not passed:
            least = math.ceil(math.log(level) / math.log1p(-risk))
            warnings.warn(
                f"SelectiveClassifier: no threshold could be certified for risk {risk:g} at level {level:g}, so every "
                f"row is refused. At least {least} testing rows without an error are needed; there are {len(testing)}.",
                UserWarning,
                stacklevel=3,
            )

    def _describe(self, key: np.ndarray, wrong: np.ndarray, mass: np.ndarray) -> None:
        accepted = key >= self.key_threshold_
        taken = float(mass[accepted].sum())
        self.coverage_ = taken / float(mass.sum())
        self.risk_ = float((wrong * mass)[accepted].sum() / taken) if taken else 0.0

    def accepts(self, X: Any) -> np.ndarray:
        """(n,) whether a row is answered."""
        return self._keys(X) >= self.key_threshold_

    def _keys(self, X: Any) -> np.ndarray:
        logits = self._to_use(X)
        return keys_of(Rows(logits=logits), self._score)

    def predict(self, X: Any) -> np.ndarray:
        """(n,) the class decided for, -1 where the model abstains."""
        logits = self._to_use(X)
        accepted = keys_of(Rows(logits=logits), self._score) >= self.key_threshold_
        return np.where(accepted, logits.argmax(1).cpu().numpy(), -1)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The settings."""
        return {name: vars(self)[name] for name in self._get_param_names()}

    @property
    def _score(self) -> str:
        return vars(self)["score"]

    def _build(self) -> torch.nn.Module:
        return LogitMap(nn.Identity())

    def _ship(self) -> torch.nn.Module:
        return SelectiveMap(self._score, self.key_threshold_)


class SelectiveMap(nn.Module):
    """Logits in, log-probabilities (n, K) and whether the row is accepted (n,) out."""

    threshold: Tensor
    output = "log_probabilities"
    output_names = ("log_probabilities", "accepted")

    def __init__(self, score: str, threshold: float) -> None:
        super().__init__()
        self.map = LogitMap(nn.Identity())
        self.key = ScoreKey(score)
        self.register_buffer("threshold", buffer(threshold))

    def forward(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        return self.map(logits), self.key(logits.double()) >= self.threshold


def keys_of(rows: Rows, score: str) -> np.ndarray:
    """(n,) float64 keys of the score."""
    key = ScoreKey(score)
    return torch.cat([key(rows.logits[block].double()) for block in rows.blocks()]).cpu().numpy()  # type: ignore[index]


def threshold_sequence(key: np.ndarray, wrong: np.ndarray, risk: float, ratio: float) -> np.ndarray:
    """Thresholds in the order of testing: from the easiest to certify, judged by the design rows, ever lower.

    The last one accepts everything. Only design rows are looked at, so that the sequence is fixed for the others.
    """
    stats = need("scipy.stats", "calibration", "certifying a risk")
    order = np.argsort(-key, kind="stable")
    places = np.unique(np.linspace(0, len(key) - 1, min(CANDIDATES, len(key))).astype(int))
    thresholds = np.unique(key[order][places])[::-1]
    thresholds = np.append(thresholds[:-1], -np.inf)
    accepted = np.array([(key >= threshold).sum() for threshold in thresholds])
    errors = np.array([wrong[key >= threshold].sum() for threshold in thresholds])
    # what as many testing rows would show if their error rate were that of the design rows, a little worse
    hoped = stats.binom.cdf(np.ceil((errors + 0.5) * ratio), np.maximum(1, np.round(accepted * ratio)), risk)
    return thresholds[int(np.argmin(hoped)) :]


def certified_prefix(sequence: np.ndarray, key: np.ndarray, wrong: np.ndarray, risk: float, level: float) -> int:
    """How many thresholds pass the exact test of error rate >= risk before the first that fails."""
    stats = need("scipy.stats", "calibration", "certifying a risk")
    for number, threshold in enumerate(sequence):
        accepted = key >= threshold
        if not stats.binom.cdf(wrong[accepted].sum(), accepted.sum(), risk) <= level or not accepted.any():
            return number
    return len(sequence)
