"""Shares of a mixture: the maximum of mean log(R w) over the simplex, exact to rounding."""

from __future__ import annotations

import numpy as np

from ..errors import bad_input

ENOUGH = 1e-12


def mixture_shares(ratios: np.ndarray, weight: np.ndarray | None = None, *, steps: int = 500) -> np.ndarray:
    """(K,) shares w >= 0 that sum to 1 and maximise the weighted mean of log(ratios @ w); ratios (n, K) >= 0.

    A few steps of expectation-maximisation, then Newton steps whose quadratic model is maximised on the simplex.
    Optimal are shares whose gradient is 1 where they are positive and at most 1 where they are zero.
    """
    mass = np.full(len(ratios), 1 / len(ratios)) if weight is None else weight / weight.sum()
    top = ratios.max(axis=1)
    if not (top > 0).all():
        row = int(np.flatnonzero(~(top > 0))[0])
        raise bad_input(
            "estimating the shares of a mixture", came=f"no component with a density in row {row}", expected="one"
        )
    ratios = ratios / top[:, None]
    shares = np.full(ratios.shape[1], 1 / ratios.shape[1])
    for _ in range(20):
        shares = shares * ((mass / (ratios @ shares)) @ ratios)
    shares /= shares.sum()
    for _ in range(steps):
        scaled = ratios / (ratios @ shares)[:, None]
        gradient = mass @ scaled
        slack = np.where(shares > 0, np.abs(gradient - 1) * shares, 0.0)
        if slack.max() <= ENOUGH and gradient.max() <= 1 + 1e-10:
            break
        hessian = (scaled * mass[:, None]).T @ scaled
        target = simplex_quadratic(hessian, gradient + hessian @ shares, shares)
        moved = _uphill(ratios, mass, shares, target)
        if moved is None:
            moved = shares * gradient
            moved /= moved.sum()
            if np.abs(moved - shares).max() <= ENOUGH:
                break
        shares = moved
    return shares


def _uphill(ratios: np.ndarray, mass: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray | None:
    """The first of the points halfway, again and again, towards `end` that raises the likelihood."""
    value = mass @ np.log(ratios @ start)
    length = 1.0
    for _ in range(30):
        point = start + length * (end - start)
        mixed = ratios @ point
        if (mixed > 0).all() and mass @ np.log(mixed) > value:
            return point / point.sum()
        length /= 2
    return None


def simplex_quadratic(hessian: np.ndarray, linear: np.ndarray, start: np.ndarray) -> np.ndarray:
    """The w on the simplex that maximises linear' w - w' hessian w / 2, by an active set."""
    free = start > 0
    free[np.argmax(linear - hessian @ start)] = True
    best = start
    for _ in range(3 * len(start) + 10):
        point, price = _equality(hessian, linear, free)
        if (point >= -1e-15).all():
            best = np.maximum(point, 0.0)
            reduced = np.where(free, -np.inf, linear - hessian @ best - price)
            if reduced.max() <= 1e-12 * (1 + abs(price)):
                break
            free[int(np.argmax(reduced))] = True
            start = best
            continue
        # go towards the unconstrained point until the first share vanishes
        down = free & (point < start)
        lengths = np.where(down, start / np.where(down, start - point, 1.0), np.inf)
        length = min(1.0, float(lengths.min()))
        start = start + length * (point - start)
        gone = down & (lengths <= length * (1 + 1e-12))
        start[gone] = 0.0
        free &= ~gone
        best = start = np.maximum(start, 0.0)
    return best / best.sum()


def _equality(hessian: np.ndarray, linear: np.ndarray, free: np.ndarray) -> tuple[np.ndarray, float]:
    """The maximum with the free shares alone and their sum 1, and the price of that sum."""
    chosen = np.flatnonzero(free)
    m = len(chosen)
    system = np.zeros((m + 1, m + 1))
    system[:m, :m] = hessian[np.ix_(chosen, chosen)]
    system[:m, m] = system[m, :m] = 1.0
    solution = np.linalg.lstsq(system, np.append(linear[chosen], 1.0), rcond=1e-14)[0]
    point = np.zeros(len(linear))
    point[chosen] = solution[:m]
    return point, float(solution[m])
