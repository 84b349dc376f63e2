"""The calibration error with kernel density estimates in place of bins (ECE-KDE)."""

from __future__ import annotations

import torch

from ..density import beta_regression, dirichlet_regression
from ..errors import bad_input, unknown_name
from ..predictions import Predictions
from ..registry import register_metric
from ._outcomes import class_columns, class_outcome, outcome_block, outcomes
from ._traits import need_some_rows, refuse_weights, traits

Tensor = torch.Tensor
WHAT = "the kernel density calibration error"


def _canonical(predictions: Predictions, bandwidth: float, norm: float) -> Tensor:
    targets = outcomes(predictions, WHAT)
    log_p = predictions.log_probability_matrix()
    truth = outcome_block(predictions, targets, slice(None))
    gap = dirichlet_regression(log_p, truth, bandwidth=bandwidth) - log_p.exp()
    return (gap.abs() ** norm).sum(1).mean()


def _one(log_odds: Tensor, outcome: Tensor, bandwidth: float, norm: float) -> Tensor:
    log_p, log_rest = torch.nn.functional.logsigmoid(log_odds), torch.nn.functional.logsigmoid(-log_odds)
    gap = beta_regression(log_p, log_rest, outcome, bandwidth=bandwidth) - log_p.exp()
    return (gap.abs() ** norm).mean()


def _marginal(predictions: Predictions, bandwidth: float, norm: float) -> Tensor:
    targets = outcomes(predictions, WHAT)
    columns = class_columns(predictions)
    return sum(
        (_one(odds, class_outcome(predictions, targets, k), bandwidth, norm) for k, odds in columns),
        start=torch.zeros((), dtype=torch.float64, device=predictions.scores.device),
    )


def _top_label(predictions: Predictions, bandwidth: float, norm: float) -> Tensor:
    return _one(predictions.log_odds, predictions.correctness, bandwidth, norm)


_SCOPES = {"canonical": _canonical, "marginal": _marginal, "top_label": _top_label}


@register_metric(
    "kernel_density_calibration_error",
    aliases=("KDE", "ECE-KDE"),
    direction="lower",
    range=(0, "inf"),
    heads=("softmax", "sigmoid"),
)
@traits(weighted=False, instead="expected_calibration_error")
def kernel_density_calibration_error(
    predictions: Predictions, *, bandwidth: float = 0.02, norm: float = 1, scope: str = "canonical"
) -> float:
    """Mean over rows of |E[outcome | probabilities] - probabilities|^norm, without a root.

    The conditional mean comes from all other rows, weighted by Dirichlet kernels around their probability vectors
    ("canonical", softmax only), by Beta kernels around each class's probability, summed over classes ("marginal"), or
    around the confidence of the decision ("top_label"). Costs rows^2 x classes.

    >>> from reweigh import Predictions
    >>> table = Predictions(confidence=[0.5, 0.5, 0.5], correct=[True, True, False])
    >>> round(kernel_density_calibration_error(table, scope="top_label"), 6)
    0.166667
    """
    if scope not in _SCOPES:
        raise unknown_name("scope", str(scope), _SCOPES)
    if not 1 <= norm < float("inf"):
        raise bad_input(f"computing {WHAT}", came=f"norm={norm!r}", expected="a number of at least 1")
    need_some_rows(predictions, WHAT)
    refuse_weights(predictions, WHAT, "expected_calibration_error honours weights.")
    if scope == "canonical" and predictions.head != "softmax":
        raise bad_input(f"computing {WHAT}", came="head='sigmoid'", expected="scope='marginal' or 'top_label'")
    return float(_SCOPES[scope](predictions, bandwidth, norm))
