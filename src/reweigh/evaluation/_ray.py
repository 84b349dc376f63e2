"""The sums of a stream, shard by shard over a Ray cluster: the one that runs, or one on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import InputError, need
from ..files import Plan, merge_seen
from ._choice import Asked
from ._streaming import Sums, sums_of

AT_ONCE = 4  # shards waiting for each processor: enough to keep it busy, few enough to keep memory flat


def ray_sums(plan: Plan, rows: int, chosen: Sequence[Asked], by: Sequence[str], seed: int, groups: int) -> Sums:
    """The sums of all shards, each of which some worker read; equal to those of a single process."""
    ray = need("ray", "scale", "evaluating over a cluster")
    started = not ray.is_initialized()
    if started:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        return _gathered(ray, plan, rows, chosen, by, seed, groups)
    finally:
        if started:
            ray.shutdown()


def _gathered(
    ray: Any, plan: Plan, rows: int, chosen: Sequence[Asked], by: Sequence[str], seed: int, groups: int
) -> Sums:
    @ray.remote
    def one_shard(plan: Plan, shard: int) -> Any:
        seen: dict = {}
        try:
            return sums_of(plan.batches(shard, rows, seen), shard, chosen, by, seed, groups), seen, None
        except InputError as error:  # a bad file is said here as it would be without a cluster
            return None, seen, str(error)

    shared = ray.put(plan)
    limit = AT_ONCE * max(1, int(ray.cluster_resources().get("CPU", 1)))
    total, seen = Sums(chosen, groups, by), {}
    waiting: list[Any] = []
    done: dict[int, Any] = {}
    numbers: dict[Any, int] = {}
    next_shard, merged = 0, 0
    while merged < len(plan):
        while next_shard < len(plan) and len(waiting) < limit:
            task = one_shard.remote(shared, next_shard)
            numbers[task], next_shard = next_shard, next_shard + 1
            waiting.append(task)
        (ready,), waiting = ray.wait(waiting, num_returns=1)
        done[numbers.pop(ready)] = ray.get(ready)
        while merged in done:  # in the order of the shards, so that the same sums come out every time
            sums, repeats, error = done.pop(merged)
            if error is not None:
                raise InputError(error)
            total.merge(sums)
            merge_seen(seen, repeats)
            merged += 1
    return total
