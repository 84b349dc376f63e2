"""The torchmetrics classes: updates, merges, copies, collections, two processes."""

from __future__ import annotations

import copy
import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch

from metrics.metric_tables import confidences, labels_table, logits_and_labels
from reweigh import Predictions, metrics

torchmetrics = pytest.importorskip("torchmetrics")


def batches(count=4):
    logits, labels = logits_and_labels(rows=210)
    return zip(torch.tensor(logits).chunk(count), torch.tensor(labels).chunk(count), strict=True)


def whole():
    logits, labels = logits_and_labels(rows=210)
    return Predictions(logits=logits, targets=labels)


CASES = [
    ("accuracy", {}),
    ("negative_log_likelihood", {}),
    ("brier_score", {}),
    ("expected_calibration_error", {"bins": 10}),
    ("expected_calibration_error", {"scope": "class_wise", "norm": 2}),
    ("maximum_calibration_error", {}),
    ("recall", {}),
    ("f_score", {"beta": 0.5, "average": "macro"}),
    ("shot_accuracy", {"class_counts": [500, 50, 20, 5]}),
]


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_batches_make_the_whole(name, settings):
    made = metrics.torchmetrics_class(name, num_classes=4, **settings)
    metric = made()
    for logits, labels in batches():
        metric.update(logits, labels)
    found, wanted = metric.compute(), getattr(metrics, name)(whole(), **settings)
    if isinstance(wanted, dict):
        assert found == pytest.approx(wanted, nan_ok=True)
    else:
        assert torch.allclose(torch.as_tensor(found), torch.as_tensor(wanted, dtype=torch.float64), rtol=1e-12)
    size = sum(getattr(metric, state).numel() for state in metric._defaults)
    metric.reset()
    for logits, labels in batches(7):
        metric(logits, labels)
    assert sum(getattr(metric, state).numel() for state in metric._defaults) == size  # rows are not kept
    assert made.__name__ == "".join(part.title() for part in name.split("_"))


def test_copies_keep_what_was_seen():
    metric = metrics.torchmetrics_class("expected_calibration_error", bins=7)()
    for logits, labels in batches():
        metric.update(logits, labels)
    value = metric.compute()
    for other in (pickle.loads(pickle.dumps(metric)), copy.deepcopy(metric), metric.clone()):  # noqa: S301
        assert other.compute() == value
        other.reset()
        assert metric.compute() == value


def test_collections_and_directions():
    found = torchmetrics.MetricCollection([metrics.torchmetrics_class(name)() for name in ("accuracy", "brier_score")])
    for logits, labels in batches():
        found.update(logits, labels)
    assert set(found.compute()) == {"Accuracy", "BrierScore"}
    assert metrics.torchmetrics_class("accuracy").higher_is_better is True
    assert metrics.torchmetrics_class("brier_score").higher_is_better is False


def test_other_scores_and_weights():
    logits, labels = logits_and_labels(rows=50)
    p = torch.softmax(torch.tensor(logits), 1)
    weights = torch.arange(50.0)
    metric = metrics.torchmetrics_class("brier_score", scores="probabilities")()
    metric.update(p, torch.tensor(labels), weights)
    assert metric.compute() == pytest.approx(
        metrics.brier_score(Predictions(probabilities=p, targets=labels, weights=weights))
    )
    top = metrics.torchmetrics_class("expected_calibration_error", scores="confidence")()
    table = confidences()
    top.update(torch.tensor(table.confidence), torch.tensor(table.correct))
    assert top.compute() == pytest.approx(metrics.expected_calibration_error(table))
    labelled = labels_table()
    multi = metrics.torchmetrics_class("accuracy", head="sigmoid")()
    multi.update(labelled)
    assert multi.compute() == pytest.approx(metrics.accuracy(labelled))


def test_refusals():
    with pytest.raises(ValueError, match="needs all rows at once"):
        metrics.torchmetrics_class("area_under_risk_coverage")
    with pytest.raises(ValueError, match="needs all rows at once"):
        metrics.torchmetrics_class("expected_calibration_error", binning="mass")
    with pytest.raises(ValueError, match="scores="):
        metrics.torchmetrics_class("accuracy", scores="logit")
    metric = metrics.torchmetrics_class("recall", num_classes=3)()
    with pytest.raises(ValueError, match="num_classes"):
        metric.update(*next(iter(batches())))


def test_ranks_are_added_up():
    """torchmetrics gathers each state from every rank and adds; here the other rank's states are handed to it."""
    for name, settings in CASES[:7]:
        made = metrics.torchmetrics_class(name, num_classes=4, **settings)
        ranks = [made(), made()]
        for number, (logits, labels) in enumerate(batches(5)):
            ranks[number % 3 // 2].update(logits, labels)
        other = [getattr(ranks[1], state) for state in ranks[1]._defaults]
        pending = iter(other)
        ranks[0].dist_sync_fn = lambda state, group, pending=pending: [state, next(pending)]
        ranks[0].distributed_available_fn = lambda: True
        found, wanted = ranks[0].compute(), getattr(metrics, name)(whole(), **settings)
        assert numpy.asarray(found) == pytest.approx(numpy.asarray(wanted), rel=1e-13), name


@pytest.mark.nightly
def test_two_processes_agree_with_one(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = Path(__file__).with_name("one_of_two_processes.py")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(str(Path(part).resolve()) for part in sys.path if part)}
    command = [sys.executable, str(script)]
    ranks = [subprocess.Popen([*command, str(rank), str(port), str(tmp_path)], env=environment) for rank in range(2)]
    assert [rank.wait(timeout=300) for rank in ranks] == [0, 0]
    for number, (name, settings) in enumerate(CASES[:7]):
        wanted = numpy.asarray(getattr(metrics, name)(whole(), **settings))
        for rank in range(2):
            assert numpy.load(tmp_path / f"{rank}-{number}.npy") == pytest.approx(wanted, rel=1e-13), name
