"""The calibration slope and intercept: a logistic regression of what happened on the log-odds predicted."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..errors import bad_input, unknown_name
from ..predictions import Predictions
from ..registry import register_metric
from ._outcomes import class_outcome, outcomes
from ._traits import need_some_rows, traits

Tensor = torch.Tensor
WHAT = "the calibration slope"
FARTHEST = 745.0  # log-odds beyond which float64 probabilities are 0 or 1
STEPS = 100


class CalibrationSlope(NamedTuple):
    """logit P(event) = intercept + slope x predicted log-odds; calibrated is slope 1, intercept 0."""

    slope: float
    intercept: float


def _event(predictions: Predictions, scope: str) -> tuple[Tensor, Tensor, Tensor | None]:
    """Log-odds and outcome of the last of two classes, or of the decision taken being right."""
    if scope == "top_label":
        return predictions.log_odds, predictions.correctness, predictions.decision_weights
    classes = predictions.classes if predictions.kind != "confidence" else None
    if classes is None or classes > 2:
        raise bad_input(
            f"computing {WHAT}",
            came="confidences alone" if classes is None else f"{classes} classes",
            expected="two classes or one label",
            mend="scope='top_label' asks about the decision taken.",
        )
    targets = outcomes(predictions, WHAT)
    odds = predictions.class_log_odds(slice(classes - 1, classes)).squeeze(1)
    return odds, class_outcome(predictions, targets, classes - 1), predictions.row_weights


def _separable(x: Tensor, y: Tensor) -> bool:
    """Whether a threshold on x parts the outcomes, so that no finite fit is best."""
    if bool(((y > 0) & (y < 1)).any()):
        return False
    ones, zeros = x[y == 1], x[y == 0]
    if not len(ones) or not len(zeros):
        return True
    return bool(ones.min() >= zeros.max() or ones.max() <= zeros.min())


def fit_logistic(x: Tensor, y: Tensor, weight: Tensor) -> tuple[float, float]:
    """Slope and intercept of highest likelihood, by Newton's method with halved steps; float64."""
    centre = (weight * x).sum() / weight.sum()
    scale = ((weight * (x - centre) ** 2).sum() / weight.sum()).sqrt().clamp(min=1e-300)
    design = torch.stack([(x - centre) / scale, torch.ones_like(x)], 1)
    beta = torch.zeros(2, dtype=torch.float64, device=x.device)

    def cost(candidate: Tensor) -> float:
        z = design @ candidate
        return float((weight * (torch.nn.functional.softplus(z) - y * z)).sum())

    value = cost(beta)
    for _ in range(STEPS):
        p = torch.sigmoid(design @ beta)
        gradient = design.T @ (weight * (p - y))
        curvature = design.T @ ((weight * p * (1 - p)).unsqueeze(1) * design)
        step = torch.linalg.solve(curvature + 1e-14 * curvature.trace() * torch.eye(2).to(curvature), gradient)
        size = 1.0
        # near the optimum the cost cannot tell steps apart any more, and Newton's are right
        while size > 1e-10 and cost(beta - size * step) > value + 1e-12 * abs(value):
            size /= 2
        beta = beta - size * step
        value = cost(beta)
        if float(step.abs().max()) <= 1e-15 * max(1.0, float(beta.abs().max())):
            break
    slope = float(beta[0] / scale)
    return slope, float(beta[1]) - slope * float(centre)


@register_metric("calibration_slope", direction="none", range=("-inf", "inf"), heads=("softmax", "sigmoid"))
@traits(instead="expected_calibration_error")
def calibration_slope(predictions: Predictions, *, scope: str = "positive") -> CalibrationSlope:
    """Slope and intercept of the logistic regression of the outcome on the predicted log-odds.

    A slope below 1 means too extreme, above 1 too timid. Two classes (the last is the event) or a single label;
    `scope="top_label"` asks, for any number of classes, whether the decision taken is right. Log-odds beyond 745 in
    size, where float64 probabilities are 0 or 1, count as 745.

    >>> from reweigh import Predictions
    >>> table = Predictions(probabilities=[[0.2, 0.8]] * 5 + [[0.8, 0.2]] * 5, targets=[1, 1, 1, 1, 0, 0, 0, 0, 0, 1])
    >>> round(calibration_slope(table).slope, 6)
    1.0
    """
    if scope not in ("positive", "top_label"):
        raise unknown_name("scope", str(scope), ("positive", "top_label"))
    need_some_rows(predictions, WHAT)
    x, y, weight = _event(predictions, scope)
    x = x.clamp(-FARTHEST, FARTHEST)
    weight = torch.ones_like(x) if weight is None else weight
    x, y, weight = x[weight > 0], y[weight > 0], weight[weight > 0]
    if len(x) == 0 or bool((x == x[0]).all()):
        raise bad_input(f"computing {WHAT}", came="one log-odds for all rows", expected="at least two different ones")
    if _separable(x, y):
        raise bad_input(
            f"computing {WHAT}",
            came="outcomes that a threshold on the log-odds separates",
            expected="overlapping outcomes",
            mend="No finite slope fits them best; more rows are needed.",
        )
    return CalibrationSlope(*fit_logistic(x, y, weight))
