"""Reading in pieces: the same rows, flat memory, repeated ids found without holding them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import numpy
import pytest

import reweigh
from reweigh.errors import InputError
from reweigh.files import _repeats


def test_repeated_hashes_are_found_in_memory_and_over_files(monkeypatch):
    random = numpy.random.default_rng(0)
    values = random.integers(0, 2**64, 5000, dtype=numpy.uint64)
    values[[7, 4000]] = values[1]
    values[4999] = values[0]
    wanted = sorted({int(values[0]), int(values[1])})
    for limit in (1 << 20, 300):
        monkeypatch.setattr(_repeats, "IN_MEMORY", limit)
        assert sorted(map(int, _repeats.repeated(numpy.array_split(values, 37)))) == wanted
    assert len(_repeats.repeated([])) == 0


@pytest.mark.parametrize("kind", ["whole", "text", "unsigned", "floats"])
def test_hashes_tell_ids_apart(kind):
    ids = numpy.arange(200_000)
    ids = {"whole": ids, "text": ids.astype(str), "unsigned": ids.astype("uint32"), "floats": ids / 7}[kind]
    found = _repeats.hashes(ids)
    assert len(numpy.unique(found)) == len(ids)
    assert numpy.array_equal(found[:1000], _repeats.hashes(ids[:1000]))


def test_text_hashes_do_not_depend_on_the_width():
    one, other = numpy.array(["a", "ab", "ü"]), numpy.array(["a", "ab", "ü", "x" * 50])[:3]
    assert numpy.array_equal(_repeats.hashes(one), _repeats.hashes(other))
    assert numpy.array_equal(_repeats.hashes(one), _repeats.hashes(one.astype(numpy.dtypes.StringDType())))


def test_rows_must_be_at_least_one(tmp_path):
    with pytest.raises(InputError, match=r"rows=0, expected at least 1"):
        reweigh.files.batches(tmp_path, rows=0)


FLAT = """
    import sys, threading, numpy, reweigh
    import reweigh.files

    def resident():
        return int(open("/proc/self/statm").read().split()[1]) * 4096

    def read(path):
        return sum(float(part.scores[:, 0].double().sum()) for part in reweigh.files.batches(path, rows=65_536))

    def grown(folder, ending):
        read(f"{folder}/s0.{ending}")
        peak, ended, before = [0], threading.Event(), resident()

        def watch():
            while not ended.wait(0.01):
                peak[0] = max(peak[0], resident())

        watcher = threading.Thread(target=watch)
        watcher.start()
        read(folder)
        ended.set()
        watcher.join()
        return (max(peak[0], resident()) - before) >> 20

    for ending in ("parquet", "npz", "safetensors"):
        print(ending, grown(f"{sys.argv[1]}/{ending}", ending))
"""


def test_memory_is_flat(tmp_path):
    """Thirty shards, linked, so that the disk is not filled; one of them read before is the measure."""
    table = reweigh.Predictions(logits=numpy.random.default_rng(0).normal(size=(200_000, 8)).astype("float32"))
    for ending in ("parquet", "npz", "safetensors"):
        folder = tmp_path / ending
        folder.mkdir()
        reweigh.save(table, folder / f"s0.{ending}")
        for number in range(1, 30):
            os.link(folder / f"s0.{ending}", folder / f"s{number}.{ending}")
    command = [sys.executable, "-c", textwrap.dedent(FLAT), str(tmp_path)]
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        assert int(line.split()[1]) < 50, line
