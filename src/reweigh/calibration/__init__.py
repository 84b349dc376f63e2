"""Calibrators, one file each: scikit-learn estimators that repair the confidence of a trained model.

May import `predictions`, `binning`, `scores`, `ranks`, `registry`, `errors`, and scikit-learn and SciPy (extra
`calibration`). To add one, copy `_temperature_scaling.py`: fit what ends in `_`, say what `to_module` computes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import registry

if TYPE_CHECKING:
    from ._bayesian_binning import BayesianBinning
    from ._beta_calibration import BetaCalibration
    from ._calibrator import Calibrator
    from ._conformal_classifier import ConformalClassifier
    from ._dirichlet_calibration import DirichletCalibration
    from ._ensemble_temperature_scaling import EnsembleTemperatureScaling
    from ._export import export_onnx
    from ._histogram_binning import HistogramBinning
    from ._isotonic_calibration import IsotonicCalibration
    from ._matrix_scaling import MatrixScaling
    from ._meta_accuracy import MetaAccuracy
    from ._meta_misclassification import MetaMisclassification
    from ._platt_scaling import PlattScaling
    from ._posterior_correction import PosteriorCorrection
    from ._prior_correction import PriorCorrection
    from ._rows import binary_logits
    from ._scaling_binning import ScalingBinning
    from ._selective_classifier import SelectiveClassifier
    from ._spline_calibration import SplineCalibration
    from ._storage import load
    from ._structured_matrix_scaling import StructuredMatrixScaling
    from ._structured_vector_scaling import StructuredVectorScaling
    from ._temperature_scaling import TemperatureScaling
    from ._vector_scaling import VectorScaling

# public functions and the base class -> the file that holds them
_PUBLIC = {
    "Calibrator": "_calibrator",
    "binary_logits": "_rows",
    "export_onnx": "_export",
    "load": "_storage",
}


def calibrator(name: str, **settings: Any) -> Calibrator:
    """Build a calibrator by its name or abbreviation: `calibrator("TS", objective="ece")`."""
    return registry.get("calibrator", name)(**settings)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        import importlib

        value = getattr(importlib.import_module(f".{_PUBLIC[name]}", __name__), name)
        globals()[name] = value
        return value
    for entry in registry.entries("calibrator"):
        if name in (entry.name, entry.attribute):
            value = entry.load()
            globals()[name] = value
            return value
    raise AttributeError(f"there is no calibrator {name!r} in reweigh.calibration")


def __dir__() -> list[str]:
    classes = [entry.attribute for entry in registry.entries("calibrator")]
    return sorted(["calibrator", *_PUBLIC, *classes, *registry.names("calibrator")])
