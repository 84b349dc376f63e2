"""`Detections`: boxes with scores, or true boxes without; matching the two yields `Predictions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from ..errors import bad_input
from ._columns import column, numeric, take
from ._matching import match_all
from ._table import Predictions, _selection

DOING = "building Detections"
_COLUMNS = ("boxes", "scores", "labels", "image_ids", "areas", "crowd", "ignore")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Detections:
    """Boxes x1 y1 x2 y2 (n, 4) with a label and an image each; found ones carry `scores`, true ones do not.

    Truth may carry `crowd` and `ignore` flags (a found box that matches one is neither right nor wrong) and `areas`
    where the object's own area, not its box's, decides about its size.

    >>> found = Detections(boxes=[[0.0, 0.0, 10.0, 10.0]], scores=[0.8], labels=[1], image_ids=[7])
    >>> truth = Detections(boxes=[[0.0, 0.0, 10.0, 9.0]], labels=[1], image_ids=[7])
    >>> found.match(truth).correct.tolist()
    [True]
    """

    boxes: Any
    labels: Any
    image_ids: Any
    scores: Any = None
    areas: Any = None
    crowd: Any = None
    ignore: Any = None
    class_names: Sequence[str] | None = None
    about: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        for name in _COLUMNS:
            put(self, name, (column if name == "image_ids" else numeric)(getattr(self, name), name))
        if self.boxes.ndim == 1 and len(self.boxes) == 0:
            put(self, "boxes", numpy.zeros((0, 4)))
        put(self, "class_names", None if self.class_names is None else tuple(str(name) for name in self.class_names))
        put(self, "about", dict(self.about or {}))
        self._check()

    def _check(self) -> None:
        if self.boxes.ndim != 2 or self.boxes.shape[1] != 4:
            raise bad_input(DOING, came=f"boxes of shape {tuple(self.boxes.shape)}", expected="(boxes, 4): x1 y1 x2 y2")
        for name in _COLUMNS[1:]:
            values = getattr(self, name)
            if values is not None and tuple(values.shape) != (len(self.boxes),):
                raise bad_input(
                    DOING, came=f"{name} of shape {tuple(values.shape)}", expected=f"({len(self.boxes)},), one a box"
                )
        boxes = plain(self.boxes).astype(numpy.float64)
        _refuse(~numpy.isfinite(boxes).all(1), "boxes", boxes, "finite coordinates")
        swapped = (boxes[:, 2] < boxes[:, 0]) | (boxes[:, 3] < boxes[:, 1])
        _refuse(
            swapped, "boxes", boxes, "x1 <= x2 and y1 <= y2", "Boxes given as x y width height are x, y, x + w, y + h."
        )
        labels = plain(self.labels)
        if labels.dtype.kind not in "iub" and len(labels):
            raise bad_input(DOING, came=f"labels of type {labels.dtype}", expected="whole class numbers")
        if self.class_names is not None:
            _refuse(
                (labels < 0) | (labels >= len(self.class_names)), "labels", labels, f"0 to {len(self.class_names) - 1}"
            )
        if self.scores is not None:
            scores = plain(self.scores).astype(numpy.float64)
            _refuse(~numpy.isfinite(scores), "scores", scores, "finite numbers")
        if self.areas is not None:
            areas = plain(self.areas).astype(numpy.float64)
            _refuse(~(numpy.isfinite(areas) & (areas >= 0)), "areas", areas, "finite numbers of at least 0")

    def __len__(self) -> int:
        return len(self.boxes)

    def take(self, rows: Any) -> Detections:
        """The given boxes: a slice, numbers or a mask."""
        rows = _selection(rows, len(self))
        chosen = {name: take(getattr(self, name), rows) for name in _COLUMNS}
        return Detections(**chosen, class_names=self.class_names, about=self.about)

    __getitem__ = take

    def match(self, truth: Detections, *, iou: float = 0.5) -> Predictions:
        """Which found boxes are right: within image and class, best score first, each true box once.

        A found box takes the free true box that it overlaps most, if by at least `iou`. Boxes that only match a
        crowd or an ignored object drop out. The result has the groups "class" and "image".
        """
        if self.scores is None:
            raise bad_input("matching detections", came="found boxes without scores", expected="scores=")
        if truth.scores is not None:
            raise bad_input("matching detections", came="true boxes with scores", expected="truth, which has none")
        if not 0 < iou <= 1:
            raise bad_input("matching detections", came=f"iou={iou}", expected="a number above 0, at most 1")
        verdict = match_all(self, truth, iou)  # 1 right, 0 wrong, -1 neither
        kept = numpy.flatnonzero(verdict >= 0)
        scores = take(self.scores, kept)
        correct = verdict[kept] == 1
        return Predictions(
            confidence=scores,
            correct=torch.from_numpy(correct) if isinstance(scores, torch.Tensor) else correct,
            groups={"class": take(self.labels, kept), "image": take(self.image_ids, kept)},
            about=self.about,
        )

    def __repr__(self) -> str:
        images = len(numpy.unique(plain(self.image_ids)))
        return f"Detections({len(self):,} {'true' if self.scores is None else 'found'} boxes in {images:,} images)"


def plain(values: Any) -> numpy.ndarray:
    """A column as a NumPy array on the CPU."""
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else numpy.asarray(values)


def _refuse(wrong: Any, name: str, values: numpy.ndarray, expected: str, mend: str = "") -> None:
    if wrong.any():
        row = int(numpy.flatnonzero(wrong)[0])
        raise bad_input(DOING, came=f"{values[row].tolist()} in {name} (box {row})", expected=expected, mend=mend)
