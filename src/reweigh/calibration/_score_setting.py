"""A setting called `score` on an estimator whose method `score(X, y)` scikit-learn wants, too: one name, both uses."""

from __future__ import annotations

from typing import Any


class CallableName(str):
    """The name of a score; called, it is the estimator's accuracy."""

    accuracy: Any

    def __call__(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        return self.accuracy(X, y, sample_weight)


def score_setting(accuracy: Any) -> property:
    """A property that keeps the name as it was given and hands it out callable.

    `get_params` reads the plain name from `vars(estimator)`.
    """

    def read(estimator: Any) -> CallableName:
        name = CallableName(vars(estimator)["score"])
        name.accuracy = lambda X, y, sample_weight=None: accuracy(estimator, X, y, sample_weight)
        return name

    def write(estimator: Any, value: Any) -> None:
        vars(estimator)["score"] = value

    return property(read, write, doc="The name of the confidence score; called as score(X, y), the accuracy.")
