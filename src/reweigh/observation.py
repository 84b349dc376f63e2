"""What may be observed, made evidence: logits and targets, evidence collected earlier, Predictions, other ranks' rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import distributed
from .errors import bad_input
from .evidence import SURE, Evidence, sigmoid_evidence
from .predictions import Predictions


def evidence_of(loss: Any, seen: Any, target: Tensor | None) -> Evidence:
    """Evidence with the fields that the loss's rule observes."""
    if isinstance(seen, (Evidence, list, tuple)):
        found = seen if isinstance(seen, Evidence) else stacked(seen, loss.rule.name)
        missing = [name for name in loss.rule.observe_needs if getattr(found, name) is None]
        if missing:
            raise bad_input(
                f"{loss.rule.name}: observe",
                came=f"evidence without {', '.join(missing)}",
                expected="what this loss's own evidence(logits, target) returns",
            )
        return found
    if isinstance(seen, Predictions):
        return _of_predictions(loss, seen)
    if not isinstance(seen, Tensor):
        raise bad_input(
            f"{loss.rule.name}: observe",
            came=type(seen).__name__,
            expected="logits and target, loss.evidence(...), a list of these, or Predictions",
        )
    if target is None:
        raise bad_input(f"{loss.rule.name}: observe", came="logits without target", expected="observe(logits, target)")
    return loss.evidence(seen, target)


def stacked(parts: Any, name: str) -> Evidence:
    """Evidence of several batches, one after the other."""
    if not parts or not all(isinstance(part, Evidence) for part in parts):
        raise bad_input(
            f"{name}: observe",
            came=f"{len(parts)} items that are not all evidence",
            expected="a list of loss.evidence(...)",
        )
    whole = {}
    for field in vars(parts[0]):
        values = [getattr(part, field) for part in parts]
        if field == "kept" and any(value is not None for value in values):
            values = [_all_kept(part) if value is None else value for part, value in zip(parts, values, strict=True)]
        if all(isinstance(value, Tensor) for value in values):
            whole[field] = torch.cat(values)
    return Evidence(**whole)


def _all_kept(evidence: Evidence) -> Tensor:
    others = ("class_weight", "log_probabilities")  # not one number a decision
    shape = next(value for name, value in vars(evidence).items() if isinstance(value, Tensor) and name not in others)
    return torch.ones(shape.shape, dtype=torch.bool, device=shape.device)


def joined(evidence: Evidence, process_group: Any, sizes: list[int] | None = None) -> Evidence:
    """The rows of all ranks in rank order; differentiable."""
    # `forced` is known only where a row was suspicious, which may be on one rank and not on another.
    tensors = {name: value for name, value in vars(evidence).items() if isinstance(value, Tensor) and name != "forced"}
    first = next(iter(tensors.values()))
    if "kept" not in tensors:
        tensors["kept"] = _all_kept(evidence)
    sizes = distributed.shard_sizes(len(first), first.device, process_group) if sizes is None else sizes
    return Evidence(**{name: distributed.gather_rows(value, sizes, process_group) for name, value in tensors.items()})


def _of_predictions(loss: Any, predictions: Predictions) -> Evidence:
    """Confidence and correctness are enough for rules that observe these; the others need scores of all classes."""
    rule = loss.rule
    if rule.head == "softmax" and set(rule.observe_needs) <= {"confidence_log_odds", "top"}:
        correct = predictions.correctness.bool()
        return Evidence(
            confidence_log_odds=predictions.log_odds,
            top=(~correct).long(),
            target=torch.zeros_like(correct, dtype=torch.int64),
        )
    if rule.head == "sigmoid" and predictions.kind == "confidence" and rule.num_classes is None:
        if set(rule.observe_needs) <= {"log_odds"}:  # of the outcome: minus those of a wrong confidence
            odds = predictions.log_odds.clamp(-SURE, SURE)
            return Evidence(log_odds=torch.where(predictions.correctness > 0.5, odds, -odds))
    if predictions.kind == "confidence" or predictions.targets is None:
        lacking = "only confidence and correctness" if predictions.kind == "confidence" else "no targets"
        raise bad_input(
            f"{rule.name}: observe", came=f"Predictions with {lacking}", expected="scores of all classes and targets"
        )
    if rule.head == "sigmoid":
        return _of_labels(loss, predictions)
    scores = predictions.scores
    if predictions.kind == "probabilities":
        scores = scores.double().log()
    return loss.evidence(scores, torch.as_tensor(predictions.targets).to(scores.device))


def _of_labels(loss: Any, predictions: Predictions) -> Evidence:
    """Evidence of a sigmoid head: each class against the rest, whatever form the targets have."""
    rule, scores = loss.rule, predictions.scores
    if predictions.head != "sigmoid":
        raise bad_input(
            f"{rule.name}: observe",
            came="Predictions of a softmax head",
            expected="those of a sigmoid head",
            mend="If they are, say so with Predictions(..., head='sigmoid').",
        )
    if rule.num_classes is not None and scores.shape[1] != rule.num_classes:
        raise bad_input(
            f"{rule.name}: observe", came=f"{scores.shape[1]} classes", expected=f"the {rule.num_classes} of this loss"
        )
    if predictions.kind != "logits":
        log_p = scores.double().log() if predictions.kind == "probabilities" else scores.double()
        scores = log_p - torch.log(-torch.expm1(log_p))
    targets = torch.as_tensor(predictions.targets).to(scores.device)
    if predictions.target_form == "index":
        positive = torch.zeros_like(scores, dtype=torch.bool).scatter(1, targets.long().unsqueeze(1), True)
    else:
        positive = targets > 0.5
    offset = None if rule.offset is None else rule.offset(loss.state())
    scores = scores.clamp(-SURE, SURE)  # a probability of 0 or 1 is as good as certain
    return sigmoid_evidence(scores, positive, needs=rule.observe_needs, offset=offset)
