"""The recorder on one rank and on several, ended, interrupted, killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy
import pytest
import torch

import reweigh
from reweigh.errors import InputError

RANDOM = numpy.random.default_rng(0)
LOGITS = RANDOM.normal(size=(101, 4)).astype("float32")
LABELS = RANDOM.integers(0, 4, 101)


def loop(recorder, rows, batch=8, **more):
    rows = numpy.asarray(rows)
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        recorder.add(torch.from_numpy(LOGITS[part]), torch.from_numpy(LABELS[part]), ids=part, **more)


def check(table, rows=range(101)):
    order = numpy.argsort(numpy.asarray(table.ids))
    assert numpy.asarray(table.ids)[order].tolist() == sorted(rows)
    assert numpy.array_equal(numpy.asarray(table.logits)[order], LOGITS[sorted(rows)])
    assert numpy.asarray(table.targets)[order].tolist() == LABELS[sorted(rows)].tolist()


@pytest.mark.parametrize("ending", [".parquet", ".safetensors", ".npz"])
@pytest.mark.parametrize("rows_per_part", [10, 1000])
def test_one_rank_leaves_one_file(tmp_path, ending, rows_per_part):
    path = tmp_path / f"new folder/val{ending}"
    with reweigh.record(path, rows_per_part=rows_per_part, class_names=list("abcd"), about={"epoch": 3}) as recorder:
        loop(recorder, range(101))
    table = reweigh.open(path)
    check(table)
    assert (table.class_names, table.about) == (tuple("abcd"), {"epoch": 3})
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_all_columns_are_kept(tmp_path):
    with reweigh.record(tmp_path / "a.parquet", head="sigmoid") as recorder:
        recorder.add(
            probabilities=numpy.full((2, 3), 0.5),
            target=numpy.array([[1, 0, 1], [0, 0, 0]]),
            ids=["x", "y"],
            weights=[1.0, 2.0],
            groups={"site": ["n", "s"]},
        )
    table = reweigh.open(tmp_path / "a.parquet")
    assert (table.kind, table.head, table.target_form) == ("probabilities", "sigmoid", "multi_hot")
    assert (table.ids.tolist(), table.weights.tolist(), table.groups["site"].tolist()) == (
        ["x", "y"],
        [1.0, 2.0],
        ["n", "s"],
    )
    with reweigh.record(tmp_path / "b.parquet") as recorder:
        recorder.add(confidence=[0.5, 0.75], correct=[True, False])
    assert reweigh.open(tmp_path / "b.parquet").confidence.tolist() == [0.5, 0.75]


def test_buffers_may_be_used_again(tmp_path):
    buffer, labels = torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)
    with reweigh.record(tmp_path / "a.npz") as recorder:
        for step in range(3):
            buffer.fill_(step)
            recorder.add(buffer.requires_grad_(False), labels)
    assert reweigh.open(tmp_path / "a.npz").logits[:, 0].tolist() == [0.0] * 4 + [1.0] * 4 + [2.0] * 4


def test_ranks_leave_a_shard_each_and_padding_counts_once(tmp_path):
    """101 samples on 4 ranks, padded to 104 as PyTorch's DistributedSampler does."""
    path = tmp_path / "val.parquet"
    padded = [*range(101), 0, 1, 2]
    for rank in range(4):
        with reweigh.record(path, rank=rank, world_size=4, rows_per_part=9) as recorder:
            loop(recorder, padded[rank::4])
    assert sorted(one.name for one in path.iterdir()) == [f"rank-{rank:05d}-of-00004.parquet" for rank in range(4)]
    check(reweigh.open(path))
    parts = list(reweigh.files.batches(path, rows=7))
    check(reweigh.Predictions.concatenate(parts))


def test_missing_ranks_are_named(tmp_path):
    path = tmp_path / "val.parquet"
    for rank in (0, 2):
        with reweigh.record(path, rank=rank, world_size=5) as recorder:
            loop(recorder, range(rank * 10, rank * 10 + 10))
    with pytest.raises(RuntimeError), reweigh.record(path, rank=3, world_size=5, rows_per_part=8) as recorder:
        loop(recorder, range(30, 40))
        raise RuntimeError("out of memory")
    with pytest.raises(
        InputError, match=r"of 5 ranks are missing: 1, 3, 4 \(rank 3 left 2 whole parts\).*partial=True"
    ):
        reweigh.open(path)
    with pytest.raises(InputError, match=r"missing: 1, 3, 4"):
        list(reweigh.files.batches(path))
    check(reweigh.open(path, partial=True), [*range(10), *range(20, 40)])


def test_a_rank_without_rows(tmp_path):
    path = tmp_path / "val.parquet"
    for rank in range(3):
        with reweigh.record(path, rank=rank, world_size=3) as recorder:
            loop(recorder, range(10) if rank == 1 else [])
    check(reweigh.open(path), range(10))
    assert sum(len(part) for part in reweigh.files.batches(path)) == 10
    with pytest.raises(InputError, match=r"nothing was added"), reweigh.record(tmp_path / "alone.parquet"):
        pass


def test_the_same_id_with_another_content(tmp_path):
    for what, change in {
        "logits": {"logits": LOGITS[:4] + 1},
        "target": {"target": (LABELS[:4] + 1) % 4},
        "weight": {"weights": [2.0] * 4},
    }.items():
        path = tmp_path / f"{what}.parquet"
        for rank in range(2):
            columns = {"logits": LOGITS[:4], "target": LABELS[:4], "weights": [1.0] * 4, **(change if rank else {})}
            with reweigh.record(path, rank=rank, world_size=2) as recorder:
                recorder.add(columns["logits"], columns["target"], weights=columns["weights"], ids=numpy.arange(4))
        with pytest.raises(InputError, match=f"the id 0 was recorded twice with different {what}"):
            reweigh.open(path)
        with pytest.raises(InputError, match=f"the id 0 was recorded twice with different {what}"):
            list(reweigh.files.batches(path))


def test_rounding_is_not_another_content(tmp_path):
    """One sample in two batches of different size differs in its last digits on most devices."""
    path = tmp_path / "val.parquet"
    for rank in range(2):
        with reweigh.record(path, rank=rank, world_size=2) as recorder:
            recorder.add(LOGITS[:4] * (1 + rank * 1e-6), LABELS[:4], ids=["a", "b", "c", "d"])
    assert numpy.array_equal(reweigh.open(path).logits, LOGITS[:4])


def test_repetitions_within_a_rank(tmp_path):
    """A last batch that is filled up by repeating its own rows, and a sample seen in two epochs."""
    with reweigh.record(tmp_path / "a.parquet", rows_per_part=6) as recorder:
        loop(recorder, [0, 1, 2, 3, 4, 0, 1, 0], batch=8)
        loop(recorder, [3, 4, 5, 6, 7], batch=3)
    check(reweigh.open(tmp_path / "a.parquet"), range(8))
    with (
        pytest.raises(InputError, match=r"the id 1 was recorded twice"),
        reweigh.record(tmp_path / "b.parquet") as recorder,
    ):
        recorder.add(LOGITS[:2], LABELS[:2], ids=[1, 1])


def test_several_ranks_need_ids(tmp_path):
    with (
        pytest.raises(InputError, match=r"got no ids on one of 2 ranks.*unique=True"),
        reweigh.record(tmp_path / "a.parquet", rank=0, world_size=2) as recorder,
    ):
        recorder.add(LOGITS[:2], LABELS[:2])
    for rank in range(2):
        with reweigh.record(tmp_path / "b.parquet", rank=rank, world_size=2, unique=True) as recorder:
            recorder.add(LOGITS[:2], LABELS[:2])
    assert len(reweigh.open(tmp_path / "b.parquet")) == 4


def test_recordings_do_not_mix(tmp_path, monkeypatch):
    path = tmp_path / "val.parquet"

    def written(rank, world=2):
        with reweigh.record(path, rank=rank, world_size=world) as recorder:
            loop(recorder, range(rank * 5, rank * 5 + 5))

    for rank in range(2):
        written(rank)
    written(0)  # a second recording of which only one rank has ended
    with pytest.raises(InputError, match=r"rank-00001-of-00002.parquet belongs to another recording than"):
        reweigh.open(path)
    written(1)
    assert len(reweigh.open(path)) == 10
    monkeypatch.setenv("MASTER_PORT", "12345")  # another run of the launcher
    written(1)
    with pytest.raises(InputError, match=r"belongs to another recording"):
        reweigh.open(path)
    written(0, world=1 + 2)
    with pytest.raises(InputError, match=r"mixes recordings of 2 and of 3 ranks"):
        reweigh.open(path)


def test_shards_of_processes_that_did_not_run_together(tmp_path, monkeypatch):
    from reweigh.files import _recorder

    path = tmp_path / "val.parquet"
    for rank in range(2):
        monkeypatch.setattr(_recorder, "process_started", lambda rank=rank: time.time() + 100 * rank)
        with reweigh.record(path, rank=rank, world_size=2) as recorder:
            loop(recorder, range(rank * 5, rank * 5 + 5))
    with pytest.raises(InputError, match=r"written before other ranks had started"):
        reweigh.open(path)


def test_rank_and_world_come_from_the_launcher(tmp_path, monkeypatch):
    path = tmp_path / "val.parquet"
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        with reweigh.record(path) as recorder:
            loop(recorder, range(rank, 101, 2))
    check(reweigh.open(path))
    monkeypatch.setenv("RANK", "7")
    with pytest.raises(InputError, match=r"rank=7 of world_size=2"):
        reweigh.record(path)
    with pytest.raises(InputError, match=r"expected both or neither"):
        reweigh.record(path, rank=1)


def test_a_file_and_a_folder_do_not_replace_each_other(tmp_path):
    with reweigh.record(tmp_path / "a.parquet") as recorder:
        loop(recorder, range(5))
    with pytest.raises(InputError, match=r"is a file, and 2 ranks write a folder"):
        reweigh.record(tmp_path / "a.parquet", rank=0, world_size=2).__enter__()
    (tmp_path / "b.parquet").mkdir()
    with pytest.raises(InputError, match=r"is a folder, of an earlier recording"):
        reweigh.record(tmp_path / "b.parquet").__enter__()


def test_wrong_use_is_said(tmp_path):
    recorder = reweigh.record(tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"add\(...\) outside the `with` block"):
        recorder.add(LOGITS, LABELS)
    with recorder:
        loop(recorder, range(5))
    with pytest.raises(InputError, match=r"used already"):
        recorder.__enter__()
    with pytest.raises(InputError, match=r"files ending in '.csv' are not written"):
        reweigh.record(tmp_path / "a.csv")
    with pytest.raises(InputError, match=r"rows_per_part=0"):
        reweigh.record(tmp_path / "a.npz", rows_per_part=0)
    with (
        pytest.raises(InputError, match=r"got nan in logits \(row 1, column 0\)"),
        reweigh.record(tmp_path / "b.npz") as recorder,
    ):
        recorder.add(numpy.array([[0.0, 1.0], [numpy.nan, 0.0]]), [0, 1])
    with pytest.raises(InputError, match=r"only some batches have ids"), reweigh.record(tmp_path / "c.npz") as recorder:
        recorder.add(LOGITS[:2], LABELS[:2])
        recorder.add(LOGITS[:2], LABELS[:2], ids=[0, 1])


def test_an_interrupted_recording_leaves_the_old_file_and_its_parts(tmp_path):
    path = tmp_path / "val.parquet"
    with reweigh.record(path) as recorder:
        loop(recorder, range(50))
    with pytest.raises(KeyboardInterrupt), reweigh.record(path, rows_per_part=16) as recorder:
        loop(recorder, range(40))
        raise KeyboardInterrupt
    with pytest.warns(UserWarning, match=r"a later recording to it did not end; 3 whole parts are in"):
        check(reweigh.open(path), range(50))
    path.unlink()
    with pytest.raises(InputError, match=r"its recording did not end; 3 whole parts"):
        reweigh.open(path)
    check(reweigh.open(path, partial=True), range(40))
    with reweigh.record(path) as recorder:
        loop(recorder, range(30))
    check(reweigh.open(path), range(30))
    assert [one.name for one in tmp_path.iterdir()] == ["val.parquet"]


def test_a_full_disk_while_recording(tmp_path, monkeypatch):
    def fails(handle):
        raise OSError(28, "No space left on device")

    path = tmp_path / "val.npz"
    with reweigh.record(path) as recorder:
        loop(recorder, range(50))
    monkeypatch.setattr(os, "fsync", fails)
    with (
        pytest.raises(InputError, match=r"No space left on device"),
        reweigh.record(path, rows_per_part=16) as recorder,
    ):
        loop(recorder, range(40))
    monkeypatch.undo()
    check(reweigh.open(path), range(50))


KILLED = """
    import numpy, sys, reweigh
    logits = numpy.random.default_rng(0).normal(size=(100_000, 4)).astype("float32")
    with reweigh.record(sys.argv[1], rank=0, world_size=int(sys.argv[2]), rows_per_part=64) as recorder:
        for start in range(0, 100_000, 32):
            recorder.add(logits[start : start + 32], numpy.zeros(32, int), ids=numpy.arange(start, start + 32))
            print(start, flush=True)
"""


@pytest.mark.parametrize("world", [1, 2])
def test_a_killed_process_leaves_whole_shards(tmp_path, world):
    path = tmp_path / "val.parquet"
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(path), str(world)]
    logits = numpy.random.default_rng(0).normal(size=(100_000, 4)).astype("float32")
    for stop in (200, 4000) if world == 1 else (1000,):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                if int(line) >= stop:
                    process.send_signal(signal.SIGKILL)
                    break
            process.wait()
        with pytest.raises(InputError, match=r"did not end" if world == 1 else r"missing: 0, 1 \(rank 0 left"):
            reweigh.open(path)
        table = reweigh.open(path, partial=True)
        assert len(table) >= stop - 128
        assert numpy.array_equal(table.logits, logits[table.ids])
