"""Two and four ranks with uneven and empty shards cost what the single batch costs, for every form of every loss.

One set of processes a world size serves all losses; a loss of its own for each would spend a minute on starting them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

import reweigh
from reweigh import registry
from reweigh.testing import Subject, variants
from reweigh.testing._subject import draw

sys.path.insert(0, str(Path(__file__).parent))  # the processes that are started import it too
import rank_worker

NAMES = [entry.name for entry in registry.entries("loss") if entry.thing is None]

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo here")


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_together_equal_the_single_batch(world, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    meeting = str(tmp_path / "meeting")
    torch.multiprocessing.spawn(rank_worker.run, args=(world, meeting, str(tmp_path)), nprocs=world)
    found = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(world)]
    assert [one["said"] for one in found] == [[]] * world, "\n".join(sorted({w for one in found for w in one["said"]}))
    assert {one["number"] for one in found} == {sum(len(variants(name)) for name in NAMES) + 1}


COLLECTIVES = [
    name
    for name in ("all_reduce", "all_gather", "all_gather_into_tensor", "broadcast", "barrier", "reduce", "send", "recv",
                 "gather", "scatter", "reduce_scatter", "all_to_all", "all_gather_object", "get_world_size")
    if hasattr(dist, name)
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_without_a_group_nothing_communicates(name, monkeypatch):
    def refuse(*arguments, **keywords):
        raise AssertionError("a collective was called without a process_group")

    for collective in COLLECTIVES:
        monkeypatch.setattr(dist, collective, refuse)
    for form in variants(name):
        subject = Subject(form.label, form.loss, torch.device("cpu"))
        data = draw(subject, 8)
        z = data.logits.clone().requires_grad_()
        loss = subject.built()
        loss(z, data.target).backward()
        assert z.grad is not None
        if loss.rule.observe is not None:
            loss.observe(data.logits, data.target)
        loss.advance(1)


def test_the_word_travels_and_a_group_does_not(tmp_path):
    import copy
    import pickle

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        word, group = reweigh.losses.focal(process_group="world"), reweigh.losses.focal(process_group=dist.group.WORLD)
        for copied in (copy.deepcopy, lambda loss: pickle.loads(pickle.dumps(loss))):  # noqa: S301
            assert copied(word).process_group == "world"
            assert copied(group).process_group is None
        z, y = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
        assert torch.equal(word(z, y), group(z, y))
    finally:
        dist.destroy_process_group()
