"""When two tensors agree, and the sentence for where they do not."""

from __future__ import annotations

import torch
from torch import Tensor

from ._report import Broken

# Relative agreement with float64: of values and of gradients, by the type of the logits. Costs of half-precision
# logits are computed in float32; their gradient is rounded to the logits' type.
VALUES = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 1e-5, torch.float16: 1e-5}
GRADIENTS = {torch.float64: 1e-7, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}
# Far below the 1e-12 that the documentation promises: what a small cost or gradient loses here, 1 - exp(log_p) lost.
ABSOLUTE = 1e-20
# Beyond these magnitudes only finiteness is asked for.
COMPARABLE = {torch.float64: 1e300, torch.float32: 1e37, torch.bfloat16: 1e37, torch.float16: 1e4}


def word(dtype: torch.dtype) -> str:
    """float32, not torch.float32."""
    return str(dtype).removeprefix("torch.")


def demand(truth: object, words: str) -> None:
    """Break the contract with this sentence unless `truth` holds."""
    if not truth:
        raise Broken(words)


def _where(wrong: Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in wrong.nonzero()[0])


def demand_finite(found: Tensor, what: str, *, mend: str) -> None:
    """No NaN, no infinity."""
    bad = ~torch.isfinite(found.detach())
    if bool(bad.any()):
        place = _where(bad)
        raise Broken(f"{what} is {float(found[place])} at {place}. {mend}")


def demand_equal(found: Tensor, expected: Tensor, what: str, *, mend: str) -> None:
    """The same bits."""
    demand(found.shape == expected.shape, f"{what}: shape {tuple(found.shape)}, expected {tuple(expected.shape)}.")
    wrong = ~((found == expected) | (torch.isnan(found) & torch.isnan(expected)))
    if bool(wrong.any()):
        place = _where(wrong)
        raise Broken(f"{what} at {place}: {float(found[place])!r}, then {float(expected[place])!r}. {mend}")


def demand_close(
    found: Tensor,
    expected: Tensor,
    what: str,
    *,
    relative: float,
    absolute: float | Tensor = ABSOLUTE,
    within: float = float("inf"),
    where: Tensor | None = None,
    mend: str = "",
) -> None:
    """|found - expected| <= relative |expected| + absolute at every entry where |expected| < within.

    `found` and `expected` must be of one shape; the comparison is made in float64 on the CPU. `where` (broadcast)
    leaves entries out.
    """
    demand(found.shape == expected.shape, f"{what}: shape {tuple(found.shape)}, expected {tuple(expected.shape)}.")
    left, right = found.detach().double().cpu(), expected.detach().double().cpu()
    off = (left - right).abs()
    wrong = ~(off <= relative * right.abs() + absolute) & ~(right.abs() >= within)
    wrong = wrong if where is None else wrong & where.expand(wrong.shape)
    if not bool(wrong.any()):
        return
    worst = torch.where(wrong & torch.isfinite(off), off / right.abs().clamp(min=1e-300), -1.0)
    worst = torch.where(wrong & ~torch.isfinite(off), torch.inf, worst)
    place = _where(worst == worst.max())
    words = f"{what} at {place}: got {float(left[place])!r}, expected {float(right[place])!r}"
    raise Broken(f"{words} ({int(wrong.sum())} of {wrong.numel()} entries differ by more than {relative:g}). {mend}")
