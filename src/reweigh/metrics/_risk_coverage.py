"""Points of the risk-coverage curve, and the curve."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy
import torch

from ..errors import bad_input
from ..predictions import Predictions
from ..registry import register_metric
from ._ranking import ranked_by, score_of
from ._risk import blocks_of, decision_weights
from ._traits import traits

SLACK = 1e-12  # what the rounding of a quotient can do


class RiskCoverageCurve(NamedTuple):
    """One entry a threshold that can be set, from the most confident down."""

    coverage: torch.Tensor
    risk: torch.Tensor
    threshold: torch.Tensor


@register_metric("coverage_at_risk", direction="higher", range=(0, 1), heads=("softmax", "sigmoid"))
@traits(instead="accuracy")
def coverage_at_risk(
    predictions: Predictions, risk: float = 0.05, *, score: Any = "max_probability", loss: str = "error"
) -> float:
    """The largest share of rows that a threshold can accept with a mean loss of at most `risk`; NaN if none can.

    >>> from reweigh import Predictions
    >>> coverage_at_risk(Predictions(confidence=[0.9, 0.8, 0.7, 0.6], correct=[True, True, False, True]), 0.25)
    1.0
    """
    if not risk >= 0:
        raise bad_input("finding the coverage at a risk", came=f"risk={risk!r}", expected="a number of at least 0")
    parts = blocks_of(predictions, score, loss)
    reached = parts.coverage[parts.risk <= risk + SLACK * max(1.0, risk)]
    return float(reached.max()) if len(reached) else float("nan")


@register_metric("risk_at_coverage", direction="lower", range=(0, "inf"), heads=("softmax", "sigmoid"))
@traits(instead="accuracy")
def risk_at_coverage(
    predictions: Predictions, coverage: float = 0.8, *, score: Any = "max_probability", loss: str = "error"
) -> float:
    """The mean loss of what is accepted at the smallest coverage of at least `coverage` that a threshold can reach.

    >>> from reweigh import Predictions
    >>> risk_at_coverage(Predictions(confidence=[0.9, 0.8, 0.7, 0.6], correct=[True, True, False, True]), 0.5)
    0.0
    """
    if not 0 <= coverage <= 1:
        raise bad_input("finding the risk at a coverage", came=f"coverage={coverage!r}", expected="a share from 0 to 1")
    parts = blocks_of(predictions, score, loss)
    return float(parts.risk[int(numpy.argmax(parts.coverage >= coverage - SLACK))])


@register_metric("risk_coverage_curve", direction="none", range=(0, 1), heads=("softmax", "sigmoid"))
@traits(instead="accuracy")
def risk_coverage_curve(
    predictions: Predictions, *, score: Any = "max_probability", loss: str = "error"
) -> RiskCoverageCurve:
    """Coverage, risk and threshold wherever a threshold can be set: accept what scores at least `threshold`.

    >>> from reweigh import Predictions
    >>> curve = risk_coverage_curve(Predictions(confidence=[0.75, 0.5], correct=[True, False]))
    >>> curve.coverage.tolist(), curve.risk.tolist(), curve.threshold.tolist()
    ([0.5, 1.0], [0.0, 0.5], [0.75, 0.5])
    """
    parts = blocks_of(predictions, score, loss)
    ranked = ranked_by(predictions, score)
    values = score_of(predictions, score).cpu().numpy()[ranked.order]
    threshold = numpy.minimum.reduceat(values, ranked.starts)
    weights = decision_weights(predictions)
    if weights is not None:  # blocks without weight are left out, as above
        threshold = threshold[numpy.add.reduceat(weights[ranked.order], ranked.starts) > 0]
    columns = (parts.coverage, parts.risk, threshold)
    return RiskCoverageCurve(*(torch.from_numpy(numpy.ascontiguousarray(column)) for column in columns))
