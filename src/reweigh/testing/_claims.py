"""What the rule declares about itself is true."""

from __future__ import annotations

import torch
from torch import Tensor

from ..evidence import Evidence, sigmoid_evidence
from ._checks import apply_if, check
from ._compare import demand
from ._derivatives import is_full_derivative
from ._reference import softmax_cost
from ._subject import Data, Subject, draw

SEEDS = 6


@check("needs")
def needs(subject: Subject) -> None:
    """The cost reads every field of evidence that the rule declares it needs; each costs time."""
    rule = subject.rule
    apply_if(rule.head != "boxes", "boxes have two fields")
    state = {name: value.cpu() for name, value in subject.loss.state().items()}
    data = draw(subject, 6, seed=50)
    if rule.head == "softmax":
        _, evidence = softmax_cost(rule, state, data.logits, data.target)
    else:
        labels = data.target if data.target.shape == data.logits.shape else torch.zeros(data.logits.shape)
        offset = None if rule.offset is None else rule.offset(state)
        evidence = sigmoid_evidence(data.logits, labels == 1, needs=rule.needs, offset=offset)
    unread = set(rule.needs)
    watched = _Watched(**vars(evidence))
    object.__setattr__(watched, "unread", unread)
    rule.cost(watched, state)
    if rule.normalize_rows is not None:
        rule.normalize_rows(watched, state)
    demand(not unread, f"the rule needs {', '.join(sorted(unread))}, but its cost never reads it. Leave it out.")


class _Watched(Evidence):
    """Evidence that crosses off what is read."""

    def __getattribute__(self, name: str):
        if not name.startswith("_") and name != "unread":
            unread = self.__dict__.get("unread")
            if unread is not None:
                unread.discard(name)
        return object.__getattribute__(self, name)


@check("holds_constants")
def holds_constants(subject: Subject) -> None:
    """A rule that declares held constants has a gradient that is not the full derivative."""
    apply_if(subject.rule.holds_constants, "no such claim")
    some = any(not is_full_derivative(subject, seed) for seed in range(SEEDS))
    demand(some, "the rule declares holds_constants=True, but its gradient is the full derivative. Leave it out.")


@check("rewards_errors")
def rewards_errors(subject: Subject) -> None:
    """The gradient pushes a wrong decision further wrong only where the rule says that it can."""
    apply_if(subject.rule.head != "boxes", "boxes have no right class")
    found = _rewarded(subject)
    if subject.rule.rewards_errors:
        if subject.rule.coupled or subject.rule.observe is not None:
            return  # the batch or the memory that brings it about may be a rare one
        demand(
            found is not None,
            "the rule declares rewards_errors=True, but no gradient pushes towards a mistake. Leave it out.",
        )
    else:
        demand(
            found is None,
            f"at {found} the gradient lowers the true class's logit although the decision is wrong. If the method "
            "does that, say so with Rule(rewards_errors=True); else look for a sign.",
        )


def _rewarded(subject: Subject) -> str | None:
    """Where a wrong decision's gradient has the wrong sign; None: nowhere."""
    for data in _mistakes(subject):
        z = subject.place(data.logits).requires_grad_()
        cost = subject.built(reduction="none")(z, subject.place(data.target))
        (gradient,) = torch.autograd.grad(cost.sum(), z)
        gradient, logits = gradient.cpu(), data.logits
        if subject.rule.head == "softmax":
            index = data.target.unsqueeze(1)
            slope = gradient.gather(1, index).squeeze(1)
            wrong = logits.scatter(1, index, -torch.inf).amax(1) > logits.gather(1, index).squeeze(1)
            scale = gradient.abs().amax(1)
        else:
            sign = torch.where(_labels(data) == 1, 1.0, -1.0)
            slope, wrong, scale = gradient * sign, logits * sign < 0, gradient.abs()
        bad = wrong & (slope > 1e-9 + 1e-6 * scale)
        if bool(bad.any()):
            place = tuple(int(i) for i in bad.nonzero()[0])
            return f"logits {[round(value, 4) for value in logits[place[0]].tolist()]}, target {data.target[place[0]].tolist()},"
    return None


def _two_of_many() -> Data:
    """The true class a little behind the first choice, and a thousand others that share from much to nothing."""
    depth = torch.linspace(4, 16, 25, dtype=torch.float64)
    logits = -depth.repeat(4).unsqueeze(1).expand(100, 1000).clone()
    logits[:, 1] = 0.0
    logits[:, 0] = -torch.tensor([0.01, 0.1, 0.5, 2.0], dtype=torch.float64).repeat_interleave(25)
    return Data(logits, torch.zeros(100, dtype=torch.int64))


def _labels(data: Data) -> Tensor:
    if data.target.shape == data.logits.shape:
        return data.target
    return torch.nn.functional.one_hot(data.target, data.logits.shape[1])


def _mistakes(subject: Subject) -> list[Data]:
    """Random batches, and for two classes or single elements a sweep of the log-odds."""
    batches = [draw(subject, 32, seed=seed, spread=spread) for seed in range(SEEDS) for spread in (0.5, 2.0, 6.0)]
    classes = subject.classes or 2
    margin = torch.linspace(-30, 0, 121, dtype=torch.float64)
    logits = torch.zeros(121, classes, dtype=torch.float64)
    logits[:, 0] = margin
    if subject.rule.head == "softmax":
        logits[:, 2:] = -40.0  # as good as two classes
        batches.append(Data(logits, torch.zeros(121, dtype=torch.int64)))
        return batches if subject.classes else [*batches, _two_of_many()]
    if subject.rule.index_targets:
        return batches
    logits[:, 1] = -margin
    target = torch.zeros(121, classes, dtype=torch.int64)
    target[:, 0] = 1
    return [*batches, Data(logits, target)]
