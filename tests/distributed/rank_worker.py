"""What every rank does: each form of each loss, on its shard, against the single batch that it also computes.

Run by `test_ranks.py`, one process a rank. Sentences about what differs go to a file of the rank's own.
"""

from __future__ import annotations

import json
import traceback
import warnings
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import reweigh
from reweigh import registry
from reweigh.testing import Subject, variants
from reweigh.testing._shapes import labelled
from reweigh.testing._subject import Data, aged, draw

CLOSE = {torch.float64: 1e-10, torch.float32: 1e-6}
# how many rows each rank has, by world size: uneven, and with nothing on a rank
SHARDS = {2: [(5, 4), (0, 9)], 4: [(3, 1, 0, 5), (0, 0, 9, 0)]}
ROWS = 9


def run(rank: int, world: int, meeting: str, folder: str) -> None:
    """Meet the other ranks, compare everything, write what differs."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=world, timeout=timedelta(seconds=120)
    )
    said, number = [], 0
    try:
        for label, differences in everything(rank, world):
            number += 1
            said += [f"{label}: {words}" for words in differences]
    except Exception:
        said.append(traceback.format_exc())
    Path(folder, f"rank-{rank}.json").write_text(json.dumps({"said": said, "number": number}))
    dist.destroy_process_group()


def everything(rank: int, world: int) -> Iterator[tuple[str, list[str]]]:
    """Each form of each loss with what differs; every rank goes through the same list in the same order."""
    for name in [entry.name for entry in registry.entries("loss") if entry.thing is None]:
        for number, form in enumerate(variants(name)):
            subject = Subject(form.label, aged(form.loss), torch.device("cpu"), full=number == 0)
            yield form.label, list(compare(subject, rank, world))
    yield "a training step", list(training_step(rank, world))


def slice_of(sizes: tuple[int, ...], rank: int) -> slice:
    return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))


def whole_batch(subject: Subject, dtype: torch.dtype, *, ignored: tuple[int, ...] = (), soft: bool = False) -> Data:
    data = draw(subject, ROWS, seed=5)
    target = data.target.clone()
    if soft:
        share = labelled(data) + 0.2
        target = share / share.sum(1, keepdim=True)
    elif subject.rule.head != "boxes":
        target[list(ignored)] = -100
    return Data(data.logits.to(dtype), target.to(dtype) if target.is_floating_point() else target)


def cases(subject: Subject) -> Iterator[tuple[str, Data, dict, dict, torch.Tensor | None]]:
    """What is compared: words, the whole batch, keywords of the loss, keywords of the call, sample weights."""
    weight = torch.linspace(0.5, 2.0, ROWS, dtype=torch.float64)
    data = whole_batch(subject, torch.float64, ignored=(1, 8))
    classes = {}
    if subject.rule.head != "boxes" and not subject.rule.per_row:
        classes = {"class_weight": torch.linspace(0.2, 2.0, data.logits.shape[1], dtype=torch.float64)}
    yield "mean, weights, ignored rows", data, {"reduction": "mean", **classes}, {}, weight
    if not subject.full:  # the other forms of a loss differ in their cost, not in what is done with it
        return
    yield "sum", data, {"reduction": "sum"}, {}, None
    yield "none", data, {"reduction": "none"}, {}, weight
    yield "float32 mean", whole_batch(subject, torch.float32, ignored=(4,)), {"reduction": "mean"}, {}, None
    yield "normalizer", data, {"reduction": "mean"}, {"normalizer": 7.5}, weight
    if subject.rule.head != "boxes":
        yield "everything ignored", whole_batch(subject, torch.float64, ignored=tuple(range(ROWS))), {}, {}, None
        if subject.rule.soft != "refused" and not subject.rule.coupled and not subject.rule.index_targets:
            yield "soft targets", whole_batch(subject, torch.float64, soft=True), {}, {}, weight


def priced(subject: Subject, data: Data, common: dict, call: dict, weight: torch.Tensor | None):
    """Value and gradient."""
    z = data.logits.clone().requires_grad_()
    value = subject.built(**common)(z, data.target, sample_weight=weight, **call)
    value.sum().backward()
    return value.detach(), z.grad


def compare(subject: Subject, rank: int, world: int) -> Iterator[str]:
    for sizes in SHARDS[world]:
        own = slice_of(sizes, rank)
        for what, data, common, call, weight in cases(subject):
            right, slope = priced(subject, data, common, call, weight)
            shard = Data(data.logits[own], data.target[own])
            own_weight = None if weight is None else weight[own]
            group = "world" if what != "sum" else dist.group.WORLD
            value, gradient = priced(subject, shard, {**common, "process_group": group}, call, own_weight)
            if common.get("reduction") == "none":
                right, slope = right[own], slope[own]
            else:  # what averaging over ranks, as DDP does, makes of it
                dist.all_reduce(value)
                value, gradient, slope = value / world, gradient / world, slope[own]
            where = f"{what}, shards of {sizes}"
            yield from differs(value, right, f"{where}: the value", CLOSE[data.logits.dtype])
            yield from differs(gradient, slope, f"{where}: the gradient", CLOSE[data.logits.dtype])
        yield from observed(subject, own, sizes)


def differs(found: torch.Tensor, right: torch.Tensor, what: str, close: float) -> Iterator[str]:
    if found.shape != right.shape:
        yield f"{what} has shape {tuple(found.shape)}, expected {tuple(right.shape)}"
        return
    if not found.numel():
        return
    off = (found - right).abs().max()
    allowed = close * max(1e-6, float(right.abs().max()))
    if not off <= allowed:
        yield f"{what} is off by {float(off):.3g}, more than {allowed:.3g}"


def observed(subject: Subject, own: slice, sizes: tuple[int, ...]) -> Iterator[str]:
    """observe on shards, by a group of the call or of the loss, equals observe on the whole batch."""
    if subject.rule.observe is None:
        return
    data = draw(subject, ROWS, seed=8)
    whole = subject.built()
    whole.observe(data.logits, data.target)
    by_call, by_loss = subject.built(), subject.built(process_group="world")
    by_call.observe(data.logits[own], data.target[own], process_group="world")
    by_loss.observe([by_loss.evidence(data.logits[own], data.target[own])])
    for how, loss in (("observe(process_group=)", by_call), ("observe of evidence", by_loss)):
        for name, value in loss.state().items():
            right = whole.state()[name]
            if not torch.equal(value.nan_to_num(), right.nan_to_num()):
                yield from differs(
                    value.double().nan_to_num(), right.double().nan_to_num(), f"{how}, shards of {sizes}: {name}", 1e-6
                )


def training_step(rank: int, world: int) -> Iterator[str]:
    """A model under DistributedDataParallel has the gradient of the single batch, rows ignored unevenly."""
    x = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.arange(ROWS) % 4
    y[6:8] = -100
    own = slice_of(SHARDS[world][0], rank)
    for settings in ({"name": "focal"}, {"name": "selective_risk", "estimator": "exact"}):
        loss = reweigh.loss(**settings, class_weight=[1.0, 2.0, 0.5, 1.0])
        together = reweigh.loss(**settings, class_weight=[1.0, 2.0, 0.5, 1.0], process_group="world")
        torch.manual_seed(1)
        alone = torch.nn.Linear(6, 4).double()
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(6, 4).double())
        model.module.load_state_dict(alone.state_dict())
        loss(alone(x), y).backward()
        together(model(x[own]), y[own]).backward()
        yield from differs(model.module.weight.grad, alone.weight.grad, f"{settings}: the weights' gradient", 1e-10)
