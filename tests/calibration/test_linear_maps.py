"""Vector, matrix, structured and Dirichlet scaling, and the Newton solver under them, against SciPy."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import minimize as scipy_minimize
from scipy.special import logsumexp

import reweigh.calibration._newton as newton
from reweigh.calibration import (
    DirichletCalibration,
    MatrixScaling,
    StructuredMatrixScaling,
    StructuredVectorScaling,
    TemperatureScaling,
    VectorScaling,
)
from reweigh.calibration._rows import Rows, highest_logit
from reweigh.calibration._softmax_regression import Diagonal, Full, SoftmaxRegression, unmasked

from .problems import likelihood, rows, softmax


def log_softmax(z):
    return z - logsumexp(z, axis=1, keepdims=True)


def cost_and_gradient(weight, bias, x, truth, mass):
    """Mean cross-entropy of softmax(W x + b) and its derivatives in W and b; truth (n, K)."""
    log_p = log_softmax(x @ weight.T + bias)
    residual = (np.exp(log_p) - truth) * mass[:, None]
    return -(truth * log_p * mass[:, None]).sum(), residual.T @ x, residual.sum(0)


def solve(x, y, penalty_weight, penalty_bias, diagonal=False, mass=None):
    """The penalised minimum by BFGS: sum of penalty (W - I)^2 and penalty b^2; the off-diagonal is 0 if `diagonal`."""
    k = x.shape[1]
    mass = np.full(len(y), 1 / len(y)) if mass is None else mass / mass.sum()
    truth = np.eye(k)[y]
    free = np.eye(k, dtype=bool) if diagonal else np.ones((k, k), bool)

    def objective(point):
        away, bias = np.zeros((k, k)), point[-k:]
        away[free] = point[:-k]
        cost, slope, bias_slope = cost_and_gradient(np.eye(k) + away, bias, x, truth, mass)
        cost += (penalty_weight * away**2).sum() + penalty_bias * (bias**2).sum()
        slope = slope + 2 * penalty_weight * away
        return cost, np.concatenate([slope[free], bias_slope + 2 * penalty_bias * bias])

    found = scipy_minimize(
        objective, np.zeros(free.sum() + k), jac=True, method="BFGS", options={"gtol": 1e-10, "maxiter": 5000}
    )
    away = np.zeros((k, k))
    away[free] = found.x[:-k]
    return np.eye(k) + away, found.x[-k:], found.fun


def test_vector_scaling_is_the_maximum_likelihood():
    z, y = rows(900, 4)
    found = VectorScaling().fit(z, y)
    weight, bias, cost = solve(z, y, 0.0, 0.0, diagonal=True)
    np.testing.assert_allclose(found.weights_, weight.diagonal(), atol=1e-6)
    np.testing.assert_allclose(found.bias_, bias - bias.mean(), atol=1e-6)
    assert likelihood(found.predict_proba(z), y) <= cost + 1e-13
    truth, mass = np.eye(4)[y], np.full(900, 1 / 900)
    _, slope, bias_slope = cost_and_gradient(np.diag(found.weights_), found.bias_, z, truth, mass)
    assert np.linalg.norm(np.append(slope.diagonal(), bias_slope)) < 1e-8
    assert found.gradient_norm_ < 1e-8 and abs(found.bias_.sum()) < 1e-12


def test_matrix_scaling_is_the_maximum_likelihood():
    z, y = rows(900, 4)
    found = MatrixScaling().fit(z, y)
    _, _, cost = solve(z, y, 0.0, 0.0)
    assert likelihood(found.predict_proba(z), y) <= cost + 1e-13
    _, slope, bias_slope = cost_and_gradient(found.weights_, found.bias_, z, np.eye(4)[y], np.full(900, 1 / 900))
    assert np.hypot(np.linalg.norm(slope), np.linalg.norm(bias_slope)) < 1e-8
    np.testing.assert_allclose((found.weights_ - np.eye(4)).sum(0), 0, atol=1e-10)


@pytest.mark.parametrize("kind", [VectorScaling, MatrixScaling])
@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_any_scale_of_logits(kind, scale):
    z, y = rows(700, 4)
    want = kind().fit(z, y).predict_proba(z)
    np.testing.assert_allclose(kind().fit(z * scale, y).predict_proba(z * scale), want, atol=1e-9)


def test_matrix_scaling_of_logits_that_sum_to_zero():
    z, y = rows(700, 4)
    z = z - z.mean(1, keepdims=True)  # one direction that the rows never show
    found = MatrixScaling().fit(z, y)
    assert found.gradient_norm_ < 1e-8 and np.isfinite(found.weights_).all()


def test_models_nest():
    z, y = rows(2000, 5)
    costs = [
        likelihood(kind().fit(z, y).predict_proba(z), y) for kind in (TemperatureScaling, VectorScaling, MatrixScaling)
    ]
    assert costs[0] > costs[1] > costs[2]


def test_soft_labels():
    z, y = rows(400, 3)
    share = 0.8 * np.eye(3)[y] + 0.2 / 3
    for kind in (VectorScaling, MatrixScaling, DirichletCalibration, StructuredVectorScaling):
        want = kind().fit(np.repeat(z, 3, axis=0), np.tile(np.arange(3), 400), share.reshape(-1))
        np.testing.assert_allclose(kind().fit(z, share).predict_proba(z), want.predict_proba(z), atol=1e-9)


def test_conjugate_gradients_find_the_same(monkeypatch):
    z, y = rows(600, 6)
    dense = [kind().fit(z, y) for kind in (VectorScaling, MatrixScaling, StructuredMatrixScaling)]
    monkeypatch.setattr(newton, "DENSE", 1)
    sparse = [kind().fit(z, y) for kind in (VectorScaling, MatrixScaling, StructuredMatrixScaling)]
    for one, other in zip(dense, sparse, strict=True):
        np.testing.assert_allclose(one.predict_proba(z), other.predict_proba(z), atol=1e-9)


@pytest.mark.parametrize("form", [Full(4, 4), Diagonal(4)])
def test_derivatives_of_the_regression(form):
    z, y = rows(60, 4)
    z[::4, 1] = -np.inf
    y[(np.arange(60) % 4 == 0) & (y == 1)] = 0
    logits = torch.from_numpy(z)
    weight = torch.rand(60, generator=torch.Generator().manual_seed(0)).double()
    table = Rows(logits=logits, highest=highest_logit(logits, ""), target=torch.from_numpy(y), weight=weight)

    def features(block):
        plain, mask = unmasked(block)
        return plain, plain + mask

    penalty = torch.rand(form.size, generator=torch.Generator().manual_seed(1)).double()
    for problem in (
        SoftmaxRegression(table, form, features, penalty),
        SoftmaxRegression(table, form, features).ready(),
    ):
        point = 0.1 * torch.randn(form.size, generator=torch.Generator().manual_seed(2)).double()
        _, gradient = problem.evaluate(point)
        hessian = problem.hessian(point)
        product = problem.curvature(point)
        for k in range(form.size):
            step = torch.zeros(form.size).double()
            step[k] = 1e-5
            high, low = problem.evaluate(point + step), problem.evaluate(point - step)
            assert float(gradient[k]) == pytest.approx((high[0] - low[0]) / 2e-5, abs=1e-8)
            torch.testing.assert_close(hessian[k], (high[1] - low[1]) / 2e-5, atol=1e-8, rtol=1e-6)
            torch.testing.assert_close(product(step / 1e-5), hessian[k], atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("weighted", [False, True])
def test_structured_scaling_minimises_its_formula(weighted):
    z, y = rows(500, 4)
    weight = np.random.default_rng(0).integers(1, 4, 500).astype(float) if weighted else np.ones(500)
    n, k = weight.sum(), 4
    given = weight if weighted else None
    temperature = TemperatureScaling().fit(z, y, given).temperature_
    x = np.log((1 - 1 / (n + 1)) * softmax(z / temperature) + 1 / (n + 1) / k)
    found = StructuredVectorScaling(regularization=2.0).fit(z, y, given)
    matrix, bias, _ = solve(x, y, 2 * k / n, 2 * k / n, diagonal=True, mass=weight)
    assert found.temperature_ == temperature and found.smoothing_ == 1 / (n + 1)
    np.testing.assert_allclose(found.weights_, matrix.diagonal(), atol=1e-7)
    np.testing.assert_allclose(found.bias_, bias, atol=1e-7)
    np.testing.assert_allclose(found.predict_proba(z), softmax(x * found.weights_ + found.bias_), atol=1e-13)

    strength = np.full((k, k), 2 * k * (k - 1) / n)
    np.fill_diagonal(strength, 2 * k / n)
    found = StructuredMatrixScaling(regularization=2.0).fit(z, y, given)
    matrix, bias, _ = solve(x, y, strength, 2 * k / n, mass=weight)
    np.testing.assert_allclose(found.weights_, matrix, atol=1e-7)
    np.testing.assert_allclose(found.bias_, bias, atol=1e-7)
    np.testing.assert_allclose(found.predict_proba(z), softmax(x @ found.weights_.T + found.bias_), atol=1e-13)


def test_more_rows_loosen_the_structure():
    z, y = rows(200, 5, seed=1)
    little, much = StructuredMatrixScaling().fit(z, y), StructuredMatrixScaling(regularization=1e-6).fit(z, y)
    nothing = StructuredMatrixScaling(regularization=1e9).fit(z, y)
    away = [np.abs(one.weights_ - np.eye(5)).max() for one in (nothing, little, much)]
    assert away[0] < 1e-8 < away[1] < away[2]
    with pytest.raises(ValueError, match="regularization=0"):
        StructuredVectorScaling(regularization=0).fit(z, y)


def test_dirichlet_without_a_penalty_is_the_maximum_likelihood():
    z, y = rows(900, 4)
    found = DirichletCalibration().fit(z, y)
    x = log_softmax(z)
    _, slope, bias_slope = cost_and_gradient(found.weights_, found.bias_, x, np.eye(4)[y], np.full(900, 1 / 900))
    assert np.hypot(np.linalg.norm(slope), np.linalg.norm(bias_slope)) < 1e-8
    np.testing.assert_allclose(found.predict_proba(z), softmax(x @ found.weights_.T + found.bias_), atol=1e-13)
    assert likelihood(found.predict_proba(z), y) == pytest.approx(
        likelihood(MatrixScaling().fit(x, y).predict_proba(x), y), abs=1e-12
    )


def test_dirichlet_penalty_is_divided_by_what_it_touches():
    z, y = rows(500, 4)
    off = np.full((4, 4), 3.0 / 12)
    np.fill_diagonal(off, 0.0)
    for mu in (None, 0.7):
        found = DirichletCalibration(regularization=3.0, intercept_regularization=mu).fit(z, y)
        weight, bias, _ = solve(log_softmax(z), y, off, (3.0 if mu is None else mu) / 4)
        np.testing.assert_allclose(found.weights_, weight, atol=1e-7)
        np.testing.assert_allclose(found.bias_, bias, atol=1e-7)


def test_dirichlet_chooses_its_strength_on_held_out_rows():
    # the logits are right but for one temperature: any off-diagonal weight is noise
    z, y = rows(300, 6, seed=3)
    few = DirichletCalibration(regularization="cv").fit(z, y)
    assert few.regularization_ >= 1 and few.regularization_ in few.grid
    # a mixing of classes that many rows show
    z, y = rows(3000, 3, sharp=1.0)
    mixed = z @ np.array([[1, 0.8, 0], [0, 1, 0.8], [0.8, 0, 1]])
    many = DirichletCalibration(regularization="cv", grid=(1e-3, 10.0, 1e3)).fit(mixed, y)
    assert many.regularization_ == 1e-3
    small, small_labels = rows(300, 6, seed=3)
    plain = DirichletCalibration().fit(small, small_labels)
    new, labels = rows(3000, 6, seed=4)
    assert likelihood(few.predict_proba(new), labels) < likelihood(plain.predict_proba(new), labels)


@pytest.mark.parametrize(
    "settings", [{"regularization": -1}, {"regularization": "odir"}, {"regularization": "cv", "folds": 1}]
)
def test_dirichlet_settings(settings):
    z, y = rows(60, 3)
    with pytest.raises(ValueError, match="fitting DirichletCalibration"):
        DirichletCalibration(**settings).fit(z, y)


@pytest.mark.parametrize("kind", [VectorScaling, MatrixScaling, DirichletCalibration])
def test_rows_without_a_finite_optimum_say_so(kind):
    z, y = rows(600, 4)
    with pytest.warns(UserWarning, match="class 2 .1 in all. never occurs"):
        absent = kind().fit(z[y != 2], y[y != 2])
    assert absent.predict_proba(z)[:, 2].max() < 1e-4 and np.isfinite(absent.transform(z)).all()
    with pytest.warns(UserWarning, match="separated without error"):
        separated = kind().fit(5 * np.eye(4)[y] + 0.01 * z, y)
    assert likelihood(separated.predict_proba(5 * np.eye(4)[y] + 0.01 * z), y) < 1e-3


def test_well_posed_fits_are_silent():
    z, y = rows(600, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in (VectorScaling, MatrixScaling, DirichletCalibration, StructuredMatrixScaling):
            kind().fit(z, y)
