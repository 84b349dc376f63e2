"""Running the command inside this process, and prediction files to run it on."""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy
import pytest

from reweigh.cli import main


class Ran(NamedTuple):
    """What a command printed and how it ended."""

    status: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def run(capsys):
    """`run("evaluate", path, "--json")` as the shell would; standard output and error are no terminals."""

    def command(*words) -> Ran:
        capsys.readouterr()
        status = main([str(word) for word in words])
        return Ran(status, *capsys.readouterr())

    return command


@pytest.fixture
def val(tmp_path):
    """An NPZ of logits and labels as anybody writes it: overconfident by a factor of two and a half."""
    return write(tmp_path / "val.npz", seed=0)


@pytest.fixture
def test_file(tmp_path):
    return write(tmp_path / "test.npz", seed=1)


def write(path, seed: int, rows: int = 1500, classes: int = 5):
    random = numpy.random.default_rng(seed)
    logits = random.normal(size=(rows, classes)) * 1.5
    shares = numpy.exp(logits) / numpy.exp(logits).sum(1, keepdims=True)
    labels = (shares.cumsum(1) < random.random((rows, 1))).sum(1)
    numpy.savez(path, logits=(2.5 * logits).astype("float32"), labels=labels)
    return path
