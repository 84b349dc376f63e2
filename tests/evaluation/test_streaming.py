"""Shards larger than memory: the same numbers in a stream and over a cluster, honest intervals, nothing counted twice."""

from __future__ import annotations

import numpy
import pytest

import reweigh
from reweigh import Predictions
from reweigh.errors import InputError
from reweigh.evaluation._streaming import Settings, jackknife_groups, stream_evaluation

from .tables import identified

NAMES = "accuracy,NLL,Brier,ECE,ECE:bins=10,scope=class_wise"


@pytest.fixture
def shards(tmp_path):
    table = identified(1000)
    for number, rows in enumerate(numpy.array_split(numpy.arange(1000), 7)):
        reweigh.save(table.take(rows), tmp_path / f"s{number}.parquet")
    return tmp_path, table


def test_a_stream_gives_the_same_values(shards):
    folder, table = shards
    whole = reweigh.evaluate(table, NAMES, interval=None, by="site")
    streamed = reweigh.evaluate(folder, NAMES, engine="stream", by="site")
    assert list(streamed.metrics) == list(whole.metrics)
    for name, one in whole.metrics.items():
        assert streamed[name].value == pytest.approx(one.value, rel=1e-12)
        assert streamed[name].low < one.value < streamed[name].high
    for value, part in whole.groups["site"].items():
        assert streamed.groups["site"][value].rows == part.rows
        for name, one in part.metrics.items():
            assert streamed.groups["site"][value].metrics[name].value == pytest.approx(one.value, rel=1e-12)
    assert streamed.rows == 1000
    assert "Streamed" in str(streamed)


def test_a_cluster_gives_the_same_bits(shards):
    ray = pytest.importorskip("ray")
    folder, _ = shards
    streamed = reweigh.evaluate(folder, NAMES, engine="stream", by="site")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        spread = reweigh.evaluate(folder, NAMES, engine="ray", by="site")
        assert ray.is_initialized()
        assert spread.to_dict() == streamed.to_dict()
        raw = (folder / "s3.parquet").read_bytes()
        (folder / "s3.parquet").write_bytes(raw[:500] + b"\0" * 40 + raw[540:])
        with pytest.raises(InputError, match=r"s3\.parquet: it is damaged"):
            reweigh.evaluate(folder, NAMES, engine="ray")
    finally:
        ray.shutdown()


def test_intervals_cover_about_as_often_as_they_say():
    """The share of 80 samples whose interval holds the true accuracy of 0.72."""
    random, held = numpy.random.default_rng(0), 0
    for _ in range(80):
        confidence = random.uniform(0.5, 1.0, 500)
        source = {"confidence": confidence, "correct": random.random(500) < confidence - 0.03}
        settings = Settings(0.95, 2, 0, (), None, _asked("accuracy"))
        result, _ = stream_evaluation(source, settings, {}, ray=False, progress=lambda items, *_: items)
        held += result["accuracy"].low <= 0.72 <= result["accuracy"].high
    assert 70 <= held <= 80


def _asked(names):
    from reweigh.evaluation._choice import asked

    return asked(names)


def test_jackknife_groups_are_even_and_fixed():
    groups = jackknife_groups(3, 0, 64_000, 0, 64)
    assert numpy.bincount(groups, minlength=64).min() > 850
    assert numpy.array_equal(jackknife_groups(3, 1000, 100, 0, 64), groups[1000:1100])
    assert not numpy.array_equal(jackknife_groups(4, 0, 1000, 0, 64), groups[:1000])


def test_padded_rows_of_a_recording_count_once(tmp_path):
    table = identified(101)
    padded = [*range(101), 0, 1, 2]
    for rank in range(4):
        with reweigh.record(tmp_path / "val.parquet", rank=rank, world_size=4) as recorder:
            part = table.take(numpy.array(padded[rank::4]))
            recorder.add(part.logits, part.targets, ids=part.ids, groups=part.groups)
    whole = reweigh.evaluate(table, "accuracy,NLL", interval=None)
    streamed = reweigh.evaluate(tmp_path / "val.parquet", "accuracy,NLL", engine="stream")
    assert streamed.rows == 101
    for name in whole.metrics:
        assert streamed[name].value == pytest.approx(whole[name].value, rel=1e-12)


def test_metrics_that_need_all_rows_say_what_to_stream(shards):
    folder, _ = shards
    with pytest.raises(InputError, match=r"streaming expected_calibration_error with binning='mass'.*nearest that is"):
        reweigh.evaluate(folder, "ECE:binning=mass", engine="stream")
    with pytest.raises(InputError, match=r"evaluating a stream by class"):
        reweigh.evaluate(folder, engine="stream", by="class")
    with pytest.raises(InputError, match=r"rows are resampled one by one"):
        reweigh.evaluate(folder, engine="stream", cluster="patient")
    with pytest.raises(InputError, match=r"all rows are ranked together"):
        reweigh.evaluate(folder, engine="stream", outside=folder)


def test_files_that_would_fill_the_memory_are_streamed(shards, monkeypatch):
    from reweigh import files

    folder, _ = shards
    assert "Streamed" not in str(reweigh.evaluate(folder, "accuracy"))
    monkeypatch.setattr(files, "free_memory", lambda: 10_000)
    assert "Streamed" in str(reweigh.evaluate(folder, "accuracy"))
    with pytest.raises(InputError, match="all rows are ranked together"):
        reweigh.evaluate(folder, "accuracy", outside=folder)


def test_one_row_and_no_rows(tmp_path):
    reweigh.save(identified(1), tmp_path / "one.parquet")
    found = reweigh.evaluate(tmp_path / "one.parquet", "accuracy", engine="stream", ignore="RW107")
    assert found.rows == 1
    reweigh.save(Predictions(logits=numpy.empty((0, 3)), targets=numpy.empty(0, int)), tmp_path / "none.parquet")
    with pytest.raises(InputError):
        reweigh.evaluate(tmp_path / "none.parquet", "accuracy", engine="stream")


def test_an_open_table_is_streamed_as_what_it_is():
    """One-vs-rest heads stay one-vs-rest."""
    table = identified(400, head="sigmoid")
    whole, streamed = (
        reweigh.evaluate(table, "accuracy,NLL,ECE", interval=None, engine=one) for one in ("memory", "stream")
    )
    for name in whole.metrics:
        assert streamed[name].value == pytest.approx(whole[name].value, rel=1e-12)
