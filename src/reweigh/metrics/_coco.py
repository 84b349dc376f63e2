"""Average precision and recall of detections, by the protocol of the COCO benchmark, with size ranges of one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy

from ..errors import bad_input
from ..predictions import Detections
from ..predictions._matching import cells, flags, overlaps
from ..registry import register_metric

Array = numpy.ndarray
WHAT = "average precision"
EVERY_SIZE = (0.0, 1e10)
SIZES = {"small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, 1e10)}
THRESHOLDS = tuple(float(value) for value in numpy.linspace(0.5, 0.95, 10))
RECALLS = numpy.linspace(0.0, 1.0, 101)


class Cell(NamedTuple):
    """The found and true boxes of one class in one image; found ones best first, at most `max_detections`."""

    scores: Array  # (f,)
    areas: Array  # (f,)
    overlap: Array  # (f, t)
    true_areas: Array  # (t,)
    crowd: Array  # (t,)
    ignored: Array  # (t,)


class Matched(NamedTuple):
    """What a cell says under one range of sizes."""

    scores: Array  # (f,)
    right: Array  # (thresholds, f)
    left_out: Array  # (thresholds, f)
    positives: int


def match_thresholds(overlap: Array, crowd: Array, ignored: Array, thresholds: Array) -> tuple[Array, Array]:
    """(thresholds, f) whether each found box takes a true one, and whether that one is ignored; best score first.

    Among the free true boxes that count it takes the one it overlaps most, of equals the last; only if none reaches
    the threshold may it take an ignored one. Crowds are never used up.
    """
    levels, found = len(thresholds), len(overlap)
    taken = numpy.zeros((levels, found), bool)
    void = numpy.zeros((levels, found), bool)
    if not overlap.size:
        return taken, void
    order = numpy.concatenate([numpy.flatnonzero(~ignored), numpy.flatnonzero(ignored)])[::-1]  # the last one wins
    overlap, crowd, ignored = overlap[:, order], crowd[order], ignored[order]
    used = numpy.zeros((levels, len(order)), bool)
    least = numpy.minimum(thresholds, 1 - 1e-10)[:, None]
    rows = numpy.arange(levels)
    for number, line in enumerate(overlap):
        fits = (~used | crowd) & (line >= least)
        counting = fits & ~ignored
        best = numpy.where(counting, line, -1.0).argmax(1)
        spare = numpy.where(fits & ignored, line, -1.0).argmax(1)
        has, has_spare = counting[rows, best], (fits & ignored)[rows, spare]
        choice = numpy.where(has, best, spare)
        hit = has | has_spare
        used[rows[hit], choice[hit]] = True
        taken[:, number], void[:, number] = hit, hit & ~has
    return taken, void


def _cell(
    found: Detections, truth: Detections, mine: Array, theirs: Array, columns: Mapping[str, Any], most: int
) -> Cell:
    best = mine[numpy.argsort(-columns["scores"][mine], kind="stable")][:most]
    boxes, true_boxes = columns["boxes"][best], columns["true_boxes"][theirs]
    return Cell(
        columns["scores"][best],
        numpy.prod(boxes[:, 2:] - boxes[:, :2], axis=1),
        overlaps(boxes, true_boxes, columns["crowd"][theirs]),
        columns["true_areas"][theirs],
        columns["crowd"][theirs],
        columns["ignored"][theirs],
    )


def _cells_by_class(found: Detections, truth: Detections, most: int) -> dict[int, list[Cell]]:
    """The cells of every class that occurs, images in order."""
    boxes = numpy.asarray(_array(found.boxes), numpy.float64).reshape(-1, 4)
    true_boxes = numpy.asarray(_array(truth.boxes), numpy.float64).reshape(-1, 4)
    crowd, ignored = flags(truth)
    own = numpy.prod(true_boxes[:, 2:] - true_boxes[:, :2], axis=1)
    columns = {
        "scores": numpy.asarray(_array(found.scores), numpy.float64),
        "boxes": boxes,
        "true_boxes": true_boxes,
        "true_areas": own if truth.areas is None else numpy.asarray(_array(truth.areas), numpy.float64),
        "crowd": crowd,
        "ignored": ignored,
    }
    by_class: dict[int, list[Cell]] = {}
    every = cells(found, truth)
    for (_, label), (mine, theirs) in sorted(every.items(), key=lambda item: (item[0][1], item[0][0])):
        by_class.setdefault(int(label), []).append(_cell(found, truth, mine, theirs, columns, most))
    return by_class


def _array(values: Any) -> Array:
    return values.detach().cpu().numpy() if hasattr(values, "detach") else numpy.asarray(values)


def _match(cell: Cell, size: tuple[float, float], thresholds: Array) -> Matched:
    """Objects outside the range are ignored, and so are found boxes outside it that take nothing."""
    ignored = cell.ignored | (cell.true_areas < size[0]) | (cell.true_areas > size[1])
    taken, void = match_thresholds(cell.overlap, cell.crowd, ignored, thresholds)
    outside = (cell.areas < size[0]) | (cell.areas > size[1])
    return Matched(cell.scores, taken & ~void, void | (~taken & outside), int((~ignored).sum()))


def _curves(matched: Sequence[Matched], most: int) -> tuple[Array, Array] | None:
    """(thresholds, 101) precision at each recall and (thresholds,) highest recall of one class; None without objects."""
    positives = sum(part.positives for part in matched)
    if positives == 0:
        return None
    scores = numpy.concatenate([part.scores[:most] for part in matched])
    order = numpy.argsort(-scores, kind="stable")
    right = numpy.concatenate([part.right[:, :most] for part in matched], axis=1)[:, order]
    counted = ~numpy.concatenate([part.left_out[:, :most] for part in matched], axis=1)[:, order]
    hits = numpy.cumsum(right & counted, axis=1)
    false = numpy.cumsum(~right & counted, axis=1)
    recall = hits / positives
    precision = hits / numpy.maximum(hits + false, numpy.spacing(1))
    precision = numpy.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    at = numpy.zeros((len(right), len(RECALLS)))
    for level in range(len(right)):
        place = numpy.searchsorted(recall[level], RECALLS, side="left")
        at[level, place < recall.shape[1]] = precision[level, place[place < recall.shape[1]]]
    return at, recall[:, -1] if recall.shape[1] else numpy.zeros(len(right))


def _mean(values: Sequence[Array]) -> float:
    return float(numpy.mean(values)) if len(values) else float("nan")


@register_metric("coco", aliases=("mAP", "COCO"), direction="none", range=(0, 1), heads=("boxes",))
def coco(
    found: Detections,
    truth: Detections,
    *,
    thresholds: Sequence[float] = THRESHOLDS,
    sizes: Mapping[str, tuple[float, float]] = SIZES,
    max_detections: Sequence[int] = (1, 10, 100),
    per_class: bool = False,
) -> dict[str, Any]:
    """Average precision and recall over classes, overlaps and 101 recalls, as the COCO benchmark defines them.

    Settings:
        thresholds: the least intersection over union; AP50 and AP75 are given where 0.5 and 0.75 are among them.
        sizes: name -> (least, greatest) area in square pixels; an object's own area where the truth has `areas`.
        max_detections: found boxes kept a class and image, rising; the last number serves AP.
        per_class: adds the mapping "per_class" from class number to its AP.

    Keys: "AP", "AP50", "AP75", "AP_SIZE", "AR_COUNT", "AR_SIZE"; NaN where there are no objects.

    >>> found = Detections(boxes=[[0.0, 0.0, 50.0, 50.0]], scores=[0.9], labels=[0], image_ids=[1])
    >>> round(coco(found, Detections(boxes=[[0.0, 0.0, 50.0, 50.0]], labels=[0], image_ids=[1]))["AP"], 6)
    1.0
    """
    if found.scores is None or truth.scores is not None:
        raise bad_input(
            f"computing {WHAT}", came="tables in the wrong order", expected="found boxes (with scores), then truth"
        )
    levels = numpy.asarray(thresholds, numpy.float64)
    if not len(levels) or not ((levels > 0) & (levels <= 1)).all():
        raise bad_input(f"computing {WHAT}", came=f"thresholds={thresholds!r}", expected="numbers above 0, at most 1")
    limits = sorted(int(count) for count in max_detections)
    if not limits or limits[0] < 1:
        raise bad_input(f"computing {WHAT}", came=f"max_detections={max_detections!r}", expected="counts of at least 1")
    by_class = _cells_by_class(found, truth, limits[-1])
    result: dict[str, Any] = {}
    matched = {label: [_match(cell, EVERY_SIZE, levels) for cell in group] for label, group in by_class.items()}
    curves = {label: _curves(group, limits[-1]) for label, group in matched.items()}
    known = {label: curve for label, curve in curves.items() if curve is not None}
    result["AP"] = _mean([precision for precision, _ in known.values()])
    for name, level in (("AP50", 0.5), ("AP75", 0.75)):
        row = numpy.flatnonzero(numpy.isclose(levels, level))
        if len(row):
            result[name] = _mean([precision[row[0]] for precision, _ in known.values()])
    by_size = {}
    for name, size in sizes.items():
        ranged = [_curves([_match(cell, size, levels) for cell in group], limits[-1]) for group in by_class.values()]
        by_size[name] = [curve for curve in ranged if curve is not None]
        result[f"AP_{name}"] = _mean([precision for precision, _ in by_size[name]])
    for count in limits:
        recalls = [curve[1] for group in matched.values() if (curve := _curves(group, count)) is not None]
        result[f"AR_{count}"] = _mean(recalls)
    for name, ranged in by_size.items():
        result[f"AR_{name}"] = _mean([recall for _, recall in ranged])
    if per_class:
        result["per_class"] = {label: float(precision.mean()) for label, (precision, _) in known.items()}
    return result
