"""Ensemble temperature: the exact simplex solutions, against SciPy and against every point around them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar

from reweigh.calibration import EnsembleTemperatureScaling, TemperatureScaling
from reweigh.calibration._simplex import mixture_shares, simplex_quadratic

from .problems import likelihood, rows, softmax


def parts(z, temperature):
    return np.stack([softmax(z / temperature), softmax(z), np.full(z.shape, 1 / z.shape[1])])


def squared_error(p, y):
    return ((p - np.eye(p.shape[1])[y]) ** 2).sum(1).mean()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sharp", [0.4, 1.0, 3.0])
def test_squared_error(seed, sharp):
    z, y = rows(500, 4, sharp=sharp, seed=seed)
    found = EnsembleTemperatureScaling().fit(z, y)
    want = minimize_scalar(
        lambda t: squared_error(softmax(z / t), y), bounds=(0.05, 8), method="bounded", options={"xatol": 1e-10}
    )
    assert found.temperature_ == pytest.approx(want.x, rel=1e-5)
    three = parts(z, found.temperature_)
    here = squared_error(np.tensordot(found.weights_, three, 1), y)
    slsqp = minimize(
        lambda w: squared_error(np.tensordot(w, three, 1), y), [1, 0, 0], bounds=[(0, 1)] * 3, tol=1e-14,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1}, method="SLSQP",
    )  # fmt: skip
    assert here <= slsqp.fun + 1e-13
    assert found.weights_.sum() == pytest.approx(1, abs=1e-14) and (found.weights_ >= 0).all()
    np.testing.assert_allclose(found.predict_proba(z), np.tensordot(found.weights_, three, 1), atol=1e-14)


@pytest.mark.parametrize("seed", range(4))
def test_likelihood(seed):
    z, y = rows(500, 4, sharp=3.0, seed=seed)
    y[:60] = np.random.default_rng(seed).integers(0, 4, 60)  # some labels are noise: the uniform part is wanted
    found = EnsembleTemperatureScaling(objective="nll").fit(z, y)
    assert found.temperature_ == TemperatureScaling().fit(z, y).temperature_
    columns = parts(z, found.temperature_)[:, np.arange(500), y]
    slope = (columns / (found.weights_ @ columns)).mean(1)
    assert slope.max() <= 1 + 1e-9
    assert np.abs((slope - 1) * found.weights_).max() < 1e-11, "the optimality conditions"


def test_better_than_one_temperature_alone():
    z, y = rows(3000, 5, sharp=3.0)
    y[:500] = np.random.default_rng(0).integers(0, 5, 500)
    ensemble = EnsembleTemperatureScaling(objective="nll").fit(z, y)
    assert likelihood(ensemble.predict_proba(z), y) < likelihood(TemperatureScaling().fit(z, y).predict_proba(z), y)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_uniform_distribution_alone_keeps_the_order():
    generator = np.random.default_rng(0)
    z, y = generator.normal(size=(400, 3)) * 3, generator.integers(0, 3, 400)
    z[np.arange(400), y] -= 1
    for objective in ("mse", "nll"):
        found = EnsembleTemperatureScaling(objective=objective).fit(z, y)
        assert (found.predict_proba(z).argmax(1) == z.argmax(1)).all()
        assert found.predict_proba(z).std() < 0.05


def test_masked_classes_get_no_uniform_share():
    z, y = rows(300, 4, sharp=3.0)
    z[:, 3] = np.where(y == 3, z[:, 3], -np.inf)
    p = EnsembleTemperatureScaling().fit(z, y).predict_proba(z)
    assert (p[y != 3, 3] == 0).all()
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-14)


def test_logits_of_800():
    z, y = rows(300, 4)
    p = EnsembleTemperatureScaling().fit(z * 200, y).predict_proba(z * 200)
    assert np.isfinite(p).all()


def test_settings():
    z, y = rows(50, 3)
    with pytest.raises(ValueError, match="objective='ece', expected 'mse' or 'nll'"):
        EnsembleTemperatureScaling(objective="ece").fit(z, y)


@given(st.integers(0, 2**32 - 1), st.integers(2, 7), st.integers(1, 60))
def test_mixture_shares_meet_the_optimality_conditions(seed, components, n):
    generator = np.random.default_rng(seed)
    ratios = np.exp(generator.normal(size=(n, components)) * 3)
    weight = generator.integers(1, 4, n).astype(float)
    shares = mixture_shares(ratios, weight)
    slope = (weight / weight.sum() / (ratios @ shares)) @ ratios
    assert shares.sum() == pytest.approx(1, abs=1e-12) and (shares >= 0).all()
    assert slope.max() <= 1 + 1e-8 and np.abs((slope - 1) * shares).max() < 1e-10


@given(st.integers(0, 2**32 - 1), st.integers(2, 6))
def test_quadratic_on_the_simplex(seed, size):
    generator = np.random.default_rng(seed)
    root = generator.normal(size=(size, size))
    hessian, linear = root @ root.T + 0.1 * np.eye(size), generator.normal(size=size) * 2
    point = simplex_quadratic(hessian, linear, np.full(size, 1 / size))
    slope = linear - hessian @ point
    assert point.sum() == pytest.approx(1) and (point >= 0).all()
    price = slope @ point
    assert slope.max() <= price + 1e-9 and np.abs((slope - price) * point).max() < 1e-9
