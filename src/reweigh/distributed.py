"""The few collectives anyone may use, each with an explicit process group.

Nothing here is called unless the user named a group. "world" is resolved at the call, because a group
object cannot be pickled and a word can. Every rank must call, every step, empty shards included.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .errors import bad_input

Group = Any  # a torch.distributed ProcessGroup, or the word "world"


def refuse_other_than_groups(doing: str, process_group: Group) -> None:
    """An error for what is neither a group, the word "world" nor None."""
    if process_group is None or process_group == "world" or isinstance(process_group, _group_types()):
        return
    raise bad_input(
        f"{doing}(process_group=...)",
        came=repr(process_group),
        expected='a torch.distributed ProcessGroup, "world" or None',
    )


def _group_types() -> tuple[type, ...]:
    """What a group may be; builds of torch without distribution have none."""
    return (dist.ProcessGroup,) if dist.is_available() else ()


def resolve(process_group: Group) -> Any:
    """The group object behind a group or the word "world"."""
    if isinstance(process_group, str):
        refuse_other_than_groups("", process_group)
        if not dist.is_initialized():
            raise bad_input(
                'process_group="world"',
                came="no initialised process group",
                expected="a running torch.distributed job",
                mend="Call torch.distributed.init_process_group first, or leave process_group out.",
            )
        return dist.group.WORLD
    return process_group


def world_size(process_group: Group) -> int:
    """How many ranks share the group."""
    return dist.get_world_size(resolve(process_group))


def total(value: Tensor, process_group: Group) -> Tensor:
    """The sum over ranks, without gradient."""
    value = value.detach().clone()
    dist.all_reduce(value, group=resolve(process_group))
    return value


class _GatherRows(torch.autograd.Function):
    """All ranks' padded rows, stacked; the backward pass sums every rank's gradient and keeps this rank's rows."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, group: Any) -> Tensor:
        ctx.group, ctx.rank = group, dist.get_rank(group)
        parts = [torch.empty_like(padded) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, padded.contiguous(), group=group)
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient[ctx.rank], None


def shard_sizes(rows: int, device: torch.device, process_group: Group) -> list[int]:
    """How many rows each rank brings."""
    group = resolve(process_group)
    own = torch.tensor([rows], dtype=torch.int64, device=device)
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, own, group=group)
    return [int(part) for part in parts]


def gather_rows(value: Tensor, sizes: list[int], process_group: Group) -> Tensor:
    """The rows of all ranks, in rank order, differentiable. value (n_rank, ...), n_rank may differ and be 0."""
    group = resolve(process_group)
    missing = max(sizes) - len(value)
    as_bool = value.dtype == torch.bool
    rows = value.to(torch.uint8) if as_bool else value
    padded = torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])]) if missing else rows
    if max(sizes) == 0:
        return value
    stacked = _GatherRows.apply(padded, group)
    joined = torch.cat([part[:size] for part, size in zip(stacked, sizes, strict=True)])
    return joined.bool() if as_bool else joined


def own_rows(sizes: list[int], process_group: Group) -> slice:
    """Which of the gathered rows are this rank's."""
    rank = dist.get_rank(resolve(process_group))
    start = sum(sizes[:rank])
    return slice(start, start + sizes[rank])
