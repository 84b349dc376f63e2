"""Likelihood of tempered rows and its derivatives in the inverse temperature b, in float64 block by block.

With v_k = b (z_k - max z) and p = softmax(v), the cost of a row is log sum exp(v) - v_true, and its derivatives
with respect to log-scale steps of b are the cumulants of v under p: mean minus v_true, variance, third cumulant.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ._maps import softplus
from ._parallel import over_blocks, over_slices, slices
from ._rows import Rows

Tensor = torch.Tensor
# exp(-745) is the smallest positive float64; below it a class adds nothing to any sum
LOWEST = -800.0
# narrower rows are transposed, so that sums run along long axes
NARROW = 16


@dataclass(frozen=True)
class Moments:
    """Weighted sums over the rows: cost, and b, b^2, b^3 times its derivatives in b."""

    cost: float
    first: float
    second: float
    third: float


def true_gap(rows: Rows) -> Tensor:
    """(n,) float64 true logit (its mean under soft labels) minus the largest: 0 where the row is right."""
    if rows.target is not None:
        true = rows.logits.gather(1, rows.target.unsqueeze(1)).squeeze(1).double()  # type: ignore[union-attr]
        return true - rows.highest.double()  # type: ignore[union-attr]
    gap = torch.empty(rows.count, dtype=torch.float64, device=rows.logits.device)  # type: ignore[union-attr]
    for block in rows.blocks():
        share = rows.share[block]  # type: ignore[index]
        moved = rows.logits[block].double() - rows.highest[block].double().unsqueeze(1)  # type: ignore[index]
        gap[block] = torch.where(share > 0, share * moved, 0.0).sum(1)
    return gap


def softmax_moments(rows: Rows, gap: Tensor, inverse: float, *, single: bool = False) -> Moments:
    """The sums at one inverse temperature; one pass over the logits.

    `single` takes the exponentials in float32, half the work, for a step that a float64 pass will follow.
    """
    exact = torch.float32 if single else torch.float64
    narrow = rows.classes < NARROW
    axis = 0 if narrow else 1
    sums = torch.empty(4, rows.count, dtype=exact, device=gap.device)  # of exp(v), exp(v) v, exp(v) v^2, exp(v) v^3

    def fill(block: slice) -> None:
        z, highest = rows.logits[block], rows.highest[block].to(exact)  # type: ignore[index]
        v = (z.t() if narrow else z).to(exact, copy=True, memory_format=torch.contiguous_format)
        v.sub_(highest if narrow else highest.unsqueeze(1)).mul_(inverse).clamp_(min=LOWEST)
        weighted = v.exp()
        torch.sum(weighted, axis, out=sums[0, block])
        for power in (1, 2, 3):
            torch.sum(weighted.mul_(v), axis, out=sums[power, block])

    def finish(part: slice) -> Tensor:
        mass, one, two, three = sums[:, part].double()
        one, two, three = one.div_(mass), two.div_(mass), three.div_(mass)
        true = gap[part] * inverse
        square = one * one
        table = torch.stack([mass.log() - true, one - true, two - square, three - 3 * one * two + 2 * one * square])
        return table.sum(1) if rows.weight is None else (table * rows.weight[part]).sum(1)

    over_blocks(rows, fill)
    parts = over_slices(rows.count, len(sums), gap.device, finish)
    return Moments(*torch.stack(parts).sum(0).tolist())


def sigmoid_moments(rows: Rows, inverse: float) -> Moments:
    """The same sums for independent labels: each is a softmax over the logits 0 and z."""

    def sums(block: slice) -> Tensor:
        v = (rows.logits[block].double() * inverse).clamp(-1e100, 1e100)  # type: ignore[index]
        label = labels_of(rows, block)
        p, rest = torch.sigmoid(v), torch.sigmoid(-v)
        cost = torch.where(label > 0, label * softplus(-v), 0.0) + torch.where(
            label < 1, (1 - label) * softplus(v), 0.0
        )
        second = p * rest * v * v
        parts = torch.stack([cost.sum(1), ((p - label) * v).sum(1), second.sum(1), (second * (rest - p) * v).sum(1)])
        return parts.sum(1) if rows.weight is None else (parts * rows.weight[block]).sum(1)

    return Moments(*torch.stack(over_blocks(rows, sums)).sum(0).tolist())


def labels_of(rows: Rows, block: slice) -> Tensor:
    """(b, K) float64 label of every head; class numbers are one-vs-rest."""
    if rows.share is not None:
        return rows.share[block]
    target = rows.target[block].unsqueeze(1)  # type: ignore[index]
    empty = torch.zeros(len(target), rows.classes, dtype=torch.float64, device=target.device)
    return empty.scatter(1, target, 1.0)


def top_confidence(rows: Rows, inverse: float) -> Tensor:
    """(n,) float64 largest tempered probability, on the thread that asks."""
    narrow = rows.classes < NARROW
    out = torch.empty(rows.count, dtype=torch.float64, device=rows.logits.device)  # type: ignore[union-attr]
    for block in slices(rows.count, rows.classes, out.device):
        z, highest = rows.logits[block], rows.highest[block].double()  # type: ignore[index]
        v = (z.t() if narrow else z).to(torch.float64, copy=True, memory_format=torch.contiguous_format)
        v.sub_(highest if narrow else highest.unsqueeze(1)).mul_(inverse).exp_()
        out[block] = v.sum(0 if narrow else 1).reciprocal_()
    return out


def logit_scale(rows: Rows) -> float:
    """Root mean square of the unmasked logits about their row's mean; of the logits themselves under sigmoid."""
    parts = [_block_scale(rows, block) for block in rows.blocks()]
    largest = max(part[0] for part in parts)
    if largest == 0.0:
        return 0.0
    squares = sum(square * (unit / largest) ** 2 for unit, square, _ in parts)
    return largest * (squares / sum(count for *_, count in parts)) ** 0.5


def _block_scale(rows: Rows, block: slice) -> tuple[float, float, float]:
    """(unit, weighted sum of squares in that unit, weight): squares of numbers up to 1 stay in range at any scale."""
    z = rows.logits[block].double()  # type: ignore[index]
    softmax = rows.head == "softmax"
    z = z - rows.highest[block].double().unsqueeze(1) if softmax else z  # type: ignore[index]
    kept = torch.isfinite(z)
    z = torch.where(kept, z, 0.0)
    unit = float(z.abs().max())
    z = z / (unit or 1.0)
    if softmax:
        z = torch.where(kept, z - z.sum(1, keepdim=True) / kept.sum(1, keepdim=True), 0.0)
    squares, counts = (z * z).sum(1), kept.sum(1).double()
    if rows.weight is not None:
        squares, counts = squares * rows.weight[block], counts * rows.weight[block]
    return unit, float(squares.sum()), float(counts.sum())
