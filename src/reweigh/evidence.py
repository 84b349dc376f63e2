"""Links: logits and targets become *evidence*, a few numbers about each decision.

Rules never see logits. They see how probable the true outcome was (`log_p`), how probable its
complement (`log_miss`, never computed as 1 - p), who the strongest rival was, how sure the model
was of its first choice, and so on. Each number is accurate at any logit, because all of them are
built from *log-odds*: with `u` the logits and `y` the true class,

    log_odds = u_y - logsumexp(u_j, j != y),   log_p = log sigmoid(log_odds),   log_miss = log sigmoid(-log_odds).

This file holds the truth: the *composite form*, ordinary differentiable PyTorch. On the CPU and on
NVIDIA GPUs, `kernels` offers a fused form of the same numbers, entered in a dispatch table; it is one
autograd node a call, reads the logits once in the forward pass and writes the gradient once in the
backward pass. The composite form runs wherever no kernel serves, under torch.compile and torch.func,
and for the second derivative.

Shapes: logits (n, K) or (n, K, d), targets (n,) or (n, d); softmax fields are flat, (n * d,).
Sigmoid fields have the shape of the logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from . import kernels

# What a softmax link can say about a row. The fields about the first choice are float64 whatever the
# logits. Where `confidence_log_odds` is asked for, they come from sums that do not depend on the order of
# the classes, because somebody will rank by them; without it they have the accuracy of the logits' type.
SIMPLE_FIELDS = ("log_odds", "log_p", "log_miss")
TRUE_CLASS_FIELDS = (*SIMPLE_FIELDS, "log_rival", "log_next_lower", "sum_log_p", "sum_other_p_squared")
FIRST_CHOICE_FIELDS = ("confidence_log_odds", "log_top", "log_second", "entropy")
INDEX_FIELDS = ("rival", "next_lower", "top", "second", "classes")
SOFTMAX_FIELDS = (*TRUE_CLASS_FIELDS, *FIRST_CHOICE_FIELDS, *INDEX_FIELDS, "log_probabilities")
SIGMOID_FIELDS = (*SIMPLE_FIELDS, "log_sum_absent", "log_sum_present")
BOX_FIELDS = ("overlap", "gap", "area")

SURE = 1e30  # log-odds of a choice without alternatives: finite, beyond every real log-odds


# A field that nobody asked for. Typed as what a rule finds in the fields it declared.
UNASKED: Any = None


@dataclass(frozen=True)
class Evidence:
    """What is known about each decision; a rule reads the fields it declared in `needs`, all else is None."""

    log_p: Tensor = UNASKED  # log-probability of the true outcome
    log_miss: Tensor = UNASKED  # log(1 - p)
    log_odds: Tensor = UNASKED  # log_p - log_miss
    log_rival: Tensor = UNASKED  # largest log-probability among the other classes
    rival: Tensor = UNASKED  # its index
    log_next_lower: Tensor = UNASKED  # largest log-probability strictly below the true one; -SURE: none
    next_lower: Tensor = UNASKED
    sum_log_p: Tensor = UNASKED  # over the row's unmasked classes, weighed where the rule weighs classes itself
    sum_other_p_squared: Tensor = UNASKED  # over the classes that are not the true one
    log_top: Tensor = UNASKED  # log-probability of the first choice, float64
    top: Tensor = UNASKED  # its index; ties go to the lowest
    log_second: Tensor = UNASKED  # of the second choice, float64
    second: Tensor = UNASKED
    confidence_log_odds: Tensor = UNASKED  # log c - log(1 - c), c the largest probability, float64
    entropy: Tensor = UNASKED  # in nats, float64
    classes: Tensor = UNASKED  # unmasked classes of the row
    log_probabilities: Tensor = UNASKED  # (n, K): whoever needs all of them is exempt from the floors
    log_sum_absent: Tensor = UNASKED  # sigmoid: log(1 + sum of exp(z) over absent labels), (n, d...)
    log_sum_present: Tensor = UNASKED  # sigmoid: log(1 + sum of exp(-z) over present labels)
    positive: Tensor = UNASKED  # sigmoid: is the label present?
    label: Tensor = UNASKED  # the same as a number, 1 or 0, where it is at hand: read `by_label`
    miss: Tensor = UNASKED  # 1 - p, where it is at hand: read `complement`
    largest: Any = math.inf  # a number: no log-odds of a sigmoid head are farther from 0, as far as is known
    soft_target: Tensor = UNASKED  # the target matrix, for rules with a soft form of their own
    target: Tensor = UNASKED  # class index, or box
    class_weight: Tensor | None = None  # weight of the true class, for rules that weigh classes themselves
    overlap: Tensor = UNASKED  # boxes: intersection over union
    gap: Tensor = UNASKED  # boxes: 1 - overlap, never computed as that
    area: Tensor = UNASKED  # boxes: area of the true box
    kept: Tensor | None = None  # rows that count; the others are finite and harmless
    gradient_type: Any = None  # sigmoid: the type of the logits, which their gradient will have
    forced: Tensor | None = None  # rows with a single unmasked class: nothing was decided, their cost is 0

    @property
    def correct(self) -> Tensor:
        """Was the first choice right? The one definition of correct."""
        return self.top == self.target

    @property
    def complement(self) -> Tensor:
        """1 - p, never computed as that."""
        return torch.exp(self.log_miss) if self.miss is None else self.miss

    def by_label(self, *, present: Tensor, absent: Tensor) -> Tensor:
        """`present` where the label is present, `absent` where it is not; both finite."""
        if self.label is None:
            return torch.where(self.positive, present, absent)
        # The same to the last bit, and many times faster on the CPU than a choice that nobody can predict.
        label = self.label.to(present.dtype)
        return torch.addcmul(absent * (1.0 - label), present, label)

    @property
    def presence(self) -> Tensor:
        """1 where the label is present, 0 where it is not."""
        return self.positive.to(self.log_odds.dtype) if self.label is None else self.label

    def per_class(self, values: Tensor) -> Tensor:
        """(K,) values, or one for all classes, shaped to meet sigmoid fields of shape (n, K, d...)."""
        fields = (self.log_p, self.log_odds, self.log_miss, self.miss)
        dims = next(field.dim() for field in fields if field is not None)
        return values.view(-1, *[1] * (dims - 2)) if values.dim() and dims > 1 else values


# ---------------------------------------------------------------------------- softmax, composite form


def _log_odds(u: Tensor, chosen: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """u_chosen - logsumexp of the others, and the others (the chosen one -inf). u (n, K, ...), chosen (n, 1, ...).

    The others are counted from the largest of them: at logits of 1e4 a float32 logsumexp itself is off by 1e-3.
    """
    others = u.scatter(1, chosen, -math.inf)
    largest = others.detach().amax(1, keepdim=True)
    log_rest = torch.exp(others - largest).sum(1, dtype=dtype).log()
    return (u.gather(1, chosen) - largest).squeeze(1).to(dtype) - log_rest, others


def forced_rows(u: Tensor, target: Tensor) -> Tensor:
    """Rows whose other classes are all masked. u (n, K, ...), target (n, ...)."""
    return u.scatter(1, target.unsqueeze(1), -math.inf).amax(1) == -math.inf


def softmax_fields(
    u: Tensor, target: Tensor, needs: tuple[str, ...], class_weight: Tensor | None = None
) -> dict[str, Tensor]:
    """Every needed field by ordinary differentiable operations. u (n, K, ...) float, target (n, ...) legal indices."""
    wanted = set(needs)
    index = target.unsqueeze(1)
    masked = u == -math.inf
    sole = forced_rows(u, target)
    u = torch.where(sole.unsqueeze(1), 0.0, u)  # harmless numbers; the module makes cost and gradient 0
    masked = masked & ~sole.unsqueeze(1)
    fields: dict[str, Tensor] = {}

    log_odds, others = _log_odds(u, index, u.dtype)
    fields["log_odds"] = log_odds
    fields["log_p"] = logsigmoid(log_odds)
    fields["log_miss"] = logsigmoid(-log_odds)
    if "classes" in wanted:
        fields["classes"] = torch.where(sole, 1, (~masked).sum(1))
    if wanted <= {*SIMPLE_FIELDS, "classes"}:
        return {name: fields[name] for name in needs}

    # All else is counted from the first choice: differences to the largest logit do not cancel.
    top = u.argmax(1, keepdim=True)
    confidence, _ = _log_odds(u, top, torch.float64)
    log_top = logsigmoid(confidence)
    distance = torch.where(masked, 0.0, u - u.gather(1, top))  # (n, K, ...), u_j - u_top <= 0
    distance = distance.scatter(1, top, 0.0)  # its own must not leave a rounded gradient behind
    narrow = log_top.to(u.dtype)

    def chosen(candidates: Tensor, name: str, value: str, dtype: torch.dtype) -> None:
        best = candidates.argmax(1, keepdim=True)
        none = candidates.gather(1, best) == -math.inf
        found = distance.gather(1, best).to(dtype) + log_top.to(dtype).unsqueeze(1)
        fields[name] = best.squeeze(1)
        fields[value] = torch.where(none, -SURE, found).squeeze(1)

    if wanted & {"log_rival", "rival"}:
        chosen(others.detach(), "rival", "log_rival", u.dtype)
    if wanted & {"log_next_lower", "next_lower"}:
        lower = torch.where(u < u.gather(1, index), u, -math.inf).detach()
        chosen(lower, "next_lower", "log_next_lower", u.dtype)
    if wanted & {"log_second", "second"}:
        chosen(u.detach().scatter(1, top, -math.inf), "second", "log_second", torch.float64)
    if "sum_log_p" in wanted:
        weight = 1.0 if class_weight is None else class_weight.view(-1, *[1] * (u.dim() - 2))
        fields["sum_log_p"] = torch.where(masked, 0.0, weight * (distance + narrow.unsqueeze(1))).sum(1)
    if "sum_other_p_squared" in wanted:
        squares = torch.exp(2 * (distance + narrow.unsqueeze(1)))
        fields["sum_other_p_squared"] = torch.where(others == -math.inf, 0.0, squares).sum(1)
    if "entropy" in wanted:
        share = torch.where(masked, 0.0, torch.exp(distance)).double()
        mean_distance = (share * -distance.double()).sum(1) * torch.exp(log_top)
        fields["entropy"] = torch.where(sole, 0.0, mean_distance - log_top)
    if "log_probabilities" in wanted:
        log_all = torch.where(masked, -math.inf, distance + narrow.unsqueeze(1))
        fields["log_probabilities"] = log_all.scatter(1, top, narrow.unsqueeze(1))
    fields["top"] = torch.where(sole, target, top.squeeze(1))
    fields["log_top"] = torch.where(sole, 0.0, log_top)
    fields["confidence_log_odds"] = torch.where(sole, SURE, confidence)
    return {name: fields[name] for name in needs}


def shifted(z: Tensor, scale: Tensor | None, offset: Tensor | None) -> Tensor:
    """u = z * scale + offset per class, less the row's largest; at least float32. The scale comes before the maximum.

    Computed in float64: at logits of 1e4 a float32 sum would be off by 5e-4, and so would the log-odds.
    """
    u = z if z.dtype in (torch.float32, torch.float64) else z.float()
    if scale is None and offset is None:
        return u
    wide, tail = u.double(), [1] * (z.dim() - 2)
    if scale is not None:
        wide = wide * scale.double().view(-1, *tail)
    if offset is not None:
        wide = wide + offset.double().view(-1, *tail)
    highest = wide.detach().amax(1, keepdim=True)
    return (wide - torch.where(torch.isfinite(highest), highest, 0.0)).to(u.dtype)


# ---------------------------------------------------------------------------- softmax, one fused node


@dataclass(frozen=True)
class _Link:
    """What a fused node needs to know beside logits and targets."""

    needs: tuple[str, ...]
    scale: Tensor | None
    offset: Tensor | None
    class_weight: Tensor | None  # of the classes in sum_log_p
    kept: Tensor | None  # of the targets' shape
    kernel: Any  # a module of `kernels` with `softmax_forward` and `softmax_backward`
    odd: list[Tensor]  # filled by the kernel: rows it could not serve and handed to the composite form
    forced: list[Tensor]  # filled by a kernel that looks at every row: those whose other classes are all masked
    flags: tuple[int | None, int | None]  # where a kernel on a device notes bad rows, see `validation`

    def composite(self, z: Tensor, target: Tensor, kept: Tensor | None = None) -> dict[str, Tensor]:
        kept = self.kept if kept is None else kept
        z = z if kept is None else torch.where(kept.unsqueeze(1), z, 0.0)
        return softmax_fields(shifted(z, self.scale, self.offset), target, self.needs, self.class_weight)

    def sole(self, z: Tensor, target: Tensor) -> Tensor:
        """Rows whose other classes are all masked."""
        return forced_rows(shifted(z.detach(), self.scale, self.offset), target)


class _FusedSoftmax(torch.autograd.Function):
    """Evidence as one node: the kernel computes, this class only keeps what the backward pass reads."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, target: Tensor, link: _Link) -> tuple[Tensor, ...]:
        fields, residue = link.kernel.softmax_forward(z, target, link)
        ctx.link, ctx.residue = link, residue
        ctx.save_for_backward(z, target)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*[fields[name] for name in link.needs if name in INDEX_FIELDS])
        return tuple(fields[name] for name in link.needs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None, None]:
        z, target = ctx.saved_tensors
        given = {name: g for name, g in zip(ctx.link.needs, gradients, strict=True) if g is not None}
        if not given:
            return None, None, None
        if torch.is_grad_enabled():  # somebody differentiates the gradient
            return _through_composite(z, target, given, ctx.link.composite), None, None
        residue, ctx.residue = ctx.residue, None  # its buffer becomes the gradient
        if residue is None:  # a second backward pass recomputes from the logits
            residue = ctx.link.kernel.softmax_forward(z, target, ctx.link)[1]
        return ctx.link.kernel.softmax_backward(z, target, ctx.link, residue, given), None, None


def _through_composite(z: Tensor, target: Tensor, gradients: Mapping[str, Tensor], composite: Callable) -> Tensor:
    """The gradient as a differentiable function of the logits and of the incoming gradients."""
    again = z.view_as(z) if z.requires_grad else z.detach().requires_grad_()
    with torch.enable_grad():
        fields = composite(again, target)
        outputs = [fields[name] for name in gradients]
        return torch.autograd.grad(outputs, again, list(gradients.values()), create_graph=True, materialize_grads=True)[
            0
        ]


def _transformed() -> bool:
    """Under torch.compile or torch.func the composite form is traced or transformed instead."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def softmax_evidence(
    z: Tensor,
    target: Tensor,
    *,
    needs: tuple[str, ...],
    scale: Tensor | None = None,
    offset: Tensor | None = None,
    class_weight: Tensor | None = None,
    weigh_sum: bool = True,
    kept: Tensor | None = None,
    examine: Callable[[Tensor, Tensor | None], None] | None = None,
    flags: tuple[int | None, int | None] = (None, None),
) -> Evidence:
    """Evidence for class indices. z (n, K) or (n, K, d); target (n,) or (n, d), legal indices everywhere; kept flat.

    `examine(log_odds or rows, odd)` is called with what may reveal bad values: on the CPU with the rows that
    no fast form could serve (None: there are none), elsewhere with every row's log-odds. Kernels on devices note
    bad rows at `flags` instead.
    """
    sum_weight = class_weight if weigh_sum else None
    kernel = None
    if "log_probabilities" not in needs and z.numel() and not _transformed():
        kernel = kernels.find(z, "softmax")
    standing = None if kept is None else kept.view(target.shape)
    forced = None
    if kernel is None:
        u = z if standing is None else torch.where(standing.unsqueeze(1), z, 0.0)
        u = shifted(u, scale, offset)
        names = needs if "log_odds" in needs else (*needs, "log_odds")
        fields = softmax_fields(u, target, names, sum_weight)
        forced = forced_rows(u, target)
        if examine is not None:
            examine(fields["log_odds"], None)
        fields = {name: fields[name] for name in needs}  # the same on every rank, whichever form it takes
    else:
        link = _Link(needs, scale, offset, sum_weight, standing, kernel, [], [], flags)
        fields = dict(zip(needs, _FusedSoftmax.apply(z, target, link), strict=True))
        if link.odd:
            if examine is not None:
                examine(link.odd[0], link.odd[0])
            forced = forced_rows(shifted(z.detach(), scale, offset), target)
        if link.forced:
            forced = link.forced[0]
    if z.dim() == 3:
        fields = {name: _rows(value) for name, value in fields.items()}
        target, forced = target.reshape(-1), None if forced is None else forced.reshape(-1)
    if class_weight is not None:
        fields["class_weight"] = class_weight[target]
    return Evidence(**fields, target=target, kept=kept, forced=forced)


class _FusedMean(torch.autograd.Function):
    """The mean log-probability as one node."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, weight: Tensor, kernel: Any) -> Tensor:
        mean, ctx.residue = kernel.mean_log_p_forward(u, weight)
        ctx.kernel = kernel
        ctx.save_for_backward(u, weight)
        return mean

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        u, weight = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody differentiates the gradient
            again = partial(_composite_mean, weight=weight)
            return _through_composite(u, weight, {"mean": gradient}, again), None, None
        residue, ctx.residue = ctx.residue, None  # its buffer becomes the gradient
        if residue is None:
            residue = ctx.kernel.mean_log_p_forward(u, weight)[1]
        return ctx.kernel.mean_log_p_backward(weight, residue, gradient), None, None


def _composite_mean(u: Tensor, target: Tensor, *, weight: Tensor) -> dict[str, Tensor]:
    log_all = softmax_fields(u, u.argmax(1), ("log_probabilities",))["log_probabilities"]
    return {"mean": (torch.where(weight > 0, log_all, 0.0) * weight).sum(1)}


def mean_log_p(z: Tensor, weight: Tensor, *, scale: Tensor | None = None, offset: Tensor | None = None) -> Tensor:
    """sum_k w_k log p_k of every row, flat. z (n, K) or (n, K, d), weight (n, K) or (n d, K), 0 on masked classes."""
    u = shifted(z, scale, offset)
    u = u.movedim(1, -1).flatten(0, 1) if u.dim() == 3 else u
    kernel = None
    if u.numel() and not weight.requires_grad and not _transformed():
        kernel = kernels.find(u, "softmax")
    if not hasattr(kernel, "mean_log_p_forward"):
        return _composite_mean(u, u, weight=weight)["mean"]
    return _FusedMean.apply(u, weight, kernel)


def _rows(value: Tensor) -> Tensor:
    """(n, d) -> (n d,), and (n, K, d) -> (n d, K)."""
    return value.movedim(1, -1).flatten(0, 1) if value.dim() == 3 else value.flatten()


# ---------------------------------------------------------------------------- softmax, every class in turn the outcome


def outcome_evidence(
    z: Tensor, *, needs: tuple[str, ...], scale=None, offset=None, class_weight=None, weigh_sum: bool = True
) -> Evidence:
    """Evidence of n K decisions, in which each class of each row is in turn the true one. z (n, K, ...).

    Entry i K + k asks: what if class k were the outcome of row i? Contracted with soft targets. Costs n K
    numbers a field, not n K K: seen from any class but the first choice, the rival is the first choice and
    the complement does not cancel; the first choice alone is computed from the sum of the others.
    """
    u = shifted(z, scale, offset)
    if u.dim() == 3:
        u = u.movedim(1, -1).flatten(0, 1)
    n, count = u.shape
    masked = u == -math.inf
    sole = (~masked).sum(1, keepdim=True) == 1
    u, masked = torch.where(sole, 0.0, u), masked & ~sole
    first = (
        "log_probabilities",
        "confidence_log_odds",
        "log_top",
        "top",
        "log_second",
        "second",
        "entropy",
        "sum_log_p",
    )
    row = softmax_fields(u, u.argmax(1), first, class_weight if weigh_sum else None)
    top = row["top"].unsqueeze(1)
    is_top = torch.zeros_like(masked).scatter(1, top, True)
    # A masked class is nobody's outcome: ask about the first choice instead, its share is 0 anyway.
    outcome = torch.where(masked, top, torch.arange(count, device=u.device).expand(n, count))
    log_p = row["log_probabilities"].gather(1, outcome)
    is_top = is_top | masked
    narrow = {name: value.to(u.dtype).unsqueeze(1) for name, value in row.items() if value.dtype == torch.float64}
    half = torch.where(is_top, -1.0, log_p)  # a harmless value where log1p(-p) would not be used
    fields = {"log_p": log_p, "sum_log_p": row["sum_log_p"].unsqueeze(1).expand(n, count)}
    fields["log_miss"] = torch.where(is_top, logsigmoid(-narrow["confidence_log_odds"]), torch.log1p(-torch.exp(half)))
    fields["log_odds"] = log_p - fields["log_miss"]
    fields["log_rival"] = torch.where(is_top, narrow["log_second"], narrow["log_top"])
    fields["rival"] = torch.where(is_top, row["second"].unsqueeze(1), top)
    if "log_next_lower" in needs or "next_lower" in needs:
        order = u.detach().argsort(1)
        place = torch.searchsorted(u.detach().gather(1, order), u.detach().gather(1, outcome)) - 1
        fields["next_lower"] = order.gather(1, place.clamp(min=0))
        below = row["log_probabilities"].gather(1, fields["next_lower"])
        fields["log_next_lower"] = torch.where(place < 0, -SURE, below).clamp(min=-SURE)
    if "sum_other_p_squared" in needs:
        squares = torch.where(masked, 0.0, torch.exp(2 * row["log_probabilities"]))
        rest = torch.where(is_top & ~masked, 0.0, squares).sum(1, keepdim=True)
        beside = rest - squares.gather(1, outcome) + torch.exp(2 * narrow["log_top"])
        fields["sum_other_p_squared"] = torch.where(is_top, rest, beside)
    fields["classes"] = torch.where(sole, 1, (~masked).sum(1, keepdim=True)).expand(n, count)
    for name in (*FIRST_CHOICE_FIELDS, "top", "second"):
        fields[name] = row[name].unsqueeze(1).expand(n, count)
    chosen = {name: fields[name].reshape(-1) for name in needs}
    outcome = outcome.reshape(-1)
    if class_weight is not None:
        chosen["class_weight"] = class_weight[outcome]
    return Evidence(**chosen, target=outcome, forced=sole.expand(n, count).reshape(-1))


# ---------------------------------------------------------------------------- sigmoid


def sigmoid_fields(
    z: Tensor, positive: Tensor, needs: tuple[str, ...], kept: Tensor | None = None
) -> dict[str, Tensor]:
    """Evidence for labels that are present or absent. z and positive of one shape; (n, K, ...) for the sums."""
    z = z.clamp(min=-SURE)  # a masked label, legal where absent: as good as certain, and finite
    margin = torch.where(positive, z, -z)
    fields = {"log_odds": margin}
    if "log_p" in needs:
        fields["log_p"] = logsigmoid(margin)
    if "log_miss" in needs:
        fields["log_miss"] = logsigmoid(-margin)
    for name, side in (("log_sum_absent", ~positive), ("log_sum_present", positive)):
        if name in needs:
            terms = torch.where(side if kept is None else side & kept, -margin, -SURE)
            fields[name] = -logsigmoid(-terms.logsumexp(1))  # log(1 + sum), which may be far below 1
    return {name: fields[name] for name in needs}


def sigmoid_evidence(
    z: Tensor, positive: Tensor, *, needs: tuple[str, ...], offset: Tensor | None = None, kept=None
) -> Evidence:
    """Evidence of a sigmoid head, in the shape of the logits; `offset` (K,) is added to each class's logit."""
    given = z.dtype
    z = z if given in (torch.float32, torch.float64) else z.float()
    if kept is not None:
        z = torch.where(kept, z, 0.0)  # whatever stands at an ignored place
    if offset is not None:
        z = z + offset.to(z.dtype).view(-1, *[1] * (z.dim() - 2))
    names = needs if "log_odds" in needs else (*needs, "log_odds")
    fields = sigmoid_fields(z, positive, names, kept)
    return Evidence(**fields, positive=positive, kept=kept, gradient_type=given)


# ---------------------------------------------------------------------------- boxes


def box_evidence(boxes: Tensor, target: Tensor, *, needs: tuple[str, ...] = BOX_FIELDS, kept=None) -> Evidence:
    """Overlap and size of boxes x1 y1 x2 y2, (n, 4) each, in pixels of the network's input; float32 at least."""
    boxes = boxes if boxes.dtype in (torch.float32, torch.float64) else boxes.float()
    target = target.to(boxes.dtype)
    low, high = torch.maximum(boxes[:, :2], target[:, :2]), torch.minimum(boxes[:, 2:], target[:, 2:])
    sides = (high - low).clamp(min=0)  # of what both boxes cover, (n, 2)
    shared = sides[:, 0] * sides[:, 1]  # the gradient of prod would make the host wait
    area = (target[:, 2] - target[:, 0]) * (target[:, 3] - target[:, 1])
    own = (boxes[:, 2] - boxes[:, 0]).clamp(min=0) * (boxes[:, 3] - boxes[:, 1]).clamp(min=0)
    union = own + area - shared
    divisor = torch.where(union > 0, union, 1.0)
    # Boxes that nearly agree: what only one of them covers is the sum of thin strips, not a difference of areas.
    strips = _strips(boxes, low, high, sides) + _strips(target, low, high, sides)
    apart = torch.where(shared > 0, strips, own + area)
    gap = torch.where(union > 0, apart / divisor, 1.0)
    return Evidence(overlap=shared / divisor, gap=gap, area=area, target=target, kept=kept)


def _strips(box: Tensor, low: Tensor, high: Tensor, sides: Tensor) -> Tensor:
    """Area of a box outside the common part, whose corners are `low` and `high`. (n,)."""
    outside = (low - box[:, :2]) + (box[:, 2:] - high)  # (n, 2)
    return outside[:, 0] * (box[:, 3] - box[:, 1]) + outside[:, 1] * sides[:, 0]


def without_gradient(evidence: Evidence) -> Evidence:
    """The same numbers as constants."""
    values = {name: value.detach() for name, value in vars(evidence).items() if isinstance(value, Tensor)}
    return replace(evidence, **values)
