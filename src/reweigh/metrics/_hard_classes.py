"""The classes that a reference finds hardest, and how other losses change them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from ..errors import bad_input, unknown_name
from ..registry import register_metric

Tensor = torch.Tensor


class HardClasses(NamedTuple):
    """The hardest classes first; `change` and `deviation` have one (k,) tensor a loss."""

    classes: Tensor  # (k,) class numbers
    recall: Tensor  # (k,) the reference's mean recall
    change: dict[str, Tensor]  # mean over folds of recall minus the reference's in the same fold
    deviation: dict[str, Tensor]  # standard deviation of those differences over the folds (divided by their number)


def _folds(reports: Any, column: str) -> Tensor:
    """(folds, K) one column of one report or of several."""
    several = [reports] if hasattr(reports, "keys") else list(reports)
    return torch.stack([torch.as_tensor(report[column], dtype=torch.float64) for report in several])


@register_metric("hard_classes", direction="none", range=(-1, 1), heads=("softmax", "sigmoid"))
def hard_classes(reports: Mapping[str, Any], reference: str, k: int = 3) -> HardClasses:
    """The k classes with the lowest recall under the reference loss, averaged over folds, and each loss's change there.

    `reports` maps a loss to its class reports, one a fold in the same order for every loss. Of classes with equal
    recall the one with the lower area under ROC comes first. Pairing by fold takes out what makes a fold easy.

    >>> one, other = {"recall": [0.5, 0.9], "area_under_roc": [0.7, 0.9]}, {"recall": [0.75, 0.8], "area_under_roc": [0.8, 0.9]}
    >>> found = hard_classes({"cross_entropy": [one], "focal": [other]}, "cross_entropy", k=1)
    >>> found.classes.tolist(), found.change["focal"].tolist()
    ([0], [0.25])
    """
    if reference not in reports:
        raise unknown_name("loss among the reports", reference, reports)
    recall = {name: _folds(of_loss, "recall") for name, of_loss in reports.items()}
    base = recall[reference]
    for name, values in recall.items():
        if values.shape != base.shape:
            raise bad_input(
                "comparing hard classes",
                came=f"{tuple(values.shape)} folds and classes of {name!r}",
                expected=f"{tuple(base.shape)}, as {reference!r} has",
            )
    if not 1 <= k <= base.shape[1]:
        raise bad_input("comparing hard classes", came=f"k={k}", expected=f"1 to {base.shape[1]}")
    mean = base.mean(0)
    area = _folds(reports[reference], "area_under_roc").mean(0).nan_to_num(nan=2.0)
    order = sorted(range(len(mean)), key=lambda number: (float(mean[number]), float(area[number]), number))[:k]
    hard = torch.tensor(order)
    others = {name: (values - base)[:, hard] for name, values in recall.items() if name != reference}
    return HardClasses(
        hard,
        mean[hard],
        {name: difference.mean(0) for name, difference in others.items()},
        {name: difference.std(0, correction=0) for name, difference in others.items()},
    )
