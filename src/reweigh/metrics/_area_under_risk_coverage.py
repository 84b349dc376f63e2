"""The areas under the risk-coverage curve and its generalised form, plain and in excess of a perfect score."""

from __future__ import annotations

from typing import Any

from ..predictions import Predictions
from ..registry import register_metric
from ._influence import area_interval
from ._risk import area, blocks_of, generalized_area, ideal, whole_weights
from ._traits import traits

_INSTEAD = "accuracy and expected_calibration_error, whose sums add"


@register_metric(
    "area_under_risk_coverage", aliases=("AURC",), direction="lower", range=(0, "inf"), heads=("softmax", "sigmoid")
)
@traits(interval=area_interval, instead=_INSTEAD)
def area_under_risk_coverage(
    predictions: Predictions, *, score: Any = "max_probability", loss: str = "error", ties: str = "mean"
) -> float:
    """Mean over k of the mean loss among the k most confident decisions.

    Settings:
        score: "max_probability", "margin", "negative_entropy", "log_odds", the name of a numeric group, or numbers;
            higher is more confident. Confidences that round to 1 are still told apart, by their log-odds.
        loss: "error" or "cross_entropy".
        ties: "mean" (over random orders of tied rows), "threshold" (a tied block is accepted at once) or "stable"
            (the earlier row first, which depends on the order of rows).

    >>> from reweigh import Predictions
    >>> round(area_under_risk_coverage(Predictions(confidence=[0.9, 0.8, 0.7], correct=[True, False, True])), 6)
    0.277778
    """
    return area(blocks_of(predictions, score, loss, ties), ties, whole_weights(predictions))


@register_metric(
    "excess_area_under_risk_coverage",
    aliases=("E-AURC",),
    direction="lower",
    range=(0, "inf"),
    heads=("softmax", "sigmoid"),
)
@traits(instead=_INSTEAD)
def excess_area_under_risk_coverage(
    predictions: Predictions, *, score: Any = "max_probability", loss: str = "error", ties: str = "mean"
) -> float:
    """`area_under_risk_coverage` minus that of a score which accepts the same rows in the order of their loss.

    >>> from reweigh import Predictions
    >>> excess_area_under_risk_coverage(Predictions(confidence=[0.9, 0.8], correct=[True, False]))
    0.0
    """
    counts = whole_weights(predictions)
    value = area(blocks_of(predictions, score, loss, ties), ties, counts)
    return value - area(ideal(predictions, loss), "mean", counts)


@register_metric(
    "area_under_generalized_risk", aliases=("AUGRC",), direction="lower", range=(0, "inf"), heads=("softmax", "sigmoid")
)
@traits(instead=_INSTEAD)
def area_under_generalized_risk(
    predictions: Predictions, *, score: Any = "max_probability", loss: str = "error", ties: str = "mean"
) -> float:
    """Area under coverage x risk by the trapezoid from 0: the risk of an undetected failure, bounded by half the loss.

    >>> from reweigh import Predictions
    >>> area_under_generalized_risk(Predictions(confidence=[0.9, 0.8], correct=[True, False]))
    0.125
    """
    return generalized_area(blocks_of(predictions, score, loss, ties))


@register_metric(
    "excess_area_under_generalized_risk",
    aliases=("E-AUGRC",),
    direction="lower",
    range=(0, "inf"),
    heads=("softmax", "sigmoid"),
)
@traits(instead=_INSTEAD)
def excess_area_under_generalized_risk(
    predictions: Predictions, *, score: Any = "max_probability", loss: str = "error", ties: str = "mean"
) -> float:
    """`area_under_generalized_risk` minus that of a perfect score (half the squared error rate, for 0/1 losses).

    >>> from reweigh import Predictions
    >>> excess_area_under_generalized_risk(Predictions(confidence=[0.9, 0.8], correct=[True, False]))
    0.0
    """
    value = generalized_area(blocks_of(predictions, score, loss, ties))
    return value - generalized_area(ideal(predictions, loss))
