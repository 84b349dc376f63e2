"""Recall loss: present labels of a class weigh more, absent ones less, the worse the class is recalled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, Unpack

import torch
from torch import Tensor

from ..errors import bad_input
from ..evidence import Evidence
from ..module import Common, Loss
from ..registry import register_loss
from ..rules import Rule, State, choice, in_two_passes, log_loss, number, weighted, whole
from ._sigmoid_settings import takes_indices

EXACT_IN_FLOAT32 = 1 << 24


def batch_counts(evidence: Evidence, state: State) -> dict[str, Tensor]:
    """Present labels of each class, and those predicted with more than 1/2; (K,) float64, of this batch."""
    present = evidence.presence
    found = present * torch.sign(evidence.log_odds.detach().clamp(min=0.0))  # those with p > 1/2
    if evidence.kept is not None:
        found, present = torch.where(evidence.kept, found, 0.0), torch.where(evidence.kept, present, 0.0)
    rows = [dim for dim in range(found.dim()) if dim != 1] if found.dim() > 1 else [0]
    # whole numbers: float32 counts them exactly up to 2^24
    wide = torch.float64 if found.numel() > EXACT_IN_FLOAT32 else found.dtype
    return {
        "batch_found": found.sum(rows, dtype=wide).double(),
        "batch_present": present.sum(rows, dtype=wide).double(),
    }


def recall_of(found: Tensor, present: Tensor) -> Tensor:
    """found / present, and 1 for a class without present labels."""
    return torch.where(present > 0, found / present.clamp(min=1e-300), 1.0)


def batch_recall(state: State) -> Tensor:
    """Of this batch alone."""
    return recall_of(state["batch_found"], state["batch_present"])


def observed_recall(state: State) -> Tensor:
    """Of what was observed; of this batch for a class whose label was never seen."""
    seen = state["present"] > 0
    found = torch.where(seen, state["found"], state["batch_found"])
    return recall_of(found, torch.where(seen, state["present"], state["batch_present"]))


def recall_weight(evidence: Evidence, state: State, *, recall: Callable[[State], Tensor]) -> Tensor:
    """1 - recall where the label is present, recall where it is absent."""
    of_class = recall(state)
    present, absent = (evidence.per_class(each).to(evidence.log_p.dtype) for each in (1.0 - of_class, of_class))
    return evidence.by_label(present=present, absent=absent)


# ------------------------------------------------------------------ memory


def nothing_counted(*, num_classes: int) -> dict[str, Tensor]:
    """No labels seen."""
    zeros = torch.zeros(num_classes, dtype=torch.float64)
    return {"found": zeros, "present": zeros.clone()}


def add_counts(evidence: Evidence, state: State, *, decay: float) -> dict[str, Tensor]:
    """counts <- decay * counts + this batch's."""
    batch = batch_counts(evidence, state)
    return {name: decay * state[name] + batch[f"batch_{name}"] for name in ("found", "present")}


def forget(epoch: int, state: State) -> dict[str, Tensor]:
    """A new epoch starts from nothing."""
    return {name: torch.zeros_like(state[name]) for name in ("found", "present")}


@register_loss(
    "recall",
    aliases=("RecallLoss",),
    source="Liu, CoSTaR (Bozhao-Liu/CoSTaR, 2026), after Tian et al., Striking the Right Balance: Recall Loss, 2021",
    formula="present: -(1 - recall_k) log p; absent: -recall_k log(1 - p)",
)
def recall(
    *,
    statistics: Literal["batch", "epoch", "running"] = "batch",
    decay: float = 0.9,
    num_classes: int | None = None,
    targets: Literal["labels", "index"] = "labels",
    **common: Unpack[Common],
) -> Loss:
    """Recall loss: use it when classes that are missed should take over the gradient, without counts given beforehand.

    Formula: (1 - R_k) y (-log p) + R_k (1 - y) (-log(1 - p)), R_k the share of class k's present labels that are
    predicted with more than 1/2. Where no label of the class is present R_k is 1: absent labels count fully. R_k is
    held constant in the gradient, of which it is no part wherever it is defined.

    Settings:
        statistics: where R_k comes from: this "batch" (default, all ranks of a process group together), or counts
            that `loss.observe(logits, labels)` adds to at each step: "epoch" forgets them at `loss.advance(epoch)`,
            "running" multiplies them by `decay` first. A class never observed takes its batch's.
        decay: of the running counts, from 0 to 1 (default 0.9).
        num_classes: K, needed by "epoch" and "running", which keep K counts.
        targets: "labels" of the logits' shape (default), or "index" for class indices, each class against the rest.

    The published program adds 1e-5 to both counts, and takes the largest of a softmax as prediction. Hard labels
    only. Helps recall; a class that is never found has no weight on its absent labels, so false alarms follow.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.recall()
    >>> logits, labels = torch.tensor([[1.0], [-1.0], [-2.0]]), torch.tensor([[1.0], [1.0], [0.0]])
    >>> round(loss(logits, labels).item(), 4)
    0.2922
    """
    name = "recall"
    choice(name, "statistics", statistics, {"batch": 0, "epoch": 1, "running": 2})
    size = None if num_classes is None else whole(name, "num_classes", num_classes)
    memory = {} if statistics == "batch" else _memory(size, statistics, number(name, "decay", decay, low=0.0, high=1.0))
    of_class = batch_recall if statistics == "batch" else observed_recall
    rule = Rule(
        name,
        weighted(partial(recall_weight, recall=of_class), log_loss),
        needs=("log_odds", "log_p"),
        observe_needs=("log_odds",),
        head="sigmoid",
        soft="refused",
        num_classes=size,
        index_targets=takes_indices(name, targets),
        **memory,
    )
    return Loss(in_two_passes(rule, sums=batch_counts), **common)


def _memory(size: int | None, statistics: str, decay: float) -> dict:
    if size is None:
        raise bad_input(
            f"recall(statistics={statistics!r})",
            came="no num_classes",
            expected="num_classes, as it keeps counts of each class",
        )
    return {
        "init": partial(nothing_counted, num_classes=size),
        "observes": "training",
        "observe": partial(add_counts, decay=1.0 if statistics == "epoch" else decay),
        "advance": forget if statistics == "epoch" else None,
    }
