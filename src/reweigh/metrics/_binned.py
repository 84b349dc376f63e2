"""Sums over bins of confidence, for the decisions taken or for each class; what every binned calibration error shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy
import torch

from ..binning import RULES, assign, bin_sums, check_parity, is_count, members, split_edges, width_edges, width_members
from ..errors import bad_input, unknown_name
from ..predictions import Predictions
from ._outcomes import outcome_block, outcomes
from ._traits import Statistics, need_some_rows, refuse_weights, total

Tensor = torch.Tensor
WHAT = "the calibration error"
SCOPES = ("top_label", "class_wise")


class Binning(NamedTuple):
    """How to cut: the settings that all binned metrics have in common."""

    bins: int = 15
    binning: str = "width"
    closed: str = "right"
    scope: str = "top_label"
    classes: str = "all"
    debias: bool = False
    max_bins: int | None = None
    parity: str | None = None

    @property
    def adds(self) -> bool:
        """Whether its sums can be added over parts of the rows: the edges do not depend on them."""
        return self.binning == "width" and not self.debias


def check_binning(cut: Binning) -> Binning:
    """The same, after its words were checked."""
    if cut.binning not in RULES:
        raise unknown_name("binning", str(cut.binning), RULES)
    if cut.scope not in SCOPES:
        raise unknown_name("scope", str(cut.scope), SCOPES)
    for name, value, known in (("classes", cut.classes, ("all", "present")), ("closed", cut.closed, ("right", "left"))):
        if value not in known:
            raise bad_input(f"computing {WHAT}", came=f"{name}={value!r}", expected=" or ".join(map(repr, known)))
    for name, value in (("bins", cut.bins), ("max_bins", 1 if cut.max_bins is None else cut.max_bins)):
        if not is_count(value):
            raise bad_input(f"computing {WHAT}", came=f"{name}={value!r}", expected="a whole number of at least 1")
    check_parity(cut.parity, cut.binning, f"computing {WHAT}")
    if cut.debias and cut.binning not in ("width", "mass", "mass_split"):
        raise bad_input(
            f"computing {WHAT}",
            came=f"debias=True with binning={cut.binning!r}",
            expected="no binning: it uses split bins",
        )
    return cut._replace(bins=int(cut.bins))


def statistics(predictions: Predictions, cut: Binning) -> Statistics:
    """{"bins": (..., bins, 3, 2)} order-free sums of weight, confidence and correctness; classes lead if class-wise."""
    cut = check_binning(cut)
    if not cut.adds:
        raise bad_input(
            f"adding up {WHAT} over parts of the rows",
            came=f"binning={cut.binning!r}, debias={cut.debias}",
            expected="binning='width', whose edges do not depend on the rows",
        )
    need_some_rows(predictions, WHAT)
    if cut.scope == "top_label":
        key = ("width", cut.bins, cut.closed)
        confidence = predictions.top_confidence
        index = predictions.remember(key, lambda: width_members(confidence, cut.bins, closed=cut.closed))
        return {"bins": bin_sums(index, cut.bins, confidence, predictions.correctness, predictions.decision_weights)}
    return {"bins": _class_sums(predictions, cut)}


def measure(predictions: Predictions, cut: Binning, error: Callable[..., Tensor]) -> Tensor:
    """`error(sums, total=n)` of the decisions taken, a number, or of every class, (K,); NaN for classes left out."""
    cut = check_binning(cut)
    need_some_rows(predictions, WHAT)
    if cut.adds:
        return from_statistics(statistics(predictions, cut), cut, error)
    refuse_weights(
        predictions,
        f"{WHAT} with {'debias=True' if cut.debias else f'binning={cut.binning!r}'}",
        "Equal widths without debiasing (binning='width') honour weights.",
    )
    if cut.scope == "top_label":
        return _of_column(predictions.top_confidence, predictions.correctness, cut, error)
    targets = outcomes(predictions, WHAT)
    values = []
    for number, probability in _probability_columns(predictions):
        outcome = (targets == number).double() if targets.ndim == 1 else targets[:, number].double()
        present = cut.classes == "all" or bool(outcome.sum() > 0)
        values.append(_of_column(probability, outcome, cut, error) if present else probability.new_tensor(torch.nan))
    return torch.stack(values)


def from_statistics(sums: Statistics, cut: Binning, error: Callable[..., Tensor]) -> Tensor:
    """The same, from sums added over parts."""
    bins = total(sums["bins"])
    value = error(bins, total=bins[..., 0].sum(-1))
    if cut.scope == "class_wise" and cut.classes == "present":
        value = torch.where(bins[..., 2].sum(-1) > 0, value, torch.full_like(value, torch.nan))
    return value


def _of_column(values: Tensor, outcome: Tensor, cut: Binning, error: Callable[..., Tensor]) -> Tensor:
    """The error of one column of probabilities against what happened."""
    if cut.debias:
        edges = split_edges(values, cut.bins)
        index, count = members(values, edges), len(edges) - 1
    else:
        index, count = assign(
            values,
            bins=cut.bins,
            binning=cut.binning,
            closed=cut.closed,
            correct=outcome,
            max_bins=cut.max_bins,
            parity=cut.parity,
        )
    return error(total(bin_sums(index, count, values, outcome)), total=float(len(values)))


def _probability_columns(predictions: Predictions):
    """(class number, (n,) float64 probability), a block of classes at a time."""
    classes = int(predictions.classes or 0)
    width = max(1, (1 << 22) // max(1, len(predictions)))
    for first in range(0, classes, width):
        block = predictions.class_probabilities(slice(first, min(first + width, classes)))
        yield from ((first + offset, block[:, offset].contiguous()) for offset in range(block.shape[1]))


# ---- class-wise sums with equal widths, in one pass over the rows


def _class_sums(predictions: Predictions, cut: Binning) -> Tensor:
    """(K, bins, 3, 2). Few probabilities exceed 1 / bins, so the lowest bin is summed by columns, the rest by place."""
    targets = outcomes(predictions, WHAT)
    classes = int(predictions.classes or 0)
    device = predictions.scores.device
    low = torch.zeros(3, classes, dtype=torch.float64, device=device)  # weight, probability, outcome of the lowest bin
    high = torch.zeros(3, classes * cut.bins, dtype=torch.float64, device=device)
    weights = predictions.row_weights
    edge = float(width_edges(cut.bins)[1])
    for rows, block in _own_blocks(predictions):
        above = _above(block, edge, cut.closed)
        place = _places(above)
        value = block.reshape(-1)[place].double()
        cell = (place % classes) * cut.bins + width_members(value, cut.bins, closed=cut.closed)
        weight = None if weights is None else weights[rows]
        heavy = None if weight is None else weight[place // classes]
        low[1] += block.sum(0, dtype=torch.float64) if weight is None else weight @ block.double()
        high[0] += torch.bincount(cell, weights=heavy, minlength=len(high[0]))
        high[1] += torch.bincount(cell, weights=value if heavy is None else heavy * value, minlength=len(high[0]))
        if predictions.target_form == "index":
            happened = targets[rows].long()
            own = block.gather(1, happened.unsqueeze(1)).squeeze(1).double()
            cell = happened * cut.bins + width_members(own, cut.bins, closed=cut.closed)
            high[2] += torch.bincount(cell, weights=weight, minlength=len(high[0]))
        else:
            truth = outcome_block(predictions, targets, rows)
            part = truth.reshape(-1)[place]
            high[2] += torch.bincount(cell, weights=part if heavy is None else heavy * part, minlength=len(high[0]))
            truth = truth.masked_fill(above, 0.0)
            low[2] += truth.sum(0) if weight is None else weight @ truth
    sums = high.view(3, classes, cut.bins)
    whole = float(len(predictions)) if weights is None else weights.sum()
    low[:2] -= sums[:2].sum(2)  # what is not above the lowest bin is in it
    low[0] += whole
    sums[:, :, 0] += low
    sums = sums.permute(1, 2, 0)
    return torch.stack([sums, torch.zeros_like(sums)], -1)


def _places(above: Tensor) -> Tensor:
    """The flat places of the true elements; NumPy finds them several times faster."""
    flat = above.reshape(-1)
    return torch.from_numpy(numpy.flatnonzero(flat.numpy())) if flat.device.type == "cpu" else torch.nonzero(flat)[:, 0]


def _own_blocks(predictions: Predictions):
    """Blocks of probabilities, in the type they were given in if they were given."""
    if predictions.kind != "probabilities":
        yield from predictions.probability_blocks()
        return
    scores = predictions.scores
    size = max(1, (1 << 18) // max(1, scores.shape[1]))
    for start in range(0, len(scores), size):
        rows = slice(start, min(start + size, len(scores)))
        yield rows, scores[rows]


def _above(block: Tensor, edge: float, closed: str) -> Tensor:
    """Which values lie above the lowest bin, compared exactly in the block's own type."""
    if block.dtype == torch.float64:
        return block > edge if closed == "right" else block >= edge
    # the largest number of the narrow type that is not above the edge, and the next one
    near = torch.tensor(edge, dtype=block.dtype)
    below = near if float(near) <= edge else torch.nextafter(near, near.new_tensor(-1.0))
    if closed == "left" and float(below) == edge:
        return block >= below.to(block.device)
    return block > below.to(block.device)
