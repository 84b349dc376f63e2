"""The kernel calibration error (MMCE): every pair of decisions, weighted by how near their confidences are."""

from __future__ import annotations

from ..density import laplace_pair_sum
from ..errors import bad_input
from ..predictions import Predictions
from ..registry import register_metric
from ._traits import need_some_rows, refuse_weights, traits


@register_metric(
    "kernel_calibration_error", aliases=("MMCE",), direction="lower", range=(0, 1), heads=("softmax", "sigmoid")
)
@traits(weighted=False, top_label=True, instead="expected_calibration_error")
def kernel_calibration_error(predictions: Predictions, *, width: float = 0.4, squared: bool = False) -> float:
    """Root of (1/n^2) sum_ij (a_i - c_i)(a_j - c_j) exp(-|c_i - c_j| / width), the diagonal included.

    One sort instead of n^2 pairs. `squared=True` leaves the root out, as the published training penalty does.

    >>> from reweigh import Predictions
    >>> kernel_calibration_error(Predictions(confidence=[0.75, 0.75], correct=[True, True]))
    0.25
    """
    what = "the kernel calibration error"
    need_some_rows(predictions, what)
    refuse_weights(predictions, what, "expected_calibration_error honours weights.")
    if not 0 < width < float("inf"):
        raise bad_input(f"computing {what}", came=f"width={width!r}", expected="a positive number")
    confidence = predictions.top_confidence
    gap = predictions.correctness - confidence
    square = max(0.0, float(laplace_pair_sum(confidence, gap, width=width))) / len(gap) ** 2
    return square if squared else square**0.5
