"""From sums over bins to the calibration error, plain and debiased. Leading dimensions (classes, resamples) broadcast."""

from __future__ import annotations

import math

import torch

from ..errors import bad_input

Tensor = torch.Tensor


def checked_norm(norm: float | str) -> float:
    """1, 2, ... as a float; "max" and "inf" as infinity."""
    value = math.inf if norm in ("max", "inf") else norm
    if isinstance(value, (bool, str)) or not value >= 1:
        raise bad_input(
            "measuring the error over bins", came=f"norm={norm!r}", expected="a number of at least 1, or 'max'"
        )
    return float(value)


def calibration_error(sums: Tensor, *, norm: float | str = 1, total: Tensor | float | None = None) -> Tensor:
    """(sum_b w_b |conf_b - acc_b|^norm)^(1/norm) with w_b = n_b / n; "max" takes the largest gap of a bin with rows.

    `sums` is (..., bins, 3): weight, confidence and correctness of each bin. `total` is n where rows belong to no bin.
    """
    power = checked_norm(norm)
    weight, confidence, correct = sums.unbind(-1)
    gap = (confidence - correct).abs()
    if power == math.inf:
        return torch.where(weight > 0, gap / weight.clamp(min=1e-300), torch.zeros_like(gap)).amax(-1)
    total = weight.sum(-1) if total is None else total
    if power == 1:
        return gap.sum(-1) / total
    mean_gap = torch.where(weight > 0, gap / weight.clamp(min=1e-300), torch.zeros_like(gap))
    return ((weight * mean_gap**power).sum(-1) / total) ** (1 / power)


def debiased_calibration_error(sums: Tensor, *, norm: float | str = 1) -> Tensor:
    """The error without what chance adds to it, from counts of rows (Kumar et al. 2019).

    norm 2 subtracts A (1 - A) / (n_b - 1) from each squared gap and stops at 0; bins with one row do not count.
    norm 1 is twice the error minus its expectation when each accuracy A varies normally with variance A (1 - A) / n_b.
    That expectation, elsewhere a thousand random draws, is the mean of a folded normal distribution.
    """
    power = checked_norm(norm)
    count, confidence, correct = sums.unbind(-1)
    size = count.clamp(min=1)
    accuracy = correct / size
    gap = accuracy - confidence / size
    share = count / count.sum(-1, keepdim=True)
    variance = (accuracy * (1 - accuracy)).clamp(min=0)
    if power == 2:
        square = torch.where(count > 1, gap**2 - variance / (size - 1).clamp(min=1), torch.zeros_like(gap))
        return (share * square).sum(-1).clamp(min=0).sqrt()
    if power != 1:
        raise bad_input("debiasing the error over bins", came=f"norm={norm!r}", expected="1 or 2")
    return (share * (2 * gap.abs() - folded_normal_mean(gap, (variance / size).sqrt()))).sum(-1)


def folded_normal_mean(mean: Tensor, deviation: Tensor) -> Tensor:
    """E|X| of X ~ N(mean, deviation^2): s sqrt(2/pi) exp(-m^2 / 2 s^2) + m (1 - 2 Phi(-m / s))."""
    safe = torch.where(deviation > 0, deviation, torch.ones_like(deviation))
    ratio = mean / safe
    value = safe * math.sqrt(2 / math.pi) * torch.exp(-(ratio**2) / 2) + mean * torch.erf(ratio / math.sqrt(2))
    return torch.where(deviation > 0, value, mean.abs())
