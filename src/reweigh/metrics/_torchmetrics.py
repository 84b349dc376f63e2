"""Any metric made of sums as a `torchmetrics.Metric` class: state of a fixed size, reduced by addition."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import bad_input, need
from ..predictions import Predictions
from ._estimate import Metric, details_of, metric_named
from ._stream import check_streams
from ._traits import traits_of

SCORES = ("logits", "log_probabilities", "probabilities", "confidence")


def _table(scores: str, head: str | None, values: Any, truth: Any, weights: Any) -> Predictions:
    if isinstance(values, Predictions):
        return values
    if scores == "confidence":
        return Predictions(confidence=values, correct=truth, weights=weights)
    return Predictions(**{scores: values}, targets=truth, head=head, weights=weights)


def _example(scores: str, head: str | None, classes: int) -> Predictions:
    """One row that shows which sums there are."""
    if scores == "confidence":
        return Predictions(confidence=torch.ones(1), correct=torch.ones(1))
    row = torch.full((1, classes), 1 / classes)
    row = row.log() if scores == "log_probabilities" else row
    target = torch.zeros(1, classes, dtype=torch.long) if head == "sigmoid" else torch.zeros(1, dtype=torch.long)
    column: dict[str, Any] = {scores: row}
    return Predictions(**column, targets=target, head=head)


def _rebuild(metric: Metric, scores: str, classes: int | None, head: str | None, settings: dict[str, Any]) -> Any:
    bound: Any = torchmetrics_class(metric, scores=scores, num_classes=classes, head=head, **settings)
    return bound.__new__(bound)


def torchmetrics_class(
    metric: str | Metric,
    *,
    scores: str = "logits",
    num_classes: int | None = None,
    head: str | None = None,
    **settings: Any,
) -> type:
    """A `torchmetrics.Metric` class for a metric made of sums; instances take torchmetrics' own keywords.

    `update(values, truth, weights=None)` takes the scores named by `scores` with targets (correctness for
    "confidence"), or one `Predictions`. `num_classes` is needed where the sums have one entry a class.

    >>> found = torchmetrics_class("accuracy")()
    >>> found.update(torch.tensor([[2.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 0]))
    >>> found.compute().item()
    0.5
    """
    torchmetrics = need("torchmetrics", "metrics", "a torchmetrics class")
    function = metric_named(metric)
    check_streams(function, settings)
    if scores not in SCORES:
        raise bad_input(
            "building a torchmetrics class", came=f"scores={scores!r}", expected=" or ".join(map(repr, SCORES))
        )
    known = traits_of(function)
    example = known.statistics(_example(scores, head, num_classes or 2), **settings)  # type: ignore[misc]
    better = {"higher": True, "lower": False}.get(details_of(function).get("direction", "none"))

    class SummedMetric(torchmetrics.Metric):
        is_differentiable = False
        higher_is_better = better
        full_state_update = False

        def __init__(self, **keywords: Any) -> None:
            super().__init__(**keywords)
            for name, value in example.items():
                self.add_state(name, default=torch.zeros_like(value), dist_reduce_fx="sum")

        def update(self, values: Any, truth: Any = None, weights: Any = None) -> None:
            table = _table(scores, head, values, truth, weights)
            if not len(table):
                return
            for name, value in known.statistics(table, **settings).items():  # type: ignore[misc]
                state = getattr(self, name)
                if state.shape != value.shape:
                    raise bad_input(
                        f"updating {function.__name__}",
                        came=f"{table.classes} classes",
                        expected=f"num_classes={num_classes or 2}, as the class was built",
                    )
                setattr(self, name, state + value.to(state.device))

        def compute(self) -> Any:
            value = known.value({name: getattr(self, name) for name in example}, **settings)  # type: ignore[misc]
            return torch.tensor(value, dtype=torch.float64) if isinstance(value, float) else value

        def __reduce__(self) -> tuple[Any, ...]:  # a class made here has no address that pickle could look up
            return _rebuild, (function, scores, num_classes, head, settings), self.__getstate__()

    SummedMetric.__name__ = SummedMetric.__qualname__ = "".join(part.title() for part in function.__name__.split("_"))
    return SummedMetric
