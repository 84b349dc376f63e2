"""Decisions in the order of a confidence score, tied ones together; what every rank-based metric starts from."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy
import torch

from ..errors import bad_input, unknown_name
from ..predictions import Predictions
from ..ranks import TIE

Array = numpy.ndarray
SCORES = ("max_probability", "margin", "negative_entropy", "log_odds")


class Ranked(NamedTuple):
    """Decisions from the highest key to the lowest. `first` marks the first of each block of tied keys."""

    order: Array  # decision at each place
    first: Array  # bool, by place

    @property
    def starts(self) -> Array:
        """The place where each block begins."""
        return numpy.flatnonzero(self.first)


class Ordered(NamedTuple):
    """What happened, in the order of a ranking, and where its positives and blocks of ties are."""

    ranked: Ranked
    happened: Array  # by place
    hits: Array  # places where something happened
    ends: Array  # for each hit, the last place of its block
    last: Array  # for each hit, the number of the last hit in its block

    @property
    def plain(self) -> bool:
        """Whether everything happened or did not, nothing in parts."""
        return bool((self.happened[self.hits] == 1).all())


def ordered(ranked: Ranked, happened: Array) -> Ordered:
    """Outcomes given by row, put in the order of a ranking."""
    happened = happened[ranked.order]
    hits = numpy.flatnonzero(happened)
    following = numpy.append(ranked.starts[1:], len(ranked.order)) - 1
    ends = following[numpy.cumsum(ranked.first)[hits] - 1]
    return Ordered(ranked, happened, hits, ends, numpy.searchsorted(hits, ends, side="right") - 1)


def rank_down(key: Array) -> Ranked:
    """From the highest key down; neighbours that differ by at most 1e-12 max(1, |key|) are tied."""
    order = numpy.argsort(-key)
    ordered = key[order]
    first = numpy.ones(len(key), bool)
    with numpy.errstate(invalid="ignore"):  # infinity minus infinity: equal keys
        apart = (ordered[:-1] - ordered[1:]) > TIE * numpy.maximum(1.0, numpy.abs(ordered[1:]))
    first[1:] = apart & (ordered[:-1] != ordered[1:])
    return Ranked(order, first)


def in_row_order(ranked: Ranked) -> Ranked:
    """The same with tied decisions in the order of their rows and no ties left."""
    if not ranked.first.all():
        ranked = ranked._replace(order=ranked.order[numpy.lexsort((ranked.order, ranked.first.cumsum()))])
    return ranked._replace(first=numpy.ones(len(ranked.order), bool))


def numeric_score(predictions: Predictions, score: Any) -> torch.Tensor:
    """A score given as numbers, or as the name of a numeric group: one number a decision."""
    name = score if isinstance(score, str) else "score"
    if isinstance(score, str):
        groups = predictions.groups or {}
        if score not in groups:
            raise unknown_name("score", score, [*SCORES, *groups])
        score = groups[score]
    try:
        values = torch.as_tensor(score).detach().double().to(predictions.scores.device)
    except (TypeError, ValueError) as error:
        raise bad_input(
            f"ranking by {name}", came=f"a column that is not numeric ({error})", expected="numbers"
        ) from None
    decisions = len(predictions) * (int(predictions.classes or 1) if predictions.per_label else 1)
    if values.shape != (decisions,):
        raise bad_input(
            f"ranking by {name}", came=f"shape {tuple(values.shape)}", expected=f"({decisions},), one a decision"
        )
    if bool(torch.isnan(values).any()):
        row = int(torch.nonzero(torch.isnan(values))[0])
        raise bad_input(f"ranking by {name}", came=f"nan (row {row})", expected="numbers")
    return values


def key_of(predictions: Predictions, score: Any) -> torch.Tensor:
    """A number a decision that orders as the score does and does not saturate where the score does."""
    if isinstance(score, str) and score in ("max_probability", "log_odds"):
        return predictions.log_odds
    if isinstance(score, str) and score == "margin":
        return predictions.margin_key
    if isinstance(score, str) and score == "negative_entropy":
        return predictions.entropy_key
    return numeric_score(predictions, score)


def score_of(predictions: Predictions, score: Any) -> torch.Tensor:
    """The score itself, for thresholds that people can apply."""
    if isinstance(score, str) and score == "max_probability":
        return predictions.top_confidence
    key = key_of(predictions, score)
    # margin and normalised negative entropy are 1 - exp(-key)
    return -torch.expm1(-key) if isinstance(score, str) and score in ("margin", "negative_entropy") else key


def ranked_by(predictions: Predictions, score: Any) -> Ranked:
    """The ranking of a table by a score, remembered for its reweighted twins."""

    def compute() -> Ranked:
        return rank_down(key_of(predictions, score).cpu().numpy())

    return predictions.remember(("ranked", score), compute) if isinstance(score, str) else compute()
