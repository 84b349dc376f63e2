"""The demonstration, with two epochs in place of forty."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

pytest.importorskip("sklearn", reason="scikit-learn, which carries the digits, is not installed")
pytest.importorskip("typer", reason="the demonstration shares its tables with the command line, which needs typer")
SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "demo.py"


@pytest.fixture
def demo(monkeypatch):
    specification = importlib.util.spec_from_file_location("demo", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, "demo", module)  # its dataclasses look themselves up
    specification.loader.exec_module(module)
    return module


def test_splits_share_no_picture_and_have_a_long_tail(demo):
    _, target = demo.pictures()
    for seed in range(2):
        parts = demo.split(target, seed)
        rows = [*parts.train.tolist(), *parts.validation.tolist(), *parts.test.tolist()]
        assert len(rows) == len(set(rows))
        assert target[parts.train].bincount().tolist() == demo.COUNTS
        assert set(target[parts.test].bincount().tolist()) == {demo.TEST}


def test_demonstration_prints_every_loss_and_a_conclusion(demo, monkeypatch, capsys):
    monkeypatch.setattr(demo, "EPOCHS", 2)
    assert demo.main() == 0
    printed = capsys.readouterr().out
    for name in demo.LOSSES:
        assert f"\n{name} " in printed
    assert "\nHere " in printed and max(map(len, printed.splitlines())) < 100


def test_differences_are_paired_with_students_interval(demo):
    """Against scipy: the interval of a paired t-test."""
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    runs = [[3.0, 5.0, 4.0, 6.0, 7.0], [1.0, 4.0, 4.5, 3.0, 6.0]]
    made = [[demo.Figures(0, 0, few, 0, []) for few in values] for values in runs]
    mean, half = demo.difference(*made, "few")
    low, high = stats.ttest_rel(*runs).confidence_interval(0.95)
    assert (mean - half, mean + half) == pytest.approx((low, high), abs=1e-3)
