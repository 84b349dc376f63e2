"""MMCE: cross-entropy plus a kernel measure of how far confidence is from accuracy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, Unpack

import torch
from torch import Tensor

from ..density import in_blocks
from ..evidence import Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Cost, Rule, State, choice, log_loss, number, penalised

OFFICIAL_SLACK = 1e-10  # added under the root by the published program
NOTHING = 1e-30  # squares below it are rounding: the root and its gradient are taken as 0
NARROWEST = 1.0 / 600.0  # kernels narrower than this leave the range of float64 on the way from 0 to 1


def pair_sum(value: Tensor, position: Tensor, width: float) -> Tensor:
    """sum_ij v_i v_j exp(-|x_i - x_j| / width) for x in [0, 1], the diagonal included."""
    if len(value) == 0:
        return value.sum()
    return sorted_sum(value, position, width) if width >= NARROWEST else pairwise_sum(value, position, width)


def sorted_sum(value: Tensor, position: Tensor, width: float) -> Tensor:
    """The same after one sort. Row i meets the rows below it as e^(-x_i / w) sum_(x_j < x_i) v_j e^(x_j / w).

    Rows at the same place meet with kernel 1 and, as in the sum over pairs, without a gradient for the place.
    """
    x, order = position.sort()
    v = value[order]
    place = x.detach()
    level = torch.searchsorted(place, place)  # the first row at the same place
    below = torch.cat([v.new_zeros(1), (v * torch.exp((x - 1.0) / width)).cumsum(0)])[level]
    same = torch.zeros_like(v).index_add(0, level, v)
    return 2.0 * (v * torch.exp((1.0 - x) / width) * below).sum() + (same * same).sum()


def pairwise_sum(value: Tensor, position: Tensor, width: float) -> Tensor:
    """The same over all pairs, in blocks of rows."""
    return torch.stack(in_blocks(partial(_part, width=width), len(value), value, position)).sum()


def _part(start: int, stop: int, value: Tensor, position: Tensor, width: float) -> Tensor:
    near = torch.exp(-(position[start:stop, None] - position).abs() / width)  # (b, n)
    return value[start:stop] @ (near @ value)


def gaps(evidence: Evidence) -> tuple[Tensor, Tensor, Tensor]:
    """correct - confidence without cancellation, 0 for rows that do not count; and which counting rows are right, wrong."""
    odds, right = evidence.confidence_log_odds, evidence.correct
    gap = torch.where(right, torch.sigmoid(-odds), -torch.sigmoid(odds))
    if evidence.kept is None:
        return gap, right, ~right
    return torch.where(evidence.kept, gap, 0.0), right & evidence.kept, ~right & evidence.kept


def squared_penalty(evidence: Evidence, state: State, *, width: float) -> Tensor:
    """(1/n^2) sum_ij (a_i - r_i)(a_j - r_j) k(r_i, r_j): MMCE squared, as both published programs return it."""
    gap, right, wrong = gaps(evidence)
    rows = (right | wrong).sum().clamp(min=1)
    return pair_sum(gap / rows, torch.sigmoid(evidence.confidence_log_odds), width)


def weighted_penalty(evidence: Evidence, state: State, *, width: float, power: int, root: Callable) -> Tensor:
    """The root of sum_ij v_i v_j k(r_i, r_j), v = (1 - r) / m^power where right, -r / n^power where wrong."""
    gap, right, wrong = gaps(evidence)
    m, n = right.sum(), wrong.sum()
    share = torch.where(right, m, n).clamp(min=1).to(gap.dtype) ** power
    square = pair_sum(gap / share, torch.sigmoid(evidence.confidence_log_odds), width)
    return torch.where((m > 0) & (n > 0), root(square), 0.0)


def safe_root(square: Tensor) -> Tensor:
    """The root whose gradient at 0 is 0, not infinite."""
    some = square > NOTHING
    return torch.where(some, torch.sqrt(torch.where(some, square, 1.0)), 0.0)


def official_root(square: Tensor) -> Tensor:
    """sqrt(x + 1e-10)."""
    return torch.sqrt(square.clamp(min=0.0) + OFFICIAL_SLACK)


WEIGHTED = {
    "paper": partial(weighted_penalty, power=1, root=safe_root),
    "official": partial(weighted_penalty, power=2, root=official_root),
}


@register_loss(
    "kernel_calibration",
    aliases=("MMCE",),
    source="Kumar, Sarawagi and Jain, Trainable Calibration Measures For Neural Networks From Kernel Mean Embeddings, ICML 2018",
    formula="-log p + strength * MMCE, MMCE^2 = sum_ij v_i v_j exp(-|r_i - r_j| / width)",
)
def kernel_calibration(
    *,
    strength: float = 1.0,
    width: float = 0.4,
    weighted: bool = True,
    normalization: Literal["paper", "official"] = "paper",
    **common: Unpack[Common],
) -> Loss:
    """MMCE loss: use it to train calibration itself, on batches large enough to see right and wrong rows.

    Formula: -log p + strength * MMCE, the penalty added to every row. With r the confidence, m right and n wrong rows,
    MMCE is the root of sum_ij v_i v_j exp(-|r_i - r_j| / width), v_i = (1 - r_i) / m where right and -r_i / n where
    wrong; 0 if there are none of either. Its gradient flows through the confidences only.

    Settings:
        strength: at least 0 (default 1; published values belong to "official": 2 for CIFAR, 2 to 8 for 20 Newsgroups).
        width: of the kernel, above 0 (default 0.4, the paper).
        weighted: false gives the unweighted square (1 / N^2) sum_ij (a_i - r_i)(a_j - r_j) k_ij, without root.
        normalization: "paper" (default), or "official": the published programs take means over pairs and then divide
            by m^2, n^2 and mn once more, and add 1e-10 under the root; of the weighted form only.

    Helps calibration at some cost of accuracy; hurts in small batches. Costs one sort of the batch, n log n for n rows;
    below a width of 1/600 the sum over all pairs, n^2, in blocks of rows so that memory stays bounded.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.kernel_calibration()
    >>> logits = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.5, 0.0]])
    >>> round(loss(logits, torch.tensor([0, 1, 0])).item(), 4)
    1.1994
    """
    name = "kernel_calibration"
    strength = number(name, "strength", strength, low=0.0, high=1e6)
    width = number(name, "width", width, low=0.0, high=1e6, above=True)
    form = choice(name, "normalization", normalization, WEIGHTED)
    form = choice(name, "weighted", weighted, {True: form, False: squared_penalty})
    penalty: Cost = partial(form, width=width)
    rule = Rule(
        name,
        penalised(log_loss, penalty, strength=strength),
        needs=("log_p", "confidence_log_odds", "top"),
        coupled=True,
        soft="refused",
        rewards_errors=strength > 5.0 or width < 0.4,  # the batch's penalty may outweigh a row's own cost
    )
    return Loss(rule, **common)
