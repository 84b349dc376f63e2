"""The rules that cut confidences into bins, against loops; the sums in them; the error over them."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath
import numpy
import pytest
import torch

from reweigh.binning import (
    RULES,
    add_up,
    assign,
    bin_sums,
    calibration_error,
    debiased_calibration_error,
    halves,
    interpolated_edges,
    members,
    split_edges,
    width_edges,
    width_members,
)


def sample(count=200, seed=0, ties=False):
    random = numpy.random.default_rng(seed)
    values = random.beta(4, 1.5, count)
    values = numpy.round(values, 1) if ties else values
    return values, (random.random(count) < values).astype(float)


# ---- the rules, written as loops over rows


def loop_width(values, bins, closed):
    index = []
    for value in values:
        for b in range(bins):
            low, high = b / bins, (b + 1) / bins
            inside = low < value <= high if closed == "right" else low <= value < high
            if inside or (b == 0 and value <= low) or (b == bins - 1 and value >= high):
                index.append(b)
                break
    return index


def by_sorted_place(values, bin_of_rank):
    index = [0] * len(values)
    for rank, row in enumerate(sorted(range(len(values)), key=lambda row: (values[row], row))):
        index[row] = bin_of_rank(rank)
    return index


def loop_mass(values, bins):
    return by_sorted_place(values, lambda rank: rank * bins // len(values))


def loop_split(values, bins):
    chunks = numpy.array_split(numpy.arange(len(values)), bins)
    return by_sorted_place(values, lambda rank: next(b for b, chunk in enumerate(chunks) if rank in chunk))


def loop_interpolated(values, bins, official=False):
    edges = numpy.interp(numpy.linspace(0, len(values), bins + 1), numpy.arange(len(values)), numpy.sort(values))
    index = []
    for value in values:
        found = [b for b in range(bins) if edges[b] < value <= edges[b + 1]]
        index.append(found[0] if found else (-1 if official else 0))
    return index


def loop_tied(values, bins):
    ordered = sorted(values)
    cuts = sorted({ordered[k * len(values) // bins] for k in range(1, bins)})
    return [sum(value >= cut for cut in cuts) for value in values]


def loop_order(values, bins):
    ordered = sorted(values)
    edges = [ordered[math.floor(place)] for place in numpy.linspace(0, len(values) - 1, bins + 1)]
    index = []
    for value in values:
        found = [b for b in range(bins) if edges[b] <= value < edges[b + 1]]
        index.append(found[0] if found else bins - 1)
    return index


def bins_of(index):
    """The sets of rows that share a bin: numbering empty bins differently is no difference."""
    groups: dict[int, list[int]] = {}
    for row, b in enumerate(index):
        groups.setdefault(int(b), []).append(row)
    return [groups[b] for b in sorted(groups)]


LOOPS = {
    "mass": loop_mass,
    "mass_split": loop_split,
    "mass_interpolated": loop_interpolated,
    "mass_tied": loop_tied,
    "mass_order": loop_order,
}


@pytest.mark.parametrize("binning", LOOPS)
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("count", "bins"), [(200, 15), (201, 7), (5, 15), (1, 3), (37, 37), (30, 1)])
def test_rules_agree_with_loops(binning, ties, count, bins):
    values, _ = sample(count, seed=count, ties=ties)
    found = assign(torch.tensor(values), bins=bins, binning=binning)
    assert bins_of(found.index) == bins_of(LOOPS[binning](values, bins))
    assert found.index.max() < found.count


@pytest.mark.parametrize("closed", ["right", "left"])
@pytest.mark.parametrize("bins", [1, 2, 3, 10, 15, 49])
def test_equal_widths_agree_with_a_loop_at_the_edges(closed, bins):
    edges = numpy.arange(bins + 1) / bins
    values = numpy.concatenate([edges, numpy.nextafter(edges, 2), numpy.nextafter(edges, -1), sample()[0]]).clip(0, 1)
    found = width_members(torch.tensor(values), bins, closed=closed)
    assert found.tolist() == loop_width(values, bins, closed)
    assert members(torch.tensor(values), width_edges(bins), closed=closed).tolist() == found.tolist()
    assert assign(torch.tensor(values), bins=bins, closed=closed).index.tolist() == found.tolist()


def test_edges_are_quotients():
    assert width_edges(10).tolist() == [k / 10 for k in range(11)]
    assert 3 * (1 / 10) != 3 / 10  # what products would give


def test_the_ends_belong_to_the_end_bins():
    ends = torch.tensor([0.0, 1.0])
    for binning in RULES:
        found = assign(ends, bins=4, binning=binning, correct=torch.tensor([0.0, 1.0]))
        assert (found.index >= 0).all(), binning
    for closed in ("right", "left"):
        assert assign(ends, bins=4, closed=closed).index.tolist() == [0, 3]


def test_the_published_interpolation_loses_the_lowest():
    values, _ = sample(50)
    official = assign(torch.tensor(values), bins=10, binning="mass_interpolated", parity="official").index
    assert official.tolist() == loop_interpolated(values, 10, official=True) and (official == -1).sum() == 1
    tied = torch.full((40,), 0.8)
    assert (assign(tied, bins=15, binning="mass_interpolated").index == 0).all()
    assert (assign(tied, bins=15, binning="mass_interpolated", parity="official").index == -1).all()


def test_tied_values_stay_together_only_where_promised():
    values, _ = sample(300, ties=True)
    index = assign(torch.tensor(values), binning="mass_tied").index.numpy()
    for value in numpy.unique(values):
        assert len(numpy.unique(index[values == value])) == 1


def test_interpolated_edges_are_numpys():
    values, _ = sample(101)
    wanted = numpy.interp(numpy.linspace(0, 101, 8), numpy.arange(101), numpy.sort(values))
    assert interpolated_edges(torch.tensor(values), 7).tolist() == pytest.approx(wanted.tolist(), rel=1e-15)


def test_split_edges_lie_midway_between_chunks():
    values, _ = sample(101)
    chunks = numpy.array_split(numpy.sort(values), 7)
    wanted = [0.0, *((a[-1] + b[0]) / 2 for a, b in itertools.pairwise(chunks)), 1.0]
    assert split_edges(torch.tensor(values), 7).tolist() == pytest.approx(wanted, rel=1e-15)
    assert split_edges(torch.full((20,), 0.5), 4).tolist() == [0.0, 0.5, 1.0]
    assert split_edges(torch.tensor([0.25, 0.75]), 15).tolist() == [0.0, 0.5, 1.0]


# ---- sweeps


def loop_sweep(values, correct, max_bins=None, width=False):
    count = len(values)
    order = sorted(range(count), key=lambda row: (values[row], row))
    last = max(1, count - 1 if max_bins is None else min(count - 1, max_bins))
    for bins in range(2, last + 1):
        groups = [[] for _ in range(bins)]
        for rank, row in enumerate(order):
            b = min(bins - 1, int(values[row] * bins)) if width else rank * bins // count
            groups[b].append(correct[row])
        accuracy = [sum(group) / len(group) for group in groups if group]
        if any(later < earlier for earlier, later in itertools.pairwise(accuracy)):
            return bins - 1
    return last


@pytest.mark.parametrize("binning", ["sweep", "sweep_width"])
@pytest.mark.parametrize("seed", range(6))
def test_sweeps_agree_with_loops(binning, seed):
    values, correct = sample(40 + 7 * seed, seed)
    if seed == 1:
        correct[:] = 1
    if seed == 2:
        correct[:] = 0
    if seed == 3:
        correct = (values > 0.6).astype(float)
    if seed == 4:
        correct = (values > 0.6).astype(float)
        correct[numpy.argmax(values > 0.65)] = 0.0
    for max_bins in (None, 5):
        found = assign(torch.tensor(values), binning=binning, correct=torch.tensor(correct), max_bins=max_bins)
        assert found.count == loop_sweep(values, correct, max_bins, width=binning == "sweep_width")


def test_a_perfect_model_does_not_take_a_cubic_time():
    values = torch.rand(100_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert assign(values, binning="sweep", correct=torch.ones(100_000)).count == 99_999


# ---- bins of variable width


def loop_variable(values):
    """The published rule, row by row from the most confident down."""
    rows = sorted(range(len(values)), key=lambda row: -values[row])
    sizes, target, low, high = [0], math.inf, 1.0, 0.0
    for place, row in enumerate(rows):
        enough = sizes[-1] > target and len(rows) - place > 40 and low - values[rows[-1]] > 0.05
        if enough:
            sizes.append(0)
            low, high = 1.0, 0.0
        sizes[-1] += 1
        low, high = min(low, values[row]), max(high, values[row])
        target = math.inf if low == high else 0.25 * (1.645 / (high - low)) ** 2
    lack = target - sizes[-1]
    if 0 < lack < math.inf:
        given = int(lack * sizes[-1] / len(rows))
        if all(size > given for size in sizes[:-1]):
            sizes = [size - given for size in sizes[:-1]] + [sizes[-1] + given * (len(sizes) - 1)]
    index, place = [0] * len(values), 0
    for b, size in enumerate(sizes):
        for row in rows[place : place + size]:
            index[row] = b
        place += size
    return index


@pytest.mark.parametrize(("count", "ties"), [(30, False), (200, False), (2000, False), (2000, True), (60, True)])
def test_variable_bins_agree_with_a_loop(count, ties):
    values, _ = sample(count, seed=count, ties=ties)
    assert assign(torch.tensor(values), binning="variable").index.tolist() == loop_variable(values)


# ---- refusals


@pytest.mark.parametrize(
    "settings",
    [
        {"binning": "with"},
        {"bins": 0},
        {"bins": 2.5},
        {"bins": True},
        {"closed": "both"},
        {"parity": "official"},
        {"binning": "sweep"},
        {"binning": "sweep", "correct": torch.ones(3), "max_bins": 0},
    ],
)
def test_bad_settings(settings):
    with pytest.raises(ValueError, match=r"bin|width"):
        assign(torch.rand(3), **settings)


def test_no_values():
    with pytest.raises(ValueError, match="no values"):
        assign(torch.zeros(0))


# ---- sums


def test_halves_add_up_to_the_value():
    values = torch.tensor([0.1, 1 / 3, 1e-9, 1e6 + 0.3, -2.7, 0.0, math.inf], dtype=torch.float64)
    assert halves(values).sum(-1).tolist() == values.tolist()


def test_sums_do_not_depend_on_the_order():
    values = torch.rand(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    index = (values * 7).long()
    first = add_up(index, values, 7)
    exact = [float(sum((Fraction(v) for v in values[index == b].tolist()), Fraction(0))) for b in range(7)]
    assert first.sum(-1).tolist() == exact
    for seed in range(3):
        order = torch.randperm(20_000, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(add_up(index[order], values[order], 7), first)
        parts = [add_up(index[part], values[part], 7) for part in order.split(3333)]
        assert torch.equal(sum(parts), first)


def test_bin_sums_leave_out_rows_without_a_bin():
    index = torch.tensor([0, -1, 1, 1])
    sums = bin_sums(index, 3, torch.tensor([0.5, 0.25, 0.75, 1.0]), torch.tensor([1.0, 1.0, 0.0, 1.0])).sum(-1)
    assert sums.tolist() == [[1, 0.5, 1], [2, 1.75, 1], [0, 0, 0]]
    weights = torch.tensor([2.0, 1.0, 3.0, 0.5])
    weighted = bin_sums(index, 3, torch.tensor([0.5, 0.25, 0.75, 1.0]), torch.tensor([1.0, 1.0, 0.0, 1.0]), weights)
    assert weighted.sum(-1).tolist() == [[2, 1, 2], [3.5, 2.75, 0.5], [0, 0, 0]]


# ---- the error

SUMS = torch.tensor([[4.0, 3.0, 1.0], [0.0, 0.0, 0.0], [6.0, 3.3, 4.0], [1.0, 0.9, 1.0]], dtype=torch.float64)


@pytest.mark.parametrize("norm", [1, 2, 3.5, "max", "inf"])
def test_error_is_its_formula(norm):
    total, gaps = 11.0, [(4, abs(3 - 1) / 4), (6, abs(3.3 - 4) / 6), (1, abs(0.9 - 1))]
    if norm in ("max", "inf"):
        wanted = max(gap for _, gap in gaps)
    else:
        wanted = sum(n / total * gap**norm for n, gap in gaps) ** (1 / norm)
    assert float(calibration_error(SUMS, norm=norm)) == pytest.approx(wanted, rel=1e-14)
    several = calibration_error(torch.stack([SUMS, SUMS.flip(0)]), norm=norm)
    assert several.tolist() == pytest.approx([wanted, wanted], rel=1e-14)


def test_debiased_square_is_its_formula():
    square = 4 / 11 * (0.5**2 - 0.25 * 0.75 / 3) + 6 / 11 * ((0.7 / 6) ** 2 - (4 / 6) * (2 / 6) / 5)
    assert float(debiased_calibration_error(SUMS, norm=2)) == pytest.approx(math.sqrt(square), rel=1e-13)
    even = torch.tensor([[10.0, 5.0, 5.0]], dtype=torch.float64)
    assert float(debiased_calibration_error(even, norm=2)) == 0.0


def test_debiased_absolute_error_integrates_the_normal_exactly():
    def expectation(mean, variance):
        if variance == 0:
            return abs(mean)
        density = lambda x: abs(x) * mpmath.npdf(x, mean, mpmath.sqrt(variance))  # noqa: E731
        spread = 12 * math.sqrt(variance)
        return float(mpmath.quad(density, sorted([mean - spread, 0, mean, mean + spread])))

    wanted = sum(
        n / 11 * (2 * abs(c - a) - expectation(c - a, a * (1 - a) / n))
        for n, c, a in ((4, 0.75, 0.25), (6, 0.55, 4 / 6), (1, 0.9, 1.0))
    )
    assert float(debiased_calibration_error(SUMS, norm=1)) == pytest.approx(wanted, rel=1e-10)


@pytest.mark.parametrize("norm", [0, 0.5, -1, "one", True, float("nan")])
def test_bad_norms(norm):
    with pytest.raises(ValueError, match="norm"):
        calibration_error(SUMS, norm=norm)


def test_debiasing_has_two_norms():
    with pytest.raises(ValueError, match="1 or 2"):
        debiased_calibration_error(SUMS, norm=3)
