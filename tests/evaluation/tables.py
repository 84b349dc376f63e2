"""Tables with known answers for the tests of evaluation."""

from __future__ import annotations

import numpy

from reweigh import Predictions


def classifier(
    rows: int = 600, classes: int = 4, *, skill: float = 2.0, scale: float = 1.0, seed: int = 0, **more
) -> Predictions:
    """Logits of a classifier of some skill; the same seed gives the same targets whatever the skill."""
    random = numpy.random.default_rng(seed)
    targets = random.integers(0, classes, rows)
    noise = random.normal(size=(rows, classes))
    logits = scale * (noise + skill * numpy.eye(classes)[targets])
    return Predictions(logits=logits.astype("float32"), targets=targets, **more)


def identified(rows: int = 600, **settings) -> Predictions:
    """The same with ids and groups."""
    sites = numpy.array(["north", "south", "west"])[numpy.arange(rows) % 3]
    ids = numpy.array([f"row {number}" for number in range(rows)])
    return classifier(rows, ids=ids, groups={"site": sites, "patient": numpy.arange(rows) // 4}, **settings)
