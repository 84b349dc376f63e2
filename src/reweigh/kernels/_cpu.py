"""The fused softmax evidence on the CPU: one buffer of n x K numbers, which becomes the gradient.

Forward: `share`, proportional to the probabilities, is written once; the true class is set to 0 in it
and the rest is summed, so that log-odds = log(share of y) - log(sum of the others) needs no difference
of large numbers. Backward: the buffer is scaled row by row and the true class written.

Rows that this form cannot serve (an outcome or a complement too small for the type, one class left,
anything not finite) are computed by the composite form and put in place; they are rare, and finding
none costs one minimum over n numbers, which is at the same time the check for bad values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

NEVER = 1e30  # log-probability -NEVER: finite, and exp gives 0
BLOCK = 262_144  # elements worked on at a time where a temporary is needed
NEAR = 64.0  # up to this size float32 logits may be shifted as they are: log-odds are right to 4e-6
SMALLEST = {torch.float32: 1e-30, torch.float64: 1e-290}
SIMPLE = {"log_odds", "log_p", "log_miss", "sum_other_p_squared"}
RIVALS = {"log_rival": "rival", "log_next_lower": "next_lower", "log_second": "second"}


def serves(tensor: Tensor, head: str) -> bool:
    """The softmax head, in any floating type."""
    return head == "softmax" and tensor.is_floating_point()


@dataclass
class Residue:
    """What the backward pass reads beside the logits; all rows are flat or (n, d) as the targets are."""

    share: Tensor  # (n, K[, d]), 0 at the true class, proportional to the probabilities of the row
    unit: Tensor | None  # probability = share * unit; None: 1
    true: Tensor  # the true class's share
    rest: Tensor  # sum of share over the other classes
    log_odds: Tensor
    odd: Tensor | None  # rows computed by the composite form
    highest: Any  # (n, 1[, d]) the largest logit, None where no field asks for it
    top: Any  # (n, 1[, d]) its index, where the forward pass needed it
    fields: dict[str, Tensor]
    unmasked: bool = False  # no logit is -inf, as far as the forward pass had to know


def _blocks(share: Tensor) -> list[slice]:
    rows = max(1, BLOCK // max(1, share[0].numel()))
    return [slice(start, start + rows) for start in range(0, len(share), rows)]


def _joined(share: Tensor, part: Callable[[slice], Tensor]) -> Tensor:
    """part(block) of every block, one after the other; whoever makes a temporary makes it of a block's size."""
    if share.numel() <= BLOCK:
        return part(slice(None))
    return torch.cat([part(block) for block in _blocks(share)])


def _upcast(z: Tensor, link: Any) -> Tensor:
    """z * scale + offset, at least float32; where that would round log-odds visibly, in float64 less the row's largest."""
    u = z if z.dtype in SMALLEST else z.float()
    if link.scale is None and link.offset is None:
        return u
    tail = [1] * (z.dim() - 2)
    scale = None if link.scale is None else link.scale.to(torch.float64).view(-1, *tail)
    offset = None if link.offset is None else link.offset.to(torch.float64).view(-1, *tail)
    if u.dtype == torch.float64 or _shifted_size(u, scale, offset) <= NEAR:
        if scale is not None and offset is not None:
            return torch.addcmul(offset.to(u.dtype), u, scale.to(u.dtype))
        return u * scale.to(u.dtype) if offset is None else u + offset.to(u.dtype)
    found = torch.empty_like(u)
    for block in _blocks(u):
        wide = u[block].double()
        wide = wide if scale is None else wide.mul_(scale)
        wide = wide if offset is None else wide.add_(offset)
        found[block] = wide.sub_(wide.amax(1, keepdim=True))
    return found


def _shifted_size(u: Tensor, scale: Tensor | None, offset: Tensor | None) -> float:
    """A bound of |u * scale + offset| over the open classes; infinite or NaN where the logits are."""
    low, high = torch.aminmax(u)
    size = max(-low.item(), high.item()) if low.item() == low.item() else float("inf")
    size *= 1.0 if scale is None else float(scale.abs().max())
    return size if offset is None else size + float(offset.where(offset > -torch.inf, 0.0).abs().max())


def softmax_forward(z: Tensor, target: Tensor, link: Any) -> tuple[dict[str, Tensor], Residue]:
    """The needed fields, and what the backward pass keeps."""
    u, needs = _upcast(z, link), link.needs
    index = target.unsqueeze(1)
    precise = "confidence_log_odds" in needs
    highest = top = None
    if precise:  # no division: shares must not depend on the order of a sum
        highest, top = u.max(1, keepdim=True)
        share = torch.sub(u, highest).exp_()
    else:
        share = torch.softmax(u, 1)
        if not SIMPLE.issuperset(needs):
            highest = u.amax(1, keepdim=True)
    true = share.gather(1, index)
    share.scatter_(1, index, 0.0)
    true, rest = true.squeeze(1), share.sum(1)
    smaller, odd, unit = torch.minimum(true, rest), None, None
    if smaller.min().item() >= SMALLEST[u.dtype]:
        log_odds = torch.log(true / rest)
    else:  # also for NaN
        odd = ~(smaller >= SMALLEST[u.dtype])
        log_odds = torch.where(odd, 0.0, torch.log(true) - torch.log(rest))
        if SIMPLE.issuperset(needs):
            unit = _extreme_rows(u, index, share, true, rest, log_odds, odd)
            odd = odd if bool(odd.any()) else None
    fields = {"log_odds": log_odds}
    if "log_p" in needs:
        fields["log_p"] = logsigmoid(log_odds)
    if "log_miss" in needs:
        fields["log_miss"] = logsigmoid(-log_odds)
    residue = Residue(share, unit, true, rest, log_odds, odd, highest, top, fields)
    if precise:
        _count_from_top(u, index, residue)
    if highest is not None:
        _first_choice(u, target, link, residue)
    if "sum_other_p_squared" in needs:
        norm = torch.linalg.vector_norm(share, dim=1)
        norm = norm if residue.unit is None else norm * residue.unit
        fields["sum_other_p_squared"] = norm * norm
    fields = {name: fields[name] for name in needs}
    if odd is not None:
        link.odd.append(odd)
        _mend(z, target, link, fields, odd)
    residue.fields = fields
    return fields, residue


def _extreme_rows(
    u: Tensor, index: Tensor, share: Tensor, true: Tensor, rest: Tensor, log_odds: Tensor, odd: Tensor
) -> Tensor | None:
    """Serve hopeless and certain rows after all, in place; what is left in `odd` is masked to one class, or not finite.

    Hopeless: the others' shares stand, only log(share of y) is taken from the logits. Certain: the others are
    normalised among themselves, and `unit` (returned if there are any) turns their shares into probabilities.
    """
    limit = SMALLEST[u.dtype]
    hopeless = odd & (true < limit) & (rest > 0.5)
    if bool(hopeless.any()):
        distance = (u.gather(1, index) - u.amax(1, keepdim=True)).squeeze(1)
        exact = distance + torch.log(share.amax(1)) - torch.log(rest)
        hopeless = hopeless & torch.isfinite(exact)
        log_odds.copy_(torch.where(hopeless, exact, log_odds))
        odd &= ~hopeless
    certain = odd & (rest < limit) & (true > 0.5)
    if not bool(certain.any()):
        return None
    rows = u.movedim(1, -1)[certain]  # (m, K)
    chosen = index.squeeze(1)[certain].unsqueeze(1)
    others = rows.scatter(1, chosen, -torch.inf)
    highest = others.amax(1, keepdim=True)
    others = torch.softmax(others, 1)
    exact = (rows.gather(1, chosen) - highest).squeeze(1) + torch.log(others.amax(1))
    fine = torch.isfinite(exact)
    certain[certain.clone()] = fine
    share.movedim(1, -1)[certain] = others[fine]
    rest[certain] = 1.0
    log_odds[certain] = exact[fine]
    odd &= ~certain
    return torch.where(certain, torch.sigmoid(-log_odds), 1.0)


def _mend(z: Tensor, target: Tensor, link: Any, fields: dict[str, Tensor], odd: Tensor) -> None:
    """Put the composite form's numbers into the odd rows."""
    with torch.no_grad():
        exact = link.composite(z.movedim(1, -1)[odd], target[odd], None if link.kept is None else link.kept[odd])
    for name, value in exact.items():
        fields[name][odd] = value.to(fields[name].dtype)


def _count_from_top(u: Tensor, index: Tensor, residue: Residue) -> None:
    """The first choice's log-odds from float64 sums over float32 terms: free of the order of classes."""
    share, top = residue.share, residue.top
    right = top == index
    share.scatter_(1, top, 0.0)
    others = _joined(share, lambda block: share[block].sum(1, dtype=torch.float64))
    share.scatter_(1, top, torch.where(right, 0.0, 1.0).to(share.dtype))
    away = torch.where(right.squeeze(1), others, others + residue.true)
    log_top = -torch.log1p(away)
    residue.unit = torch.exp(log_top).to(share.dtype)
    residue.fields.update(top=top.squeeze(1), log_top=log_top, confidence_log_odds=-torch.log(away))


def _first_choice(u: Tensor, target: Tensor, link: Any, residue: Residue) -> None:
    """Fields counted from the largest logit: differences to it do not cancel."""
    needs, share, highest, fields = set(link.needs), residue.share, residue.highest, residue.fields
    index = target.unsqueeze(1)
    true_logit = u.gather(1, index)
    right = (true_logit >= highest).squeeze(1)
    if "log_top" not in fields:
        log_p = fields["log_p"] if "log_p" in fields else logsigmoid(residue.log_odds)
        fields["log_top"] = torch.where(right, log_p, _log_largest(share, residue.true, right)).double()
        if "top" in needs:
            residue.top = u.max(1, keepdim=True).indices
            fields["top"] = residue.top.squeeze(1)
    log_top = fields["log_top"]
    narrow = log_top.to(u.dtype)
    if "entropy" in needs:
        distance = _joined(share, lambda block: _weighted_distance(u[block], highest[block], share[block]))
        # rounded as the other terms are: which class is the true one must not show
        distance = distance + (residue.true * (highest - true_logit).squeeze(1).clamp(max=NEVER)).double()
        unit = 1.0 if residue.unit is None else torch.exp(log_top)
        fields["entropy"] = distance * unit - log_top
    if needs & {"classes", "sum_log_p"}:
        residue.unmasked = u.amin().item() > -float("inf")
    if "classes" in needs and residue.unmasked:
        fields["classes"] = torch.full_like(target, u.shape[1])
    elif "classes" in needs:
        fields["classes"] = _joined(share, lambda block: (u[block] > -torch.inf).sum(1))
    if "sum_log_p" in needs:
        weight = None if link.class_weight is None else _by_class(link.class_weight, u)
        fields["sum_log_p"] = _joined(
            share, lambda block: _sum_log_p(u[block], highest[block], narrow[block], weight, residue.unmasked)
        )
    for value, name in RIVALS.items():
        if needs & {value, name}:
            found = _largest(u, index, highest, right, name)
            fields[value] = (found - highest.squeeze(1)).clamp_(min=-NEVER) + narrow
            if name == "second":
                fields[value] = (found - highest.squeeze(1)).clamp_(min=-NEVER).double() + log_top
            if name in needs:
                fields[name] = _position(u, target, residue, name).squeeze(1)


def _log_largest(share: Tensor, true: Tensor, right: Tensor) -> Tensor:
    """log of the largest share; where a wrong class has most of it, from what the others have, which rounds less."""
    largest = share.amax(1)
    log_largest = torch.log(largest)
    sure = (largest > 0.5) & ~right
    if bool(sure.any()):
        rows = share.movedim(1, -1)[sure]  # (m, K), 0 at the true class
        others = rows.scatter(1, rows.argmax(1, keepdim=True), 0.0).sum(1) + true[sure]
        log_largest[sure] = torch.log1p(-others)
    return log_largest


def _largest(u: Tensor, index: Tensor, highest: Tensor, right: Tensor, name: str) -> Tensor:
    """The largest logit besides the true class, besides the first choice, or strictly below the true class."""
    if name == "rival" and not bool(right.any()):
        return highest.squeeze(1)
    if name == "next_lower":
        return _joined(
            u, lambda rows: u[rows].masked_fill(u[rows] >= u[rows].gather(1, index[rows]), -torch.inf).amax(1)
        )
    if name == "rival":
        return _joined(u, lambda rows: u[rows].scatter(1, index[rows], -torch.inf).amax(1))
    top = u.max(1, keepdim=True).indices
    return _joined(u, lambda rows: u[rows].scatter(1, top[rows], -torch.inf).amax(1))


def _weighted_distance(u: Tensor, highest: Tensor, share: Tensor) -> Tensor:
    """Sum over classes of share times the distance to the largest logit, float64; masked classes count 0."""
    return (torch.sub(highest, u).clamp_(max=NEVER).mul_(share)).sum(1, dtype=torch.float64)


def _by_class(values: Tensor, u: Tensor) -> Tensor:
    return values.to(u.dtype).view(-1, *[1] * (u.dim() - 2))


def _sum_log_p(u: Tensor, highest: Tensor, log_top: Tensor, weight: Tensor | None, unmasked: bool) -> Tensor:
    log_p = u - highest
    if unmasked and weight is None:
        return log_p.sum(1) + u.shape[1] * log_top
    log_p.add_(log_top.unsqueeze(1))
    if weight is not None:
        log_p.mul_(weight)
    return (log_p if unmasked else log_p.masked_fill_(u == -torch.inf, 0.0)).sum(1)


def _position(u: Tensor, target: Tensor, residue: Residue, name: str) -> Tensor:
    """The index of a first choice or rival, (n, 1[, d]); ties go to the lowest."""
    if name == "top" or name == "second":
        if residue.top is None:
            residue.top = u.max(1, keepdim=True).indices
        if name == "top":
            return residue.top
    left_out = residue.top if name == "second" else target.unsqueeze(1)

    def part(rows: slice) -> Tensor:
        if name == "next_lower":
            bound = u[rows].gather(1, left_out[rows])
            return u[rows].masked_fill(u[rows] >= bound, -torch.inf).max(1).indices
        return u[rows].scatter(1, left_out[rows], -torch.inf).max(1).indices

    return _joined(u, part).unsqueeze(1)


def softmax_backward(z: Tensor, target: Tensor, link: Any, residue: Residue, given: Mapping[str, Tensor]) -> Tensor:
    """The gradient for the logits, written over the residue's buffer.

    Every field's derivative has the shape q_j (a + b t_j + c q_j) + d w_j plus a few single entries, with q
    the probabilities and t the distances to the largest logit; only the numbers of a row differ.
    """
    index = target.unsqueeze(1)
    p = torch.sigmoid(residue.log_odds)
    g_odds = _odds_gradient(residue.log_odds, p, given)
    if "sum_other_p_squared" not in given and SIMPLE.issuperset(link.needs):
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
    index, u = target.unsqueeze(1), _upcast(z, link)
    slope: Tensor | float = 0.0  # a: multiplies the probabilities of all classes
    entries: list[tuple[Tensor, Tensor]] = []  # (index, value) to add
    for value, name in RIVALS.items():
        if value in given:
            g = given[value].to(dtype)
            if name == "next_lower":
                g = torch.where(fields[value] <= -0.5 * NEVER, 0.0, g)
            slope = slope - g
            entries.append((_position(u, target, residue, name), g))
    square = tilt = None
    if "sum_log_p" in given:
        slope = slope - given["sum_log_p"] * _weight_sum(u, link.class_weight, residue.unmasked)
    if "entropy" in given:  # b: multiplies probability times distance
        tilt = -given["entropy"].to(dtype)
        log_top = residue.fields.get("log_top")
        log_top = _log_top_again(u, target, residue) if log_top is None else log_top
        slope = slope + tilt * (fields["entropy"] + log_top).to(dtype)
    besides = slope  # without what the squares add
    if "sum_other_p_squared" in given:  # c: multiplies squared probabilities
        square = 2 * given["sum_other_p_squared"]
        slope = slope - square * fields["sum_other_p_squared"]
    top = _top_gradient(u, target, residue, given)
    slope = torch.as_tensor(slope, dtype=dtype)
    at_true = g_odds + p * slope
    if tilt is not None:
        distance = (u.gather(1, index) - residue.highest).squeeze(1).clamp(min=-NEVER)
        at_true = at_true + p * tilt * distance
    unit = residue.unit
    factor = (slope if unit is None else slope * unit) - g_odds / residue.rest
    if top is not None:  # 1 at the first choice, -share / (sum of all but it) elsewhere
        g, away, at_top = top
        first = share.gather(1, at_top)  # 0 where the first choice is the true class
        before = first * factor.unsqueeze(1)
        if square is not None:
            before = before + first * first * (square if unit is None else square * unit * unit).unsqueeze(1)
        right = at_top.squeeze(1) == target
        at_true = at_true + torch.where(right, g, -away * residue.true)
        factor = factor - away
    dominant = None if square is None else _dominant_gradient(residue, p, g_odds, besides, square, fields)
    if tilt is None and square is None:
        share.mul_(factor.unsqueeze(1))
    else:
        for block in _blocks(share):
            _shape_block(share[block], u[block], residue, block, factor[block], tilt, square)
    if dominant is not None:
        rows, place, value = dominant
        share.movedim(1, -1)[rows] = share.movedim(1, -1)[rows].scatter(1, place, value)
    if top is not None:
        share.scatter_(1, at_top, before + g.unsqueeze(1))
    share.scatter_(1, index, at_true.unsqueeze(1))
    for position, g in entries:
        share.scatter_add_(1, position, g.unsqueeze(1))
    if "sum_log_p" in given:
        _add_constant(share, u, given["sum_log_p"], link.class_weight, residue.unmasked)
    return share


def _dominant_gradient(
    residue: Residue, p: Tensor, g_odds: Tensor, besides: Tensor | float, square: Tensor, fields: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Rows in which a wrong class has nearly everything, that class, and its gradient; None: there are none.

    The squares S of the others give it q (q - S): with q near 1 that is q (1 - q) - (squares without it).
    """
    rows = fields["sum_other_p_squared"] > 0.8
    if not bool(rows.any()):
        return None
    others = residue.share.movedim(1, -1)[rows]  # (m, K)
    unit = torch.ones_like(p) if residue.unit is None else residue.unit
    others = others * unit[rows].unsqueeze(1)
    place = others.argmax(1, keepdim=True)
    q = others.gather(1, place).squeeze(1)
    others.scatter_(1, place, 0.0)
    left = q * (others.sum(1) + p[rows]) - (others * others).sum(1)
    slope = (besides * unit - g_odds / residue.rest)[rows] * (q / unit[rows])
    return rows, place, (slope + square[rows] * q * left).unsqueeze(1)


def _top_gradient(u: Tensor, target: Tensor, residue: Residue, given: Mapping[str, Tensor]):
    """Gradient for the first choice's log-odds, what it means for each share, and where that choice is; or None.

    log c enters through the log-odds, d log c = (1 - c) d log-odds, because 1 - c is exact and 1 - p_top is not.
    """
    if "confidence_log_odds" not in given and "log_top" not in given:
        return None
    at_top = _position(u, target, residue, "top")
    share = residue.share
    first = share.gather(1, at_top)
    right = at_top.squeeze(1) == target
    share.scatter_(1, at_top, 0.0)
    away = share.sum(1)
    share.scatter_(1, at_top, first)
    away = torch.where(right, away, away + residue.true)
    g: Any = given.get("confidence_log_odds")
    if "log_top" in given:
        miss = away / (away + torch.where(right, residue.true, first.squeeze(1)))
        part = given["log_top"] * miss
        g = part if g is None else g + part
    g = g.to(share.dtype)
    return g, g / away.clamp(min=torch.finfo(away.dtype).tiny), at_top


def _log_top_again(u: Tensor, target: Tensor, residue: Residue) -> Tensor:
    right = u.gather(1, target.unsqueeze(1)) >= residue.highest
    whole = residue.share.amax(1)
    whole = whole if residue.unit is None else whole * residue.unit
    return torch.where(right.squeeze(1), logsigmoid(residue.log_odds), torch.log(whole))


def _shape_block(share, u, residue, block, factor, tilt, square) -> None:
    """share <- share * (factor + unit * (tilt * distance + square * unit * share)), in place."""
    unit = 1.0 if residue.unit is None else residue.unit[block]
    row = factor.unsqueeze(1)
    if tilt is not None:
        distance = torch.sub(u, residue.highest[block]).clamp_(min=-NEVER)
        row = distance.mul_((unit * tilt[block]).unsqueeze(1)).add_(row)
    if square is not None:
        row = row + share * (square[block] * unit * unit).unsqueeze(1)
    share.mul_(row)


def _weight_sum(u: Tensor, class_weight: Tensor | None, unmasked: bool) -> Tensor | int:
    if unmasked:
        return u.shape[1] if class_weight is None else class_weight.to(u.dtype).sum()
    open_classes = (u > -torch.inf).to(u.dtype)
    return (open_classes if class_weight is None else open_classes * _by_class(class_weight, u)).sum(1)


def _add_constant(gradient: Tensor, u: Tensor, g: Tensor, class_weight: Tensor | None, unmasked: bool) -> None:
    weight = None if class_weight is None else _by_class(class_weight, u)
    if unmasked:
        own = g.unsqueeze(1)
        gradient.add_(own) if weight is None else gradient.addcmul_(own, weight)
        return
    for block in _blocks(u):
        part = torch.where(u[block] == -torch.inf, 0.0, g[block].unsqueeze(1))
        gradient[block].add_(part if weight is None else part * weight)


@dataclass
class MeanResidue:
    """What the backward pass of the mean log-probability reads beside the weights."""

    share: Tensor  # (n, K) exp(u - highest), 0 at the first choice
    top: Tensor  # (n, 1)
    rest: Tensor  # sum of share
    total: Tensor  # sum of the weights, and
    beside: Tensor  # of those that are not the first choice's


def mean_log_p_forward(u: Tensor, weight: Tensor) -> tuple[Tensor, MeanResidue]:
    """sum_k w_k log p_k of every row, u and weight (n, K); masked classes have weight 0."""
    highest, top = u.max(1, keepdim=True)
    share = torch.sub(u, highest).clamp_(min=-NEVER)
    mean = _joined(share, lambda block: (share[block] * weight[block]).sum(1))
    share.exp_().scatter_(1, top, 0.0)
    rest = share.sum(1)
    first = weight.gather(1, top).squeeze(1)
    beside = _joined(share, lambda block: weight[block].scatter(1, top[block], 0.0).sum(1))
    residue = MeanResidue(share, top, rest, first + beside, beside)
    return mean - residue.total * torch.log1p(rest), residue


def mean_log_p_backward(weight: Tensor, residue: MeanResidue, g: Tensor) -> Tensor:
    """g (w_k - p_k sum w), written over the residue's buffer; at the first choice from 1 - p."""
    share, rest = residue.share, residue.rest
    factor = -g * residue.total / (1.0 + rest)
    at_top = -factor * rest - g * residue.beside
    share.mul_(factor.unsqueeze(1)).addcmul_(weight.to(share.dtype), g.unsqueeze(1))
    return share.scatter_(1, residue.top, at_top.unsqueeze(1))


def _mend_gradient(
    z: Tensor, target: Tensor, link: Any, odd: Tensor, given: Mapping[str, Tensor], gradient: Tensor
) -> None:
    rows = z.detach().movedim(1, -1)[odd].requires_grad_()
    with torch.enable_grad():
        fields = link.composite(rows, target[odd], None if link.kept is None else link.kept[odd])
        outputs = [fields[name] for name in given]
        found = torch.autograd.grad(outputs, rows, [g[odd] for g in given.values()], materialize_grads=True)[0]
    gradient.movedim(1, -1)[odd] = found
