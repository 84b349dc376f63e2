"""The average precision: the area under the precision-recall curve, in steps."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from ..predictions import Predictions
from ..registry import register_metric
from ._area_under_roc import block_sums
from ._classes import chosen_class, each_class, summarised
from ._ranking import Ordered
from ._traits import traits

Array = numpy.ndarray


def step_precision(of: Ordered, weights: Array | None = None) -> float:
    """sum of (recall gained) x precision over the thresholds from the top; NaN without positives.

    Weights come in the ranking's order. Where everything happened or did not, the positives alone are looked at.
    """
    if of.plain and len(of.hits):
        positive = numpy.ones(len(of.hits)) if weights is None else weights[of.hits]
        accepted = of.ends + 1.0 if weights is None else numpy.cumsum(weights)[of.ends]
        found = numpy.cumsum(positive)[of.last]
    else:
        positive, negative = block_sums(of, weights)
        found, accepted = numpy.cumsum(positive), numpy.cumsum(positive + negative)
    if not len(found) or not found[-1] > 0:
        return float("nan")
    precision = numpy.divide(found, accepted, out=numpy.zeros_like(found), where=accepted > 0)
    return float((positive * precision).sum() / found[-1])


@register_metric("average_precision", aliases=("AUPR",), direction="higher", range=(0, 1), heads=("softmax", "sigmoid"))
@traits(instead="precision and recall")
def average_precision(
    predictions: Predictions, *, average: str | None = None, positive: int | str | None = None
) -> Any:
    """sum_k (R_k - R_(k-1)) P_k of each class's probability, (K,), without interpolation; NaN for absent classes.

    `average` and `positive` as in `area_under_roc`.

    >>> from reweigh import Predictions
    >>> table = Predictions(probabilities=[[0.1, 0.9], [0.2, 0.8], [0.3, 0.7]], targets=[1, 0, 1])
    >>> round(average_precision(table, positive=1), 6)
    0.833333
    """
    chosen = chosen_class(predictions, positive)
    values, support = each_class(predictions, step_precision, "the average precision", chosen)
    return summarised(torch.tensor(values, dtype=torch.float64), support, average, chosen)
