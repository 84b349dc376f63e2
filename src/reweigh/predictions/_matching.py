"""Greedy matching of found to true boxes, as COCO's protocol does it: best score first, each true box once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy

if TYPE_CHECKING:
    from ._detections import Detections


def _plain(values: Any) -> numpy.ndarray:
    return values.detach().cpu().numpy() if hasattr(values, "detach") else numpy.asarray(values)


def overlaps(found: numpy.ndarray, truth: numpy.ndarray, crowd: numpy.ndarray) -> numpy.ndarray:
    """(f, t) intersection over union in float64; over the found box's own area where the truth is a crowd."""
    low = numpy.maximum(found[:, None, :2], truth[None, :, :2])
    high = numpy.minimum(found[:, None, 2:], truth[None, :, 2:])
    inside = numpy.prod(numpy.clip(high - low, 0, None), axis=2)
    area = numpy.prod(found[:, 2:] - found[:, :2], axis=1)[:, None]
    union = numpy.where(crowd[None, :], area, area + numpy.prod(truth[:, 2:] - truth[:, :2], axis=1)[None, :] - inside)
    return numpy.divide(inside, union, out=numpy.zeros_like(inside), where=union > 0)


def match_image(
    overlap: numpy.ndarray, crowd: numpy.ndarray, ignored: numpy.ndarray, iou: float
) -> tuple[numpy.ndarray, numpy.ndarray]:
    """For found boxes in the order of their scores: the true box taken (-1 none), and the verdict 1, 0 or -1.

    True boxes that count come first; an ignored one is taken only where none that counts fits. A crowd may be
    taken many times. Of equal overlaps the later box wins, as in COCO's reference program.
    """
    order = numpy.argsort(ignored, kind="stable")
    used = numpy.zeros(len(order), bool)
    taken = numpy.full(len(overlap), -1)
    verdict = numpy.zeros(len(overlap), int)
    for row, line in enumerate(overlap):
        best, least = -1, min(iou, 1 - 1e-10)
        for t in order:
            if used[t] and not crowd[t]:
                continue
            if best >= 0 and not ignored[best] and ignored[t]:
                break
            if line[t] >= least:
                best, least = t, line[t]
        if best >= 0:
            taken[row], used[best] = best, True
            verdict[row] = -1 if ignored[best] else 1
    return taken, verdict


def cells(*tables: Detections) -> dict[tuple[Any, int], list[numpy.ndarray]]:
    """For every (image, label) that occurs: the row numbers in each table, in the tables' order."""
    found: dict[tuple[Any, int], list[list[int]]] = {}
    for number, table in enumerate(tables):
        for row, key in enumerate(zip(_plain(table.image_ids).tolist(), _plain(table.labels).tolist(), strict=True)):
            found.setdefault(key, [[] for _ in tables])[number].append(row)
    return {key: [numpy.array(rows, int) for rows in lists] for key, lists in found.items()}


def flags(truth: Detections) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Crowd, and ignored for whatever reason, one boolean each a true box."""
    crowd = numpy.zeros(len(truth), bool) if truth.crowd is None else _plain(truth.crowd).astype(bool)
    ignored = crowd.copy() if truth.ignore is None else crowd | _plain(truth.ignore).astype(bool)
    return crowd, ignored


def match_all(found: Detections, truth: Detections, iou: float) -> numpy.ndarray:
    """The verdict on every found box: 1 right, 0 wrong, -1 neither."""
    scores, boxes = _plain(found.scores), _plain(found.boxes).astype(numpy.float64)
    true_boxes = _plain(truth.boxes).astype(numpy.float64)
    crowd, ignored = flags(truth)
    verdict = numpy.zeros(len(found), int)
    for mine, theirs in cells(found, truth).values():
        mine = mine[numpy.argsort(-scores[mine], kind="stable")]
        overlap = overlaps(boxes[mine], true_boxes[theirs], crowd[theirs])
        verdict[mine] = match_image(overlap, crowd[theirs], ignored[theirs], iou)[1]
    return verdict
