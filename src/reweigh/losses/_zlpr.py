"""ZLPR: every present label above every absent one, with 0 between them."""

from __future__ import annotations

from typing import Literal, Unpack

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..evidence import SURE, Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, State
from ._sigmoid_settings import takes_indices


def pairwise_cost(evidence: Evidence, state: State) -> Tensor:
    """log(1 + sum of e^z over absent labels) + log(1 + sum of e^-z over present ones), one number a row."""
    return evidence.log_sum_absent + evidence.log_sum_present


def pairwise_soft_cost(evidence: Evidence, state: State) -> Tensor:
    """Each label is absent with weight 1 - y and present with weight y, within the same sums."""
    z, y = evidence.log_odds, evidence.soft_target
    cost = z.new_zeros(())
    for side, share in ((z, 1.0 - y), (-z, y)):
        there = share > 0 if evidence.kept is None else (share > 0) & evidence.kept
        terms = torch.where(there, side + torch.log(torch.where(there, share, 1.0)), -SURE)
        cost = cost - logsigmoid(-terms.logsumexp(1))
    return cost


@register_loss(
    "zlpr",
    source="Su et al., ZLPR: A Novel Loss for Multi-label Classification, 2022",
    formula="log(1 + sum over absent of e^z) + log(1 + sum over present of e^-z), a row",
)
def zlpr(*, targets: Literal["labels", "index"] = "labels", **common: Unpack[Common]) -> Loss:
    """ZLPR: use it for several labels a row out of very many, where each on its own is hopelessly outnumbered.

    Formula: log(1 + sum of e^z over absent labels) + log(1 + sum of e^-z over present labels), for each row. The
    extension of softmax cross-entropy to several labels; a label is predicted where its logit is above 0.

    Settings:
        targets: "labels" of the logits' shape (default), or "index" for class indices, one present label a row.

    It prices rows: reduction "none" gives (n, d...), the mean divides by rows, sample_weight is one a row, and
    class_weight is refused. Soft labels weigh both sums. Labels compete, so sigmoid(z) is no probability; hurts where
    calibrated probabilities are wanted.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.zlpr()
    >>> round(loss(torch.tensor([[1.0, -2.0, 0.5]]), torch.tensor([[1.0, 0.0, 1.0]])).item(), 4)
    0.8072
    """
    rule = Rule(
        "zlpr",
        pairwise_cost,
        needs=("log_sum_absent", "log_sum_present"),
        head="sigmoid",
        per_row=True,
        soft="own",
        soft_cost=pairwise_soft_cost,
        soft_needs=("log_odds",),
        index_targets=takes_indices("zlpr", targets),
    )
    return Loss(rule, **common)
