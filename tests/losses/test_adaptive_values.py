"""AdaFocal and CalFocal against the method written out in plain Python, over whole trajectories of updates."""

from __future__ import annotations

import bisect
import math
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor

import reweigh
from reweigh.errors import InputError
from reweigh.losses._adaptive_focal import next_gammas

BINS = 15


# ------------------------------------------------------------------ the method, written out


def edges_of(confidences: list[float], bins: int) -> list[float]:
    """Interpolated quantiles at positions k n / bins of the sorted values, the last one clamped."""
    ordered = sorted(confidences)
    n = len(ordered)
    found = []
    for k in range(bins + 1):
        position = min(k * n / bins, n - 1)
        low = math.floor(position)
        high = min(low + 1, n - 1)
        found.append(ordered[low] + (position - low) * (ordered[high] - ordered[low]))
    return found


def statistics_of(confidences, correct, bins: int, *, official: bool) -> tuple[list[float], list[float], list]:
    """Edges, gaps C_b - A_b (0 where empty), accuracies (None where empty); bins are (e_b, e_(b+1)]."""
    edges = edges_of(confidences, bins)
    members: list[list[int]] = [[] for _ in range(bins)]
    for i, value in enumerate(confidences):
        for b in range(bins):
            if edges[b] < value <= edges[b + 1] or (b == 0 and not official and value <= edges[1]):
                members[b].append(i)
                break
    gaps, accuracies = [], []
    for rows in members:
        accuracy = sum(correct[i] for i in rows) / len(rows) if rows else None
        accuracies.append(accuracy)
        gaps.append(sum(confidences[i] for i in rows) / len(rows) - accuracy if rows else 0.0)
    return edges, gaps, accuracies


def updated(gammas, gaps, *, scale=1.0, gamma_max=20.0, gamma_min=-2.0, switch=0.2) -> list[float]:
    """One update of every bin."""
    found = []
    for gamma, gap in zip(gammas, gaps, strict=True):
        sign = 1.0 if gamma > 0 else -1.0
        moved = gamma * math.exp(sign * scale * gap)
        if abs(moved) < switch:
            moved = -switch if moved > 0 else switch
        found.append(max(gamma_min, min(gamma_max, moved)))
    return found


def bin_for(p: float, edges: list[float]) -> int:
    """[e_b, e_(b+1)), the ends open."""
    return bisect.bisect_right(edges[1:-1], p)


def cost_of(p: float, gamma: float) -> float:
    weight = (1 - p) ** gamma if gamma >= 0 else (1 + p) ** -gamma
    return weight * -math.log(p)


def validation(rows: int, sharpness: float, seed: int, classes: int = 6) -> tuple[Tensor, Tensor]:
    """Logits whose labels are drawn from a softmax less sharp: over-confident above 1, under-confident below."""
    generator = torch.Generator().manual_seed(seed)
    z = 1.5 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    y = torch.multinomial(torch.softmax(z, 1), 1, generator=generator).squeeze(1)
    return sharpness * z, y


def confidences_of(z: Tensor, y: Tensor) -> tuple[list[float], list[float]]:
    p = torch.softmax(z, 1)
    return p.amax(1).tolist(), (p.argmax(1) == y).double().tolist()


# ------------------------------------------------------------------ trajectories


@pytest.mark.parametrize(
    "settings", [{}, {"scale": 5.0}, {"gamma_max": 50.0, "gamma_min": -3.0, "switch": 0.5}], ids=str
)
@pytest.mark.parametrize("sharpness", [0.4, 1.0, 2.5])
def test_trajectories(sharpness, settings):
    loss = reweigh.losses.adaptive_focal(**settings)
    gammas = [1.0] * BINS
    assert loss.gammas.tolist() == gammas
    for step in range(12):
        z, y = validation(200, sharpness, seed=step)
        before = loss.gammas.clone()
        loss.observe(z, y)
        edges, gaps, _ = statistics_of(*confidences_of(z, y), BINS, official=False)
        # the jump at `switch` is not continuous, so each update starts from where ours stood
        gammas = updated(before.double().tolist(), gaps, **settings)
        assert loss.gammas.tolist() == pytest.approx(gammas, rel=3e-7)
        assert loss.edges_as_probability.tolist() == pytest.approx(edges, rel=1e-6)
    if sharpness != 1.0:
        assert max(gammas) != pytest.approx(1.0, abs=0.1)
    if sharpness == 0.4 and settings.get("scale") == 5.0:
        assert min(gammas) < 0  # under-confidence reaches the inverse branch


def test_the_rule_in_float64():
    """The published rule to rounding, over extreme updates, both branches and both bounds."""
    generator = numpy.random.default_rng(0)
    gammas = [1.0, -1.0, 0.21, -0.21, 19.0, -1.9, 1e-3, 5.0]
    tensor = torch.tensor(gammas, dtype=torch.float64)
    for _ in range(60):
        gaps = generator.uniform(-1, 1, size=8)
        for settings in ({"scale": 1.0}, {"scale": 3.0}):
            bounds = {"gamma_max": 20.0, "gamma_min": -2.0, "switch": 0.2}
            gammas = updated(gammas, gaps.tolist(), **settings, **bounds)
            tensor = next_gammas(tensor, torch.tensor(gaps), **settings, **bounds)
            assert tensor.tolist() == pytest.approx(gammas, rel=1e-13)


@pytest.mark.parametrize("sharpness", [1.0, 30.0])
def test_parity_with_the_published_program(sharpness):
    """Float32 confidences, the lowest row in no bin; with many that round to 1, edges collapse and bins are empty."""
    loss = reweigh.losses.adaptive_focal(parity="official")
    for step in range(6):
        z, y = validation(300, sharpness, seed=step)
        before = loss.gammas.clone()
        loss.observe(z, y)
        rounded = torch.sigmoid(loss.evidence(z, y).confidence_log_odds).float().double().tolist()
        edges, gaps, _ = statistics_of(rounded, confidences_of(z, y)[1], BINS, official=True)
        assert loss.gammas.tolist() == pytest.approx(updated(before.double().tolist(), gaps), rel=3e-7)
        assert loss.edges_as_probability.tolist() == pytest.approx(edges, rel=1e-6)
        p = torch.softmax(z, 1)[torch.arange(300), y].float()
        gamma = loss.gammas[[bin_for(value, [float(numpy.float32(e)) for e in edges]) for value in p.tolist()]].double()
        log_p = torch.log_softmax(z, 1)[torch.arange(300), y]
        miss = -torch.expm1(log_p)
        expected = torch.where(gamma >= 0, miss ** gamma.clamp(min=0), (2 - miss) ** (-gamma).clamp(min=0)) * -log_p
        apart = (p.unsqueeze(1) - torch.tensor(edges)).abs().amin(1) > 1e-6  # not on an edge, whose rounding decides
        apart |= p == 1.0
        found = reweigh.losses.adaptive_focal(parity="official", reduction="none")
        found.load_state_dict(loss.state_dict())
        torch.testing.assert_close(found(z, y)[apart], expected[apart], rtol=1e-5, atol=1e-12)
    collapsed = len(set(edges)) < BINS + 1
    assert collapsed == (sharpness == 30.0)


def test_edges_as_log_odds_do_not_collapse():
    """Confidences of which most round to 1 in float32: sixteen distinct edges, twenty rows in every bin."""
    z, y = validation(300, 30.0, seed=0)
    loss, official = reweigh.losses.adaptive_focal(), reweigh.losses.adaptive_focal(parity="official")
    loss.observe(z.float(), y)
    official.observe(z.float(), y)
    assert len(set(loss.edges.tolist())) == BINS + 1
    assert len(set(official.edges.tolist())) < BINS
    odds = loss.evidence(z.float(), y).confidence_log_odds
    members = torch.bucketize(odds, loss.edges[1:-1].double())
    number = torch.bincount(members, minlength=BINS)
    assert number.min() >= 19 and number.max() <= 21
    assert float((torch.sigmoid(odds).float() == 1).double().mean()) > 0.3


def test_costs_by_bin():
    loss = reweigh.losses.adaptive_focal(scale=5.0, reduction="none")
    for step in range(8):
        loss.observe(*validation(200, 0.4 if step % 2 else 2.0, seed=step))
    gammas, edges = loss.gammas.double().tolist(), loss.edges_as_probability.tolist()
    assert min(gammas) < 0 < max(gammas)
    z, y = validation(200, 1.0, seed=77)
    p = torch.softmax(z, 1)[torch.arange(200), y].tolist()
    apart = [min(abs(value - edge) for edge in edges) > 1e-6 for value in p]
    expected = [cost_of(value, gammas[bin_for(value, edges)]) for value in p]
    found = loss(z, y).tolist()
    for ours, theirs, sure in zip(found, expected, apart, strict=True):
        assert not sure or ours == pytest.approx(theirs, rel=1e-9)


def test_training_membership_at_the_edges():
    """An edge itself belongs to the bin above it; beyond the ends the end bins serve."""
    loss = reweigh.losses.adaptive_focal(bins=4, reduction="none")
    loss.edges.copy_(torch.tensor([-3.0, -1.0, 0.5, 2.0, 6.0]))
    loss.gammas.copy_(torch.tensor([0.0, 1.0, 2.0, 3.0]))
    odds = torch.tensor([-9.0, -3.0, -1.0000001, -1.0, 0.4999999, 0.5, 1.9999999, 2.0, 6.0, 90.0])
    p = torch.sigmoid(odds.double())
    z = torch.stack([odds, torch.zeros(10)], 1)
    gamma = torch.tensor([0, 0, 0, 1, 1, 2, 2, 3, 3, 3], dtype=torch.float64)
    expected = torch.sigmoid(-odds.double()) ** gamma * -torch.log(p)
    torch.testing.assert_close(loss(z, torch.zeros(10, dtype=torch.int64)).double(), expected, rtol=1e-5, atol=1e-12)


def test_an_empty_bin_keeps_its_gamma():
    loss = reweigh.losses.adaptive_focal(bins=4)
    loss.gammas.copy_(torch.tensor([2.0, -1.0, 3.0, 4.0]))
    z = torch.tensor([[1.0, 0.0]] * 6)  # one confidence: everything is in the first bin
    loss.observe(z, torch.tensor([0, 0, 0, 0, 0, 1]))
    moved = 2.0 * math.exp(1 / (1 + math.exp(-1.0)) - 5 / 6)
    assert loss.gammas.tolist() == pytest.approx([moved, -1.0, 3.0, 4.0], rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unbounded_gammas_stay_finite(dtype):
    z = torch.tensor([[0.0, 200.0], [0.0, 3.0], [1e4, 0.0], [0.0, 1e4], [0.0, 0.0]], dtype=dtype)
    y = torch.tensor([0, 0, 0, 0, 0])
    wrong = torch.tensor([[9.0, 0.0], [2.0, 0.0], [1.0, 0.0]] * 4)
    forms = (
        reweigh.losses.adaptive_focal(bins=2, gamma_max=math.inf, scale=80.0),
        reweigh.losses.adaptive_focal(bins=2, gamma_max=math.inf, scale=1e5),
        reweigh.losses.calibration_focal(bins=2, gamma_max=math.inf, scale=1e3, case=2),
        reweigh.losses.calibration_focal(bins=2, gamma_max=math.inf, scale=1e3, case=1),
    )
    for loss in forms:
        for _ in range(60):
            loss.observe(wrong, torch.ones(12, dtype=torch.int64))
        assert all(bool(torch.isfinite(value[1:-1]).all()) for value in loss.state().values())
        point = z.clone().requires_grad_()
        cost = loss(point, y)
        (gradient,) = torch.autograd.grad(cost, point)
        assert math.isfinite(cost.item())
        assert bool(torch.isfinite(gradient).all())


# ------------------------------------------------------------------ ways to observe


@pytest.mark.parametrize(
    "build",
    [reweigh.losses.adaptive_focal, reweigh.losses.calibration_focal, lambda: reweigh.losses.calibration_focal(case=2)],
    ids=["adaptive", "case1", "case2"],
)
def test_every_way_to_observe_says_the_same(build):
    z, y = validation(200, 2.0, seed=3)
    y[::9] = -100
    kept = y >= 0
    confidences, correct = confidences_of(z[kept], y[kept])
    from_logits, from_evidence, from_parts, from_predictions, from_confidence = (build() for _ in range(5))
    from_logits.observe(z, y)
    from_evidence.observe(from_evidence.evidence(z, y))
    from_parts.observe(
        [from_parts.evidence(z[rows], y[rows]) for rows in (slice(0, 63), slice(63, 64), slice(64, 200))]
    )
    from_predictions.observe(reweigh.Predictions(logits=z[kept], targets=y[kept]))
    table = reweigh.Predictions(confidence=numpy.array(confidences), correct=numpy.array(correct, dtype=bool))
    from_confidence.observe(table)
    for other in (from_evidence, from_parts, from_predictions, from_confidence):
        for name, value in from_logits.state().items():
            torch.testing.assert_close(other.state()[name], value, rtol=1e-5, atol=1e-6)
    assert not any(torch.equal(value, build().state()[name]) for name, value in from_logits.state().items())


def test_two_ranks_with_uneven_shards_learn_what_one_does(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = Path(__file__).with_name("one_of_two_ranks.py")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(str(Path(part).resolve()) for part in sys.path if part)}
    command = [sys.executable, str(script)]
    ranks = [subprocess.Popen([*command, str(rank), port, str(tmp_path)], env=environment) for rank in (0, 1)]
    assert [process.wait(timeout=240) for process in ranks] == [0, 0]
    ours, theirs = (numpy.load(tmp_path / f"{rank}.npz") for rank in (0, 1))
    z, y = validation(150, 2.0, seed=5)
    for name in ("adaptive_focal", "calibration_focal"):
        alone = reweigh.loss(name)
        alone.observe(z, y)
        for key, value in alone.state().items():
            assert ours[f"{name}.{key}"].tolist() == theirs[f"{name}.{key}"].tolist()
            assert ours[f"{name}.{key}"].tolist() == pytest.approx(value.tolist(), rel=1e-6)
    z[3] *= 1e3  # a row that only one rank computes the long way
    for name in ("MMCE", "KDE-XE", "MDCA", "AURC", "AUGRC"):
        point = z.clone().requires_grad_()
        value = reweigh.loss(name)(point, y)
        (gradient,) = torch.autograd.grad(value, point)
        # two ranks, whose mean is what DistributedDataParallel makes of it
        assert (ours[name] + theirs[name]) / 2 == pytest.approx(value.item(), rel=1e-9)
        both = torch.tensor(numpy.concatenate([ours[f"{name}.gradient"], theirs[f"{name}.gradient"]])) / 2
        torch.testing.assert_close(both, gradient, rtol=1e-7, atol=1e-11)


# ------------------------------------------------------------------ CalFocal


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_calibration_focal_by_rows(scale):
    loss = reweigh.losses.calibration_focal(scale=scale, reduction="none")
    z, y = validation(200, 1.0, seed=1)
    first = loss(z, y)
    torch.testing.assert_close(first, reweigh.losses.focal(gamma=1.0, reduction="none")(z, y), rtol=1e-12, atol=0)
    seen, labels = validation(180, 2.0, seed=2)
    loss.observe(seen, labels)
    edges, _, accuracies = statistics_of(*confidences_of(seen, labels), BINS, official=False)
    p = torch.softmax(z, 1)[torch.arange(200), y].tolist()
    expected = []
    for value in p:
        gamma = min(20.0, math.exp(scale * (value - accuracies[bin_for(value, edges)])))
        expected.append(cost_of(value, gamma))
    apart = [min(abs(value - edge) for edge in edges) > 1e-6 for value in p]
    for ours, theirs, sure in zip(loss(z, y).tolist(), expected, apart, strict=True):
        assert not sure or ours == pytest.approx(theirs, rel=1e-5)


def test_calibration_focal_by_bins_has_no_memory():
    loss = reweigh.losses.calibration_focal(case=2, scale=3.0, gamma_max=4.0, reduction="none")
    for seed in (7, 8):
        seen, labels = validation(180, 2.5, seed=seed)
        loss.observe(seen, labels)
        _, gaps, _ = statistics_of(*confidences_of(seen, labels), BINS, official=False)
        assert loss.gammas.tolist() == pytest.approx([min(4.0, math.exp(3.0 * gap)) for gap in gaps], rel=1e-6)


def test_gamma_of_calibration_focal_is_a_constant_of_the_gradient():
    loss = reweigh.losses.calibration_focal(scale=10.0, reduction="none")
    loss.observe(*validation(180, 2.0, seed=2))
    z, y = validation(30, 1.0, seed=4)
    z.requires_grad_()
    (found,) = torch.autograd.grad(loss(z, y).sum(), z)
    log_p = torch.log_softmax(z, 1)[torch.arange(30), y]
    p = log_p.detach().exp()
    accuracy = loss.accuracies.double()[torch.bucketize(torch.logit(p), loss.edges[1:-1].double(), right=True)]
    gamma = torch.exp(10.0 * (p - accuracy)).clamp(max=20.0)
    (expected,) = torch.autograd.grad(((1 - log_p.exp()) ** gamma * -log_p).sum(), z)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def test_bins_without_rows_have_gamma_one():
    z = torch.tensor([[1.0, 0.0]] * 6)
    y = torch.tensor([0, 0, 0, 0, 0, 1])
    by_row, by_bin = reweigh.losses.calibration_focal(bins=3), reweigh.losses.calibration_focal(bins=3, case=2)
    by_row.observe(z, y)
    by_bin.observe(z, y)
    assert by_row.accuracies.tolist() == pytest.approx([5 / 6, -1.0, -1.0])
    assert by_bin.gammas.tolist()[1:] == [1.0, 1.0]
    sure = torch.tensor([[5.0, 0.0]])
    expected = reweigh.losses.focal(gamma=1.0)(sure, torch.tensor([0]))
    torch.testing.assert_close(by_row(sure, torch.tensor([0])), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("AdaFocal", {"scale": 0.0}, "above 0"),
        ("AdaFocal", {"bins": 1}, "at least 2"),
        ("AdaFocal", {"gamma_min": 0.5}, "gamma_min"),
        ("AdaFocal", {"gamma_min": -1e9}, "at least -100"),
        ("AdaFocal", {"gamma_start": 30.0}, "gamma_start"),
        ("AdaFocal", {"parity": "published"}, "'ours', 'official'"),
        ("CalFocal", {"case": 3}, "one of 1, 2"),
        ("CalFocal", {"gamma_max": -1.0}, "gamma_max"),
    ],
)
def test_wrong_settings_are_answered(name, settings, words):
    with pytest.raises(InputError, match=words):
        reweigh.loss(name, **settings)


@pytest.mark.parametrize("name", ["AdaFocal", "CalFocal"])
def test_wrong_observations_are_answered(name):
    loss = reweigh.loss(name)
    for seen in (
        (torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)),
        (torch.zeros(2, 3), torch.tensor([-100, -100])),
    ):
        with pytest.raises(InputError, match="no rows"):
            loss.observe(*seen)
    with pytest.raises(InputError, match="without target"):
        loss.observe(torch.zeros(2, 3))
    with pytest.raises(InputError, match="nan at row 1"):
        loss.observe(torch.tensor([[0.0, 1.0], [math.nan, 0.0]]), torch.tensor([0, 1]))
    other = reweigh.loss(name, bins=10)
    with pytest.raises(InputError, match="edges"):
        loss.load_state_dict(other.state_dict())
    half = reweigh.loss(name).half()
    assert half.edges.dtype == torch.float32
