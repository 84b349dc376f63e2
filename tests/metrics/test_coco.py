"""Detection precision: against a plain reading of the protocol, and against pycocotools where it is installed."""

from __future__ import annotations

import contextlib
import io
import math

import numpy
import pytest
import torch

from reweigh import Detections, metrics

AREAS = {"all": (0.0, 1e10), "small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, 1e10)}


def scene(seed=0, images=12, objects=60, found=150, classes=3):
    random = numpy.random.default_rng(seed)
    image, label = random.integers(0, images, objects), random.integers(0, classes, objects)
    corner, size = random.random((objects, 2)) * 150, numpy.exp(random.normal(3.6, 0.9, (objects, 2)))
    source = random.integers(0, objects, found)
    moved = corner[source] + random.normal(0, 4, (found, 2))
    scaled = size[source] * numpy.exp(random.normal(0, 0.15, (found, 2)))
    own = numpy.where(random.random(found) < 0.8, label[source], random.integers(0, classes, found))
    truth = {
        "boxes": numpy.concatenate([corner, corner + size], 1),
        "labels": label,
        "image_ids": image,
        "areas": size.prod(1) * 0.8,
        "crowd": random.random(objects) < 0.1,
    }
    detections = {
        "boxes": numpy.concatenate([moved, moved + scaled], 1),
        "labels": own,
        "image_ids": image[source],
        "scores": random.random(found).round(2),
    }
    return detections, truth


def overlap(a, b, crowd):
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    inside = max(width, 0) * max(height, 0)
    area = (a[2] - a[0]) * (a[3] - a[1])
    return inside / (area if crowd else area + (b[2] - b[0]) * (b[3] - b[1]) - inside)


def plain_average(found, truth, level, size, most):
    """(mean precision over classes, mean highest recall) at one overlap, one range of sizes, one limit of boxes."""
    precisions, recalls = [], []
    for label in sorted({*found["labels"].tolist(), *truth["labels"].tolist()}):
        marks, objects = [], 0
        for image in sorted({*found["image_ids"].tolist(), *truth["image_ids"].tolist()}):
            ids = [
                i for i in range(len(truth["boxes"])) if truth["labels"][i] == label and truth["image_ids"][i] == image
            ]
            skip = {i: bool(truth["crowd"][i]) or not size[0] <= truth["areas"][i] <= size[1] for i in ids}
            objects += sum(not skip[i] for i in ids)
            ids = [i for i in ids if not skip[i]] + [i for i in ids if skip[i]]
            mine = [
                j for j in range(len(found["boxes"])) if found["labels"][j] == label and found["image_ids"][j] == image
            ]
            mine = sorted(mine, key=lambda j: (-found["scores"][j], j))[:most]
            taken = set()
            for j in mine:
                best, height = None, min(level, 1 - 1e-10)
                for i in ids:
                    if i in taken and not truth["crowd"][i]:
                        continue
                    if best is not None and not skip[best] and skip[i]:
                        break
                    value = overlap(found["boxes"][j], truth["boxes"][i], truth["crowd"][i])
                    if value >= height:
                        best, height = i, value
                box = found["boxes"][j]
                area = (box[2] - box[0]) * (box[3] - box[1])
                if best is not None:
                    taken.add(best)
                    marks.append((found["scores"][j], None if skip[best] else True))
                else:
                    marks.append((found["scores"][j], False if size[0] <= area <= size[1] else None))
        if not objects:
            continue
        marks = [right for _, right in sorted(marks, key=lambda mark: -mark[0]) if right is not None]
        hits = numpy.cumsum(list(marks)) if marks else numpy.zeros(0)
        recall, precision = hits / objects, hits / numpy.arange(1, len(hits) + 1)
        precisions.append(
            numpy.mean(
                [precision[recall >= r].max() if (recall >= r).any() else 0.0 for r in numpy.linspace(0, 1, 101)]
            )
        )
        recalls.append(recall[-1] if len(recall) else 0.0)
    return numpy.mean(precisions), numpy.mean(recalls)


def test_a_plain_reading_of_the_protocol():
    found, truth = scene(seed=1, images=5, objects=30, found=70)
    measured = metrics.coco(Detections(**found), Detections(**truth), thresholds=(0.5, 0.75), max_detections=(2, 100))
    wanted = {}
    for name, size in AREAS.items():
        parts = [plain_average(found, truth, level, size, 100) for level in (0.5, 0.75)]
        if name == "all":
            wanted |= {"AP": numpy.mean([p for p, _ in parts]), "AP50": parts[0][0], "AP75": parts[1][0]}
            wanted["AR_100"] = numpy.mean([r for _, r in parts])
            wanted["AR_2"] = numpy.mean([plain_average(found, truth, level, size, 2)[1] for level in (0.5, 0.75)])
        else:
            wanted[f"AP_{name}"] = numpy.mean([p for p, _ in parts])
            wanted[f"AR_{name}"] = numpy.mean([r for _, r in parts])
    assert measured == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_pycocotools_agrees(seed):
    coco = pytest.importorskip("pycocotools.coco")
    evaluation = pytest.importorskip("pycocotools.cocoeval")
    found, truth = scene(seed)
    annotations = [
        {
            "id": i + 1,
            "image_id": int(truth["image_ids"][i]),
            "category_id": int(truth["labels"][i]) + 1,
            "bbox": [*box[:2], *(box[2:] - box[:2])],
            "area": truth["areas"][i],
            "iscrowd": int(truth["crowd"][i]),
        }
        for i, box in enumerate(truth["boxes"])
    ]
    results = [
        {
            "image_id": int(found["image_ids"][j]),
            "category_id": int(found["labels"][j]) + 1,
            "bbox": [*box[:2], *(box[2:] - box[:2])],
            "score": found["scores"][j],
        }
        for j, box in enumerate(found["boxes"])
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        ground = coco.COCO()
        ground.dataset = {
            "images": [{"id": i} for i in range(12)],
            "annotations": annotations,
            "categories": [{"id": c} for c in (1, 2, 3)],
        }
        ground.createIndex()
        judged = evaluation.COCOeval(ground, ground.loadRes(results), "bbox")
        judged.evaluate()
        judged.accumulate()
        judged.summarize()
    measured = metrics.coco(Detections(**found), Detections(**truth))
    assert list(measured.values()) == pytest.approx(judged.stats.tolist(), abs=1e-9)


def test_own_sizes_and_classes():
    found, truth = scene()
    measured = metrics.coco(
        Detections(**found), Detections(**truth), sizes={"tiny": (0, 100), "rest": (100, 1e9)}, per_class=True
    )
    assert {"AP_tiny", "AP_rest", "AR_tiny", "AR_rest"} < set(measured) and "AP_small" not in measured
    assert numpy.mean(list(measured["per_class"].values())) == pytest.approx(measured["AP"])


def test_tensors_and_order():
    found, truth = scene()
    wanted = metrics.coco(Detections(**found), Detections(**truth))
    tensors = [Detections(**{name: torch.tensor(values) for name, values in part.items()}) for part in (found, truth)]
    assert metrics.coco(*tensors) == wanted
    distinct = found | {"scores": numpy.linspace(0, 1, 150)}
    order = numpy.random.default_rng(0).permutation(150)
    shuffled = {name: values[order] for name, values in distinct.items()}
    assert metrics.coco(Detections(**shuffled), Detections(**truth)) == metrics.coco(
        Detections(**distinct), Detections(**truth)
    )


def test_nothing_found_and_nothing_there():
    _, truth = scene()
    nothing = Detections(
        boxes=numpy.zeros((0, 4)), labels=numpy.zeros(0, int), image_ids=numpy.zeros(0, int), scores=numpy.zeros(0)
    )
    assert metrics.coco(nothing, Detections(**truth))["AP"] == 0.0
    empty = Detections(boxes=numpy.zeros((0, 4)), labels=numpy.zeros(0, int), image_ids=numpy.zeros(0, int))
    assert math.isnan(metrics.coco(Detections(**scene()[0]), empty)["AP"])
    with pytest.raises(ValueError, match="wrong order"):
        metrics.coco(Detections(**truth), Detections(**scene()[0]))
    for settings in ({"thresholds": (0.0,)}, {"max_detections": (0,)}, {"thresholds": ()}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            metrics.coco(Detections(**scene()[0]), Detections(**truth), **settings)


def test_matching_serves_calibration():
    found, truth = scene()
    table = Detections(**found).match(Detections(**truth))
    assert 0 < metrics.accuracy(table) < 1 and metrics.expected_calibration_error(table) > 0
    assert set(table.by("class")) == {0, 1, 2}
