"""A proper score taken apart: what recalibration could repair, what the model tells apart, what was there to tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy

from ..errors import bad_input, unknown_name
from ..predictions import Predictions
from ..registry import register_metric
from ._isotonic import distinct, pooled
from ._outcomes import class_outcome, outcomes
from ._traits import need_some_rows, traits

Array = numpy.ndarray


class ScoreDecomposition(NamedTuple):
    """score = miscalibration - discrimination + uncertainty; `refinement` is the score after recalibration on other rows."""

    miscalibration: float
    discrimination: float
    uncertainty: float
    refinement: float
    score: float


def _squared(probability: Array, share: Array) -> Array:
    """Expected squared error where the outcome happens with frequency `share`."""
    return share * (1 - probability) ** 2 + (1 - share) * probability**2


def _logarithmic(probability: Array, share: Array) -> Array:
    with numpy.errstate(divide="ignore", invalid="ignore"):
        present = numpy.where(share > 0, -share * numpy.log(probability), 0.0)
        absent = numpy.where(share < 1, -(1 - share) * numpy.log1p(-probability), 0.0)
    return present + absent


LOSSES: dict[str, Callable[[Array, Array], Array]] = {"brier": _squared, "log": _logarithmic}


def _cross_fitted(
    places: Array, share: Array, weight: Array, loss: Callable[[Array, Array], Array], folds: int
) -> float:
    """The score of each fold under an isotonic fit to the others. Equal probabilities stay in one fold.

    For the logarithmic score half a row of either outcome is added to each step, since a step at 0 or 1 that is wrong
    once would cost infinitely much.
    """
    if len(places) < 2 * folds:
        return float("nan")
    number = numpy.arange(len(places)) % folds
    total = 0.0
    for fold in range(folds):
        mine = number == fold
        fit = pooled(share[~mine], weight[~mine])
        if loss is _logarithmic:
            steps = numpy.cumsum(numpy.concatenate([[0], numpy.diff(fit) > 0]))
            mass = numpy.bincount(steps, weights=weight[~mine])[steps]
            fit = (fit * mass + 0.5) / (mass + 1)
        total += float((weight[mine] * loss(numpy.interp(places[mine], places[~mine], fit), share[mine])).sum())
    return total / float(weight.sum())


def decompose(probability: Array, outcome: Array, weights: Array, loss: str, folds: int) -> Array:
    """(5,) the parts for one probability and whether its event happened."""
    score = LOSSES[loss]
    places, share, weight = distinct(probability, outcome, weights)
    total = weight.sum()
    base = numpy.full_like(share, float((weight * share).sum() / total))
    given, fitted, constant = (
        float((weight * score(forecast, share)).sum() / total) for forecast in (places, pooled(share, weight), base)
    )
    refinement = _cross_fitted(places, share, weight, score, folds)
    return numpy.array([given - fitted, constant - fitted, constant, refinement, given])


@register_metric("score_decomposition", direction="none", range=(0, "inf"), heads=("softmax", "sigmoid"))
@traits(instead="brier_score or negative_log_likelihood")
def score_decomposition(
    predictions: Predictions, *, loss: str = "brier", scope: str = "top_label", folds: int = 5
) -> ScoreDecomposition:
    """Miscalibration, discrimination and uncertainty by isotonic recalibration (the CORP decomposition).

    A large miscalibration is cured by a calibrator; a small discrimination only by a better model. `refinement` is the
    score that remains when the isotonic recalibration is fitted on other rows (`folds` of them in turn).

    Settings:
        loss: "brier", the squared error of one probability, or "log".
        scope: "top_label" for the confidence in the decision taken, "class_wise" for the sum over the classes.

    >>> from reweigh import Predictions
    >>> parts = score_decomposition(Predictions(confidence=[0.8] * 4, correct=[True, True, False, False]))
    >>> round(parts.miscalibration, 6), parts.discrimination, parts.uncertainty
    (0.09, 0.0, 0.25)
    """
    what = "the decomposition of a score"
    if loss not in LOSSES:
        raise unknown_name("loss", str(loss), LOSSES)
    if scope not in ("top_label", "class_wise"):
        raise unknown_name("scope", str(scope), ("top_label", "class_wise"))
    if folds < 2:
        raise bad_input(f"computing {what}", came=f"folds={folds}", expected="at least 2")
    need_some_rows(predictions, what)
    if scope == "top_label":
        pairs = [(predictions.top_confidence, predictions.correctness)]
        weights = predictions.decision_weights
    else:
        targets = outcomes(predictions, what)
        numbers = range(int(predictions.classes or 0))
        pairs = (
            (predictions.class_probabilities(slice(k, k + 1)).squeeze(1), class_outcome(predictions, targets, k))
            for k in numbers
        )
        weights = predictions.row_weights
    weight = None if weights is None else weights.cpu().numpy()
    parts = [
        decompose(p.cpu().numpy(), y.cpu().numpy(), numpy.ones(len(p)) if weight is None else weight, loss, folds)
        for p, y in pairs
    ]
    return ScoreDecomposition(*(float(value) for value in numpy.sum(parts, axis=0)))
