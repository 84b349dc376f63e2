"""`Loss`: the only `nn.Module` around rules. It owns what rules must not know: reduction, weights,
ignored rows, soft targets, state as buffers, process groups, checks.

How a batch flows: `inputs` puts it into one shape; the link makes evidence of it; the rule prices the
evidence; here the prices meet weights and a denominator. Sigmoid heads take the short way of `onepass`.
"""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import replace
from functools import partial
from numbers import Real
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor, nn

from . import distributed, fused, onepass
from .errors import InputError, bad_input, nearest
from .evidence import (
    Evidence,
    box_evidence,
    forced_rows,
    mean_log_p,
    outcome_evidence,
    shifted,
    sigmoid_evidence,
    softmax_evidence,
    without_gradient,
)
from .inputs import Batch, box_batch, sigmoid_batch, softmax_batch
from .observation import evidence_of, joined
from .rules import Rule
from .validation import Findings, raise_bad_sigmoid, raise_bad_softmax_rows, softmax_codes

UNOBSERVED = 50  # training-mode forwards after which an unobserved running loss warns


class Common(TypedDict, total=False):
    """Keywords that every loss takes, and their defaults."""

    reduction: Literal["mean", "sum", "none"]
    ignore_index: int
    class_weight: Any
    validate: bool | Literal["strict"]
    process_group: Any


class Loss(nn.Module):
    """A rule, reduced. Call it as `nn.CrossEntropyLoss` or `nn.BCEWithLogitsLoss`: `loss(logits, target)`.

    reduction: "mean", "sum" or "none". ignore_index: targets that do not count. class_weight: (K,) factors.
    validate: check values (True), never (False), or with assertions on the device, also under compile ("strict").
    process_group: a group or "world"; then ranks together equal the single batch.
    """

    def __init__(
        self,
        rule: Rule,
        *,
        reduction: Literal["mean", "sum", "none"] = "mean",
        ignore_index: int = -100,
        class_weight: Any = None,
        validate: bool | Literal["strict"] = True,
        process_group: Any = None,
        **unknown: Any,
    ) -> None:
        nn.Module.__init__(self)
        if unknown:
            raise _unknown_setting(rule.name, next(iter(unknown)))
        if reduction not in ("mean", "sum", "none"):
            raise bad_input(f"{rule.name}(reduction=...)", came=repr(reduction), expected="'mean', 'sum' or 'none'")
        if validate not in (True, False, "strict"):
            raise bad_input(f"{rule.name}(validate=...)", came=repr(validate), expected="True, False or 'strict'")
        if isinstance(ignore_index, bool) or not isinstance(ignore_index, int):
            raise bad_input(f"{rule.name}(ignore_index=...)", came=repr(ignore_index), expected="an integer")
        distributed.refuse_other_than_groups(rule.name, process_group)
        self.rule = rule
        self.reduction = reduction
        self.ignore_index = ignore_index
        self.validate = validate
        self.process_group = process_group
        self.plain = (reduction, ignore_index, class_weight, validate, process_group) == (
            "mean",
            -100,
            None,
            True,
            None,
        )
        self._findings = Findings()
        self._programs = onepass.Programs()
        self._unobserved = 0
        state = rule.init()
        self._state_names = tuple(state)
        for name, value in state.items():
            self.register_buffer(name, value.clone())
        self.register_buffer("class_weight", None if class_weight is None else _class_weight(rule, class_weight))

    # ------------------------------------------------------------------ the call

    def forward(self, logits: Tensor, target: Tensor, *, sample_weight: Any = None, normalizer: Any = None) -> Tensor:
        """The loss. `normalizer` replaces the denominator of "mean": the whole step's, over all micro-batches and ranks."""
        try:
            if isinstance(logits, Tensor) and torch.is_autocast_enabled(logits.device.type):
                with torch.autocast(logits.device.type, enabled=False):
                    return self._price(logits, target, sample_weight, normalizer)
            return self._price(logits, target, sample_weight, normalizer)
        except InputError as error:
            _named(error, self.rule.name)
            raise

    def _price(self, logits: Tensor, target: Tensor, sample_weight: Any, normalizer: Any) -> Tensor:
        if self.rule.observes == "training" and self.training and not torch.compiler.is_compiling():
            self._count_unobserved()
        if self._findings.pending:
            self._findings.raise_arrived()
        if normalizer is not None:
            normalizer = self._checked_normalizer(normalizer, logits)
        if fused.serves(logits):
            value = fused.priced(self, logits, target, sample_weight, normalizer)
            if value is not None:
                return value
        return self._plain_price(logits, target, sample_weight, normalizer)

    def _plain_price(self, logits: Tensor, target: Tensor, sample_weight: Any, normalizer: Any) -> Tensor:
        if self.rule.head == "softmax":
            return self._softmax(logits, target, sample_weight, normalizer)
        if self.rule.head == "sigmoid":
            return self._sigmoid(logits, target, sample_weight, normalizer)
        return self._boxes(logits, target, sample_weight, normalizer)

    def _softmax(self, logits: Tensor, target: Tensor, sample_weight: Any, normalizer: Any) -> Tensor:
        rule = self.rule
        batch = softmax_batch(
            logits,
            target,
            sample_weight,
            ignore_index=self.ignore_index,
            validate=bool(self.validate),
            classes=rule.num_classes,
            legalize=partial(fused.legal_targets, self) if fused.serves(logits) and not _traced() else None,
        )
        state = self.state()
        class_weight = self._weight_of_classes(state, batch.logits)
        if batch.soft:
            cost = self._soft_softmax_cost(batch, state, class_weight)
            return self._reduce(cost, batch, batch.weight, batch.weight, None, normalizer)
        evidence = self._softmax_evidence(batch, state, rule.needs, class_weight)
        cost = self._coupled_cost(evidence, state) if self._gathers() else rule.cost(evidence, state)
        if evidence.forced is not None:
            cost = torch.where(evidence.forced, 0.0, cost)
        cost = cost.to(_cost_type(logits))
        divisor = evidence.class_weight
        if rule.normalize_rows is not None:
            own = rule.normalize_rows(evidence, state)
            divisor = own if divisor is None else divisor * own
            factor = divisor
        else:
            factor = None if rule.weighs_classes else divisor
        if batch.weight is not None:
            divisor = batch.weight if divisor is None else divisor * batch.weight
            factor = batch.weight if factor is None else factor * batch.weight
        return self._reduce(cost, batch, factor, divisor, batch.kept, normalizer)

    def _softmax_evidence(
        self, batch: Batch, state: dict[str, Tensor], needs: tuple[str, ...], class_weight: Tensor | None
    ) -> Evidence:
        rule = self.rule
        scale = None if rule.scale is None else rule.scale(state)
        offset = None if rule.offset is None else rule.offset(state)
        examine: Any = None
        if self.validate and not torch._C._are_functorch_transforms_active():

            def examine_rows(log_odds: Tensor, odd: Tensor | None) -> None:
                self._examine_softmax(batch, log_odds, odd, offset)

            examine = examine_rows

        flags = fused.flags(self, batch.logits) if examine is not None and not _traced() else (None, None)
        found = softmax_evidence(
            _widened(rule, batch.logits), batch.target, needs=needs, scale=scale, offset=offset,
            class_weight=class_weight, weigh_sum=rule.weighs_classes, kept=batch.kept, examine=examine, flags=flags,
        )  # fmt: skip
        if self.validate == "strict" and flags[0] is not None:
            fused.assert_fine(self, batch.logits)
        return found

    def _examine_softmax(self, batch: Batch, log_odds: Tensor, odd: Tensor | None, offset: Tensor | None) -> None:
        z, target, kept = batch.logits, batch.target, batch.kept
        if torch.compiler.is_compiling():
            if self.validate == "strict":
                fine = torch.isfinite(log_odds).reshape(-1)
                torch._assert_async((fine if kept is None else fine | ~kept).all(), "reweigh: bad logits or targets")
            return
        if z.device.type == "cpu":
            rows = ~torch.isfinite(log_odds) if odd is None else odd
            if odd is None and not bool(rows.any()):
                return
            if offset is not None:
                self._refuse_closed_targets(z, target, kept, offset)
            raise_bad_softmax_rows(z, target, rows, kept, batch.shape)
        elif self.validate == "strict":
            fine = torch.isfinite(log_odds).reshape(-1)
            torch._assert_async((fine if kept is None else fine | ~kept).all(), "reweigh: bad logits or targets")
        else:
            self._findings.note(softmax_codes(z.detach(), target, log_odds.detach(), kept))

    def _refuse_closed_targets(self, z: Tensor, target: Tensor, kept: Tensor | None, offset: Tensor) -> None:
        closed = (offset == -torch.inf)[target].reshape(-1)
        closed = closed if kept is None else closed & kept
        if bool(closed.any()):
            row = int(closed.nonzero()[0])
            raise bad_input(
                self.rule.name,
                came=f"target {int(target.reshape(-1)[row])} at row {row}, a class whose class_counts entry is 0",
                expected="targets of classes that have a count",
                mend="Give the class its true count.",
            )

    def _refuse_closed_shares(self, share: Tensor, offset: Tensor) -> None:
        wrong = (share > 0) & (offset == -torch.inf)
        if bool(wrong.any()):
            row, k = (int(i) for i in wrong.nonzero()[0])
            raise bad_input(
                self.rule.name,
                came=f"a share of {float(share[row, k]):g} of class {k} at row {row}, a class whose class_counts entry is 0",
                expected="soft targets on classes that have a count",
                mend="Give the class its true count.",
            )

    def _soft_softmax_cost(self, batch: Batch, state: dict[str, Tensor], class_weight: Tensor | None) -> Tensor:
        rule, z = self.rule, batch.logits
        if rule.soft == "refused":
            raise bad_input(
                rule.name,
                came="soft targets",
                expected="class indices",
                mend="This loss is defined for one true class a row.",
            )
        share = batch.target.to(_cost_type(z))
        if z.dim() == 3:
            share = share.movedim(1, -1).flatten(0, 1)
        scale = None if rule.scale is None else rule.scale(state)
        offset = None if rule.offset is None else rule.offset(state)
        watched = self.validate and z.device.type == "cpu" and not _traced()
        if watched and rule.soft != "linear":
            raise_bad_sigmoid(z, None, None)
        if watched and offset is not None:
            self._refuse_closed_shares(share, offset)
        common = {"scale": scale, "offset": offset, "class_weight": class_weight, "weigh_sum": rule.weighs_classes}
        if rule.soft == "outcomes":
            evidence = outcome_evidence(_widened(rule, z), needs=rule.needs, **common)
            cost = rule.cost(evidence, state).view(share.shape)
            if class_weight is not None and not rule.weighs_classes:
                cost = cost * class_weight.to(cost.dtype)
            return torch.where(evidence.forced.view(share.shape), 0.0, share * cost).sum(1).to(share.dtype)
        weighed = share if class_weight is None else share * class_weight
        total = None if class_weight is None or rule.weighs_classes else weighed.sum(1)  # what the row counts
        if rule.soft == "own":
            first = shifted(z.detach(), scale, offset).argmax(1)
            evidence = softmax_evidence(_widened(rule, z), first, needs=rule.soft_needs, **common)
            cost = rule.soft_cost(replace(evidence, soft_target=share), state)
        else:
            evidence = self._mean_outcome(z, weighed, total, common)
            if watched and not bool(torch.isfinite(evidence.log_p).all()):
                raise_bad_sigmoid(z, None, None)
            cost = rule.cost(evidence, state)
        cost = cost if total is None else cost * total
        return (cost if evidence.forced is None else torch.where(evidence.forced, 0.0, cost)).to(share.dtype)

    def _mean_outcome(self, z: Tensor, weighed: Tensor, total: Tensor | None, common: dict[str, Any]) -> Evidence:
        """Evidence with the mean log p: a cost that is affine in log p has the mean of the outcomes' costs there."""
        z = _widened(self.rule, z)
        scale, offset = common["scale"], common["offset"]
        mean = mean_log_p(z, weighed, scale=scale, offset=offset)
        if total is not None:
            mean = mean / torch.where(total > 0, total, 1.0)
        needs = tuple(name for name in self.rule.needs if name != "log_p")
        if needs:
            evidence = softmax_evidence(z, shifted(z.detach(), scale, offset).argmax(1), needs=needs, **common)
            return replace(evidence, log_p=mean, class_weight=None)
        forced = None
        if z.device.type != "cpu" or _traced() or bool((mean == 0.0).any()):  # as with one class left
            u = shifted(z.detach(), scale, offset)
            forced = forced_rows(u, u.argmax(1)).reshape(-1)
        return Evidence(log_p=mean, forced=forced)

    def _sigmoid(self, logits: Tensor, target: Tensor, sample_weight: Any, normalizer: Any) -> Tensor:
        rule, state = self.rule, self.state()
        batch = sigmoid_batch(
            logits, target, sample_weight, ignore_index=self.ignore_index, index=rule.index_targets,
            validate=bool(self.validate), classes=rule.num_classes,
        )  # fmt: skip
        z, soft = batch.logits, batch.soft
        if soft and rule.soft == "refused" and self.validate and z.device.type == "cpu" and not _traced():
            self._refuse_soft_labels(batch)
        largest = self._examine_sigmoid(batch) if self.validate else math.inf
        if rule.per_row:
            return self._sigmoid_rows(batch, state, normalizer)
        weight = self._element_weight(batch, state)
        if rule.sums is not None and onepass.runs(z):
            sums = onepass.batch_sums(
                z, batch.target, kept=batch.kept, rule=rule, state=state, largest=largest, programs=self._programs
            )
            rule, state = rule.after_sums, {**state, **{name: self._over_ranks(each) for name, each in sums.items()}}
        if onepass.serves(z, rule):
            if self.reduction == "none":
                return onepass.sigmoid_total(
                    z, batch.target, kept=batch.kept, weight=weight, rule=rule, state=state, factor=1.0, reduce=False,
                    largest=largest, programs=self._programs,
                )  # fmt: skip
            factor = self._factor(batch.kept, z, normalizer)
            return onepass.sigmoid_total(
                z, batch.target, kept=batch.kept, weight=weight, rule=rule, state=state, factor=factor, reduce=True,
                largest=largest, programs=self._programs,
            )  # fmt: skip
        cost = self._plain_sigmoid_cost(batch, rule, state).to(_cost_type(z))
        cost = cost if weight is None else cost * weight
        if self.reduction == "none":
            return cost
        return (cost.sum() * self._factor(batch.kept, z, normalizer)).to(cost.dtype)

    def _plain_sigmoid_cost(self, batch: Batch, rule: Rule, state: dict[str, Tensor]) -> Tensor:
        if self.process_group is None or not rule.coupled:
            return onepass.sigmoid_cost(batch.logits, batch.target, batch.kept, rule, state)
        offset = None if rule.offset is None else rule.offset(state)
        kept = batch.kept if batch.kept is not None else torch.ones_like(batch.target, dtype=torch.bool)
        positive = batch.target > 0.5 if batch.soft else batch.target == 1
        evidence = sigmoid_evidence(batch.logits, positive, needs=rule.needs, offset=offset, kept=kept)
        return self._coupled_cost(evidence, state)

    def _sigmoid_rows(self, batch: Batch, state: dict[str, Tensor], normalizer: Any) -> Tensor:
        if self.class_weight is not None:
            raise bad_input(
                self.rule.name, came="class_weight", expected="none", mend="This loss prices whole rows, not classes."
            )
        if batch.logits.dim() < 2:
            raise bad_input("logits", came=f"shape {tuple(batch.logits.shape)}", expected="(n, K, ...)")
        if onepass.serves_rows(batch.logits, self.rule):
            cost = onepass.row_costs(batch.logits, batch.target, batch.kept, self.rule, state, self._programs)
        else:
            cost = onepass.sigmoid_cost(batch.logits, batch.target, batch.kept, self.rule, state)
        shape = tuple(cost.shape)
        kept = None if batch.kept is None else batch.kept.any(1).reshape(-1)
        weight = batch.weight
        if weight is not None:
            if weight.shape == batch.logits.shape:
                raise bad_input(
                    "sample_weight", came=f"shape {tuple(weight.shape)}", expected=f"({shape[0]},) or {shape}"
                )
            weight = weight.squeeze(1).expand(shape).reshape(-1)
        return self._reduce(
            cost.reshape(-1),
            Batch(batch.logits, batch.target, kept, False, shape, None),
            weight,
            None,
            kept,
            normalizer,
        )

    def _boxes(self, logits: Tensor, target: Tensor, sample_weight: Any, normalizer: Any) -> Tensor:
        batch = box_batch(logits, target, sample_weight, validate=bool(self.validate))
        if self.class_weight is not None:
            raise bad_input(
                self.rule.name,
                came="class_weight",
                expected="none",
                mend="Boxes have no classes here; use sample_weight.",
            )
        state = self.state()
        evidence = box_evidence(batch.logits, batch.target, needs=self.rule.needs)
        cost = self._coupled_cost(evidence, state) if self._gathers() else self.rule.cost(evidence, state)
        factor = divisor = batch.weight
        if self.rule.normalize_rows is not None:
            own = self.rule.normalize_rows(evidence, state)
            factor = own if factor is None else factor * own
            divisor = factor
        return self._reduce(cost, batch, factor, divisor, None, normalizer)

    # ------------------------------------------------------------------ weights and reduction

    def _weight_of_classes(self, state: dict[str, Tensor], z: Tensor) -> Tensor | None:
        weight = self.class_weight
        if self.rule.class_weight is not None:
            own = self.rule.class_weight(state)
            weight = own if weight is None else weight * own
        if weight is None:
            return None
        if z.dim() < 2 or len(weight) != z.shape[1]:
            came = z.shape[1] if z.dim() > 1 else "no"
            raise bad_input(
                f"{self.rule.name}: class_weight",
                came=f"{len(weight)} weights for {came} classes",
                expected="one weight a class",
            )
        return weight.to(_cost_type(z))

    def _element_weight(self, batch: Batch, state: dict[str, Tensor]) -> Tensor | None:
        """What multiplies a sigmoid head's elements, broadcastable to the logits; 0 where they do not count."""
        weight = self._weight_of_classes(state, batch.logits)
        if weight is not None:
            weight = weight.view(1, -1, *[1] * (batch.logits.dim() - 2))
        for factor in (batch.weight, None if batch.kept is None else batch.kept.to(_cost_type(batch.logits))):
            if factor is not None:
                weight = factor if weight is None else weight * factor
        return weight

    def _factor(self, kept: Tensor | None, z: Tensor, normalizer: Any) -> Any:
        """What turns a sum over elements into this loss's reduction, ranks included."""
        world = 1 if self.process_group is None else distributed.world_size(self.process_group)
        if self.reduction == "sum":
            return float(world)
        if normalizer is not None:
            return world / normalizer
        if kept is None and self.process_group is None:
            return 1.0 / max(z.numel(), 1)
        # one type on every rank, whether or not this one's labels are all kept
        number = torch.full((), float(z.numel()), dtype=torch.float64, device=z.device)
        number = number if kept is None else kept.sum().to(torch.float64)
        return world / self._over_ranks(number).clamp(min=1)

    def _over_ranks(self, value: Tensor) -> Tensor:
        return value if self.process_group is None else distributed.total(value, self.process_group)

    def _reduce(
        self,
        cost: Tensor,
        batch: Batch,
        factor: Tensor | None,
        divisor: Tensor | None,
        kept: Tensor | None,
        normalizer: Any,
    ) -> Tensor:
        """cost (N,) flat; factor multiplies it, divisor enters the mean's denominator (None: ones)."""
        if factor is not None:
            cost = cost * factor.to(cost.dtype)
        if kept is not None:
            cost = torch.where(kept, cost, 0.0)
        if self.reduction == "none":
            return cost.view(batch.shape)
        if (
            self.reduction == "mean"
            and normalizer is None
            and divisor is None
            and kept is None
            and self.process_group is None
        ):
            return cost.sum() / max(cost.numel(), 1)
        world = 1 if self.process_group is None else distributed.world_size(self.process_group)
        if self.reduction == "sum":
            return cost.sum() * world
        if normalizer is not None:
            return cost.sum() * world / normalizer
        if divisor is None:
            number = kept.sum().to(cost.dtype) if kept is not None else cost.new_full((), float(cost.numel()))
        else:
            number = (divisor if kept is None else torch.where(kept, divisor, 0.0)).sum().to(cost.dtype)
        number = self._over_ranks(number)
        return cost.sum() * world / torch.where(number > 0, number, 1.0)

    def _checked_normalizer(self, normalizer: Any, logits: Tensor) -> Any:
        if self.reduction != "mean":
            raise bad_input(
                f"{self.rule.name}: normalizer", came=f"reduction={self.reduction!r}", expected="reduction='mean'"
            )
        if isinstance(normalizer, Tensor):
            if normalizer.numel() != 1:
                raise bad_input("normalizer", came=f"shape {tuple(normalizer.shape)}", expected="one number")
            if normalizer.device.type != "cpu" or _traced():
                return normalizer.detach().reshape(())
            normalizer = normalizer.item()
        if not isinstance(normalizer, Real):  # NumPy's numbers included
            raise bad_input("normalizer", came=repr(normalizer), expected="a finite number above 0")
        number = float(normalizer)
        if not number > 0 or number == float("inf"):
            raise bad_input("normalizer", came=repr(normalizer), expected="a finite number above 0")
        return number

    # ------------------------------------------------------------------ checks

    def check(self) -> None:
        """Raise now what a device found in earlier calls; waits for the device."""
        self._findings.raise_arrived(wait=True)

    def _examine_sigmoid(self, batch: Batch) -> float:
        """Check the logits; on the CPU, how far from 0 they reach."""
        z = batch.logits
        if _traced() or z.numel() == 0:
            if self.validate == "strict" and torch.compiler.is_compiling():
                torch._assert_async((z < torch.inf).all(), "reweigh: NaN or +inf in logits")
            return math.inf
        if z.device.type == "cpu":
            low, high = (limit.item() for limit in torch.aminmax(z.detach()))
            if not high < math.inf or not low > -math.inf:
                raise_bad_sigmoid(
                    z.detach(), batch.target > 0 if batch.target.dtype != torch.bool else batch.target, batch.kept
                )
                return math.inf
            return max(-low, high)
        bad = ~(z.detach() < torch.inf)
        bad = bad if batch.kept is None else bad & batch.kept
        self._findings.note((bad.flatten(1).any(1) if z.dim() > 1 else bad).to(torch.int64) * 2)
        return math.inf

    def _refuse_soft_labels(self, batch: Batch) -> None:
        if onepass.all_hard(batch.target, batch.kept):
            return
        target = batch.target if batch.kept is None else torch.where(batch.kept, batch.target, 0)
        between = (target != 0) & (target != 1)
        if bool(between.any()):
            where = tuple(int(i) for i in between.nonzero()[0])
            raise bad_input(
                self.rule.name,
                came=f"a soft label {float(target[where]):g} at position {where}",
                expected="labels 0 and 1",
            )

    # ------------------------------------------------------------------ state

    def state(self) -> dict[str, Tensor]:
        """The rule's named tensors, as they are now."""
        return {name: getattr(self, name) for name in self._state_names}

    def __getattr__(self, name: str) -> Any:
        """Buffers, as for every module, and the rule's readings of its state."""
        rule = self.__dict__.get("rule")
        if rule is not None and name in rule.readings:
            return rule.readings[name](self.state())
        return nn.Module.__getattr__(self, name)

    def evidence(self, logits: Tensor, target: Tensor) -> Evidence:
        """The few numbers a row that `observe` needs, as constants: collect them over a validation pass."""
        rule = self.rule
        with torch.no_grad():
            if rule.head == "sigmoid":
                batch = sigmoid_batch(
                    logits, target, None, ignore_index=self.ignore_index, index=rule.index_targets,
                    validate=bool(self.validate), classes=rule.num_classes,
                )  # fmt: skip
                offset = None if rule.offset is None else rule.offset(self.state())
                positive = batch.target > 0.5 if batch.soft else batch.target == 1
                found = sigmoid_evidence(
                    batch.logits, positive, needs=rule.observe_needs, offset=offset, kept=batch.kept
                )
            else:
                batch = softmax_batch(
                    logits,
                    target,
                    None,
                    ignore_index=self.ignore_index,
                    validate=bool(self.validate),
                    classes=rule.num_classes,
                )
                if batch.soft:
                    raise bad_input(f"{rule.name}: observing", came="soft targets", expected="class indices")
                found = self._softmax_evidence(batch, self.state(), rule.observe_needs, None)
            return without_gradient(found)

    def observe(self, seen: Any, target: Tensor | None = None, *, process_group: Any = None) -> None:
        """Update the state from what was seen: logits and target, evidence, a list of evidence, or Predictions.

        Under a process group each rank gives its shard, and all ranks come to the same state.
        """
        rule = self.rule
        if rule.observe is None:
            raise InputError(f"{rule.name} observes nothing: it has no state to update. Leave the call out.")
        self._unobserved = -(2**62)
        distributed.refuse_other_than_groups(rule.name, process_group)
        group = process_group if process_group is not None else self.process_group
        try:
            with torch.no_grad():
                found = evidence_of(self, seen, target)
                if group is not None:
                    found = joined(found, group)
                found = _on_device(found, self._device())
                self._write(rule.observe(found, self.state()))
        except InputError as error:
            _named(error, rule.name)
            raise

    def advance(self, epoch: int) -> None:
        """Tell a loss with a schedule which epoch begins (0 first); others take no notice."""
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise bad_input(
                f"{self.rule.name}: advance(epoch)", came=repr(epoch), expected="a whole number of at least 0"
            )
        if self.rule.advance is not None:
            with torch.no_grad():
                self._write(self.rule.advance(epoch, self.state()))

    def _write(self, state: Any) -> None:
        for name, value in state.items():
            getattr(self, name).copy_(value)

    def _device(self) -> torch.device | None:
        return getattr(self, self._state_names[0]).device if self._state_names else None

    def _count_unobserved(self) -> None:
        self._unobserved += 1
        if self._unobserved == UNOBSERVED:
            warnings.warn(
                f"{self.rule.name} keeps running statistics of the training batches, but {UNOBSERVED} forward passes went by "
                "and loss.observe(logits.detach(), target) was never called, so its state is still the initial one.",
                stacklevel=5,
            )

    # ------------------------------------------------------------------ ranks

    def _gathers(self) -> bool:
        return self.rule.coupled and self.process_group is not None

    def _coupled_cost(self, evidence: Evidence, state: dict[str, Tensor]) -> Tensor:
        """The cost over all ranks' rows, this rank's rows kept."""
        rows = next(value for name in self.rule.needs if (value := getattr(evidence, name)) is not None)
        if evidence.kept is None:
            evidence = Evidence(
                **{**vars(evidence), "kept": torch.ones(rows.shape, dtype=torch.bool, device=rows.device)}
            )
        sizes = distributed.shard_sizes(len(rows), rows.device, self.process_group)
        whole = joined(evidence, self.process_group, sizes)
        return self.rule.cost(whole, state)[distributed.own_rows(sizes, self.process_group)]

    # ------------------------------------------------------------------ being a module

    def _apply(self, fn: Any, recurse: bool = True) -> Loss:
        """Move to a device; state keeps the type `init` gave it: a half-precision edge or count is a wrong one."""
        before = {name: buffer for name, buffer in self._buffers.items() if buffer is not None}
        nn.Module._apply(self, fn, recurse)
        for name, buffer in before.items():
            self._buffers[name] = buffer.to(self._buffers[name].device)
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        for name, own in self._buffers.items():
            saved = state_dict.get(prefix + name)
            if own is not None and saved is not None and saved.shape != own.shape:
                raise bad_input(
                    f"loading the state of {self.rule.name}: {name}",
                    came=f"shape {tuple(saved.shape)}",
                    expected=f"{tuple(own.shape)}",
                    mend="Build the loss with the settings (bins, classes) of the saved one.",
                )
        nn.Module._load_from_state_dict(self, state_dict, prefix, *rest)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state["_findings"], state["_programs"] = Findings(), onepass.Programs()
        if not isinstance(self.process_group, str):
            state["process_group"] = None  # a group object belongs to this process; only the word "world" travels
        return state

    def __deepcopy__(self, memo: dict[int, Any]) -> Loss:
        twin = object.__new__(Loss)
        memo[id(self)] = twin
        twin.__dict__.update({name: copy.deepcopy(value, memo) for name, value in self.__getstate__().items()})
        return twin

    def extra_repr(self) -> str:
        return f"{self.rule.name}, head={self.rule.head}, reduction={self.reduction!r}"


def inner_rule(outer: str, loss: Any) -> Rule:
    """The rule of a loss that was given to another loss; its common keywords would be lost, so they are refused."""
    if not isinstance(loss, Loss):
        raise bad_input(f"{outer}(...)", came=type(loss).__name__, expected="a Loss, such as reweigh.losses.focal()")
    if not loss.plain:
        raise bad_input(
            f"{outer}(...)",
            came=f"an inner {loss.rule.name} with reduction, ignore_index, class_weight, validate or process_group",
            expected="these keywords on the outer loss only",
        )
    return loss.rule


def _widened(rule: Rule, z: Tensor) -> Tensor:
    return z.double() if z.shape[1] <= rule.precise else z


def _cost_type(z: Tensor) -> torch.dtype:
    return torch.float64 if z.dtype == torch.float64 else torch.float32


def _traced() -> bool:
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def _named(error: InputError, name: str) -> None:
    """Let the sentence begin with the loss that was at work."""
    if not str(error).startswith(name):
        error.args = (f"{name}: {error}",)


def _unknown_setting(name: str, setting: str) -> TypeError:
    guess = nearest(setting, Common.__annotations__)
    hint = f"Did you mean {guess!r}?" if guess else f"help(reweigh.losses.{name}) lists its own."
    return TypeError(
        f"{name}(...): got an unknown setting {setting!r}, expected one of its own or one that every loss takes "
        f"({', '.join(Common.__annotations__)}). {hint}"
    )


def _class_weight(rule: Rule, values: Any) -> Tensor:
    try:
        weight = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        raise bad_input(
            f"{rule.name}(class_weight=...)", came=repr(values), expected="one weight a class, (K,)"
        ) from None
    weight = (weight if weight.is_floating_point() else weight.float()).detach().clone()
    if weight.dtype not in (torch.float32, torch.float64):
        weight = weight.float()
    if weight.dim() != 1:
        raise bad_input(
            f"{rule.name}(class_weight=...)", came=f"shape {tuple(weight.shape)}", expected="one weight a class, (K,)"
        )
    wrong = ~((weight >= 0) & (weight < torch.inf))
    if bool(wrong.any()):
        first = int(wrong.nonzero()[0])
        raise bad_input(
            f"{rule.name}(class_weight=...)",
            came=f"{float(weight[first])} for class {first}",
            expected="finite weights of at least 0",
        )
    return weight


def _on_device(evidence: Evidence, device: torch.device | None) -> Evidence:
    if device is None:
        return evidence
    moved = {name: value.to(device) for name, value in vars(evidence).items() if isinstance(value, Tensor)}
    return Evidence(**moved)
