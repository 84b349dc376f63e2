"""The smoothed distribution of confidence scores in [0, 1]: histogram counts under logistic steps.

    G(s) = (1/N) sum_m h_m sigma((s - c_m) / nu),   c_m the bin centres, N = sum h.

Only sums of positive terms are taken, of G and of 1 - G separately, so neither end cancels. Up to
`DIRECT` scores the sum is evaluated for each, between logarithms where a term could underflow; beyond, on a
fixed grid of knots that cubic Hermite pieces connect, with an error below 2e-10 at any data.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from .. import kernels
from ..rules import State

DIRECT = 4096
LARGEST_STEP = 600.0  # exp(-600) is far from the smallest float64
MOST_PIECES = 65_536  # of a table that a kernel makes
MOST_BINS = 4096  # of a histogram that a kernel counts
KNOTS_PER_STEP = 40  # knots within one smoothing width: error .128 / 384 / 40^4


def _device_form(tensor: Tensor, name: str) -> Any:
    """A kernel for numbers of a batch on this device, or None."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return None
    module = kernels.of(tensor.device)
    return getattr(module, name) if hasattr(module, name) and module.able(tensor.device) else None


def histogram(scores: Tensor, kept: Tensor | None, bins: int) -> Tensor:
    """Counts of [k / bins, (k + 1) / bins), the last bin closed; float64, without gradient or host work."""
    on_device = _device_form(scores, "count_in_bins")
    if on_device is not None and bins <= MOST_BINS:
        return on_device(scores, kept, bins)
    place = (scores.detach() * bins).floor().long().clamp(0, bins - 1)
    ones = torch.ones_like(scores) if kept is None else kept.to(scores.dtype)
    return torch.zeros(bins, dtype=torch.float64, device=scores.device).index_add(0, place, ones.detach().double())


def distribution(counts: Tensor, smoothing: float, rows: int, threshold: Tensor) -> dict[str, Tensor]:
    """What `log_below_above_of` reads for this many scores, and 1 / G at the threshold; without gradient."""
    pieces = math.ceil(KNOTS_PER_STEP / smoothing)
    on_device = _device_form(counts, "cubic_pieces")
    if on_device is not None and pieces <= MOST_PIECES:
        below, above, tail = on_device(counts, smoothing, pieces, threshold)
        return {"below": below, "above": above, "tail": tail}
    if rows <= DIRECT:
        tables = {"shares": counts / counts.sum().clamp(min=1e-300)}
    else:
        low, high, slope, _ = _knots(counts, smoothing)
        tables = {"below": torch.stack(_pieces(low, slope)), "above": torch.stack(_pieces(high, -slope))}
    at_threshold, _ = log_below_above_of(threshold.unsqueeze(0), tables, smoothing)
    return {**tables, "tail": torch.exp(-at_threshold[0])}


def log_below_above_of(scores: Tensor, tables: State, smoothing: float) -> tuple[Tensor, Tensor]:
    """log G(s) and log(1 - G(s)) for (n,) float64 scores, from `distribution`; differentiable in the scores."""
    if "shares" in tables:
        return _direct(scores, tables["shares"], smoothing)
    tiny = torch.finfo(torch.float64).tiny
    pieces = tables["below"].shape[1]
    low = _connect(scores, tuple(tables["below"][i] for i in range(4)), pieces)
    high = _connect(scores, tuple(tables["above"][i] for i in range(4)), pieces)
    return torch.log(low.clamp(min=tiny)), torch.log(high.clamp(min=tiny))


def _centres(counts: Tensor) -> Tensor:
    return (torch.arange(len(counts), device=counts.device, dtype=torch.float64) + 0.5) / len(counts)


def _direct(scores: Tensor, counts: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    share = counts / counts.sum().clamp(min=1e-300)
    steps = (scores.unsqueeze(-1) - _centres(counts)) / smoothing  # (n, bins)
    if 1.0 / smoothing < LARGEST_STEP:  # no exponential can underflow
        return torch.log(torch.sigmoid(steps) @ share), torch.log(torch.sigmoid(-steps) @ share)
    log_share = torch.log(share)
    below = torch.logsumexp(log_share + logsigmoid(steps), -1)
    above = torch.logsumexp(log_share + logsigmoid(-steps), -1)
    return below, above


def smoothed_distribution(scores: Tensor, counts: Tensor, smoothing: float) -> Tensor:
    """G(s) for (n,) float64 scores by the knots, whatever n: O(n), where the plain sum is O(n bins)."""
    below, _, slope, pieces = _knots(counts, smoothing)
    return _connect(scores, _pieces(below, slope), pieces)


def _knots(counts: Tensor, smoothing: float) -> tuple[Tensor, Tensor, Tensor, int]:
    """G, 1 - G and the slope of G a piece at the ends of equal pieces of [0, 1]."""
    pieces = math.ceil(KNOTS_PER_STEP / smoothing)
    grid = torch.arange(pieces + 1, device=counts.device, dtype=torch.float64) / pieces
    share = counts / counts.sum().clamp(min=1e-300)
    steps = (grid.unsqueeze(1) - _centres(counts)) / smoothing
    below, above = torch.sigmoid(steps), torch.sigmoid(-steps)  # (pieces + 1, bins)
    return below @ share, above @ share, (below * above) @ share / (smoothing * pieces), pieces


def _connect(scores: Tensor, cubics: tuple[Tensor, ...], pieces: int) -> Tensor:
    """The cubic pieces at the scores; differentiable in them."""
    with torch.no_grad():
        place = (scores * pieces).long().clamp(0, pieces - 1)
    t = scores * pieces - place
    c0, c1, c2, c3 = (coefficient.take(place) for coefficient in cubics)
    return ((c3 * t + c2) * t + c1) * t + c0


def _pieces(value: Tensor, slope: Tensor) -> tuple[Tensor, ...]:
    """The four coefficients of the cubic that meets value and slope at both ends of each piece, (pieces,) each."""
    left, right, rise, fall = value[:-1], value[1:], slope[:-1], slope[1:]
    step = right - left
    return left, rise, 3 * step - 2 * rise - fall, rise + fall - 2 * step


def minus_log_above(log_below: Tensor, log_above: Tensor) -> Tensor:
    """-ln(1 - G): from G where G is small, from 1 - G where that is."""
    small = log_below < -0.7
    from_below = -torch.log1p(-torch.exp(torch.where(small, log_below, -1.0)))
    return torch.where(small, from_below, -log_above)


def linear_quantile(scores: Tensor, kept: Tensor | None, level: float) -> Tensor:
    """The quantile at position level (n - 1) of the kept scores, interpolated linearly; a number, differentiable."""
    on_device = None if scores.requires_grad else _device_form(scores, "quantile")
    if on_device is not None and scores.dtype == torch.float64:
        return on_device(scores, kept, level)
    if kept is None:
        ordered = scores.sort().values
        last = torch.tensor(scores.numel() - 1.0, dtype=torch.float64, device=scores.device)
    else:
        ordered = torch.where(kept, scores, torch.inf).sort().values
        last = kept.sum().double() - 1.0
    position = (level * last).clamp(min=0.0)
    low = position.floor().long()
    high = torch.minimum(low + 1, last.clamp(min=0.0).long())
    left, right = ordered.gather(0, torch.stack([low, high])).unbind()
    share = position - low
    return torch.where(share > 0, left + share * (right - left), left)
