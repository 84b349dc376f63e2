"""As many digits as the interval supports: 0.053 [0.049, 0.057], not 0.053172."""

from __future__ import annotations

import math


def places(low: float, high: float) -> int:
    """Decimal places in which half the width of the interval has one significant digit, two where that digit is 1."""
    half = abs(high - low) / 2
    if not (math.isfinite(half) and half > 0):
        return 4
    exponent = math.floor(math.log10(half))
    leading = half / 10**exponent
    return max(0, min(12, -exponent + (1 if leading < 2 else 0)))


def number(value: float | None, decimals: int | None = None) -> str:
    """One number; without a known precision five significant digits."""
    if value is None:
        return "-"
    if math.isnan(value):
        return "undefined"
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    if decimals is None:
        return f"{value:.5g}"
    text = f"{value:.{decimals}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def with_interval(value: float | None, low: float | None, high: float | None) -> tuple[str, str]:
    """The value and its interval in the digits that it supports; an empty text where there is no interval."""
    if value is None or low is None or high is None or math.isnan(low) or math.isnan(high):
        return number(value), ""
    decimals = places(low, high) if math.isfinite(value) else None
    return number(value, decimals), f"[{number(low, decimals)}, {number(high, decimals)}]"
