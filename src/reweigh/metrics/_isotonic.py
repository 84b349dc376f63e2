"""Isotonic regression: the rising step function nearest to what happened."""

from __future__ import annotations

import numpy

Array = numpy.ndarray


def pooled(values: Array, weights: Array) -> Array:
    """The weighted least-squares fit that never falls, by pooling adjacent violators.

    Each round pools all maximal runs of falling block means at once; a run that falls belongs to one block of the
    solution, so the order of pooling does not matter.
    """
    size = numpy.ones(len(values), int)
    mean, weight = values.astype(numpy.float64), weights.astype(numpy.float64)
    while len(mean) > 1:
        rises = mean[1:] > mean[:-1]
        if rises.all():
            break
        starts = numpy.flatnonzero(numpy.concatenate([[True], rises]))
        pooled_weight = numpy.add.reduceat(weight, starts)
        mean = numpy.add.reduceat(weight * mean, starts) / pooled_weight
        weight, size = pooled_weight, numpy.add.reduceat(size, starts)
    return numpy.repeat(mean, size)


def distinct(position: Array, outcome: Array, weights: Array) -> tuple[Array, Array, Array]:
    """Distinct positions that carry weight, in rising order; the mean outcome and the weight there."""
    order = numpy.argsort(position)
    position, outcome, weights = position[order], outcome[order], weights[order]
    starts = numpy.flatnonzero(numpy.concatenate([[True], position[1:] != position[:-1]]))
    weight = numpy.add.reduceat(weights, starts)
    total = numpy.add.reduceat(weights * outcome, starts)
    kept = weight > 0
    return position[starts][kept], total[kept] / weight[kept], weight[kept]
