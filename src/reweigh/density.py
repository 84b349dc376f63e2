"""Kernels on confidences and on the simplex: pair sums, and the leave-one-out regressions behind KDE calibration error.

Everything works on logarithms and is differentiable; rows are taken in blocks, so that n x n numbers never exist at
once unless autograd keeps them.
"""

from __future__ import annotations

import torch

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
    stretch = (place / 300).floor()
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


def _without_itself(log_kernel: Tensor, start: int) -> Tensor:
    """(b, n) weights that sum to one in each row, the row itself left out."""
    own = torch.arange(len(log_kernel), device=log_kernel.device)
    return torch.softmax(log_kernel.index_put((own, own + start), log_kernel.new_tensor(float("-inf"))), dim=1)


def dirichlet_regression(log_p: Tensor, outcome: Tensor, *, bandwidth: float) -> Tensor:
    """(n, K) mean outcome of the other rows, weighted by Dirichlet kernels around their probabilities.

    log k_ji = sum_c (a_ic - 1) log p_jc - log B(a_i), a_i = p_i / bandwidth + 1. `log_p` and `outcome` are (n, K).
    """
    checked_bandwidth(bandwidth, len(log_p))
    log_p = log_p.clamp(min=LEAST_LOG)
    shape = log_p.exp() / bandwidth  # a - 1
    log_beta = torch.lgamma(shape + 1).sum(1) - torch.lgamma(shape.sum(1) + shape.shape[1])
    parts = [_without_itself(log_p[i:j] @ shape.T - log_beta, i) @ outcome for i, j in _blocks(len(log_p))]
    return torch.cat(parts)


def beta_regression(log_p: Tensor, log_rest: Tensor, outcome: Tensor, *, bandwidth: float) -> Tensor:
    """(n,) the same for one probability p against 1 - p, given by their logarithms."""
    checked_bandwidth(bandwidth, len(log_p))
    log_pair = torch.stack([log_p, log_rest], 1).clamp(min=LEAST_LOG)
    shape = log_pair.exp() / bandwidth
    log_beta = torch.lgamma(shape + 1).sum(1) - torch.lgamma(shape.sum(1) + 2)
    parts = [_without_itself(log_pair[i:j] @ shape.T - log_beta, i) @ outcome for i, j in _blocks(len(log_p))]
    return torch.cat(parts)
