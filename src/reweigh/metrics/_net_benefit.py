"""The net benefit of treating above a threshold (decision curves)."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import bad_input
from ..predictions import Predictions
from ..registry import register_metric
from ._classes import class_number
from ._means import mean_statistics, mean_value
from ._outcomes import class_outcome, outcomes
from ._traits import Statistics, traits


def _statistics(predictions: Predictions, threshold: float = 0.5, *, positive: int | str | None = None) -> Statistics:
    what = "the net benefit"
    if not 0 < threshold < 1:
        raise bad_input(f"computing {what}", came=f"threshold={threshold!r}", expected="a probability between 0 and 1")
    targets = outcomes(predictions, what)
    if positive is None:
        if int(predictions.classes or 0) > 2:
            raise bad_input(f"computing {what}", came=f"{predictions.classes} classes", expected="two, or positive=")
        positive = int(predictions.classes or 0) - 1
    number = class_number(positive, predictions.classes, predictions.class_names)
    probability = predictions.class_probabilities(slice(number, number + 1)).squeeze(1)
    happened = class_outcome(predictions, targets, number)
    gain = happened - (1 - happened) * (threshold / (1 - threshold))
    return mean_statistics(predictions, torch.where(probability >= threshold, gain, torch.zeros_like(gain)), what)


@register_metric("net_benefit", direction="higher", range=("-inf", 1), heads=("softmax", "sigmoid"))
@traits(statistics=_statistics, value=mean_value)
def net_benefit(predictions: Predictions, threshold: float = 0.5, *, positive: int | str | None = None) -> float:
    """TP / n - FP / n x t / (1 - t) when every row with a probability of at least t is acted on.

    Of two classes the last one is meant; of several say `positive`. Treating nobody is worth 0.

    >>> from reweigh import Predictions
    >>> net_benefit(Predictions(probabilities=[[0.25, 0.75], [0.5, 0.5]], targets=[1, 0]), 0.5)
    0.0
    """
    settings: dict[str, Any] = {"positive": positive}
    return mean_value(_statistics(predictions, threshold, **settings))
