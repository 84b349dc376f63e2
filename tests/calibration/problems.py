"""Small problems and every calibrator, ready to fit."""

from __future__ import annotations

import numpy as np

from reweigh import registry


def softmax(z):
    z = np.asarray(z, float)
    with np.errstate(invalid="ignore"):
        e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def rows(n=1500, classes=5, sharp=2.0, seed=0, noise=1.5):
    """Logits `sharp` times too sharp, and labels drawn from the unsharpened ones."""
    generator = np.random.default_rng(seed)
    z = noise * generator.normal(size=(n, classes))
    y = (z + generator.gumbel(size=z.shape)).argmax(1)
    return sharp * z, y


def likelihood(p, y, weight=None):
    """Mean negative log-likelihood."""
    return float(np.average(-np.log(p[np.arange(len(y)), y]), weights=weight))


SETTINGS = {
    "meta_accuracy": {"target": 0.7, "random_state": 0},
    "meta_misclassification": {"random_state": 0},
    "selective_classifier": {"risk": 0.4},
}
ENTRIES = registry.entries("calibrator")
NAMES = [entry.name for entry in ENTRIES]


def make(name, **settings):
    """An unfitted calibrator, with what it needs."""
    return registry.get("calibrator", name)(**{**SETTINGS.get(name, {}), **settings})


def details(name):
    return registry.find("calibrator", name).details
