"""EQL v2: each class's absent labels count as much as its gradients are out of balance."""

from __future__ import annotations

from functools import partial
from typing import Literal, Unpack

import torch
from torch import Tensor

from ..evidence import Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, State, log_loss, weighted, whole
from ._sigmoid_settings import finite, takes_indices

FIRST_RATIO = 100.0  # of a class not yet observed: both weights are 1
LARGEST_RATIO = 1e30  # of a class whose labels were present always


def balanced_gradients(*, num_classes: int) -> dict[str, Tensor]:
    """Nothing observed. float64: the sums grow over a whole training."""
    zeros = torch.zeros(num_classes, dtype=torch.float64)
    return {"positive_gradient": zeros, "negative_gradient": zeros.clone()}


def gradient_ratio(state: State) -> Tensor:
    """Gradient on present labels over gradient on absent labels, (K,)."""
    positive, negative = state["positive_gradient"], state["negative_gradient"]
    measured = (positive / torch.where(negative > 0, negative, 1.0)).clamp(max=LARGEST_RATIO)
    only_positive = torch.where(positive > 0, LARGEST_RATIO, FIRST_RATIO)
    return torch.where(negative > 0, measured, only_positive)


def label_weights(state: State, *, gamma: float, mu: float, alpha: float) -> tuple[Tensor, Tensor]:
    """Weights of present and of absent labels, (K,) each."""
    absent = torch.sigmoid(gamma * (gradient_ratio(state) - mu))
    return 1.0 + alpha * (1.0 - absent), absent


def equalizing_weight(evidence: Evidence, state: State, *, gamma: float, mu: float, alpha: float) -> Tensor:
    """The weight of every label."""
    present, absent = (
        evidence.per_class(weight).to(evidence.log_p.dtype)
        for weight in label_weights(state, gamma=gamma, mu=mu, alpha=alpha)
    )
    return evidence.by_label(present=present, absent=absent)


def collect_gradients(evidence: Evidence, state: State, *, gamma: float, mu: float, alpha: float) -> dict[str, Tensor]:
    """Add the size of each label's weighted gradient for its logit, w (1 - p), to its class's sums."""
    present, absent = label_weights(state, gamma=gamma, mu=mu, alpha=alpha)
    size = torch.exp(evidence.log_miss.double())
    size = size if evidence.kept is None else torch.where(evidence.kept, size, 0.0)
    others = [dim for dim in range(size.dim()) if dim != 1]
    on_present = torch.where(evidence.positive, size, 0.0).sum(others)
    on_absent = torch.where(evidence.positive, 0.0, size).sum(others)
    return {
        "positive_gradient": state["positive_gradient"] + present * on_present,
        "negative_gradient": state["negative_gradient"] + absent * on_absent,
    }


@register_loss(
    "equalization",
    aliases=("EQLv2", "EQL"),
    source="Tan et al., Equalization Loss v2, CVPR 2021 (tztztztztz/eqlv2)",
    formula="present: -(1 + alpha (1 - r_k)) log p; absent: -r_k log(1 - p); r_k = sigmoid(gamma (ratio_k - mu))",
)
def equalization(
    *,
    num_classes: int,
    gamma: float = 12.0,
    mu: float = 0.8,
    alpha: float = 4.0,
    targets: Literal["labels", "index"] = "labels",
    **common: Unpack[Common],
) -> Loss:
    """EQL v2: use it one-versus-rest on long tails, where absent labels of rare classes drown the present ones.

    Formula: with rho_k the gradient that present labels of class k have given so far over that of absent ones,
    r_k = sigmoid(gamma (rho_k - mu)): y (1 + alpha (1 - r_k)) (-log p) + (1 - y) r_k (-log(1 - p)). Call
    `loss.observe(logits, labels)` at every training step; it alone moves rho_k, which starts at 100 (weights of 1).

    Settings:
        num_classes: K. gamma, mu: slope and centre of r_k (defaults 12 and 0.8, the paper).
        alpha: how much present labels of rare classes gain, at least 0 (default 4).
        targets: "labels" of the logits' shape (default), or "index" for class indices, each class against the rest.

    State: `positive_gradient`, `negative_gradient` (K). The mean is over elements; the published program sums over
    classes and divides by rows, K times as much. An objectness column, which it exempts, is a loss of its own here.
    Helps rare classes of long-tailed detection; while little was observed, the ratios are noise.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.equalization(num_classes=2)
    >>> logits, labels = torch.tensor([[1.0, -2.0]]), torch.tensor([[1.0, 0.0]])
    >>> loss.observe(logits, labels)
    >>> round(loss(logits, labels).item(), 4)
    0.1566
    """
    name = "equalization"
    settings = {
        "gamma": finite(name, "gamma", gamma, low=0.0),
        "mu": finite(name, "mu", mu),
        "alpha": finite(name, "alpha", alpha, low=0.0),
    }
    size = whole(name, "num_classes", num_classes)
    rule = Rule(
        name,
        weighted(partial(equalizing_weight, **settings), log_loss),
        needs=("log_p",),
        head="sigmoid",
        init=partial(balanced_gradients, num_classes=size),
        observes="training",
        observe=partial(collect_gradients, **settings),
        observe_needs=("log_miss",),
        num_classes=size,
        index_targets=takes_indices(name, targets),
    )
    return Loss(rule, **common)
