"""Applying a calibrator to a table, with a note of how much of it the calibrator was fitted on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..predictions import Predictions

if TYPE_CHECKING:
    from ..calibration import Calibrator


def repaired(calibrator: Calibrator, predictions: Predictions) -> Predictions:
    """The repaired table; its `about` lets the checks notice fitting rows and far priors later."""
    found = calibrator.apply(predictions)
    notes: dict[str, Any] = {"fitted_share": calibrator.overlap(predictions)}
    counts = calibrator.fitted_on_.get("class_counts")
    if counts is not None:
        notes["fitted_class_counts"] = counts
    return replace(found, about={**(found.about or {}), **notes}, _checked=False)
