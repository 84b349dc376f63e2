"""Kernels on confidences and on the simplex: pair sums, and the leave-one-out regressions behind KDE calibration error.

Everything works on logarithms and is differentiable; rows are taken in blocks, so that n x n numbers never exist at
once unless autograd keeps them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils.checkpoint import checkpoint

from .errors import bad_input

Tensor = torch.Tensor

BLOCK_PAIRS = 1 << 22  # pairs of rows in one block: 32 MiB in float64
LEAST_LOG = -1e30  # stands for log 0, whose product with 0 must be 0


def laplace_pair_sum(position: Tensor, value: Tensor, *, width: float) -> Tensor:
    """sum_ij v_i v_j exp(-|x_i - x_j| / width), the diagonal included, after one sort instead of n^2 pairs.

    With x ascending, row j sees S_j = e^(-x_j / w) sum_(i<j) v_i e^(x_i / w) of the rows below it. Stretches of 300
    widths are summed relative to their own start, so that no exponential leaves its range.
    """
    position, order = torch.sort(position)
    value = value[order]
    if len(value) == 0:
        return value.sum()
    place = (position - position[0]) / width
    stretch = (place.detach() / 300).floor()
    numbers, sizes = torch.unique_consecutive(stretch, return_counts=True)
    below, carried, last = value.new_zeros(()), value.new_zeros(()), float(numbers[0]) * 300
    for start, x, v in zip(
        (numbers * 300).tolist(), place.split(sizes.tolist()), value.split(sizes.tolist()), strict=True
    ):
        carried = carried * torch.exp(x.new_tensor(last - start))
        rising = v * torch.exp(x - start)
        sums = rising.cumsum(0)
        below = below + (v * torch.exp(start - x) * (carried + sums - rising)).sum()
        carried, last = carried + sums[-1], start
    return (value * value).sum() + 2 * below


def checked_bandwidth(bandwidth: float, rows: int) -> None:
    """A positive width, and at least one other row to compare with."""
    if not 0 < bandwidth < float("inf"):
        raise bad_input("estimating a density", came=f"bandwidth={bandwidth!r}", expected="a positive number")
    if rows < 2:
        raise bad_input("estimating a density", came=f"{rows} row(s)", expected="at least two")


def _blocks(rows: int):
    size = max(1, BLOCK_PAIRS // max(1, rows))
    for start in range(0, rows, size):
        yield start, min(start + size, rows)


def in_blocks(part: Callable[..., Tensor], rows: int, *tensors: Tensor) -> list[Tensor]:
    """part(start, stop, *tensors) of every block of rows. The backward pass computes a block again instead of keeping
    it, so that n x n numbers never exist at once; torch.func cannot, and keeps them."""
    blocks = list(_blocks(rows))
    again = len(blocks) > 1 and torch.is_grad_enabled() and not torch._C._are_functorch_transforms_active()
    if again:
        return [checkpoint(part, *block, *tensors, use_reentrant=False) for block in blocks]
    return [part(*block, *tensors) for block in blocks]


def _without_itself(log_kernel: Tensor, start: int, kept: Tensor | None = None) -> Tensor:
    """(b, n) weights that sum to one in each row, the row itself and rows that do not count left out."""
    least = torch.finfo(log_kernel.dtype).min / 2  # exp gives 0, and a row without any other stays finite
    own = torch.arange(len(log_kernel), device=log_kernel.device)
    log_kernel = log_kernel.index_put((own, own + start), log_kernel.new_full((), least))
    return torch.softmax(log_kernel if kept is None else torch.where(kept, log_kernel, least), dim=1)


def dirichlet_regression(log_p: Tensor, outcome: Tensor, *, bandwidth: float, kept: Tensor | None = None) -> Tensor:
    """(n, K) mean outcome of the other rows, weighted by Dirichlet kernels around their probabilities.

    log k_ji = sum_c (a_ic - 1) log p_jc - log B(a_i), a_i = p_i / bandwidth + 1. `log_p` and `outcome` are (n, K);
    `kept` (n,) names the rows that count as others.
    """
    checked_bandwidth(bandwidth, len(log_p))
    log_p = log_p.clamp(min=LEAST_LOG)
    shape = log_p.exp() / bandwidth  # a - 1
    log_beta = torch.lgamma(shape + 1).sum(1) - torch.lgamma(shape.sum(1) + shape.shape[1])

    def part(start: int, stop: int, log_p: Tensor, shape: Tensor, log_beta: Tensor) -> Tensor:
        return _without_itself(log_p[start:stop] @ shape.T - log_beta, start, kept) @ outcome

    return torch.cat(in_blocks(part, len(log_p), log_p, shape, log_beta))


def beta_regression(log_p: Tensor, log_rest: Tensor, outcome: Tensor, *, bandwidth: float) -> Tensor:
    """(n,) the same for one probability p against 1 - p, given by their logarithms."""
    checked_bandwidth(bandwidth, len(log_p))
    log_pair = torch.stack([log_p, log_rest], 1).clamp(min=LEAST_LOG)
    shape = log_pair.exp() / bandwidth
    log_beta = torch.lgamma(shape + 1).sum(1) - torch.lgamma(shape.sum(1) + 2)
    parts = [_without_itself(log_pair[i:j] @ shape.T - log_beta, i) @ outcome for i, j in _blocks(len(log_p))]
    return torch.cat(parts)
