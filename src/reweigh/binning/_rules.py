"""The rules that cut confidences into bins, by name; each returns the bin of every value.

Equal widths have edges that do not depend on the data. All others follow the sorted confidences; they differ
in what they do with remainders and ties, and published numbers differ with them.
"""

from __future__ import annotations

from numbers import Real
from typing import Any, NamedTuple

import torch

from ..errors import bad_input, unknown_name
from ._edges import chunk_starts, interpolated_edges, members, width_members
from ._sweep import sweep_mass, sweep_width
from ._variable import variable_starts

Tensor = torch.Tensor


class Bins(NamedTuple):
    """The bin of every value, -1 for the few that a published program loses, and the number of bins."""

    index: Tensor
    count: int


class Request(NamedTuple):
    """What a rule may look at."""

    values: Tensor  # (n,) float64
    bins: int
    closed: str
    correct: Tensor | None
    max_bins: int | None
    parity: str | None


def _width(ask: Request) -> Bins:
    return Bins(width_members(ask.values, ask.bins, closed=ask.closed), ask.bins)


def by_rank(values: Tensor, of_rank: Tensor) -> Tensor:
    """Bins given by rank, handed to the values; a stable sort keeps tied values in the order of their rows."""
    order = torch.sort(values, stable=True).indices
    return torch.empty_like(order).scatter_(0, order, of_rank.to(order))


def _mass(ask: Request) -> Bins:
    """Rank i is in bin floor(i bins / n)."""
    count = len(ask.values)
    return Bins(by_rank(ask.values, torch.arange(count) * ask.bins // max(1, count)), ask.bins)


def _mass_split(ask: Request) -> Bins:
    """Chunks of the sorted values as `numpy.array_split` cuts them."""
    ranks = torch.arange(len(ask.values))
    return Bins(
        by_rank(ask.values, torch.searchsorted(chunk_starts(len(ranks), ask.bins), ranks, right=True) - 1), ask.bins
    )


def _mass_interpolated(ask: Request) -> Bins:
    """(l, u] between interpolated quantiles; `parity="official"` loses whatever equals the lowest edge."""
    edges = interpolated_edges(ask.values, ask.bins)
    index = members(ask.values, edges)
    if ask.parity == "official":
        index = index.masked_fill(ask.values <= edges[0], -1)
    return Bins(index, ask.bins)


def _mass_tied(ask: Request) -> Bins:
    """Cuts at the distinct values of sorted[floor(k n / bins)]: equal values are never parted."""
    ordered = torch.sort(ask.values).values
    starts = torch.arange(1, ask.bins) * len(ordered) // ask.bins
    cuts = torch.unique(ordered[starts.to(ordered.device)])
    cuts = cuts[cuts > ordered[0]]
    return Bins(torch.searchsorted(cuts, ask.values, right=True), len(cuts) + 1)


def _mass_order(ask: Request) -> Bins:
    """[l, u) between the order statistics at floor(linspace(0, n - 1, bins + 1)); the last bin holds its edge."""
    ordered = torch.sort(ask.values).values
    places = torch.linspace(0, len(ordered) - 1, ask.bins + 1, dtype=torch.float64).floor().long()
    return Bins(members(ask.values, ordered[places.to(ordered.device)], closed="left"), ask.bins)


def _correct(ask: Request) -> Tensor:
    if ask.correct is None:
        raise bad_input(
            "choosing bins by a monotone sweep", came="no correctness", expected="correct=, one number a value"
        )
    return ask.correct


def _sweep(ask: Request) -> Bins:
    count = len(ask.values)
    order = torch.sort(ask.values, stable=True).indices
    bins = sweep_mass(_correct(ask)[order], ask.max_bins)
    return Bins(by_rank(ask.values, torch.arange(count) * bins // max(1, count)), bins)


def _sweep_width(ask: Request) -> Bins:
    bins = sweep_width(ask.values, _correct(ask), ask.max_bins)
    return Bins((ask.values * bins).long().clamp(0, bins - 1), bins)


def _variable(ask: Request) -> Bins:
    """Bins grown from the top confidence down until they hold enough rows for their width."""
    order = torch.sort(ask.values, descending=True, stable=True).indices
    starts = variable_starts(ask.values[order])
    ranks = torch.arange(len(order))
    index = torch.empty_like(order).scatter_(0, order, (torch.searchsorted(starts, ranks, right=True) - 1).to(order))
    return Bins(index, len(starts))


# name -> rule; only equal widths have a form for weighted rows
RULES = {
    "width": _width,
    "mass": _mass,
    "mass_interpolated": _mass_interpolated,
    "mass_split": _mass_split,
    "mass_tied": _mass_tied,
    "mass_order": _mass_order,
    "sweep": _sweep,
    "sweep_width": _sweep_width,
    "variable": _variable,
}


def is_count(value: Any) -> bool:
    """Whether this is a whole number of at least 1; 15.0 is one, True, NaN and "15" are not."""
    return isinstance(value, Real) and not isinstance(value, bool) and float(value) >= 1 and float(value) % 1 == 0


def check_parity(parity: Any, binning: str, doing: str) -> None:
    """Only one rule has a published program that differs from its definition."""
    if parity not in (None, "official") or (parity and binning != "mass_interpolated"):
        raise bad_input(
            doing, came=f"parity={parity!r} with binning={binning!r}", expected="'official' with 'mass_interpolated'"
        )


def assign(
    values: Tensor,
    *,
    bins: int = 15,
    binning: str = "width",
    closed: str = "right",
    correct: Tensor | None = None,
    max_bins: int | None = None,
    parity: str | None = None,
) -> Bins:
    """The bin of each of the (n,) values under the named rule.

    `closed` decides equal-width edges; the other rules bring their own. `correct` and `max_bins` serve the sweeps,
    which choose the number of bins themselves; `parity="official"` serves "mass_interpolated".
    """
    doing = "placing values in bins"
    if binning not in RULES:
        raise unknown_name("binning", str(binning), RULES)
    if not is_count(bins):
        raise bad_input(doing, came=f"bins={bins!r}", expected="a whole number of at least 1")
    if closed not in ("right", "left"):
        raise bad_input(doing, came=f"closed={closed!r}", expected="'right' or 'left'")
    if max_bins is not None and not is_count(max_bins):
        raise bad_input(doing, came=f"max_bins={max_bins!r}", expected="a whole number of at least 1, or None")
    check_parity(parity, binning, doing)
    if len(values) == 0:
        raise bad_input(doing, came="no values", expected="at least one")
    return RULES[binning](
        Request(values.double(), int(bins), closed, correct, None if max_bins is None else int(max_bins), parity)
    )
