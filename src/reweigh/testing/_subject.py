"""A loss under examination, and the batches it is examined with."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..module import Loss
from ..rules import Rule


@dataclass(frozen=True)
class Subject:
    """The loss, where it is examined and how thoroughly."""

    label: str
    loss: Loss
    device: torch.device
    full: bool = False

    @property
    def rule(self) -> Rule:
        """What the loss does."""
        return self.loss.rule

    @property
    def classes(self) -> int | None:
        """How many classes the loss was built for; None: any number."""
        if self.rule.num_classes is not None:
            return self.rule.num_classes
        state = self.loss.state()
        for vector in (self.rule.class_weight, self.rule.scale, self.rule.offset):
            if vector is not None:
                return len(vector(state))
        return None

    @property
    def whole_rows(self) -> bool:
        """Is there one price a row (softmax, boxes), not one an element?"""
        return self.rule.head != "sigmoid" or self.rule.per_row

    def built(self, rule: Rule | None = None, **common: Any) -> Loss:
        """The same rule and state with other common keywords, on the device."""
        loss = Loss(rule or self.rule, **common)
        for name, value in self.loss.state().items():
            loss._buffers[name] = value.detach().clone()
        loss.training = self.loss.training
        return loss.to(self.device)

    def place(self, value: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """A copy on the device; floating-point ones in `dtype`."""
        value = value.detach().clone()
        return value.to(self.device, dtype if value.is_floating_point() else None)


@dataclass(frozen=True)
class Data:
    """Logits (float64, on the CPU) and targets as the loss takes them."""

    logits: Tensor
    target: Tensor


def draw(
    subject: Subject,
    rows: int = 6,
    *,
    classes: int | None = None,
    dense: tuple[int, ...] = (),
    seed: int = 0,
    spread: float = 2.0,
) -> Data:
    """A batch of nothing special: no ties, nothing saturated."""
    generator = torch.Generator().manual_seed(seed)
    if subject.rule.head == "boxes":
        return _boxes(rows, generator)
    count = subject.classes or classes or 7
    logits = spread * torch.randn(rows, count, *dense, generator=generator, dtype=torch.float64)
    if subject.rule.head == "softmax" or subject.rule.index_targets:
        return Data(logits, torch.randint(count, (rows, *dense), generator=generator))
    return Data(logits, torch.randint(2, logits.shape, generator=generator))


def _boxes(rows: int, generator: torch.Generator) -> Data:
    """True boxes from 8 to 250 pixels wide, predicted ones nearby."""
    corner = 300 * torch.rand(rows, 2, generator=generator, dtype=torch.float64)
    size = 8 + 242 * torch.rand(rows, 2, generator=generator, dtype=torch.float64)
    target = torch.cat([corner, corner + size], 1)
    off = 0.15 * size.repeat(1, 2) * (2 * torch.rand(rows, 4, generator=generator, dtype=torch.float64) - 1)
    return Data(target + off, target)


def aged(loss: Loss) -> Loss:
    """A copy whose memory has seen something: initial states are often those in which nothing happens."""
    twin = copy.deepcopy(loss)
    if twin.rule.observe is None:
        return twin
    subject = Subject("", twin, torch.device("cpu"))
    data = draw(subject, 40, seed=99)
    twin.observe(data.logits.to(_device(twin)), data.target.to(_device(twin)))
    return twin


def _device(loss: Loss) -> torch.device:
    return next(iter(loss.state().values())).device


def exponent(rule: Rule) -> float:
    """The largest number among the settings, as a bound of exponents: rounding grows in proportion to them."""
    found = [abs(value) for value in _numbers(rule.cost) if abs(value) <= 100]
    return max([1.0, *found])


def _numbers(part: Any) -> Iterator[float]:
    if isinstance(part, bool):
        return
    if isinstance(part, (int, float)):
        yield float(part)
    elif isinstance(part, partial):
        yield from _numbers(part.keywords)
        yield from _numbers(part.args)
    elif isinstance(part, Mapping):
        for value in part.values():
            yield from _numbers(value)
    elif isinstance(part, (tuple, list)):
        for value in part:
            yield from _numbers(value)
