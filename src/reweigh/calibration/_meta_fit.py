"""What the two meta-calibrators share: entropy, the uniform distribution for rejected rows, the base temperature."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from ._maps import MINUS_INFINITY, buffer
from ._rows import Rows
from ._temperature_scaling import most_likely


def entropy(logits: Tensor) -> Tensor:
    """(n,) entropy in nats of the softmax of float64 logits, to full relative precision near 0."""
    top, index = logits.max(1, keepdim=True)
    is_top = torch.zeros_like(logits).scatter(1, index, 1.0) > 0
    away = torch.where(is_top | (logits == MINUS_INFINITY), MINUS_INFINITY, logits - top)
    weight = away.exp()
    rest = weight.sum(1)
    return torch.log1p(rest) - (weight * torch.where(away == MINUS_INFINITY, 0.0, away)).sum(1) / (1 + rest)


def entropy_of_rows(rows: Rows) -> Tensor:
    """(n,) float64."""
    return torch.cat([entropy(rows.logits[block].double()) for block in rows.blocks()])  # type: ignore[index]


class Meta(nn.Module):
    """softmax(z / T) where the entropy of softmax(z) is below a threshold, else uniform over the unmasked classes."""

    temperature: Tensor
    threshold: Tensor

    def __init__(self, temperature: float, threshold: float) -> None:
        super().__init__()
        self.register_buffer("temperature", buffer(temperature))
        self.register_buffer("threshold", buffer(threshold))

    def forward(self, logits: Tensor) -> Tensor:
        accepted = (entropy(logits) < self.threshold).unsqueeze(1)
        kept = (logits != MINUS_INFINITY).to(logits.dtype)
        tempered = torch.softmax((logits - logits.amax(1, keepdim=True)) / self.temperature, dim=1)
        return torch.where(accepted, tempered, kept / kept.sum(1, keepdim=True))


def base_temperature(rows: Rows, chosen: Tensor, name: str) -> float:
    """The maximum-likelihood temperature of the chosen rows; 1 where there are none."""
    if not bool(chosen.any()):
        warnings.warn(
            f"{name}: no row with an entropy below the threshold is left for the temperature, which stays 1.",
            UserWarning,
            stacklevel=3,
        )
        return 1.0
    found = most_likely(rows.take(chosen))
    if found.warning:
        warnings.warn(f"{name}, its temperature: {found.warning}", UserWarning, stacklevel=3)
    return found.temperature
