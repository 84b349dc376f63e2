"""Calibrated maps as torch modules, composed of small pieces that ONNX can say: float64 inside and out.

`LogitMap` and `ProbabilityMap` are the two kinds; what differs between calibrators is the piece they hold.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

MINUS_INFINITY = float("-inf")
FURTHEST = 1e300  # log-odds of certainty, so that 0 times it is 0


def softplus(z: Tensor) -> Tensor:
    """log(1 + e^z) at any z, in operations that ONNX has for float64."""
    return z.clamp(min=0.0) + torch.log1p((-z.abs()).exp())


def log_sigmoid(z: Tensor) -> Tensor:
    """log of the sigmoid at any z."""
    return -softplus(-z)


def buffer(values: object) -> Tensor:
    """A float64 copy for a module's buffer."""
    return torch.tensor(values, dtype=torch.float64) if not hasattr(values, "shape") else torch.as_tensor(
        values, dtype=torch.float64
    ).clone()  # fmt: skip


class LogitMap(nn.Module):
    """Logits in, calibrated log-probabilities out: (n, K) -> (n, K); `piece` maps float64 logits to logits."""

    output = "log_probabilities"
    output_names = ("log_probabilities",)

    def __init__(self, piece: nn.Module, head: str = "softmax") -> None:
        super().__init__()
        self.piece = piece
        self.head = head

    def logits(self, logits: Tensor) -> Tensor:
        """(n, K) calibrated logits."""
        return self.piece(logits.double())

    def normalize(self, calibrated: Tensor) -> Tensor:
        """(n, K) log-probabilities of calibrated logits."""
        if self.head == "sigmoid":
            return log_sigmoid(calibrated)
        return nn.functional.log_softmax(calibrated, dim=1)

    def forward(self, logits: Tensor) -> Tensor:
        return self.normalize(self.logits(logits))


class ProbabilityMap(nn.Module):
    """Logits in, calibrated probabilities out: (n, K) -> (n, K); `piece` maps float64 logits to probabilities."""

    output = "probabilities"
    output_names = ("probabilities",)

    def __init__(self, piece: nn.Module) -> None:
        super().__init__()
        self.piece = piece

    def probabilities(self, logits: Tensor) -> Tensor:
        """(n, K) calibrated probabilities."""
        return self.piece(logits.double())

    def forward(self, logits: Tensor) -> Tensor:
        return self.probabilities(logits)


class Scale(nn.Module):
    """w z + b, element by element; masked classes stay masked."""

    weight: Tensor
    bias: Tensor

    def __init__(self, weight: object, bias: object = 0.0) -> None:
        super().__init__()
        self.register_buffer("weight", buffer(weight))
        self.register_buffer("bias", buffer(bias))

    def forward(self, logits: Tensor) -> Tensor:
        masked = logits == MINUS_INFINITY
        moved = torch.where(masked, 0.0, logits) * self.weight + self.bias
        return torch.where(masked, MINUS_INFINITY, moved)


class Affine(nn.Module):
    """W z + b; masked classes add nothing to the others and stay masked."""

    weight: Tensor
    bias: Tensor

    def __init__(self, weight: object, bias: object) -> None:
        super().__init__()
        self.register_buffer("weight", buffer(weight))
        self.register_buffer("bias", buffer(bias))

    def forward(self, logits: Tensor) -> Tensor:
        masked = logits == MINUS_INFINITY
        moved = torch.where(masked, 0.0, logits) @ self.weight.T + self.bias
        return torch.where(masked, MINUS_INFINITY, moved)


class LogSoftmax(nn.Module):
    """log p of the logits, at least `lowest`; masked classes stay masked."""

    def __init__(self, lowest: float = MINUS_INFINITY) -> None:
        super().__init__()
        self.lowest = lowest

    def forward(self, logits: Tensor) -> Tensor:
        log_p = nn.functional.log_softmax(logits, dim=1)
        if self.lowest == MINUS_INFINITY:
            return log_p
        return torch.where(logits == MINUS_INFINITY, MINUS_INFINITY, log_p.clamp(min=self.lowest))


def log_odds(logits: Tensor) -> Tensor:
    """(n, K) log p_k - log(1 - p_k) of the softmax of float64 logits, exact where p_k rounds to 1.

    Others are summed apart from the largest: z_k - logsumexp of the rest, which for all k but the largest is
    z_k - lse + log-correction, and for the largest leaves it out of the sum.
    """
    top, index = logits.max(1, keepdim=True)
    is_top = torch.zeros_like(logits).scatter(1, index, 1.0) > 0
    others = torch.where(is_top, MINUS_INFINITY, logits)
    runner_up = others.amax(1, keepdim=True)
    finite = torch.where(runner_up == MINUS_INFINITY, 0.0, runner_up)
    log_others = (others - finite).exp().sum(1, keepdim=True).log() + finite  # -inf where the top is alone
    log_p = nn.functional.log_softmax(logits, dim=1)
    p = log_p.exp()
    # p_k <= 1/2 for all but the largest, so 1 - p_k has no cancellation
    rest = log_p - torch.log1p(-torch.where(is_top, 0.0, p))
    return torch.where(is_top, top - log_others, rest)


class Lookup(nn.Module):
    """How many edges lie strictly below each value, by binary search: gathers only, so that ONNX can say it.

    `edges` are ascending runs, one a column (or one for all), laid end to end; `lengths` says how long each is.
    """

    edges: Tensor
    lengths: Tensor
    starts: Tensor

    def __init__(self, columns: list) -> None:
        super().__init__()
        lengths = [len(column) for column in columns]
        self.longest = max(lengths, default=0)
        flat = torch.cat([buffer(column) for column in columns]) if self.longest else torch.zeros(1).double()
        starts = torch.tensor([0, *lengths[:-1]], dtype=torch.int64).cumsum(0)
        self.register_buffer("edges", flat)
        self.register_buffer("lengths", torch.tensor(lengths, dtype=torch.int64))
        self.register_buffer("starts", starts)

    def forward(self, values: Tensor) -> Tensor:
        """(n, C) int64 number of edges of the value's own column below it."""
        below = torch.zeros_like(values, dtype=torch.int64)
        step = 1 << max(self.longest.bit_length() - 1, 0)
        while step and self.longest:
            probe = below + step
            inside = probe <= self.lengths
            place = self.starts + torch.where(inside, probe, 1) - 1
            place = place.clamp(max=self.edges.shape[0] - 1)
            below = torch.where(inside & (self.edges[place] < values), probe, below)
            step >>= 1
        return below


class Steps(nn.Module):
    """Piecewise constant curves, one a column: `values[b]` between edges b-1 (excluded) and b (included)."""

    heights: Tensor
    offsets: Tensor

    def __init__(self, edges: list, values: list) -> None:
        super().__init__()
        self.lookup = Lookup(edges)
        self.register_buffer("heights", torch.cat([buffer(column) for column in values]))
        self.register_buffer(
            "offsets", torch.tensor([0, *[len(column) for column in values][:-1]], dtype=torch.int64).cumsum(0)
        )

    def forward(self, values: Tensor) -> Tensor:
        return self.heights[self.lookup(values) + self.offsets]


class Lines(nn.Module):
    """Piecewise linear curves through points, one a column; flat beyond the first and the last point."""

    heights: Tensor

    def __init__(self, points: list, heights: list) -> None:
        super().__init__()
        self.lookup = Lookup(points)
        self.register_buffer("heights", torch.cat([buffer(column) for column in heights]))

    def forward(self, values: Tensor) -> Tensor:
        lookup = self.lookup
        right = lookup(values)
        right = torch.minimum(right, lookup.lengths - 1)
        left = (right - 1).clamp(min=0)
        start = lookup.starts
        x0, x1 = lookup.edges[start + left], lookup.edges[start + right]
        y0, y1 = self.heights[start + left], self.heights[start + right]
        width = x1 - x0
        share = torch.where(width > 0, (values - x0) / torch.where(width > 0, width, 1.0), 1.0).clamp(0.0, 1.0)
        return y0 + share * (y1 - y0)


class NormalizedColumns(nn.Module):
    """Probabilities, each class through its own curve; under softmax rows are scaled to sum to one again.

    A row whose curves all say zero keeps its uncalibrated probabilities. Masked classes stay at zero.
    """

    def __init__(self, curves: nn.Module, head: str = "softmax") -> None:
        super().__init__()
        self.curves = curves
        self.head = head

    def forward(self, logits: Tensor) -> Tensor:
        masked = logits == MINUS_INFINITY
        if self.head == "sigmoid":
            return torch.where(masked, 0.0, self.curves(torch.sigmoid(logits)))
        p = torch.softmax(logits, dim=1)
        q = torch.where(masked, 0.0, self.curves(p))
        total = q.sum(1, keepdim=True)
        return torch.where(total > 0, q / torch.where(total > 0, total, 1.0), p)


class SecondOfTwo(nn.Module):
    """The second of two classes through a curve of its probability; the first is the rest."""

    def __init__(self, curve: nn.Module) -> None:
        super().__init__()
        self.curve = curve

    def forward(self, logits: Tensor) -> Tensor:
        p = torch.softmax(logits, dim=1)
        second = self.curve(p[:, 1:])
        second = torch.where(logits[:, 1:] == MINUS_INFINITY, 0.0, second)
        second = torch.where(logits[:, :1] == MINUS_INFINITY, 1.0, second)
        return torch.cat([1 - second, second], dim=1)


class OddsColumns(nn.Module):
    """Log-odds of each class against the rest through its own curve; under softmax the logarithms of what comes out.

    Those are calibrated logits: their softmax is the row of one-vs-rest probabilities scaled to sum to one, in
    logarithms, so that no row vanishes.
    """

    def __init__(self, curve: nn.Module, head: str = "softmax") -> None:
        super().__init__()
        self.curve = curve
        self.head = head

    def forward(self, logits: Tensor) -> Tensor:
        masked = logits == MINUS_INFINITY
        odds = logits if self.head == "sigmoid" else log_odds(logits)
        moved = self.curve(odds.clamp(-FURTHEST, FURTHEST))
        if self.head == "sigmoid":
            return moved
        return torch.where(masked, MINUS_INFINITY, log_sigmoid(moved))


class TopConfidence(nn.Module):
    """The largest probability through a curve; the rest is spread over the other classes in proportion.

    The curve takes the probability, or its log-odds. A row with one unmasked class has nothing to spread to.
    """

    def __init__(self, curve: nn.Module, *, of_log_odds: bool = False) -> None:
        super().__init__()
        self.curve = curve
        self.of_log_odds = of_log_odds

    def forward(self, logits: Tensor) -> Tensor:
        top, index = logits.max(1, keepdim=True)
        is_top = torch.zeros_like(logits).scatter(1, index, 1.0) > 0
        others = torch.where(is_top, MINUS_INFINITY, logits)
        runner_up = others.amax(1, keepdim=True)
        alone = runner_up == MINUS_INFINITY
        ratios = (others - torch.where(alone, 0.0, runner_up)).exp()  # others relative to the largest of them
        sum_of_ratios = ratios.sum(1, keepdim=True)
        odds = top - (torch.where(alone, 0.0, runner_up) + sum_of_ratios.log())
        value = self.curve(odds.clamp(-FURTHEST, FURTHEST) if self.of_log_odds else torch.sigmoid(odds))
        value = torch.where(alone, 1.0, value)
        spread = ratios / torch.where(alone, 1.0, sum_of_ratios)
        return torch.where(is_top, value, (1 - value) * spread)
