"""One node a call, and what it keeps for the backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .. import kernels
from ._checks import apply_if, check
from ._compare import demand
from ._subject import Subject, draw

ROWS, CLASSES = 32, 4096


def _fused(subject: Subject) -> None:
    rule = subject.rule
    apply_if(rule.head == "softmax", "a sigmoid head is priced and differentiated in one pass")
    apply_if("log_probabilities" not in rule.needs, "the rule needs all class probabilities")
    probe = torch.zeros(2, 2, device=subject.device)
    apply_if(kernels.find(probe, "softmax") is not None, f"no kernel serves {subject.device}")


def _run(subject: Subject) -> tuple[Tensor, Tensor, list[Tensor]]:
    classes = subject.classes or CLASSES
    data = draw(subject, ROWS, classes=classes, seed=70)
    z = subject.place(data.logits, torch.float32).requires_grad_()
    saved: list[Tensor] = []

    def keep(value: Tensor) -> Tensor:
        saved.append(value)
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        value = subject.built()(z, subject.place(data.target))
    return value, z, saved


def _nodes(root: Any) -> Iterator[Any]:
    seen, stack = set(), [root]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        stack.extend(parent for parent, _ in node.next_functions)


@check("one_node")
def one_node(subject: Subject) -> None:
    """All evidence of a call comes from one autograd node: the logits are read by nobody else."""
    _fused(subject)
    value, _, _ = _run(subject)
    readers = [
        node
        for node in _nodes(value.grad_fn)
        if any(parent is not None and parent.name().endswith("AccumulateGrad") for parent, _ in node.next_functions)
    ]
    names = ", ".join(node.name() for node in readers)
    demand(len(readers) == 1, f"{len(readers)} nodes read the logits ({names}), expected one.")


@check("memory")
def memory(subject: Subject) -> None:
    """For the backward pass no n x K numbers are kept beside the logits, but for one buffer on the CPU."""
    _fused(subject)
    value, z, saved = _run(subject)
    kept = {id(tensor.untyped_storage()._cdata): tensor for tensor in saved}
    for node in _nodes(value.grad_fn):
        for tensor in _held(getattr(node, "__dict__", {}), 0):
            kept[tensor.untyped_storage()._cdata] = tensor
    own = {z.untyped_storage()._cdata}
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in kept.values()}
    extra = sum(size for place, size in storages.items() if place not in own)
    buffers = 1 if subject.device.type == "cpu" else 0
    a_row = 8 * max(40, CLASSES // 4)  # numbers a row, for a histogram too, but not one for each class
    allowed = buffers * z.numel() * z.element_size() + a_row * len(z) + 4096
    demand(
        extra <= allowed, f"{extra} bytes are kept for the backward pass beside the logits, expected at most {allowed}."
    )


def _held(value: Any, depth: int) -> Iterator[Tensor]:
    """Tensors in a node's own attributes."""
    if isinstance(value, Tensor):
        yield value
    elif depth < 4:
        if isinstance(value, dict):
            parts = list(value.values())
        elif isinstance(value, (list, tuple)):
            parts = list(value)
        else:
            parts = list(getattr(value, "__dict__", {}).values())
        for part in parts:
            yield from _held(part, depth + 1)
