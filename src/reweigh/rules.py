"""Rules: what a loss does with evidence. A rule is a frozen value of pure functions.

    cost(evidence, state) -> one number per decision, never reduced

is all that most rules have. A method with memory adds `init() -> state` (named tensors) and
`observe(evidence, state) -> state`; a schedule adds `advance(epoch, state) -> state`. A rule knows no
logits, no reduction, no process group and no file; it declares what it needs and what it can, and the
contract suite (`reweigh.testing.check_loss`) verifies the declaration.

The combinators at the end make rules of rules: `weighted` (weight times cost), `sided` (one cost for
present labels, one for absent ones), `penalised` (plus a number of the whole batch).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from .errors import bad_input
from .evidence import Evidence

State = Mapping[str, Tensor]
Cost = Callable[[Evidence, State], Tensor]

NO_STATE: dict[str, Tensor] = {}


def no_state() -> State:
    """The state of a rule without memory."""
    return NO_STATE


@dataclass(frozen=True)
class Rule:
    """A loss before reduction. `name` is for messages; everything after `needs` has a sensible default."""

    name: str
    cost: Cost
    needs: tuple[str, ...]  # fields of Evidence that `cost` reads
    head: Literal["softmax", "sigmoid", "boxes"] = "softmax"

    # memory
    init: Callable[[], State] = no_state
    observes: Literal["nothing", "validation", "training"] = "nothing"
    observe: Callable[[Evidence, State], State] | None = None
    observe_needs: tuple[str, ...] = ()
    advance: Callable[[int, State], State] | None = None

    readings: Mapping[str, Callable[[State], Tensor]] = field(
        default_factory=dict
    )  # loss.NAME, computed from the state

    # what the method does to classes: (K,) tensors computed from the state
    class_weight: Callable[[State], Tensor] | None = None  # applied as a user's class_weight
    scale: Callable[[State], Tensor] | None = None  # logits * scale + offset before anything else
    offset: Callable[[State], Tensor] | None = None
    weighs_classes: bool = False  # `cost` multiplies by evidence.class_weight itself, and sum_log_p is weighed too
    precise: float = 0  # evidence in float64 for up to this many classes: for costs that magnify its rounding

    # claims
    coupled: bool = False  # the cost of a row depends on other rows
    per_row: bool = False  # a sigmoid rule that prices rows, not elements
    rewards_errors: bool = False  # the gradient can push towards a mistake
    holds_constants: bool = False  # part of the cost is held constant in the gradient
    soft: Literal["outcomes", "linear", "own", "refused"] = "outcomes"
    soft_cost: Cost | None = None  # soft="own": reads evidence.soft_target, (n, K...) of the logits' shape
    soft_needs: tuple[str, ...] = ()
    index_targets: bool = False  # a sigmoid rule that takes class indices (targets="index")
    num_classes: int | None = None  # for rules whose state is sized by classes
    normalize_rows: Callable[[Evidence, State], Tensor] | None = None  # row weights that enter the mean's denominator

    # a coupled sigmoid rule made by `in_two_passes`: sums over the batch, and the pointwise rule that reads them
    sums: Callable[[Evidence, State], State] | None = None
    after_sums: Any = None


# ---------------------------------------------------------------------------- combinators


def _weighted(evidence: Evidence, state: State, *, weight: Cost, base: Cost) -> Tensor:
    return weight(evidence, state) * base(evidence, state)


def weighted(weight: Cost, base: Cost, *, detached: bool = False) -> Cost:
    """weight(evidence) * base(evidence); `detached` holds the weight constant in the gradient."""
    return partial(_weighted, weight=partial(_held, weight=weight) if detached else weight, base=base)


def _held(evidence: Evidence, state: State, *, weight: Cost) -> Tensor:
    return weight(evidence, state).detach()


def _sided(evidence: Evidence, state: State, *, present: Cost, absent: Cost) -> Tensor:
    return evidence.by_label(present=present(evidence, state), absent=absent(evidence, state))


def sided(*, present: Cost, absent: Cost) -> Cost:
    """One cost where the label is present, another where it is absent."""
    return partial(_sided, present=present, absent=absent)


def _penalised(evidence: Evidence, state: State, *, base: Cost, penalty: Cost, strength: float) -> Tensor:
    return base(evidence, state) + strength * penalty(evidence, state)


def penalised(base: Cost, penalty: Cost, *, strength: float) -> Cost:
    """base(evidence) plus strength times one number of the whole batch, added to every row."""
    return partial(_penalised, base=base, penalty=penalty, strength=strength)


def _summed(evidence: Evidence, state: State, *, sums: Callable[[Evidence, State], State], cost: Cost) -> Tensor:
    return cost(evidence, {**state, **sums(evidence, state)})


def in_two_passes(rule: Rule, *, sums: Callable[[Evidence, State], State]) -> Rule:
    """A sigmoid rule whose labels depend on each other only through sums over the batch, without gradient.

    `sums(evidence, state)` sees log-odds and labels and gives named tensors that add over rows and ranks;
    the rule's cost finds them in its state.
    """
    cost = partial(_summed, sums=sums, cost=rule.cost)
    return replace(rule, cost=cost, coupled=True, sums=sums, after_sums=rule)


def log_loss(evidence: Evidence, state: State) -> Tensor:
    """-log p: the base that most weights multiply."""
    return -evidence.log_p


# ---------------------------------------------------------------------------- settings, checked where a rule is built


def number(
    loss: str, name: str, value: Any, *, low: float = -float("inf"), high: float = float("inf"), above: bool = False
) -> float:
    """A finite setting within [low, high] (`above`: low itself excluded); infinity only where `high` is infinite."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        raise bad_input(f"{loss}({name}=...)", came=repr(value), expected="a number") from None
    if not (low < found if above else low <= found) or found > high:
        bound = f"above {low:g}" if above else f"at least {low:g}"
        limit = f"{bound} and at most {high:g}" if high < float("inf") else bound
        raise bad_input(f"{loss}({name}=...)", came=f"{value!r}", expected=f"a number {limit}")
    return found


def whole(loss: str, name: str, value: Any, *, low: int = 1) -> int:
    """A whole-number setting of at least `low`."""
    if isinstance(value, bool) or int(number(loss, name, value)) != value or value < low:
        raise bad_input(f"{loss}({name}=...)", came=repr(value), expected=f"a whole number of at least {low}")
    return int(value)


def choice(loss: str, name: str, value: Any, known: Mapping[Any, Any]) -> Any:
    """The meaning of a word among `known`; variants are chosen once, here, when the rule is built."""
    try:
        return known[value]
    except (KeyError, TypeError):
        raise bad_input(
            f"{loss}({name}=...)", came=repr(value), expected=f"one of {', '.join(map(repr, known))}"
        ) from None


def vector(
    loss: str,
    name: str,
    values: Sequence[float] | Tensor | Any,
    *,
    low: float = 0.0,
    above: bool = False,
    mend: str = "",
) -> Tensor:
    """A finite (K,) float64 setting, every entry at least `low` (`above`: more than it)."""
    try:
        found = torch.as_tensor(values, dtype=torch.float64).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise bad_input(f"{loss}({name}=...)", came=repr(values), expected="one number a class") from None
    if found.dim() != 1 or found.numel() == 0:
        raise bad_input(f"{loss}({name}=...)", came=f"shape {tuple(found.shape)}", expected="one number a class, (K,)")
    wrong = ~torch.isfinite(found) | (found <= low if above else found < low)
    if bool(wrong.any()):
        first = int(wrong.nonzero()[0])
        bound = f"more than {low:g}" if above else f"at least {low:g}"
        raise bad_input(
            f"{loss}({name}=...)",
            came=f"{found[first]:g} for class {first}",
            expected=f"finite numbers of {bound}",
            mend=mend,
        )
    return found


def counts(loss: str, class_counts: Any, *, zero: bool = True, why: str = "") -> Tensor:
    """Rows per class, (K,) float64; zero counts only where the formula allows them."""
    found = vector(loss, "class_counts", class_counts)
    if len(found) < 2:
        raise bad_input(f"{loss}(class_counts=...)", came=f"{len(found)} class", expected="at least 2")
    if not bool((found > 0).any()):
        raise bad_input(f"{loss}(class_counts=...)", came="only zeros", expected="at least one class with rows")
    if not zero and bool((found == 0).any()):
        first = int((found == 0).nonzero()[0])
        raise bad_input(
            f"{loss}(class_counts=...)",
            came=f"0 for class {first}",
            expected=f"every class to have rows ({why})",
            mend="Leave the class out, or give it a count of 1.",
        )
    return found
