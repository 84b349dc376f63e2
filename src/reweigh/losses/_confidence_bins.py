"""Bins of confidence as log-odds: where AdaFocal and CalFocal look up their gamma, and what they learn from.

Edges are kept as log-odds because a quarter of a trained network's float32 confidences are exactly 1: edges
between such probabilities coincide, edges between their log-odds do not.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..errors import bad_input
from ..evidence import Evidence
from ..rules import State

LARGEST_GAMMA = 1e30  # a bound of infinity means this: gamma times a loss of 1e4 stays finite in float32
UNKNOWN = -1.0  # accuracy of a bin without rows


def first_edges(bins: int) -> Tensor:
    """Equal-width edges k / bins as log-odds, the ends infinite. (bins + 1,) float64."""
    inner = torch.arange(1, bins, dtype=torch.float64) / bins
    end = torch.tensor([torch.inf], dtype=torch.float64)
    return torch.cat([-end, torch.logit(inner), end])


def edges_as_probability(state: State) -> Tensor:
    """The edges, read as probabilities."""
    return torch.sigmoid(state["edges"].double())


READINGS = {"edges_as_probability": edges_as_probability}


def bin_of(log_odds: Tensor, edges: Tensor) -> Tensor:
    """Training membership [e_b, e_(b+1)); beyond the ends the end bins serve."""
    inner = edges[1:-1].to(log_odds.dtype).contiguous()
    return torch.bucketize(log_odds.detach(), inner, right=True)


def rounded_bin_of(log_odds: Tensor, edges: Tensor) -> Tensor:
    """The same by float32 probabilities, as the published program looks up: what rounds to 1 is in the last bin."""
    probability = torch.sigmoid(log_odds.detach().double()).float()
    inner = torch.sigmoid(edges[1:-1].double()).float().contiguous()
    return torch.bucketize(probability, inner, right=True)


def _kept(evidence: Evidence, values: Tensor) -> Tensor:
    return values if evidence.kept is None else values[evidence.kept]


def bin_statistics(evidence: Evidence, state: State, *, parity: str = "ours") -> tuple[Tensor, Tensor, Tensor]:
    """Edges (log-odds), gaps and accuracies of equal-mass bins of the confidence; no rows change nothing.

    An empty bin has gap 0, so its gamma stays, and the accuracy UNKNOWN.
    """
    odds = _kept(evidence, evidence.confidence_log_odds).double()
    correct = _kept(evidence, evidence.correct).double()
    bins = len(state["gammas"]) if "gammas" in state else len(state["accuracies"])
    if odds.numel() == 0:
        raise bad_input("observing confidences", came="no rows", expected="at least one row on one of the ranks")
    if bool(torch.isnan(odds).any()):
        raise bad_input("observing confidences", came="NaN", expected="confidences between 0 and 1")
    if parity == "official":
        return _official_statistics(odds, correct, bins)
    ordered, order = odds.sort(stable=True)
    edges = _interpolated(ordered, bins)
    place = torch.bucketize(ordered, edges[1:-1].contiguous())  # (e_b, e_(b+1)], the lowest in bin 0
    # c - correct as the small number it may be: -(1 - c) where right
    gap = torch.where(correct[order] > 0, -torch.sigmoid(-ordered), torch.sigmoid(ordered))
    return edges, _mean_in_bins(gap, place, bins), _mean_in_bins(correct[order], place, bins, empty=UNKNOWN)


def _interpolated(ordered: Tensor, bins: int) -> Tensor:
    """Quantiles at k n / bins, interpolated linearly in probability: in 1 - c, taken from its logarithm."""
    n = len(ordered)
    position = torch.arange(bins + 1, dtype=torch.float64, device=ordered.device) * n / bins
    position = position.clamp(max=n - 1)
    low = position.floor().long()
    high = (low + 1).clamp(max=n - 1)
    share = position - low
    log_miss, log_p = logsigmoid(-ordered), logsigmoid(ordered)
    miss = torch.logaddexp(log_miss[low] + torch.log1p(-share), log_miss[high] + torch.log(share))
    sure = torch.logaddexp(log_p[low] + torch.log1p(-share), log_p[high] + torch.log(share))
    return torch.where(share == 0, ordered[low], sure - miss)


def _mean_in_bins(values: Tensor, place: Tensor, bins: int, *, empty: float = 0.0) -> Tensor:
    number = torch.zeros(bins, dtype=torch.float64, device=values.device).index_add(0, place, torch.ones_like(values))
    total = torch.zeros(bins, dtype=torch.float64, device=values.device).index_add(0, place, values)
    return torch.where(number > 0, total / number.clamp(min=1), empty)


def _official_statistics(odds: Tensor, correct: Tensor, bins: int) -> tuple[Tensor, Tensor, Tensor]:
    """The published program: float32 probabilities, the lowest sample in no bin, ties collapse edges."""
    confidence = torch.sigmoid(odds).float()
    ordered, order = confidence.sort(stable=True)
    n = len(ordered)
    position = (torch.arange(bins + 1, dtype=torch.float64, device=odds.device) * n / bins).clamp(max=n - 1)
    low = position.floor().long()
    high = (low + 1).clamp(max=n - 1)
    values = ordered.double()
    edges = values[low] + (position - low) * (values[high] - values[low])
    inside = (values > edges[0]) & (values <= edges[-1])
    place = torch.bucketize(values, edges[1:-1].contiguous())
    gaps = _mean_in_bins((values - correct[order])[inside], place[inside], bins)
    accuracy = _mean_in_bins(correct[order][inside], place[inside], bins, empty=UNKNOWN)
    return torch.logit(edges), gaps, accuracy
