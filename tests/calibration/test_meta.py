"""Meta-calibration by explicit rows and by seeds, against a plain transcription of the published rules."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from sklearn.isotonic import IsotonicRegression

from reweigh.calibration import MetaAccuracy, MetaMisclassification, TemperatureScaling

from .problems import rows, softmax


def uncertainty(z):
    return entropy(softmax(z), axis=1)


def test_misclassification_rule():
    z, y = rows(2000, 5)
    right = np.flatnonzero(z.argmax(1) == y)
    apart = right[::7][:100]
    found = MetaMisclassification(alpha=0.1).fit(z, y, threshold_rows=apart)
    h = uncertainty(z)
    assert found.threshold_ == pytest.approx(np.quantile(h[apart], 0.9, method="higher"), rel=1e-12)
    rest = np.setdiff1d(np.arange(2000), apart)
    base = rest[h[rest] < found.threshold_]
    assert found.temperature_ == pytest.approx(TemperatureScaling().fit(z[base], y[base]).temperature_, rel=1e-10)
    accepted = h < found.threshold_
    want = np.where(accepted[:, None], softmax(z / found.temperature_), 0.2)
    edge = np.isclose(h, found.threshold_, rtol=1e-12)
    np.testing.assert_allclose(found.predict_proba(z)[~edge], want[~edge], atol=1e-12)
    assert np.array_equal(found.abstains(z)[~edge], ~accepted[~edge])
    assert np.array_equal(found.threshold_rows_, np.sort(apart))


def test_misclassification_draws_a_tenth_of_the_right_rows():
    z, y = rows(3000, 5)
    right = z.argmax(1) == y
    first = MetaMisclassification(random_state=1).fit(z, y)
    again = MetaMisclassification(random_state=np.random.default_rng(1)).fit(z, y)
    other = MetaMisclassification(random_state=2).fit(z, y)
    assert right[first.threshold_rows_].all() and len(first.threshold_rows_) == min(500, right.sum() // 10)
    assert first.threshold_ == again.threshold_ and not np.array_equal(first.threshold_rows_, other.threshold_rows_)
    for generator in (torch.Generator().manual_seed(1), np.random.RandomState(1), None):
        MetaMisclassification(random_state=generator).fit(z, y)
    redone = MetaMisclassification().fit(z, y, threshold_rows=first.threshold_rows_)
    assert redone.temperature_ == first.temperature_


def test_misclassification_keeps_its_promise():
    z, y = rows(20_000, 5, seed=5)
    lost = []
    for seed in range(20):
        found = MetaMisclassification(alpha=0.05, random_state=seed).fit(z[:10_000], y[:10_000])
        right = z[10_000:].argmax(1) == y[10_000:]
        lost.append(found.abstains(z[10_000:])[right].mean())
    assert np.mean(lost) == pytest.approx(0.05, abs=0.01)


def test_accuracy_rule():
    z, y = rows(4000, 5)
    apart = np.arange(0, 4000, 10)
    found = MetaAccuracy(0.75).fit(z, y, threshold_rows=apart)
    h, right = uncertainty(z)[apart], (z.argmax(1) == y)[apart]
    cuts = np.quantile(h, np.linspace(0, 1, 21))
    accuracies, entropies = [], []
    for low, high in itertools.pairwise(cuts):
        inside = (h > low) & (h <= high)
        accuracies.append(right[inside].mean() if inside.any() else 0)
        entropies.append(h[inside].mean() if inside.any() else 0)
    running = np.cumsum(accuracies) / np.arange(1, 21)
    want = IsotonicRegression(increasing=False).fit(running, entropies).predict([0.75])[0]
    assert found.threshold_ == pytest.approx(want, rel=1e-9)
    all_h = uncertainty(z)
    rest = np.setdiff1d(np.arange(4000), apart)
    base = rest[all_h[rest] < found.threshold_]
    assert found.temperature_ == pytest.approx(TemperatureScaling().fit(z[base], y[base]).temperature_, rel=1e-10)
    accepted = ~found.abstains(z)
    assert (z.argmax(1) == y)[accepted].mean() == pytest.approx(0.75, abs=0.04)


@pytest.mark.filterwarnings("ignore:.*stays 1", "ignore:.*by the 5 row")
def test_accuracy_out_of_reach():
    z, y = rows(2000, 5)
    with pytest.raises(ValueError, match=r"unreachable target=0.999.*Lower it"):
        MetaAccuracy(0.999, random_state=0).fit(z, y)
    with pytest.raises(ValueError, match=r"unreachable target=0.001.*Raise it"):
        MetaAccuracy(0.001, random_state=0).fit(z, y)
    with pytest.warns(UserWarning, match=r"5 row\(s\)"):
        found = MetaAccuracy(0.9999, random_state=0).fit(z[:50], y[:50])
    assert found.abstains(z).all()
    np.testing.assert_allclose(found.predict_proba(z), 0.2)


def test_entropies_near_zero_keep_their_order():
    # p rounds to 1 in float64, the entropy does not round to 0
    from reweigh.calibration._meta_fit import entropy as exact

    gaps = torch.tensor([[g, 0.0] for g in (30.0, 36.0, 40.0, 200.0, 700.0)], dtype=torch.float64)
    h = exact(gaps)
    assert (h > 0).all() and (h.diff() < 0).all()
    np.testing.assert_allclose(h.numpy(), np.exp(-gaps[:, 0].numpy()) * (1 + gaps[:, 0].numpy()), rtol=1e-9)


@pytest.mark.parametrize(
    ("rows_given", "message"),
    [([0, 0], "row 0 in threshold_rows twice"), ([5000], "row 5000"), ([-1], "row -1"), ([], "shape"), ([0.5], "type")],
)
def test_wrong_rows(rows_given, message):
    z, y = rows(300, 5)
    with pytest.raises(ValueError, match=message):
        MetaAccuracy(0.7).fit(z, y, threshold_rows=rows_given)


def test_wrong_settings():
    z, y = rows(300, 5)
    wrong = np.flatnonzero(z.argmax(1) != y)[:1]
    with pytest.raises(ValueError, match="predicted class is wrong"):
        MetaMisclassification().fit(z, y, threshold_rows=wrong)
    for alpha in (0, 1, "5%", True):
        with pytest.raises(ValueError, match="alpha="):
            MetaMisclassification(alpha=alpha).fit(z, y)
    with pytest.raises(ValueError, match="wrong in every one"):
        MetaMisclassification().fit(z, (z.argmax(1) + 1) % 5)
