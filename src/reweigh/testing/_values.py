"""Values and gradients of every type against float64, from ordinary to hopeless logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ._checks import apply_if, check
from ._compare import ABSOLUTE, COMPARABLE, GRADIENTS, VALUES, demand, demand_close, demand_finite, word
from ._reference import priced
from ._subject import Data, Subject, draw, exponent

# odd numbers: round ones are where published losses switch, and where their gradients cross zero
GAPS = (0.0, 1e-12, 1e-7, 1e-3, 0.31, 1.07, 2.9, 7.6, 12.6, 17.3, 29.0, 39.0, 71.0, 91.0, 113.0, 307.0, 811.0, 1e4)
# the smallest steps of a gradient: rounding of sums of terms near 1, and of the narrow types
SMALLEST = {torch.float64: 1e-15, torch.bfloat16: 1e-8, torch.float16: 6e-5}
HINT_LOGS = "Work in logarithms from the evidence: log_miss instead of log(1 - exp(log_p)), no added epsilon."


def tolerance(subject: Subject, table: dict[torch.dtype, float], dtype: torch.dtype) -> float:
    """Relative agreement asked for; a large exponent multiplies the rounding of its input."""
    return table[dtype] * max(1.0, exponent(subject.rule) / 5)


def weights_like(cost: Tensor, seed: int = 5) -> Tensor:
    """A cotangent: positive numbers near 1 that differ, so that no row's gradient hides behind another's."""
    generator = torch.Generator().manual_seed(seed)
    return (0.5 + torch.rand(cost.shape, generator=generator, dtype=torch.float64)).to(cost.dtype).to(cost.device)


def costs_and_gradient(subject: Subject, data: Data, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Unreduced costs and the gradient of their weighted sum, by the loss."""
    logits = subject.place(data.logits, dtype).detach().requires_grad_()
    cost = subject.built(reduction="none")(logits, subject.place(data.target))
    (gradient,) = torch.autograd.grad(cost, logits, weights_like(cost))
    return cost, gradient


def expected_costs_and_gradient(
    subject: Subject, data: Data, dtype: torch.dtype, *, one_by_one: bool = False, jitter: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The same by definition, in float64, from logits rounded to `dtype`."""
    logits = data.logits.to(dtype).double().requires_grad_()
    cost = priced(subject.loss, logits, data.target, one_by_one=one_by_one, jitter=jitter, gradient_type=dtype).none()
    weight = weights_like(cost.float() if dtype != torch.float64 else cost).double()
    (gradient,) = torch.autograd.grad(cost, logits, weight)
    return cost.detach(), gradient


@dataclass(frozen=True)
class Slack:
    """What rounding of the evidence explains: where cost and gradient jump, and by how much they move elsewhere."""

    cost_stands: Tensor  # not at a jump, where no type is right
    gradient_stands: Tensor
    cost: Tensor
    gradient: Tensor


def slack(subject: Subject, data: Data, dtype: torch.dtype, right: tuple[Tensor, Tensor]) -> Slack:
    """The definition priced again with its evidence moved by some units of its last place, up and down."""
    rounding = 4 * torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    moved = [expected_costs_and_gradient(subject, data, dtype, jitter=jitter) for jitter in (rounding, -rounding)]
    cost, gradient = (torch.stack([(one[part] - right[part]).abs() for one in moved]).amax(0) for part in (0, 1))
    scale = right[1].abs().flatten(1).amax(1).view(-1, *[1] * (right[1].dim() - 1))
    smooth = (cost <= 0.01 * right[0].abs() + 1e-12).view(len(cost), -1).all(1)
    calm = (gradient <= 0.02 * scale + 1e-12).flatten(1).all(1)
    stands = smooth & calm
    shapes = [stands.view(-1, *[1] * (part.dim() - 1)) for part in right]
    return Slack(shapes[0], shapes[1], cost, gradient)


def compare(subject: Subject, data: Data, dtype: torch.dtype, what: str, *, one_by_one: bool = False) -> None:
    """Break unless the loss in `dtype` agrees with the definition in float64."""
    cost, gradient = costs_and_gradient(subject, data, dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    demand(cost.dtype == wide, f"costs of {word(dtype)} logits are {word(cost.dtype)}, expected {word(wide)}.")
    demand(gradient.dtype == dtype, f"the gradient of {word(dtype)} logits is {word(gradient.dtype)}.")
    demand_finite(cost, f"{what}: the cost of {word(dtype)} logits", mend=HINT_LOGS)
    right = expected_costs_and_gradient(subject, data, dtype, one_by_one=one_by_one)
    # a gradient that the type cannot hold may overflow
    held = torch.where(right[1].abs().to(gradient.device) > torch.finfo(dtype).max / 4, 0, gradient)
    demand_finite(held, f"{what}: the gradient for {word(dtype)} logits", mend=HINT_LOGS)
    given = slack(subject, data, dtype, right)
    relative = tolerance(subject, VALUES, dtype)
    demand_close(
        cost, right[0], f"{what}: {word(dtype)} costs differ from float64's", relative=relative,
        absolute=ABSOLUTE + given.cost, within=COMPARABLE[dtype], where=given.cost_stands, mend=HINT_LOGS,
    )  # fmt: skip
    relative = tolerance(subject, GRADIENTS, dtype)
    absolute = SMALLEST.get(dtype, ABSOLUTE) + relative * row_scale(subject, right[1]) + given.gradient
    demand_close(
        held, right[1], f"{what}: {word(dtype)} gradients differ from float64's", relative=relative,
        absolute=absolute, within=COMPARABLE[dtype], where=given.gradient_stands, mend=HINT_LOGS,
    )  # fmt: skip


def row_scale(subject: Subject, gradient: Tensor) -> Tensor | float:
    """The part of a row's gradient to which its small entries are rounded: entries are differences of larger terms."""
    return gradient.abs().amax(1, keepdim=True).expand_as(gradient) if gradient.dim() > 1 else 0.0


def counts(subject: Subject) -> tuple[int, ...]:
    """Numbers of classes to try."""
    if subject.classes is not None or subject.rule.head == "boxes":
        return (subject.classes or 4,)
    return (2, 7, 40, 1000) if subject.full else (2, 7)


@check("values_and_gradients")
def values_and_gradients(subject: Subject) -> None:
    """float64, float32, bfloat16 and float16 agree with the rule priced row by row in float64."""
    for seed in range(5 if subject.full else 1):
        for classes in counts(subject):
            data = draw(subject, 6, classes=classes, seed=seed)
            for dtype in VALUES:
                compare(subject, data, dtype, f"K = {classes}", one_by_one=not subject.rule.coupled)


def softmax_grid(classes: int, shift: float) -> Data:
    """True class ahead of or behind its rival by every gap, alone or with the others near, at 0 or far from it."""
    rows, targets = [], []
    generator = torch.Generator().manual_seed(3)
    for gap in GAPS:
        for sign in (1.0, -1.0):
            for depth in (0.4, 3.0, 100.0):
                row = -depth * torch.rand(classes, generator=generator, dtype=torch.float64)
                true, rival = torch.randperm(classes, generator=generator)[:2].tolist()
                row[rival], row[true] = 0.0, sign * gap
                if gap == 0.0 or gap > 1e-3:  # a shift would round the smallest gaps away
                    row = row + (shift if depth == 3.0 else 0.0)
                rows.append(row)
                targets.append(true)
    return Data(torch.stack(rows), torch.tensor(targets))


def sigmoid_grid(subject: Subject, classes: int) -> Data:
    """Every gap on both sides, present and absent."""
    values = torch.tensor([sign * gap for gap in GAPS for sign in (1.0, -1.0)], dtype=torch.float64)
    logits = values.unsqueeze(1).repeat(1, classes)
    for column in range(1, classes):
        logits[:, column] = logits[:, column].roll(5 * column)
    if subject.rule.index_targets:
        return Data(logits, torch.arange(len(logits)) % classes)
    target = (torch.arange(logits.numel()).view(logits.shape) // 2 + torch.arange(len(logits)).unsqueeze(1)) % 2
    return Data(logits, target)


def grids(subject: Subject) -> Iterator[tuple[str, Data]]:
    """Batches from undecided to hopeless; a rule that ranks rows gets rows that rank alike in every type."""
    for classes in counts(subject)[:2]:
        if subject.rule.coupled:
            for spread in (0.1, 30.0, 3e3):
                yield f"logits of size {spread:g}", draw(subject, 16, classes=classes, seed=7, spread=spread)
        elif subject.rule.head == "softmax":
            moved = subject.rule.scale is not None or subject.rule.offset is not None  # rounds at the size of a shift
            yield f"gaps from 0 to 1e4, K = {classes}", softmax_grid(classes, 0.0 if moved else -2048.0)
        else:
            yield "logits from 0 to 1e4", sigmoid_grid(subject, classes)


@check("saturation")
def saturation(subject: Subject) -> None:
    """Logits from 0 to +-1e4 and gaps down to 1e-12: right in float64 and float32, finite in half precision."""
    apply_if(subject.rule.head != "boxes", "boxes do not saturate")
    for what, data in grids(subject):
        for dtype in VALUES:
            compare(subject, data, dtype, what)


@check("degenerate_boxes")
def degenerate_boxes(subject: Subject) -> None:
    """Boxes that are apart, inside out, without area or exactly right have finite costs and gradients."""
    apply_if(subject.rule.head == "boxes", "no boxes")
    true = torch.tensor([10.0, 10.0, 50.0, 40.0], dtype=torch.float64)
    odd = [
        [100.0, 100, 120, 120],
        [50, 10, 90, 40],
        [20, 20, 20, 20],
        [60, 60, 20, 20],
        [10, 10, 50, 40],
        [0, 0, 1e4, 1e4],
    ]
    boxes, target = torch.tensor(odd, dtype=torch.float64), true.repeat(len(odd), 1)
    target[2, 2:] = target[2, :2]  # no area either
    for dtype in (torch.float64, torch.float32):
        cost, gradient = costs_and_gradient(subject, Data(boxes, target), dtype)
        demand_finite(cost, f"the cost of an odd box in {word(dtype)}", mend="Divide by a union above 0 only.")
        demand_finite(gradient, f"the gradient of an odd box in {word(dtype)}", mend="Divide by a union above 0 only.")


@check("masked_classes")
def masked_classes(subject: Subject) -> None:
    """A class whose logit is -inf costs nothing, gets no gradient, and is outside K; one class left costs 0."""
    apply_if(subject.rule.head == "softmax", "only a softmax has classes to mask")
    classes = subject.classes or 5
    data = draw(subject, 8, classes=classes, seed=2)
    logits = data.logits.clone()
    masked = torch.rand(logits.shape, generator=torch.Generator().manual_seed(4)) < 0.4
    masked[0] = True  # a row with one class left
    masked.scatter_(1, data.target.unsqueeze(1), False)
    logits[masked] = -torch.inf
    hint = "Rows with one class left and masked classes must not meet 0 * inf: use the evidence's finite fields."
    for dtype in (torch.float64, torch.float32):
        cost, gradient = costs_and_gradient(subject, Data(logits, data.target), dtype)
        demand_finite(cost, f"the cost of {word(dtype)} logits with masked classes", mend=hint)
        demand_finite(gradient, f"the gradient of {word(dtype)} logits with masked classes", mend=hint)
        demand(not bool(gradient[masked.to(gradient.device)].any()), f"a masked class gets a gradient. {hint}")
        nothing = cost[0].item() == 0 and not bool(gradient[0].any())
        demand(nothing, f"a row with one class left costs {cost[0].item()!r}, expected 0 with gradient 0. {hint}")
        compare(subject, Data(logits, data.target), dtype, "masked classes")
    if subject.classes is None and not subject.rule.coupled:
        _masked_is_left_out(subject, logits, masked, data.target, cost)


def _masked_is_left_out(subject: Subject, logits: Tensor, masked: Tensor, target: Tensor, cost: Tensor) -> None:
    """A row with masked classes costs what it costs without them."""
    loss = subject.built(reduction="none")
    for row in range(1, len(logits)):
        left = ~masked[row]
        if int(left.sum()) < 2:
            continue
        short = subject.place(logits[row][left].unsqueeze(0), torch.float32)
        place = subject.place(left[: target[row]].sum().view(1))
        demand_close(
            cost[row : row + 1], loss(short, place), f"the cost of row {row} with masked classes, and without them",
            relative=1e-5, absolute=1e-9, mend="Masked classes are outside K: count with the field `classes`.",
        )  # fmt: skip


@check("autocast")
def autocast(subject: Subject) -> None:
    """Under mixed precision the loss is what it is without: computed in float32 at least."""
    data = draw(subject, 6, seed=1)
    for dtype in (torch.bfloat16, torch.float32):
        logits = subject.place(data.logits, dtype)
        target = subject.place(data.target)
        outside = subject.built()(logits, target)
        with torch.autocast(subject.device.type, dtype=torch.bfloat16):
            inside = subject.built()(logits, target)
        demand(inside.dtype == torch.float32, f"under autocast the loss is {word(inside.dtype)}, expected float32.")
        demand_close(inside, outside, f"{word(dtype)} under autocast", relative=1e-6, mend="Use no matrix products.")
