"""`Calibrator`: what every calibrator is, written once: a scikit-learn classifier over logits, also over Predictions.

A calibrator file fits attributes that end in `_` (named in its `_state`) and builds one torch module out of them.
That module *is* the calibrated map: `predict_proba`, `transform`, `apply`, `to_module` and the ONNX file all run it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from ..errors import bad_input, need
from ..predictions import Predictions
from ._parallel import over_blocks
from ._provenance import Provenance
from ._rows import Rows, check_masks, highest_logit, read_labels, read_logits, read_weights
from ._table_rows import rows_of

need("sklearn", "calibration", "calibrating")
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin  # noqa: E402
from sklearn.utils.validation import check_is_fitted  # noqa: E402

Tensor = torch.Tensor


class Calibrator(ClassifierMixin, TransformerMixin, BaseEstimator):
    """A repair of confidence, fitted on logits and labels; abstract.

    Arrays or tensors in, arrays out; Predictions in `fit` and `predict_proba`; `apply` returns Predictions.
    """

    # what fitting sets and a file holds
    _state: ClassVar[tuple[str, ...]] = ()
    # the heads it can repair; arrays belong to the first
    _heads: ClassVar[tuple[str, ...]] = ("softmax",)
    _soft_labels: ClassVar[bool] = False
    # whether confidences with correctness are enough
    _top_label: ClassVar[bool] = False
    _needs_labels: ClassVar[bool] = True

    # ---- what a calibrator says of itself

    @property
    def preserves_accuracy(self) -> bool:
        """Whether the predicted class of every row stays what it was."""
        return False

    def _build(self) -> torch.nn.Module:
        """The calibrated map of the fitted attributes: logits (n, K) in, what its `output` names out."""
        raise AssertionError(f"{type(self).__name__} builds no module")

    def _ship(self) -> torch.nn.Module:
        """What `to_module` hands out: the same map, with further outputs where a calibrator has them."""
        return self._build()

    # ---- reading

    def _read(self, X: Any, y: Any, sample_weight: Any = None, unsupported: dict[str, Any] | None = None) -> Rows:
        """The rows to fit on; sets `classes_`, `head_`, `n_features_in_` and `fitted_on_`."""
        doing = f"fitting {type(self).__name__}"
        self._refuse(unsupported or {}, doing)
        if isinstance(X, Predictions):
            rows = self._read_predictions(X, y, sample_weight, doing)
        else:
            rows = self._read_arrays(X, y, sample_weight, doing)
        if rows.weight is not None:
            rows = self._drop_weightless(rows)
        self.head_ = rows.head if rows.logits is not None else "softmax"
        self.classes_ = np.arange(self.n_features_in_)
        self.fitted_on_ = Provenance.of(rows).as_dict()
        return rows

    def _refuse(self, unsupported: dict[str, Any], doing: str) -> None:
        """Weights given to a calibrator that has no weighted form; any other keyword is a mistake."""
        for name, value in unsupported.items():
            if name != "sample_weight":
                raise TypeError(f"{type(self).__name__}.fit() got an unexpected keyword argument {name!r}")
            if value is not None:
                raise no_weights(type(self).__name__, "sample_weight", doing)

    def _read_predictions(self, table: Predictions, y: Any, sample_weight: Any, doing: str) -> Rows:
        if y is not None or sample_weight is not None:
            name = "y" if y is not None else "sample_weight"
            raise bad_input(
                doing, came=f"{name} beside Predictions", expected="y=None: Predictions hold their targets and weights"
            )
        if table.weights is not None and not self._takes_weights():
            raise no_weights(type(self).__name__, "weights in the Predictions", doing)
        rows = rows_of(table, doing)
        if rows.logits is None and not self._top_label:
            raise bad_input(
                doing,
                came="Predictions with confidence and correct alone",
                expected="logits, log_probabilities or probabilities",
                mend="HistogramBinning, ScalingBinning and SplineCalibration repair a confidence alone.",
            )
        if rows.logits is not None and rows.head not in self._heads:
            raise wrong_head(type(self).__name__, rows.head, self._heads, doing)
        if rows.logits is not None and self._needs_labels and rows.target is None and rows.share is None:
            raise bad_input(doing, came="Predictions without targets", expected="targets=")
        if rows.share is not None and rows.head == "softmax" and not self._soft_labels:
            raise bad_input(doing, came="Predictions with soft targets", expected="class numbers")
        check_masks(rows, doing)
        if rows.head == "softmax":
            check_one_class(rows, doing)
        self.n_features_in_ = 2 if rows.logits is None else rows.classes
        return rows

    def _read_arrays(self, X: Any, y: Any, sample_weight: Any, doing: str) -> Rows:
        if y is None and self._needs_labels:
            raise bad_input(
                doing,
                came="y=None (it requires y to be passed, but the target y is None)",
                expected="labels, or Predictions as X",
            )
        logits = read_logits(self, X, reset=True)
        if self._heads[0] == "softmax" and logits.shape[1] < 2:
            raise bad_input(
                doing,
                came=f"logits with 1 feature(s) (shape {tuple(logits.shape)})",
                expected="at least two columns, one a class",
                mend="Say binary_logits(X) if these are logits of one binary output.",
            )
        target = share = None
        if y is not None:
            target, share = read_labels(y, logits, doing, soft=self._soft_labels, head=self._heads[0])
        weight = read_weights(sample_weight, len(logits), doing)
        rows = Rows(
            logits=logits,
            highest=highest_logit(logits, doing),
            head=self._heads[0],
            target=target,
            share=share,
            weight=None if weight is None else weight.to(logits.device),
        )
        check_masks(rows, doing)
        check_one_class(rows, doing)
        return rows

    def _takes_weights(self) -> bool:
        import inspect

        return "sample_weight" in inspect.signature(self.fit).parameters  # type: ignore[attr-defined]

    @staticmethod
    def _drop_weightless(rows: Rows) -> Rows:
        """Rows of weight 0 are as good as absent, also where a rule looks at rows and not at sums."""
        kept = rows.weight > 0  # type: ignore[operator]
        if bool(kept.all()):
            return rows
        if not bool(kept.any()):
            raise bad_input("fitting", came="weights that are all zero", expected="at least one positive weight")
        return rows.take(kept)

    # ---- using

    def _to_use(self, X: Any) -> Tensor:
        """(n, K) logits of rows to repair."""
        check_is_fitted(self)
        doing = f"using {type(self).__name__}"
        if not isinstance(X, Predictions):
            logits = read_logits(self, X, reset=False)
            highest_logit(logits, doing)
            return logits
        rows = rows_of(X, doing)
        if rows.logits is None:
            raise bad_input(
                doing, came="Predictions with confidence alone", expected="class scores", mend="Use apply(predictions)."
            )
        if rows.head != self.head_:
            raise wrong_head(type(self).__name__, rows.head, (self.head_,), doing)
        if rows.classes != self.n_features_in_:
            raise bad_input(doing, came=f"{rows.classes} classes", expected=f"{self.n_features_in_}, as fitted")
        return rows.logits

    def predict_proba(self, X: Any) -> np.ndarray:
        """(n, K) calibrated probabilities in float64; under a sigmoid head each label's own."""
        logits = self._to_use(X)
        return run_blocks(self._build(), logits, "probabilities")

    def transform(self, X: Any) -> np.ndarray:
        """(n, K) calibrated logits where they exist, else the logarithms of the calibrated probabilities."""
        logits = self._to_use(X)
        return run_blocks(self._build(), logits, "logits")

    def predict(self, X: Any) -> np.ndarray:
        """(n,) the class decided for, ties to the lowest; under a sigmoid head without class numbers (n, K) labels."""
        logits = self._to_use(X)
        if self.preserves_accuracy and self.head_ == "softmax":
            return logits.argmax(1).cpu().numpy()
        probability = run_blocks(self._build(), logits, "probabilities")
        if isinstance(X, Predictions) and X.per_label:
            return (probability > 0.5).astype(np.int64)
        return probability.argmax(1)

    def apply(self, predictions: Predictions) -> Predictions:
        """The same rows with repaired scores; targets, weights, ids, groups and names stay.

        Calibrated logits keep the kind and the type of the scores that came; a calibrator of probabilities alone
        returns float64 probabilities.
        """
        if not isinstance(predictions, Predictions):
            raise bad_input(
                f"applying {type(self).__name__}",
                came=type(predictions).__name__,
                expected="Predictions",
                mend="Arrays go through predict_proba or transform.",
            )
        check_is_fitted(self)
        if predictions.kind == "confidence":
            return self._marked(self._apply_confidence(predictions), predictions)
        module, logits = self._build(), self._to_use(predictions)
        kind = predictions.kind if module.output == "log_probabilities" else "probabilities"
        values: Any = run_blocks(module, logits, kind)
        source = getattr(predictions, predictions.kind)
        if kind != "probabilities":
            wide = predictions.scores.dtype in (torch.float64, torch.float32)
            values = torch.from_numpy(values).to(predictions.scores.dtype if wide else torch.float32).numpy()
        if isinstance(source, Tensor):
            values = torch.from_numpy(values).to(source.device)
        return self._marked(predictions.with_scores(**{kind: values}), predictions)

    def _apply_confidence(self, predictions: Predictions) -> Predictions:
        raise bad_input(
            f"applying {type(self).__name__}",
            came="Predictions with confidence and correct alone",
            expected="logits, log_probabilities or probabilities",
        )

    def _marked(self, repaired: Predictions, before: Predictions) -> Predictions:
        """With a note of who repaired it and how many of the fitted rows are in it, for whoever judges it later."""
        from ._storage import registered_name

        notes = {"calibrator": registered_name(self), "fitted_share": self.overlap(before)}
        counts = self.fitted_on_["class_counts"]
        if counts is not None:
            notes["fitted_class_counts"] = counts
        return replace(repaired, about={**(before.about or {}), **notes}, _checked=False)

    def overlap(self, predictions: Predictions | Any) -> float:
        """Estimated share of the fitted rows that are among these, by their ids, else by their scores."""
        check_is_fitted(self)
        doing = f"comparing rows with those of {type(self).__name__}"
        if isinstance(predictions, Predictions):
            rows = rows_of(predictions, doing)
        else:
            logits = read_logits(self, predictions, reset=False)
            rows = Rows(logits=logits, highest=highest_logit(logits, doing))
        return Provenance.from_dict(self.fitted_on_).overlap(Provenance.full(rows))

    # ---- shipping

    def to_module(self) -> torch.nn.Module:
        """The calibrated map as a torch module: float64 inside and out; its `output` says what it returns."""
        check_is_fitted(self)
        return self._ship()

    def save(self, path: str | Path) -> None:
        """Write JSON: settings, fitted attributes, what it was fitted on, and a checksum; `load` reads it."""
        from ._storage import save

        check_is_fitted(self)
        save(self, path)

    def __sklearn_is_fitted__(self) -> bool:
        return all(hasattr(self, name) for name in ("classes_", "fitted_on_", *self._state))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # its accuracy is that of the logits it is given
        return tags


def check_one_class(rows: Rows, doing: str) -> None:
    """Labels that show one class alone carry no evidence about the others."""
    target = rows.target if rows.weight is None or rows.target is None else rows.target[rows.weight > 0]
    if target is None or len(target) == 0:
        return
    low, high = torch.aminmax(target)
    if int(low) == int(high):
        raise bad_input(
            doing,
            came=f"{len(target)} row(s) that all have class {int(low)} (1 class)",
            expected="labels of at least two classes",
            mend="Fit on rows that show more than one class; classes absent beside them are no problem.",
        )


def no_weights(name: str, what: str, doing: str) -> Exception:
    return bad_input(
        doing,
        came=what,
        expected=f"no sample_weight: {name} ranks or draws rows and has no weighted form",
        mend="Drop the weights, or use a calibrator that honours them, such as TemperatureScaling.",
    )


def wrong_head(name: str, head: str, heads: tuple[str, ...], doing: str) -> Exception:
    return bad_input(
        doing,
        came=f"Predictions with head={head!r}",
        expected=" or ".join(f"head={one!r}" for one in heads),
        mend="TemperatureScaling, PlattScaling, BetaCalibration, IsotonicCalibration and BayesianBinning take both."
        if head == "sigmoid"
        else "",
    )


def run_blocks(module: torch.nn.Module, logits: Tensor, what: str) -> np.ndarray:
    """Run a map over blocks of rows; `what` is "probabilities", "log_probabilities" or "logits"."""
    module = module.to(logits.device)
    out = np.empty(tuple(logits.shape))

    def run(block: slice) -> None:
        with torch.no_grad():
            out[block] = _one_block(module, logits[block], what).cpu().numpy()

    over_blocks(Rows(logits=logits), run)
    return out


def _one_block(module: torch.nn.Module, block: Tensor, what: str) -> Tensor:
    if module.output == "probabilities":
        values = module.probabilities(block)  # type: ignore[operator]
        return values if what == "probabilities" else values.log()
    values = module.logits(block)  # type: ignore[operator]
    if what == "logits":
        return values
    values = module.normalize(values)  # type: ignore[operator]
    return values.exp() if what == "probabilities" else values
