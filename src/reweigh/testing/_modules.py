"""Being a module: copies, saved state, types of state; what may change it and what may not."""

from __future__ import annotations

import copy
import pickle

import torch
from torch import Tensor

from ..errors import InputError
from ..evidence import Evidence
from ..module import Loss
from ._checks import apply_if, check
from ._compare import demand, demand_close, demand_equal, demand_finite
from ._subject import Subject, draw


def _value(subject: Subject, loss: Loss) -> Tensor:
    data = draw(subject, 8, seed=60)
    return loss(subject.place(data.logits), subject.place(data.target)).detach()


@check("copies")
def copies(subject: Subject) -> None:
    """deepcopy and a pickle of the module give the same numbers, in buffers of their own."""
    loss = subject.built()
    expected = _value(subject, loss)
    # our own bytes of a moment ago, not a user's file
    for how, twin in (("deepcopy", copy.deepcopy(loss)), ("pickle", pickle.loads(pickle.dumps(loss)))):  # noqa: S301
        demand_equal(_value(subject, twin), expected, how, mend="Keep tensors in the state, functions at module level.")
        for name, value in twin.state().items():
            demand(value is not loss.state()[name], f"{how} shares the state {name!r} with the original.")


@check("saved_state")
def saved_state(subject: Subject) -> None:
    """state_dict carries the memory to a loss built anew; a state of another shape is refused in words."""
    loss = subject.built()
    saved = {name: value.clone() for name, value in loss.state_dict().items()}
    demand(set(saved) == set(loss.state()), f"state_dict holds {sorted(saved)}, the state {sorted(loss.state())}.")
    fresh = type(loss)(subject.rule).to(subject.device)
    fresh.load_state_dict(saved)
    demand_equal(_value(subject, fresh), _value(subject, loss), "the value after load_state_dict", mend="")
    for name, value in saved.items():
        if value.dim() == 0:
            continue
        try:
            fresh.load_state_dict({**saved, name: torch.zeros(len(value) + 1, *value.shape[1:], device=value.device)})
        except (InputError, RuntimeError) as error:
            demand(name in str(error), f"the error about a wrong {name!r} does not name it: {error}")
        else:
            demand(False, f"a state {name!r} of another shape was loaded.")


@check("types_of_state")
def types_of_state(subject: Subject) -> None:
    """Counts and edges keep their type through .half(), .bfloat16() and .double()."""
    for how in ("half", "bfloat16", "double", "float"):
        loss = getattr(subject.built(), how)()
        for name, value in loss.state().items():
            before = subject.loss.state()[name]
            demand(value.dtype == before.dtype, f".{how}() makes {name!r} {value.dtype}, it was {before.dtype}.")
            demand_equal(value, before, f"{name} after .{how}()", mend="")


def _snapshot(loss: Loss) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in loss.state().items()}


@check("forward_changes_nothing")
def forward_changes_nothing(subject: Subject) -> None:
    """forward and backward leave state, inputs and random numbers as they were, training or not."""
    data = draw(subject, 8, seed=61)
    for training in (True, False):
        loss = subject.built().train(training)
        before, draws = _snapshot(loss), torch.get_rng_state()
        z, y = subject.place(data.logits).requires_grad_(), subject.place(data.target)
        held = z.detach().clone(), y.clone()
        loss(z, y).backward()
        for name, value in loss.state().items():
            demand_equal(value, before[name], f"state {name!r} after forward", mend="Only observe may change it.")
        demand_equal(z.detach(), held[0], "the logits after forward", mend="Do not write into the input.")
        demand_equal(y, held[1], "the target after forward", mend="Do not write into the input.")
        demand(torch.equal(draws, torch.get_rng_state()), "forward draws random numbers.")
        demand(not list(loss.parameters()), "a loss has parameters.")


@check("observing")
def observing(subject: Subject) -> None:
    """observe changes the state alone, the same way from logits, from evidence and from a list of evidence."""
    rule = subject.rule
    if rule.observe is None:
        demand(rule.observes == "nothing", f"the rule observes {rule.observes}, but has no observe function.")
        apply_if(False, "the rule observes nothing")
    demand(rule.observes in ("validation", "training"), "a rule with an observe function says what it observes.")
    data = draw(subject, 24, seed=62)
    z, y = subject.place(data.logits), subject.place(data.target)
    first = subject.built()
    before, held = _snapshot(first), (z.clone(), y.clone())
    first.observe(z, y)
    demand_equal(z, held[0], "the logits after observe", mend="Do not write into the input.")
    demand_equal(y, held[1], "the target after observe", mend="Do not write into the input.")
    changed = any(not torch.equal(value, before[name]) for name, value in first.state().items())
    demand(changed, "observe changed nothing: either it forgets to return the new numbers, or there are none.")
    for name, value in first.state().items():
        if bool(torch.isfinite(before[name]).all()):
            demand_finite(value.double(), f"state {name!r} after observe", mend="")
        demand(not value.requires_grad, f"state {name!r} carries a graph.")
    _same_from_evidence(subject, first.state(), z, y)


def _same_from_evidence(subject: Subject, expected: dict[str, Tensor], z: Tensor, y: Tensor) -> None:
    whole, parts = subject.built(), subject.built()
    seen = whole.evidence(z, y)
    demand(isinstance(seen, Evidence), "loss.evidence(logits, target) is not evidence.")
    whole.observe(seen)
    parts.observe([parts.evidence(z[:7], y[:7]), parts.evidence(z[7:], y[7:])])
    for how, loss in (("evidence", whole), ("a list of evidence", parts)):
        for name, value in loss.state().items():
            demand_close(
                _finite(value), _finite(expected[name]), f"state {name!r} observed from {how}, and from logits",
                relative=1e-6, absolute=1e-9,
            )  # fmt: skip


def _finite(value: Tensor) -> Tensor:
    """Infinite ends of edges, as a number that can be compared."""
    return value.double().nan_to_num(nan=-7e77, posinf=1e99, neginf=-1e99)


@check("advancing")
def advancing(subject: Subject) -> None:
    """advance(epoch) gives the same state each time it is told the same epoch, with the same names, shapes and types."""
    before = subject.built()
    one, two = subject.built(), subject.built()
    for epoch in (0, 1, 5):
        one.advance(epoch)
        two.advance(epoch)
    for name, value in one.state().items():
        demand_equal(value, two.state()[name], f"state {name!r} after advance", mend="")
        same = value.shape == before.state()[name].shape and value.dtype == before.state()[name].dtype
        demand(same, f"advance changes the shape or type of {name!r}.")


@check("same_bits")
def same_bits(subject: Subject) -> None:
    """The same input gives the same bits, values and gradients."""
    data = draw(subject, 40, seed=63)
    found = []
    for _ in range(3):
        z = subject.place(data.logits, torch.float32).requires_grad_()
        value = subject.built()(z, subject.place(data.target))
        value.backward()
        found.append((value.detach(), z.grad))
    for again in found[1:]:
        demand_equal(again[0], found[0][0], "the value, repeated", mend="Sum in a fixed order.")
        demand_equal(again[1], found[0][1], "the gradient, repeated", mend="Sum in a fixed order.")
