"""The fused softmax evidence on the CPU: one buffer of n x K numbers, which becomes the gradient.

Forward: `share`, proportional to the probabilities, is written once; the true class is set to 0 in it
and the rest is summed, so that log-odds = log(share of y) - log(sum of the others) needs no difference
of large numbers. Backward: the buffer is scaled row by row and the true class written.

Rows that this form cannot serve (an outcome or a complement too small for the type, one class left,
anything not finite) are computed by the composite form and put in place; they are rare, and finding
none costs one minimum over n numbers, which is at the same time the check for bad values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

NEVER = 1e30  # log-probability -NEVER: finite, and exp gives 0
BLOCK = 262_144  # elements worked on at a time where a temporary is needed
SMALLEST = {torch.float32: 1e-30, torch.float64: 1e-290}
SIMPLE = {"log_odds", "log_p", "log_miss", "sum_other_p_squared"}


def serves(tensor: Tensor, head: str) -> bool:
    """The softmax head, in any floating type."""
    return head == "softmax" and tensor.is_floating_point()


@dataclass
class Residue:
    """What the backward pass reads beside the logits; all rows are flat or (n, d) as the targets are."""

    share: Tensor  # (n, K[, d]), 0 at the true class, proportional to the probabilities of the row
    unit: Tensor | float  # probability = share * unit
    rest: Tensor  # sum of share over the other classes
    log_odds: Tensor
    odd: Tensor | None  # rows computed by the composite form
    top: Tensor | None = None
    highest: Tensor | None = None  # the largest logit
    share_top: Tensor | None = None  # sum of share over all classes but the first choice, float64
    fields: Mapping[str, Tensor] | None = None


def _blocks(share: Tensor) -> list[slice]:
    rows = max(1, BLOCK // max(1, share[0].numel()))
    return [slice(start, start + rows) for start in range(0, len(share), rows)]


def _upcast(z: Tensor, link: Any) -> Tensor:
    u = z if z.dtype in SMALLEST else z.float()
    tail = [1] * (z.dim() - 2)
    if link.scale is not None:
        u = u * link.scale.to(u.dtype).view(-1, *tail)
    if link.offset is not None:
        u = u + link.offset.to(u.dtype).view(-1, *tail)
    return u


def softmax_forward(z: Tensor, target: Tensor, link: Any) -> tuple[dict[str, Tensor], Residue]:
    """The needed fields, and what the backward pass keeps."""
    u = _upcast(z, link)
    index = target.unsqueeze(1)
    simple = SIMPLE.issuperset(link.needs)
    if simple:
        share, unit, highest, top = torch.softmax(u, 1), 1.0, None, None
    else:
        highest, top = u.max(1, keepdim=True)
        share = torch.sub(u, highest).exp_()
    true = share.gather(1, index)
    share.scatter_(1, index, 0.0)
    rest = share.sum(1)
    true = true.squeeze(1)
    residue = Residue(share, 1.0, rest, rest, None)
    lowest = torch.minimum(true, rest).min()
    odd = None
    if not lowest.item() >= SMALLEST[u.dtype]:  # also for NaN
        odd = ~(torch.minimum(true, rest) >= SMALLEST[u.dtype])
    log_odds = torch.log(true / rest) if odd is None else torch.where(odd, 0.0, torch.log(true) - torch.log(rest))
    residue.log_odds, residue.odd = log_odds, odd
    fields = {"log_odds": log_odds}
    if "log_p" in link.needs:
        fields["log_p"] = logsigmoid(log_odds)
    if "log_miss" in link.needs:
        fields["log_miss"] = logsigmoid(-log_odds)
    if not simple:
        residue.top, residue.highest = top, highest
        fields.update(_first_choice(u, target, link, residue, true))
    if "sum_other_p_squared" in link.needs:
        squares = torch.linalg.vector_norm(share, dim=1) * residue.unit
        fields["sum_other_p_squared"] = squares * squares
    fields = {name: fields[name] for name in link.needs}
    if odd is not None:
        link.odd.append(odd)
        _mend(z, target, link, fields, odd)
    residue.fields = fields
    return fields, residue


def _mend(z: Tensor, target: Tensor, link: Any, fields: dict[str, Tensor], odd: Tensor) -> None:
    """Put the composite form's numbers into the odd rows."""
    with torch.no_grad():
        exact = link.composite(z.movedim(1, -1)[odd], target[odd], None if link.kept is None else link.kept[odd])
    for name, value in exact.items():
        fields[name][odd] = value.to(fields[name].dtype)


def _first_choice(u: Tensor, target: Tensor, link: Any, residue: Residue, true: Tensor) -> dict[str, Tensor]:
    """Fields counted from the first choice. Sums are float64 over float32 terms: free of the order of classes."""
    needs, share, top = set(link.needs), residue.share, residue.top
    index = target.unsqueeze(1)
    right = top == index  # (n, 1, ...)
    share.scatter_(1, top, 0.0)
    others = torch.cat([share[block].sum(1, dtype=torch.float64) for block in _blocks(share)])
    mean_distance = None
    if "entropy" in needs:
        parts = [_weighted_distance(u[block], residue.highest[block], share[block]) for block in _blocks(share)]
        true_distance = (u.gather(1, index) - residue.highest).squeeze(1).clamp(min=-NEVER).double()
        mean_distance = torch.cat(parts) - true.double() * true_distance
    share.scatter_(1, top, torch.where(right, 0.0, 1.0).to(share.dtype))
    right = right.squeeze(1)
    share_top = torch.where(right, others, others + true.double())
    log_top = -torch.log1p(share_top)
    residue.share_top, residue.unit = share_top, torch.exp(log_top).to(share.dtype)
    narrow = log_top.to(u.dtype)
    fields: dict[str, Tensor] = {
        "top": top.squeeze(1),
        "log_top": log_top,
        "confidence_log_odds": -torch.log(share_top),
    }
    if mean_distance is not None:
        fields["entropy"] = mean_distance * torch.exp(log_top) - log_top
    if "classes" in needs:
        fields["classes"] = torch.cat([(u[block] > -torch.inf).sum(1) for block in _blocks(share)])
    if "sum_log_p" in needs:
        fields["sum_log_p"] = torch.cat(
            [_sum_log_p(u[block], residue.highest[block], narrow[block], link.class_weight) for block in _blocks(share)]
        )
    for value, name, dtype in (
        ("log_rival", "rival", u.dtype),
        ("log_next_lower", "next_lower", u.dtype),
        ("log_second", "second", torch.float64),
    ):
        if needs & {value, name}:
            left_out = top if name == "second" else index
            parts = [_best_of(u[block], left_out[block], name) for block in _blocks(share)]
            fields[name] = torch.cat([best for best, _ in parts])
            found = torch.cat([logit for _, logit in parts])
            found = (found - residue.highest.squeeze(1)).clamp_(min=-NEVER)  # -inf: there is none
            fields[value] = found.to(dtype) + log_top.to(dtype)
    return fields


def _weighted_distance(u: Tensor, highest: Tensor, share: Tensor) -> Tensor:
    """Sum over classes of share times the distance to the largest logit, float64; masked classes count 0."""
    return (torch.sub(highest, u).clamp_(max=NEVER).mul_(share)).sum(1, dtype=torch.float64)


def _sum_log_p(u: Tensor, highest: Tensor, log_top: Tensor, class_weight: Tensor | None) -> Tensor:
    log_p = (u - highest).add_(log_top.unsqueeze(1))
    if class_weight is not None:
        log_p.mul_(class_weight.to(u.dtype).view(-1, *[1] * (u.dim() - 2)))
    return log_p.masked_fill_(u == -torch.inf, 0.0).sum(1)


def _best_of(u: Tensor, left_out: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Index and value of the largest logit besides the one left out, or strictly below it."""
    if name == "next_lower":
        candidates = u.masked_fill(u >= u.gather(1, left_out), -torch.inf)
    else:
        candidates = u.scatter(1, left_out, -torch.inf)
    value, best = candidates.max(1)
    return best, value


def softmax_backward(z: Tensor, target: Tensor, link: Any, residue: Residue, given: Mapping[str, Tensor]) -> Tensor:
    """The gradient for the logits, written over the residue's buffer.

    Every field's derivative has the shape q_j (a + b t_j + c q_j) + d w_j plus a few single entries, with q
    the probabilities and t the distances to the largest logit; only the numbers of a row differ.
    """
    index = target.unsqueeze(1)
    p = torch.sigmoid(residue.log_odds)
    g_odds = _odds_gradient(residue.log_odds, p, given)
    if SIMPLE.issuperset(link.needs) and "sum_other_p_squared" not in given:
        gradient = residue.share.mul_((-g_odds / residue.rest).unsqueeze(1))
        gradient.scatter_(1, index, g_odds.unsqueeze(1))
    else:
        gradient = _general(z, target, link, residue, given, g_odds, p)
    if link.scale is not None:
        gradient.mul_(link.scale.to(gradient.dtype).view(-1, *[1] * (z.dim() - 2)))
    gradient = gradient.to(z.dtype)
    if residue.odd is not None:
        _mend_gradient(z, target, link, residue.odd, given, gradient)
    return gradient


def _odds_gradient(log_odds: Tensor, p: Tensor, given: Mapping[str, Tensor]) -> Tensor:
    total = given.get("log_odds")
    if "log_p" in given:
        part = given["log_p"] * torch.sigmoid(-log_odds)
        total = part if total is None else total + part
    if "log_miss" in given:
        part = given["log_miss"] * p
        total = -part if total is None else total - part
    return torch.zeros_like(log_odds) if total is None else total


def _general(
    z: Tensor, target: Tensor, link: Any, residue: Residue, given: Mapping[str, Tensor], g_odds: Tensor, p: Tensor
) -> Tensor:
    share, dtype, fields = residue.share, residue.share.dtype, residue.fields
    index = target.unsqueeze(1)
    u = _upcast(z, link)
    slope = torch.zeros_like(g_odds)  # a: multiplies the probabilities of all classes
    entries: list[tuple[Tensor, Tensor]] = []  # (index, value) to add
    for value, name in (
        ("log_rival", "rival"),
        ("log_next_lower", "next_lower"),
        ("log_second", "second"),
        ("log_top", "top"),
    ):
        if value in given:
            g = given[value].to(dtype)
            g = torch.where(fields[value] <= -0.5 * NEVER, 0.0, g) if value in fields else g
            slope = slope - g
            entries.append((_position(u, target, residue, name), g))
    square = None
    if "sum_other_p_squared" in given:
        g = given["sum_other_p_squared"]
        square = 2 * g
        slope = slope - 2 * g * fields["sum_other_p_squared"]
    if "sum_log_p" in given:
        weight = (
            fields["classes"]
            if link.class_weight is None and "classes" in fields
            else _weight_sum(u, link.class_weight)
        )
        slope = slope - given["sum_log_p"] * weight
    tilt = None  # b: multiplies probability times distance
    if "entropy" in given:
        g = given["entropy"].to(dtype)
        tilt = -g
        log_top = -torch.log1p(residue.share_top)
        slope = slope - g * (fields["entropy"] + log_top).to(dtype)
    confidence = given.get("confidence_log_odds")
    at_true = g_odds + p * slope
    if tilt is not None:
        distance = (u.gather(1, index) - residue.highest).squeeze(1).clamp(min=-NEVER)
        at_true = at_true + p * tilt * distance
    factor = slope * residue.unit - g_odds / residue.rest
    if confidence is not None:  # 1 at the first choice, -share / (sum of all but it) elsewhere
        g = confidence.to(dtype)
        first = share.gather(1, residue.top)  # 1, or 0 where the first choice is the true class
        before_top = first * factor.unsqueeze(1)
        if square is not None:
            before_top = before_top + first * first * (square * residue.unit * residue.unit).unsqueeze(1)
        away = g / residue.share_top.to(dtype)
        true_share = residue.rest * torch.exp(residue.log_odds)
        at_true = at_true - torch.where(residue.top.squeeze(1) == target, 0.0, away * true_share)
        factor = factor - away
    if tilt is None and square is None:
        share.mul_(factor.unsqueeze(1))
    else:
        for block in _blocks(share):
            _shape_block(share[block], u[block], residue, block, factor[block], tilt, square)
    if confidence is not None:
        share.scatter_(1, residue.top, before_top + confidence.to(dtype).unsqueeze(1))
        at_true = torch.where(residue.top.squeeze(1) == target, at_true + confidence.to(dtype), at_true)
    share.scatter_(1, index, at_true.unsqueeze(1))
    for position, g in entries:
        share.scatter_add_(1, position, g.unsqueeze(1))
    if "sum_log_p" in given:
        _add_constant(share, u, given["sum_log_p"], link.class_weight)
    return share


def _shape_block(share, u, residue, block, factor, tilt, square) -> None:
    """share <- share * (factor + unit * (tilt * distance + square * unit * share)), in place."""
    unit = residue.unit[block] if isinstance(residue.unit, Tensor) else residue.unit
    row = factor.unsqueeze(1)
    if tilt is not None:
        distance = torch.sub(u, residue.highest[block]).clamp_(min=-NEVER)
        row = distance.mul_((unit * tilt[block]).unsqueeze(1)).add_(row)
    if square is not None:
        row = row + share * (square[block] * unit * unit).unsqueeze(1)
    share.mul_(row)


def _position(u: Tensor, target: Tensor, residue: Residue, name: str) -> Tensor:
    if name in residue.fields:
        return residue.fields[name].unsqueeze(1)
    if name == "top":
        return residue.top
    left_out = residue.top if name == "second" else target.unsqueeze(1)
    return torch.cat([_best_of(u[block], left_out[block], name)[0] for block in _blocks(u)]).unsqueeze(1)


def _weight_sum(u: Tensor, class_weight: Tensor | None) -> Tensor:
    open_classes = (u > -torch.inf).to(u.dtype)
    if class_weight is None:
        return open_classes.sum(1)
    return (open_classes * class_weight.to(u.dtype).view(-1, *[1] * (u.dim() - 2))).sum(1)


def _add_constant(gradient: Tensor, u: Tensor, g: Tensor, class_weight: Tensor | None) -> None:
    tail = [1] * (u.dim() - 2)
    for block in _blocks(u):
        part = torch.where(u[block] == -torch.inf, 0.0, g[block].unsqueeze(1))
        if class_weight is not None:
            part = part * class_weight.to(u.dtype).view(-1, *tail)
        gradient[block].add_(part)


def _mend_gradient(
    z: Tensor, target: Tensor, link: Any, odd: Tensor, given: Mapping[str, Tensor], gradient: Tensor
) -> None:
    rows = z.detach().movedim(1, -1)[odd].requires_grad_()
    with torch.enable_grad():
        fields = link.composite(rows, target[odd], None if link.kept is None else link.kept[odd])
        outputs = [fields[name] for name in given]
        found = torch.autograd.grad(outputs, rows, [g[odd] for g in given.values()], materialize_grads=True)[0]
    gradient.movedim(1, -1)[odd] = found
