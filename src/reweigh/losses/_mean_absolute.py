"""Mean absolute error: the probability that is not on the true class."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from ..evidence import Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, State


def absolute_cost(evidence: Evidence, state: State) -> Tensor:
    """1 - p, from its logarithm."""
    return torch.exp(evidence.log_miss)


@register_loss(
    "mean_absolute",
    aliases=("MAE",),
    source="Ghosh, Kumar and Sastry, Robust Loss Functions under Label Noise for Deep Neural Networks, AAAI 2017",
    formula="1 - p",
)
def mean_absolute(**common: Unpack[Common]) -> Loss:
    """Mean absolute error: use it as the robust end of the scale, or as a partner of another loss.

    Formula: 1 - p, half of sum_k |p_k - t_k| for one true class.

    Settings: none of its own.

    No label noise that spares the majority moves its optimum; hurts otherwise, because rows the model has wrong
    hardly produce a gradient and training stalls, the more the more classes there are.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.mean_absolute()
    >>> round(loss(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0])).item(), 4)
    0.1562
    """
    return Loss(Rule("mean_absolute", absolute_cost, needs=("log_miss",)), **common)
