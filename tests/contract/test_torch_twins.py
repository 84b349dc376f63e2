"""Where a loss is one of PyTorch's own, the numbers are PyTorch's: values, gradients, means, weights, ignored rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import reweigh
from reweigh import registry

NAMES = set(registry.names("loss"))
CLASSES = 6
COUNTS = [7] * CLASSES  # balanced classes: priors that change nothing

# losses that are cross-entropy with these settings
CROSS_ENTROPY = [
    ("cross_entropy", {}),
    ("focal", {"gamma": 0}),
    ("inverse_focal", {"gamma": 0}),
    ("dual_focal", {"gamma": 0}),
    ("polynomial", {"epsilon": 0}),
    ("confidence_penalty", {"beta": 0}),
    ("uncertainty_weighted", {"gamma": 0}),
    ("bi_tempered", {"t1": 1.0, "t2": 1.0}),
    ("symmetric_cross_entropy", {"alpha": 1, "beta": 0}),
    ("margin_label_smoothing", {"strength": 0}),
    ("selective_risk", {"estimator": "exact", "coverage": 0}),
    ("logit_adjusted", {"class_counts": COUNTS}),
    ("balanced_softmax", {"class_counts": COUNTS}),
    ("vector_scaling", {"class_counts": COUNTS}),
    ("seesaw", {"class_counts": COUNTS, "q": 0}),
    ("kernel_calibration", {"strength": 0}),
    ("kernel_density", {"strength": 0}),
    ("confidence_accuracy_difference", {"strength": 0}),
]
BINARY = [
    ("binary_cross_entropy", {}),
    ("binary_focal", {"gamma": 0}),
    ("binary_inverse_focal", {"gamma": 0}),
    ("asymmetric", {"gamma_negative": 0, "gamma_positive": 0, "margin": 0}),
]


def known(table):
    return [pytest.param(*entry, id=entry[0]) for entry in table if entry[0] in NAMES]


def both(loss, twin, logits):
    """Values and gradients of the two."""
    found = []
    for function in (loss, twin):
        z = logits.clone().requires_grad_()
        value = function(z)
        (gradient,) = torch.autograd.grad(value.sum(), z)
        found.append((value.detach(), gradient))
    return found


def same(pair, tolerance=1e-9):
    (value, gradient), (right, slope) = pair
    torch.testing.assert_close(value, right, rtol=tolerance, atol=1e-12)
    torch.testing.assert_close(gradient, slope, rtol=100 * tolerance, atol=1e-12)


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(9, CLASSES, generator=generator, dtype=torch.float64)
    return logits, torch.randint(CLASSES, (9,), generator=generator)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("name", "settings"), known(CROSS_ENTROPY))
def test_cross_entropy(name, settings, reduction, batch):
    logits, target = batch
    loss = reweigh.loss(name, reduction=reduction, **settings)
    same(both(lambda z: loss(z, target), lambda z: F.cross_entropy(z, target, reduction=reduction), logits))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", ["cross_entropy", "focal"])
def test_weights_and_ignored_rows(name, reduction, batch):
    if name not in NAMES:
        pytest.skip(f"no {name}")
    logits, target = batch
    target = target.clone()
    target[3] = target[8] = 255
    weight = torch.linspace(0.1, 2, CLASSES, dtype=torch.float64)
    settings = {"gamma": 0} if name == "focal" else {}
    loss = reweigh.loss(name, reduction=reduction, class_weight=weight, ignore_index=255, **settings)

    def twin(z):
        return F.cross_entropy(z, target, weight=weight, reduction=reduction, ignore_index=255)

    same(both(lambda z: loss(z, target), twin, logits))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.skipif("cross_entropy" not in NAMES, reason="no cross_entropy")
def test_label_smoothing_and_soft_targets(reduction, weighted, batch):
    logits, target = batch
    weight = torch.linspace(0.1, 2, CLASSES, dtype=torch.float64) if weighted else None
    smooth = reweigh.loss("cross_entropy", label_smoothing=0.2, reduction=reduction, class_weight=weight)

    def twin(z):
        return F.cross_entropy(z, target, weight=weight, reduction=reduction, label_smoothing=0.2)

    same(both(lambda z: smooth(z, target), twin, logits))
    share = torch.softmax(logits.flip(0), 1)
    soft = reweigh.loss("cross_entropy", reduction=reduction, class_weight=weight)

    def soft_twin(z):
        return F.cross_entropy(z, share, weight=weight, reduction=reduction)

    same(both(lambda z: soft(z, share), soft_twin, logits))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("name", "settings"), known(BINARY))
def test_binary_cross_entropy(name, settings, reduction, batch):
    logits, _ = batch
    for label in (torch.sigmoid(logits.flip(0)).round(), torch.sigmoid(logits.flip(0))):
        loss = reweigh.loss(name, reduction=reduction, **settings)
        if loss.rule.soft in ("own", "refused") and not bool((label == label.round()).all()):
            continue

        def twin(z, label=label):
            return F.binary_cross_entropy_with_logits(z, label, reduction=reduction)

        same(both(lambda z: loss(z, label), twin, logits))  # noqa: B023


@pytest.mark.skipif("binary_cross_entropy" not in NAMES, reason="no binary_cross_entropy")
def test_positive_weight(batch):
    logits, _ = batch
    label = torch.sigmoid(logits.flip(0)).round()
    weight = torch.linspace(0.5, 4, CLASSES, dtype=torch.float64)
    loss = reweigh.loss("binary_cross_entropy", positive_weight=weight)
    same(
        both(
            lambda z: loss(z, label), lambda z: F.binary_cross_entropy_with_logits(z, label, pos_weight=weight), logits
        )
    )


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_dense(reduction):
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(2, CLASSES, 3, 4, generator=generator, dtype=torch.float64)
    target = torch.randint(CLASSES, (2, 3, 4), generator=generator)
    target[0, 1, 2] = -100
    loss = reweigh.loss("focal", gamma=0, reduction=reduction)
    same(both(lambda z: loss(z, target), lambda z: F.cross_entropy(z, target, reduction=reduction), logits))


def test_a_drop_in_replacement_trains_the_same():
    """Ten steps of gradient descent with either loss end at the same weights."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(64, 10, generator=generator)
    y = torch.randint(CLASSES, (64,), generator=generator)
    ends = []
    for loss in (torch.nn.CrossEntropyLoss(), reweigh.loss("focal", gamma=0)):
        torch.manual_seed(4)
        model = torch.nn.Linear(10, CLASSES)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(10):
            optimiser.zero_grad()
            loss(model(x), y).backward()
            optimiser.step()
        ends.append(model.weight.detach())
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-5, atol=1e-6)
