"""What follows from the columns, in float64 and block by block: confidence, keys that rank it, correctness, likelihood.

A *decision* is one thing that can be right or wrong: a row under softmax and for one-vs-rest heads with class
numbers, every (row, class) under sigmoid with a matrix of targets. Everything here has one entry a decision.

Keys order the decisions as their scores do but do not saturate: where float32 or float64 confidences round
to 1, the log-odds z_top - logsumexp(others) still tell them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from ..errors import bad_input
from ._columns import row_blocks, tensor

if TYPE_CHECKING:
    from ._table import Predictions

Tensor = torch.Tensor
MINUS_INFINITY = float("-inf")


def log_of_rest(log_p: Tensor) -> Tensor:
    """log(1 - exp(log_p)) for log_p <= 0, exact at both ends."""
    log_p = log_p.clamp(max=0.0)
    return torch.where(log_p > -0.6931471805599453, torch.log(-torch.expm1(log_p)), torch.log1p(-torch.exp(log_p)))


def _collect(predictions: Predictions, of_block: Callable[[Tensor], Tensor]) -> Tensor:
    """One float64 number a row, from float64 blocks of the scores."""
    scores = predictions.scores
    out = torch.empty(len(scores), dtype=torch.float64, device=scores.device)
    for rows in row_blocks(scores):
        out[rows] = of_block(scores[rows].double())
    return out


def _needs_rows(predictions: Predictions, what: str) -> None:
    if predictions.kind == "confidence":
        raise bad_input(
            f"computing {what}",
            came="Predictions with confidence and correct alone",
            expected="logits, log_probabilities or probabilities",
        )


# ---- several classes a decision: softmax, and one-vs-rest heads with class numbers


def _rest(block: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """(b,) top value and (b, K) logarithms of the other classes' shares relative to the top one's, which is -inf."""
    top, index = block.max(1, keepdim=True)
    ratio = block.log() - top.log() if kind == "probabilities" else block - top
    return top.squeeze(1), ratio.scatter(1, index, MINUS_INFINITY)


def _ratios(block: Tensor) -> tuple[Tensor, Tensor]:
    """(b, K) exp(z - top), and the sum of all but the top one's: (1 - c) / c."""
    top, index = block.max(1, keepdim=True)
    ratio = (block - top).exp_()
    odds = ratio.scatter_(1, index, 0.0).sum(1)
    return ratio.scatter_(1, index, 1.0), odds


def _odds_against(block: Tensor, kind: str) -> Tensor:
    """Sum of the other classes' shares relative to the top one's: (1 - c) / c."""
    if kind == "probabilities":
        top, index = block.max(1, keepdim=True)
        return block.scatter(1, index, 0.0).sum(1) / top.squeeze(1)
    return _ratios(block)[1]


def odds_against(predictions: Predictions) -> Tensor:
    """(n,) (1 - c) / c under softmax."""
    return _collect(predictions, lambda block: _odds_against(block, predictions.kind))


def _softmax_log_odds(predictions: Predictions) -> Tensor:
    """-log((1 - c) / c); where that ratio leaves float64's range, by the logarithm of the sum itself."""
    odds = predictions.odds_against
    key = -odds.log()
    if predictions.kind != "probabilities":
        scores = predictions.scores
        for part in torch.nonzero(odds < 1e-280).squeeze(1).split(max(1, (1 << 20) // scores.shape[1])):
            key[part] = -torch.logsumexp(_rest(scores[part].double(), predictions.kind)[1], 1)
    return key


def _margin_key(block: Tensor, kind: str) -> Tensor:
    """-log(1 - (p_1 - p_2)), with 1 - (p_1 - p_2) = (1 - p_1) + p_2 over all."""
    _, others = _rest(block, kind)
    log_others = torch.logsumexp(others, 1)
    total = torch.nn.functional.softplus(log_others, threshold=1e9)  # log(1 + sum of the others)
    return total - torch.logaddexp(log_others, others.amax(1))


def _entropy_key(block: Tensor, kind: str) -> Tensor:
    """-log(H / ln K), K without masked classes; H = log(1 + r) + sum of x (-log x) / (1 + r) over the others."""
    masked = torch.zeros_like(block, dtype=torch.bool) if kind == "probabilities" else block == MINUS_INFINITY
    classes = (block.shape[1] - masked.sum(1)).double()
    _, others = _rest(block, kind)
    log_others = torch.logsumexp(others, 1)
    total = torch.nn.functional.softplus(log_others, threshold=1e9)
    # in logarithms, so that gaps of thousands do not underflow: H (1 + r) = (1 + r) log(1 + r) + sum x (-log x)
    first = torch.where(log_others > -30, total + total.log(), log_others)
    spread = torch.where(others == MINUS_INFINITY, others, others + torch.log(-others))
    log_entropy = torch.logaddexp(first, torch.logsumexp(spread, 1)) - total
    key = torch.log(classes.log()) - log_entropy
    return torch.where(log_others == MINUS_INFINITY, torch.full_like(key, float("inf")), key)


def predicted(predictions: Predictions) -> Tensor:
    """The class of the largest score, ties to the lowest; per label 1 where it is thought present."""
    _needs_rows(predictions, "the predicted class")
    if not predictions.per_label:
        return predictions.scores.argmax(1)
    scores = predictions.scores.reshape(-1)
    if predictions.kind == "logits":
        return (scores > 0).long()
    half = 0.5 if predictions.kind == "probabilities" else -0.6931471805599453
    return (scores.double() > half).long()


def confidence(predictions: Predictions) -> Tensor:
    """The probability of the decision taken."""
    scores, kind = predictions.scores, predictions.kind
    if kind == "confidence":
        return scores.double()
    if predictions.per_label:
        if kind == "probabilities":
            return torch.maximum(scores.double().clamp(max=1.0), 1 - scores.double()).reshape(-1)
        return torch.sigmoid(_label_log_odds(predictions).abs()).reshape(-1)
    if kind == "logits" and predictions.head == "softmax":
        # c = 1 / (1 + sum of the others' ratios): exact to the last digit also where 1 - c is tiny
        return 1 / (1 + predictions.odds_against)
    value = predictions.largest_score.double()
    if kind == "logits":
        return torch.sigmoid(value)
    return (value.exp() if kind == "log_probabilities" else value).clamp(max=1.0)


def log_odds(predictions: Predictions) -> Tensor:
    """log c - log(1 - c) of the confidence c."""
    scores, kind = predictions.scores, predictions.kind
    if kind == "confidence":
        confidence = scores.double()
        return confidence.log() - torch.log1p(-confidence)
    if predictions.per_label:
        return _label_log_odds(predictions).abs().reshape(-1)
    if predictions.head == "sigmoid":
        return _of_labels(scores.amax(1).double(), kind)
    return _softmax_log_odds(predictions)


def margin_key(predictions: Predictions) -> Tensor:
    """Orders decisions by the difference between the two largest probabilities."""
    _needs_rows(predictions, "the margin")
    if predictions.per_label:  # p_1 - p_2 = 2 c - 1, so 1 - margin = 2 (1 - c)
        return -(torch.nn.functional.logsigmoid(-log_odds(predictions)) + 0.6931471805599453)
    if predictions.head == "sigmoid":
        return _collect(predictions, lambda block: _one_vs_rest_margin(block, predictions.kind))
    return _collect(predictions, lambda block: _margin_key(block, predictions.kind))


def _one_vs_rest_margin(block: Tensor, kind: str) -> Tensor:
    """-log((1 - p_1) + p_2) of the two largest heads."""
    if block.shape[1] == 1:
        return torch.nn.functional.softplus(_of_labels(block[:, 0], kind))
    first, second = _of_labels(torch.topk(block, 2, dim=1).values, kind).unbind(1)
    log_sigmoid = torch.nn.functional.logsigmoid
    return -torch.logaddexp(log_sigmoid(-first), log_sigmoid(second))


def entropy_key(predictions: Predictions) -> Tensor:
    """Orders decisions by negative entropy."""
    _needs_rows(predictions, "the entropy")
    if predictions.per_label:
        return _bernoulli_entropy_key(log_odds(predictions))
    if predictions.head == "sigmoid":
        raise bad_input(
            "computing the entropy of one-vs-rest heads",
            came="heads that do not form one distribution",
            expected="head='softmax'",
            mend="Use score='max_probability' or 'margin'.",
        )
    return _collect(predictions, lambda block: _entropy_key(block, predictions.kind))


def _bernoulli_entropy_key(log_odds: Tensor) -> Tensor:
    """-log(H / ln 2) of a binary decision, log-odds >= 0."""
    log_sigmoid = torch.nn.functional.logsigmoid
    log_c, log_rest = log_sigmoid(log_odds), log_sigmoid(-log_odds)
    log_entropy = torch.logaddexp(log_c + torch.log(-log_c), log_rest + torch.log(-log_rest))
    far = log_odds > 700  # log(-log c) leaves the range; there H = e^-x (1 + x)
    log_entropy = torch.where(far, -log_odds + torch.log1p(log_odds), log_entropy)
    key = -0.36651292058166435 - log_entropy  # log(ln 2)
    return torch.where(log_odds == float("inf"), log_odds, key)


# ---- one label a decision: sigmoid with a matrix of targets


def _of_labels(values: Tensor, kind: str) -> Tensor:
    """Logit of each label's probability, from float64 scores of any kind."""
    if kind == "logits":
        return values
    if kind == "log_probabilities":
        return values.clamp(max=0.0) - log_of_rest(values)
    values = values.clamp(max=1.0)
    return values.log() - torch.log1p(-values)


def _label_log_odds(predictions: Predictions) -> Tensor:
    return _of_labels(predictions.scores.double(), predictions.kind)


# ---- against the targets


def needs_targets(predictions: Predictions, what: str) -> Tensor:
    """The targets as a tensor beside the scores; their absence is an error."""
    if predictions.targets is None:
        raise bad_input(f"computing {what}", came="Predictions without targets", expected="targets=")
    return predictions.target_tensor


def correctness(predictions: Predictions) -> Tensor:
    """Whether each decision is right; for soft targets the share of the predicted class."""
    if predictions.kind == "confidence":
        return tensor(predictions.correct).to(predictions.scores.device).double()
    targets = needs_targets(predictions, "correctness")
    if predictions.target_form == "index":
        return index_correctness(predictions, targets)
    predicted = predictions.predicted
    if predictions.per_label:
        share = targets.reshape(-1).double()
        return torch.where(predicted > 0, share, 1 - share)
    return targets.gather(1, predicted.unsqueeze(1)).squeeze(1).double()


def log_likelihood(predictions: Predictions) -> Tensor:
    """Log-probability of what happened, one number a decision; soft targets average it."""
    _needs_rows(predictions, "the likelihood")
    targets = needs_targets(predictions, "the likelihood")
    if predictions.head == "sigmoid":
        return _label_log_likelihood(predictions, targets)
    scores, kind = predictions.scores, predictions.kind
    if predictions.target_form == "index":
        of_target = scores.gather(1, targets.long().unsqueeze(1)).squeeze(1).double()
        if kind == "logits":
            top, log_total = predictions.normalizers
            return (of_target - top) - log_total
        return of_target.log() if kind == "probabilities" else of_target
    out = torch.empty(len(scores), dtype=torch.float64, device=scores.device)
    for rows in row_blocks(scores):
        log_p, share = log_probability_block(scores[rows].double(), kind), targets[rows].double()
        out[rows] = torch.where(share > 0, share * log_p, torch.zeros_like(log_p)).sum(1)
    return out


def _label_log_likelihood(predictions: Predictions, targets: Tensor) -> Tensor:
    """y log p + (1 - y) log(1 - p) of every (row, class), also of one-vs-rest heads with class numbers."""
    odds = _label_log_odds(predictions)
    if predictions.target_form == "index":
        targets = torch.zeros_like(odds).scatter(1, targets.long().unsqueeze(1), 1.0)
    share = targets.double()
    log_sigmoid = torch.nn.functional.logsigmoid
    present = torch.where(share > 0, share * log_sigmoid(odds), torch.zeros_like(odds))
    absent = torch.where(share < 1, (1 - share) * log_sigmoid(-odds), torch.zeros_like(odds))
    return (present + absent).reshape(-1)


# ---- all classes, block by block


def log_probability_block(block: Tensor, kind: str) -> Tensor:
    """(b, K) softmax log-probabilities of a float64 block of scores."""
    if kind == "log_probabilities":
        return block
    if kind == "probabilities":
        return block.log()
    return (block - block.amax(1, keepdim=True)) - torch.log1p(_odds_against(block, kind)).unsqueeze(1)


def _softmax(block: Tensor) -> Tensor:
    """Probabilities by the very operations of `class_probabilities` and the confidence, so that equal ones are equal."""
    ratio, odds = _ratios(block)
    return ratio.div_((1 + odds).unsqueeze(1))


def log_probability_matrix(predictions: Predictions) -> Tensor:
    """(n, K) softmax log-probabilities."""
    _needs_rows(predictions, "class probabilities")
    return log_probability_block(predictions.scores.double(), predictions.kind)


def probability_blocks(predictions: Predictions) -> Iterator[tuple[slice, Tensor]]:
    """(rows, (b, K) probabilities) in float64; under sigmoid every label's own."""
    _needs_rows(predictions, "class probabilities")
    scores, kind = predictions.scores, predictions.kind
    for rows in row_blocks(scores):
        block = scores[rows].double()
        if kind == "logits":
            block = _softmax(block) if predictions.head == "softmax" else torch.sigmoid(block)
        elif kind == "log_probabilities":
            block = block.exp()
        yield rows, block


# ---- a few classes, all rows


def normalizers(predictions: Predictions) -> tuple[Tensor, Tensor]:
    """(n,) top logit and log(1 + sum of the others' ratios), so that log p_k = (z_k - top) - log_total."""
    return predictions.largest_score.double(), torch.log1p(predictions.odds_against)


def class_log_odds(predictions: Predictions, columns: slice) -> Tensor:
    """(n, columns) log p - log(1 - p) of some classes' probabilities."""
    _needs_rows(predictions, "class probabilities")
    values = predictions.scores[:, columns].double()
    if predictions.head == "softmax" and predictions.kind == "logits":
        top, log_total = predictions.normalizers
        log_p = (values - top.unsqueeze(1)) - log_total.unsqueeze(1)
        return log_p - log_of_rest(log_p)
    return _of_labels(values, predictions.kind)


def class_probabilities(predictions: Predictions, columns: slice) -> Tensor:
    """(n, columns) probabilities of some classes."""
    _needs_rows(predictions, "class probabilities")
    values = predictions.scores[:, columns].double()
    if predictions.kind == "probabilities":
        return values
    if predictions.kind == "log_probabilities":
        return values.exp()
    if predictions.head == "sigmoid":
        return torch.sigmoid(values)
    top = predictions.largest_score.double().unsqueeze(1)
    return (values - top).exp_() / (1 + predictions.odds_against).unsqueeze(1)


# ---- right or wrong, without the index of the largest score


def index_correctness(predictions: Predictions, targets: Tensor) -> Tensor:
    """1 where the target has the largest score and no class before it ties with it.

    The largest value costs a third of its index. The index is looked up only where a tie is possible: two tied
    classes cannot both have more than half of the probability.
    """
    scores = predictions.scores
    targets = targets.long()
    if predictions.head == "sigmoid" or not scores.shape[1]:
        return (predictions.predicted == targets).double()
    right = scores.gather(1, targets.unsqueeze(1)).squeeze(1) == predictions.largest_score
    tied = torch.nonzero(right & (predictions.top_confidence <= 0.51)).squeeze(1)
    for part in tied.split(max(1, (1 << 20) // scores.shape[1])):
        right[part] = scores[part].argmax(1) == targets[part]
    return right.double()
