"""Tables that the metric tests share."""

from __future__ import annotations

import numpy

from reweigh import Predictions


def logits_and_labels(rows=200, classes=4, seed=0, scale=2.0, ties=False):
    random = numpy.random.default_rng(seed)
    labels = random.integers(0, classes, rows)
    logits = random.normal(size=(rows, classes)) * scale
    logits[numpy.arange(rows), labels] += 1.5
    return (numpy.round(logits) if ties else logits), labels


def softmax(logits):
    powers = numpy.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def classifier(rows=200, classes=4, seed=0, ties=False, **columns):
    logits, labels = logits_and_labels(rows, classes, seed, ties=ties)
    return Predictions(logits=logits, targets=labels, **columns)


def labels_table(rows=120, classes=3, seed=0, **columns):
    random = numpy.random.default_rng(seed)
    truth = (random.random((rows, classes)) < [0.2, 0.5, 0.8][:classes]).astype(int)
    return Predictions(logits=random.normal(size=(rows, classes)) + 1.5 * truth, targets=truth, **columns)


def soft_table(rows=150, classes=4, seed=0, **columns):
    random = numpy.random.default_rng(seed)
    shares = random.dirichlet(numpy.ones(classes), rows)
    shares[::5] = numpy.eye(classes)[random.integers(0, classes, len(shares[::5]))]
    return Predictions(logits=random.normal(size=(rows, classes)) * 2, targets=shares, **columns)


def confidences(rows=200, seed=0, ties=False, **columns):
    random = numpy.random.default_rng(seed)
    confidence = random.beta(4, 1.5, rows)
    confidence = numpy.round(confidence, 1) if ties else confidence
    return Predictions(confidence=confidence, correct=random.random(rows) < confidence**1.5, **columns)
