"""The selective-risk loss (AU): rows are weighed by the rank of their confidence, up to a coverage."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple, Unpack

import torch
from torch import Tensor

from ..errors import bad_input
from ..evidence import Evidence
from ..module import Common, Loss
from ..ranks import rank, selective_weights
from ..registry import register_loss
from ..rules import Rule, State, choice, in_two_passes, log_loss, number, whole
from ..scores import SCORES, Score
from ._score_histogram import distribution, histogram, linear_quantile, log_below_above_of, minus_log_above
from ._selective_risk_official import official_rule

SPREAD = 0.05  # relative spread of the weights below which the loss is a rescaled cross-entropy
ENOUGH = 16  # rows from which that is worth saying


class Weighing(NamedTuple):
    """What the loss made of a batch: for diagnosis."""

    weights: Tensor  # (n,), mean about one
    threshold: Tensor  # the score up to which rows count as low-confidence
    low_share: Tensor  # the share of rows below it
    spread: Tensor  # standard deviation of the weights over their mean


# ------------------------------------------------------------------ exact ranks


def exact_weights(evidence: Evidence, *, score: Score, coverage: float, tied_mean: bool) -> Tensor:
    """Weights of rank alone, (n,) float64, without gradient."""
    return selective_weights(rank(score.key(evidence), evidence.kept), coverage, tied_mean=tied_mean)


def exact_cost(evidence: Evidence, state: State, *, score: Score, coverage: float, tied_mean: bool) -> Tensor:
    """beta(rank) * -log p."""
    weights = exact_weights(evidence, score=score, coverage=coverage, tied_mean=tied_mean)
    if coverage > 0:
        _warn_if_flat(weights, evidence.kept)
    return weights.to(evidence.log_p.dtype) * log_loss(evidence, state)


# ------------------------------------------------------------------ smoothed histogram


class Binned(NamedTuple):
    """Settings of the smoothed form."""

    score: Score
    coverage: float
    smoothing: float
    bins: int


def batch_counts(evidence: Evidence, state: State, *, settings: Binned) -> Tensor:
    """The histogram of this batch."""
    return histogram(settings.score.value(evidence).detach(), evidence.kept, settings.bins)


def running_counts(evidence: Evidence, state: State, *, settings: Binned) -> Tensor:
    """The histogram of what was observed; this batch's as long as nothing was."""
    own = batch_counts(evidence, state, settings=settings)
    return torch.where(state["counts"].sum() > 0, state["counts"], own)


def batch_numbers(evidence: Evidence, state: State, *, settings: Binned, counts_of: Callable[..., Tensor]) -> State:
    """The threshold tau and the smoothed distribution of the scores: all that a row knows of the others."""
    with torch.no_grad():
        scores = settings.score.value(evidence).detach()
        counts = counts_of(evidence, state, settings=settings)
        counts = torch.where(counts.sum() > 0, counts, 1.0)  # no row counts: any histogram, as long as it is finite
        if not scores.numel():
            scores, evidence = scores.new_zeros(1), replace(evidence, kept=None)
        tau = linear_quantile(scores, evidence.kept, settings.coverage)
        return {"threshold": tau, **distribution(counts, settings.smoothing, scores.numel(), tau)}


def binned_weights(evidence: Evidence, numbers: State, settings: Binned) -> tuple[Tensor, Tensor]:
    """Weights beta (n,) and the scores, float64; the gradient flows through the scores below tau."""
    scores, tau = settings.score.value(evidence), numbers["threshold"]
    below, above = log_below_above_of(torch.where(scores < tau, scores, tau), numbers, settings.smoothing)
    return minus_log_above(below, above) * numbers["tail"], scores


def binned_cost(evidence: Evidence, state: State, *, settings: Binned) -> Tensor:
    """beta(G(s)) * -log p, with the numbers of the batch in the state."""
    weights, _ = binned_weights(evidence, state, settings)
    if settings.coverage > 0:
        _warn_if_flat(weights.detach(), evidence.kept)
    return (weights * log_loss(evidence, state).double()).to(evidence.log_p.dtype)


def full_cost(evidence: Evidence, state: State, *, settings: Binned, counts_of: Callable[..., Tensor]) -> Tensor:
    """The same plus a term of value 0 whose gradient is what each row does to the others' ranks."""
    if evidence.log_p.numel() == 0:
        return log_loss(evidence, state)
    numbers = batch_numbers(evidence, state, settings=settings, counts_of=counts_of)
    cost = binned_cost(evidence, numbers, settings=settings)
    counts = counts_of(evidence, state, settings=settings)
    counts = torch.where(counts.sum() > 0, counts, 1.0)
    scores = settings.score.value(evidence)
    return (cost.double() + zero_sum_term(evidence, scores, numbers, counts, settings)).to(cost.dtype)


def zero_sum_term(evidence: Evidence, scores: Tensor, numbers: State, counts: Tensor, settings: Binned) -> Tensor:
    """Value 0; its gradient sums to 0 over the rows, so that a common shift of scores changes nothing."""
    with torch.no_grad():
        constant = scores.detach()
        low = constant < numbers["threshold"]
        _, above = log_below_above_of(constant, numbers, settings.smoothing)
        push = torch.where(low, -evidence.log_p.double() * numbers["tail"] * torch.exp(-above), 0.0)
        push = push if evidence.kept is None else torch.where(evidence.kept, push, 0.0)
        place = (constant * settings.bins).floor().long().clamp(0, settings.bins - 1)
        pushed = torch.zeros(settings.bins, dtype=torch.float64, device=scores.device).index_add(0, place, push)
        centres = (torch.arange(settings.bins, device=scores.device, dtype=torch.float64) + 0.5) / settings.bins
        steps = torch.sigmoid((constant.unsqueeze(1) - centres) / settings.smoothing)
        pull = (steps * (1 - steps)) @ pushed / (settings.smoothing * counts.sum().clamp(min=1.0))
    return -(scores - constant) * pull


# ------------------------------------------------------------------ memory


def empty_counts(*, bins: int) -> dict[str, Tensor]:
    """No scores seen."""
    return {"counts": torch.zeros(bins, dtype=torch.float64)}


def add_counts(evidence: Evidence, state: State, *, settings: Binned, decay: float) -> dict[str, Tensor]:
    """counts <- decay * counts + this batch's."""
    return {"counts": decay * state["counts"] + batch_counts(evidence, state, settings=settings)}


def forget(epoch: int, state: State) -> dict[str, Tensor]:
    """A new epoch starts from nothing."""
    return {"counts": torch.zeros_like(state["counts"])}


# ------------------------------------------------------------------ diagnosis


def _spread(weights: Tensor, kept: Tensor | None) -> Tensor:
    number = torch.tensor(float(weights.numel())) if kept is None else kept.sum()
    held = weights if kept is None else torch.where(kept, weights, 0.0)
    mean = held.sum() / number
    apart = (held - mean) ** 2
    apart = apart if kept is None else torch.where(kept, apart, 0.0)
    return (apart.sum() / number).sqrt() / mean


def _warn_if_flat(weights: Tensor, kept: Tensor | None) -> None:
    if weights.device.type != "cpu" or weights.numel() < ENOUGH:
        return
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return
    spread = float(_spread(weights, kept))
    if spread < SPREAD:
        warnings.warn(
            f"selective_risk: the weights of this batch differ by {spread:.1%} only, so this step is cross-entropy on "
            "another scale. If it stays so, lower smoothing, use estimator='exact', or choose a score that spreads.",
            stacklevel=2,
        )


def selective_weighing(loss: Loss, logits: Tensor, target: Tensor) -> Weighing:
    """The weights, threshold and effective low share that a `selective_risk` loss gives this batch."""
    rule = loss.rule if loss.rule.after_sums is None else loss.rule.after_sums
    settings = getattr(rule.cost, "keywords", {})
    if loss.rule.name != "selective_risk" or not {"settings", "score"} & set(settings):
        raise bad_input("selective_weighing", came=loss.rule.name, expected="a selective_risk loss (parity='paper')")
    with torch.no_grad():
        evidence = loss.evidence(logits, target)
        if "settings" in settings:
            form = settings["settings"]
            numbers = loss.rule.sums or partial(batch_numbers, **settings)
            found = numbers(evidence, loss.state())
            (weights, scores), tau = binned_weights(evidence, found, form), found["threshold"]
        else:
            weights = exact_weights(evidence, **settings)
            scores = settings["score"].key(evidence)
            tau = linear_quantile(scores, evidence.kept, settings["coverage"])
        low = scores < tau if evidence.kept is None else (scores < tau)[evidence.kept]
        return Weighing(weights, tau, low.double().mean(), _spread(weights, evidence.kept))


@register_loss(
    "selective_risk",
    aliases=("AU",),
    source="Revisiting reweighted risk for calibration: AURC, focal and inverse focal losses (2025); weights C and detached threshold",
    formula="beta(s) * -log p, beta = -ln(1 - G(min(s, tau))) / G(tau), G the distribution of the confidence s",
)
def selective_risk(
    *,
    score: Literal["max_probability", "margin", "negative_entropy", "log_odds"] = "max_probability",
    coverage: float = 0.8,
    smoothing: float = 0.01,
    bins: int = 64,
    estimator: Literal["binned", "exact"] = "binned",
    ties: Literal["mean", "stable"] = "mean",
    histogram: Literal["batch", "epoch", "running"] = "batch",
    decay: float = 0.9,
    rank_gradient: Literal["detached", "full"] = "detached",
    parity: Literal["paper", "official"] = "paper",
    batch_size: int | None = None,
    **common: Unpack[Common],
) -> Loss:
    """Selective-risk loss: use it when the model will abstain, so that ranking by confidence is what counts.

    Formula: beta(s) (-log p) with beta(s) = -ln(1 - G(min(s, tau))) / G(tau), G the distribution of confidence
    scores s in the batch and tau its quantile at `coverage`. Confident rows weigh more, up to the threshold; the
    mean weight is one, so the learning rate keeps its meaning. coverage 0 is cross-entropy, 1 is AURC.

    Settings:
        score: the confidence (default "max_probability"; log-odds are binned on [-32, 32]).
        coverage: share of rows treated as low-confidence, in [0, 1] (default 0.8; the paper's kappa).
        smoothing: width of the logistic steps, above 0 (default 0.01; the paper's nu, which blurs ranks at 0.1).
        bins: of the histogram, at least 2 (default 64, the authors' program).
        estimator: "binned" (default) or "exact", the weights of ranks alone, without gradient through them.
        ties: equal confidences share the mean weight ("mean") or rank as they stand ("stable"); exact only.
        histogram: "batch" (default), or counts that `loss.observe` adds to: "epoch" forgets at
            `loss.advance(epoch)`, "running" multiplies by `decay` (default 0.9) at each step.
        rank_gradient: "detached" holds the histogram constant (default); "full" adds each row's effect on the
            others' ranks, a zero-sum gradient.
        parity: "official" is the published program with its defects, for reproduction only; `batch_size` is then
            its configured batch size (default: the batch's own). That program counts a batch before it weighs it: call
            `loss.observe(logits, target)` before `loss(logits, target)` at each step, `loss.advance(epoch)` at each epoch.

    Helps selective prediction and, in the paper, calibration; hurts when the batch is so small that ranks are noise
    (below about 32). `selective_weighing(loss, logits, target)` shows weights and threshold.

    >>> import torch, reweigh
    >>> loss = reweigh.losses.selective_risk(estimator="exact", coverage=1.0)
    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.5, 0.0]])
    >>> round(loss(logits, torch.tensor([0, 1, 0])).item(), 4)
    0.2173
    """
    name = "selective_risk"
    chosen = choice(name, "score", score, SCORES)
    coverage = number(name, "coverage", coverage, low=0.0, high=1.0)
    choice(name, "parity", parity, {"paper": 0, "official": 1})
    choice(name, "estimator", estimator, {"binned": 0, "exact": 1})
    tied_mean = choice(name, "ties", ties, {"mean": True, "stable": False})
    choice(name, "rank_gradient", rank_gradient, {"detached": 0, "full": 1})
    choice(name, "histogram", histogram, {"batch": 0, "epoch": 0, "running": 0})
    decay = number(name, "decay", decay, low=0.0, high=1.0)
    size = None if batch_size is None else whole(name, "batch_size", batch_size)
    if size is not None and parity != "official":
        raise bad_input(
            f"{name}(batch_size=...)",
            came=f"{size} with parity={parity!r}",
            expected="parity='official', which clamps by it",
        )
    if estimator == "exact" or parity == "official":
        _refuse_binned_settings(
            histogram, rank_gradient, "estimator='exact'" if parity == "paper" else "parity='official'"
        )
    if estimator == "exact" and parity == "paper":
        cost = partial(exact_cost, score=chosen, coverage=coverage, tied_mean=tied_mean)
        return Loss(
            Rule(
                name,
                cost,
                needs=("log_p", *chosen.key_needs),
                observe_needs=("log_p", *chosen.key_needs),
                coupled=True,
                soft="refused",
            ),
            **common,
        )
    width = number(name, "smoothing", smoothing, low=0.0, above=True, high=1e6)
    settings = Binned(chosen, coverage, width, whole(name, "bins", bins, low=2))
    if parity == "official":
        return Loss(official_rule(score, settings.coverage, settings.smoothing, settings.bins, size), **common)
    counts_of = batch_counts if histogram == "batch" else running_counts
    numbers = partial(batch_numbers, settings=settings, counts_of=counts_of)
    full = partial(full_cost, settings=settings, counts_of=counts_of)
    rule = Rule(
        name,
        full if rank_gradient == "full" else partial(binned_cost, settings=settings),
        needs=("log_p", *chosen.needs),
        observe_needs=("log_p", *chosen.needs),
        coupled=True,
        soft="refused",
        holds_constants=True,
        # lifting the true class towards the first choice lowers the entropy, and may raise the weight by more
        rewards_errors=score == "negative_entropy" or rank_gradient == "full",
        **({} if histogram == "batch" else _memory(settings, histogram, decay)),
    )
    return Loss(rule if rank_gradient == "full" else in_two_passes(rule, sums=numbers), **common)


def _refuse_binned_settings(histogram: str, rank_gradient: str, form: str) -> None:
    """Memory and the full gradient belong to the paper's binned form; elsewhere they would silently do nothing."""
    for setting, value, default in (("histogram", histogram, "batch"), ("rank_gradient", rank_gradient, "detached")):
        if value != default:
            raise bad_input(
                f"selective_risk({setting}=...)",
                came=f"{value!r} with {form}",
                expected="estimator='binned' and parity='paper'",
            )


def _memory(settings: Binned, histogram: str, decay: float) -> dict:
    kept_share = 1.0 if histogram == "epoch" else decay
    return {
        "init": partial(empty_counts, bins=settings.bins),
        "observes": "training",
        "observe": partial(add_counts, settings=settings, decay=kept_share),
        "advance": forget if histogram == "epoch" else None,
    }
