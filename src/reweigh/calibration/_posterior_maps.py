"""Closed forms of the posterior map of binary losses: what a head trained with the loss means by its logit.

The conditional risk q L+ + (1 - q) L- is least where q g+ = (1 - q) g-, with g the size of the derivative in p. So
log q / (1 - q) = log g- - log g+, here as a function of the logit z, in logarithms throughout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import bad_input, unknown_name
from ._maps import log_sigmoid, softplus

Map = Callable[[Tensor], Tensor]
# Inverse focal costs fall in p only below this exponent, 1 / W(1 / e).
INVERSE_LIMIT = 3.5911214766686221
LOWEST = -700.0  # stands for a posterior of exactly 0


def log_softplus(z: Tensor) -> Tensor:
    """log log(1 + e^z), also where e^z underflows."""
    low = z < -30
    return torch.where(low, z - 0.5 * z.clamp(max=-30).exp(), softplus(z.clamp(min=-30)).log())


def log_sum(a: Tensor, b: Tensor) -> Tensor:
    """log(e^a + e^b)."""
    return torch.maximum(a, b) + torch.log1p((-(a - b).abs()).exp())


def focal_slope(z: Tensor, gamma: float, detached: bool = False) -> Tensor:
    """log of (1-p)^g / p + g (1-p)^(g-1) (-log p), p = sigmoid(z): focal's derivative where the label is present.

    `detached` leaves out the second term, as training does that holds the weight constant.
    """
    log_p, log_rest = log_sigmoid(z), log_sigmoid(-z)
    first = gamma * log_rest - log_p
    if gamma == 0 or detached:
        return first
    return log_sum(first, math.log(gamma) + (gamma - 1) * log_rest + log_softplus(-z))


def inverse_slope(z: Tensor, gamma: float, detached: bool = False) -> Tensor:
    """log of (1+p)^g / p + g (1+p)^(g-1) log p: inverse focal's derivative where the label is present."""
    p, log_p = torch.sigmoid(z), log_sigmoid(z)
    if detached:
        return gamma * torch.log1p(p) - log_p
    # (1+p)^(g-1) ((1 + p) / p + g log p) = (1+p)^(g-1) (1 + p + g p log p) / p
    return (gamma - 1) * torch.log1p(p) + torch.log1p(p + gamma * p * log_p) - log_p


def _binary_cross_entropy(positive_weight: float = 1.0) -> Map:
    shift = math.log(positive_weight)
    return lambda z: z - shift


def _binary_focal(gamma: float = 2.0, alpha: float | None = None, detached: bool = False) -> Map:
    shift = 0.0 if alpha is None else math.log(alpha) - math.log1p(-alpha)
    return lambda z: focal_slope(-z, gamma, detached) - focal_slope(z, gamma, detached) - shift


def _binary_inverse_focal(gamma: float = 1.0, detached: bool = False) -> Map:
    if not detached and not gamma < INVERSE_LIMIT:
        raise _no_map(
            "binary_inverse_focal", f"gamma={gamma:g}", f"below {INVERSE_LIMIT:.4f}: above it a cost rises with p"
        )
    return lambda z: inverse_slope(-z, gamma, detached) - inverse_slope(z, gamma, detached)


def _exponential(positive_weight: float = 1.0, negative_weight: float = 1.0, saturation: str = "linear") -> Map:
    shift = math.log(positive_weight) - math.log(negative_weight)
    return lambda z: 2 * z - shift


def _focal_exponential(gamma: float = 2.0, saturation: str = "linear", detached: bool = False) -> Map:
    return lambda z: focal_slope(-z, gamma, detached) + 2 * log_sigmoid(z)


def _balanced_exponential(saturation: str = "linear") -> Map:
    return lambda z: 2 * log_sigmoid(z) - log_sigmoid(-z)


def _exponential_focal(gamma: float = 2.0, saturation: str = "linear", detached: bool = False) -> Map:
    return lambda z: -2 * log_sigmoid(-z) - focal_slope(z, gamma, detached)


def _power(r: float = 0.7) -> Map:
    if not r < 1:
        raise _no_map(
            "power", f"r={r:g}", "below 1: at 1 every posterior has the same best p, above it the order turns"
        )
    return lambda z: (1 - r) * z


def _asymmetric(
    gamma_negative: float = 4.0,
    gamma_positive: float = 1.0,
    margin: float = 0.05,
    variant: str = "official",
    detached: bool = False,
) -> Map:
    if variant not in ("official", "lfa"):
        raise bad_input("building PosteriorCorrection", came=f"variant={variant!r}", expected="'official' or 'lfa'")
    make = _official_asymmetric if variant == "official" else _lfa_asymmetric
    return make(gamma_negative, gamma_positive, margin, detached)


def _official_asymmetric(gamma_negative: float, gamma_positive: float, margin: float, detached: bool) -> Map:
    """L+ = (1-p)^g+ (-log p), L- = s^g- (-log(1 - s)), s = max(p - margin, 0)."""

    def posterior(z: Tensor) -> Tensor:
        p = torch.sigmoid(z)
        # 1 - s = min(1 - p + margin, 1)
        rest = (torch.sigmoid(-z) + margin).clamp(max=1.0)
        shifted = p - margin
        inside = shifted > 0
        log_s, log_rest = torch.where(inside, shifted, 1.0).log(), torch.where(inside, rest, 0.5).log()
        negative = gamma_negative * log_s - log_rest
        positive = gamma_positive * log_sigmoid(-z) - log_sigmoid(z)
        if not detached:
            positive = focal_slope(z, gamma_positive)
            if gamma_negative > 0:
                extra = math.log(gamma_negative) + (gamma_negative - 1) * log_s + (-log_rest).log()
                negative = log_sum(negative, extra)
        return torch.where(inside, (negative - positive).clamp(min=LOWEST), LOWEST)

    return posterior


def _lfa_asymmetric(gamma_negative: float, gamma_positive: float, margin: float, detached: bool) -> Map:
    """L+ = a^g+ (-log p), L- = p^g- (-log a), a = min(1 - p + margin, 1)."""

    def posterior(z: Tensor) -> Tensor:
        log_p = log_sigmoid(z)
        inside = torch.sigmoid(z) > margin
        log_a = torch.where(inside, (torch.sigmoid(-z) + margin).clamp(max=1.0), 0.5).log()
        positive = gamma_positive * log_a - log_p
        negative = gamma_negative * log_p - log_a
        if not detached:
            if gamma_positive > 0:
                extra = math.log(gamma_positive) + (gamma_positive - 1) * log_a + log_softplus(-z)
                positive = log_sum(positive, extra)
            if gamma_negative > 0:
                extra = math.log(gamma_negative) + (gamma_negative - 1) * log_p + (-log_a).log()
                negative = log_sum(negative, extra)
        return torch.where(inside, (negative - positive).clamp(min=LOWEST), LOWEST)

    return posterior


# full name of a loss -> its map from settings
MAPS: dict[str, Callable[..., Map]] = {
    "binary_cross_entropy": _binary_cross_entropy,
    "binary_focal": _binary_focal,
    "binary_inverse_focal": _binary_inverse_focal,
    "exponential_cross_entropy": _exponential,
    "focal_exponential": _focal_exponential,
    "balanced_exponential": _balanced_exponential,
    "exponential_focal": _exponential_focal,
    "power": _power,
    "asymmetric": _asymmetric,
}
# keywords that every loss takes and that do not move the posterior
COMMON = ("reduction", "ignore_index", "class_weight", "validate", "process_group", "targets")
# the papers' abbreviations, compared without case, hyphens, underscores and blanks
ALIASES = {
    "bce": "binary_cross_entropy",
    "ece": "exponential_cross_entropy",
    "fece": "focal_exponential",
    "bece": "balanced_exponential",
    "ecef": "exponential_focal",
    "asl": "asymmetric",
}


def posterior_map(loss: str, settings: Mapping[str, Any]) -> Map:
    """The map of a named loss under its settings; settings without an influence on it are left aside."""
    plain = "".join(letter for letter in loss.casefold() if letter not in "-_ ")
    names = {name.replace("_", ""): name for name in MAPS}
    name = names.get(plain) or ALIASES.get(plain)
    if name is None:
        raise unknown_name("binary loss with a closed posterior map", loss, [*MAPS, "BCE", "ECE", "F-ECE", "ASL"])
    make = MAPS[name]
    known = make.__code__.co_varnames[: make.__code__.co_argcount]
    for word, value in settings.items():
        if word not in known and word not in COMMON:
            raise bad_input(
                f"building PosteriorCorrection for {name}",
                came=f"the setting {word!r}",
                expected=f"one of {', '.join(known)}",
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise bad_input(
                f"building PosteriorCorrection for {name}", came=f"{word}={value!r}", expected="a finite number"
            )
    settings = {word: value for word, value in settings.items() if word not in COMMON}
    try:
        return make(**settings)
    except (ValueError, TypeError) as error:
        if isinstance(error, ValueError) and "got" in str(error):
            raise
        raise bad_input(
            f"building PosteriorCorrection for {name}",
            came=f"settings {dict(settings)!r} ({error})",
            expected="positive weights, exponents of at least 0 and an alpha between 0 and 1",
        ) from None


def _no_map(name: str, came: str, expected: str) -> Exception:
    return bad_input(f"building PosteriorCorrection for {name}", came=came, expected=expected)
