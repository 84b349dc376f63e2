"""Tables with every column that prediction files can have."""

from __future__ import annotations

import numpy
import pytest

from reweigh import Predictions


def build(
    score: str = "logits", *, rows: int = 60, classes: int = 5, seed: int = 0, dtype: str = "float32", **more
) -> Predictions:
    """A table of one kind of scores, with targets."""
    random = numpy.random.default_rng(seed)
    logits = random.normal(size=(rows, classes)) * 3
    log_p = logits - numpy.log(numpy.exp(logits).sum(1, keepdims=True))
    columns = {
        "logits": {"logits": logits.astype(dtype)},
        "log_probabilities": {"log_probabilities": log_p.astype(dtype)},
        "probabilities": {"probabilities": numpy.exp(log_p).astype(dtype)},
        "confidence": {"confidence": numpy.exp(log_p.max(1)).astype(dtype), "correct": random.random(rows) < 0.8},
    }[score]
    return Predictions(**columns, **{"targets": random.integers(0, classes, rows), **more})


def full(score: str = "logits", **settings) -> Predictions:
    """The same with ids, weights, groups, names and a note."""
    rows, classes = settings.get("rows", 60), settings.get("classes", 5)
    return build(
        score,
        ids=numpy.array([f"image {number} ä" for number in range(rows)]),
        weights=numpy.linspace(0.5, 2.0, rows),
        groups={"site": numpy.array(["north", "süd"])[numpy.arange(rows) % 2], "age": numpy.arange(rows) % 7},
        class_names=[f"class {number}" for number in range(classes)],
        about={"model": "small", "epoch": 3},
        **settings,
    )


def plain(values):
    return (
        values.detach().cpu().double().numpy()
        if hasattr(values, "detach") and values.is_floating_point()
        else numpy.asarray(values)
    )


def same(first: Predictions, second: Predictions) -> bool:
    """Whether two tables hold the same, to the last bit."""
    facts = ("kind", "head", "target_form", "class_names", "about")
    if any(getattr(first, name) != getattr(second, name) for name in facts) or set(first.groups) != set(second.groups):
        return False
    pairs = [
        (getattr(first, name), getattr(second, name)) for name in (first.kind, "correct", "targets", "weights", "ids")
    ]
    pairs += [(first.groups[name], second.groups[name]) for name in first.groups]
    if any((one is None) != (other is None) for one, other in pairs):
        return False
    return all(numpy.array_equal(plain(one), plain(other)) for one, other in pairs if one is not None)


@pytest.fixture
def table() -> Predictions:
    return full()
