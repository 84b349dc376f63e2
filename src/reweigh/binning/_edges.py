"""Edges and membership: which bin a number belongs to when the edges are known."""

from __future__ import annotations

import torch

from ..errors import bad_input

Tensor = torch.Tensor


def width_edges(bins: int, *, device: torch.device | str | None = None) -> Tensor:
    """(bins + 1,) the float64 quotients k / bins: the product k * (1 / bins) misses some by a unit in the last place."""
    return torch.arange(bins + 1, dtype=torch.float64, device=device) / bins


def members(values: Tensor, edges: Tensor, *, closed: str = "right") -> Tensor:
    """The bin of each value: (e_b, e_b+1] for closed="right", [e_b, e_b+1) for "left".

    What lies on or outside the outermost edges belongs to the end bins, so that nothing is lost.
    """
    if closed not in ("right", "left"):
        raise bad_input("placing values in bins", came=f"closed={closed!r}", expected="'right' or 'left'")
    inner = edges[1:-1].to(values.dtype) if values.dtype == torch.float64 else edges[1:-1].double()
    return torch.searchsorted(inner.contiguous(), values.double().contiguous(), right=closed == "left")


def width_members(values: Tensor, bins: int, *, closed: str = "right") -> Tensor:
    """The same for equal widths, by a product; only values whose product is next to an integer see the true edges."""
    if closed not in ("right", "left"):
        raise bad_input("placing values in bins", came=f"closed={closed!r}", expected="'right' or 'left'")
    values = values.double()
    scaled = values * bins
    nearest = scaled.round()
    place = scaled.ceil().sub_(1) if closed == "right" else scaled.floor()
    index = place.clamp_(0, bins - 1).long()
    close = (scaled.sub_(nearest)).abs_() <= 1e-14 * bins  # a product is off by one unit in the last place
    if bool(close.any()):
        rows = torch.nonzero(close.reshape(-1)).squeeze(1)
        index.view(-1)[rows] = members(values.reshape(-1)[rows], width_edges(bins, device=values.device), closed=closed)
    return index


def split_edges(values: Tensor, bins: int) -> Tensor:
    """0, the midpoints between neighbouring chunks of the sorted values cut as `numpy.array_split` does, 1.

    Duplicate inner edges are merged, so that there may be fewer bins than asked for. Where values equal to 0 fill more
    than a chunk, 0 is also an inner edge: the lowest bin then holds nothing else.
    """
    ordered = torch.sort(values.double()).values
    starts = chunk_starts(len(ordered), min(bins, max(1, len(ordered))))[1:].to(values.device)
    inner = (ordered[starts - 1] + ordered[starts]) / 2
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64, device=values.device)
    inner = torch.unique(inner)
    return torch.cat([ends[:1], inner[(inner >= 0) & (inner < 1)], ends[1:]])


def chunk_starts(count: int, chunks: int) -> Tensor:
    """Where each chunk of `numpy.array_split` begins: the first count % chunks are one longer."""
    size, longer = divmod(count, chunks)
    number = torch.arange(chunks)
    return number * size + number.clamp(max=longer)


def interpolated_edges(values: Tensor, bins: int) -> Tensor:
    """(bins + 1,) the sorted values interpolated linearly at the positions k n / bins, the last one clamped."""
    ordered = torch.sort(values.double()).values
    count = len(ordered)
    place = torch.linspace(0, count, bins + 1, dtype=torch.float64, device=values.device).clamp(max=count - 1)
    below = place.floor().long()
    above = (below + 1).clamp(max=count - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
