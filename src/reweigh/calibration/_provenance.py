"""What a calibrator was fitted on, so that judging it on its own rows is noticed.

Kept are counts and two sketches: the 1,024 smallest 64-bit hashes of the rows' ids, and hashes of about as many rows'
scores, chosen by the scores themselves. The share of a sketch that is found among other rows estimates the share of the fitted rows that is, to about 0.03.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from ._rows import Rows

SKETCH = 1024


@dataclass(frozen=True)
class Provenance:
    """Counts and hashes of the rows of one fit."""

    rows: int
    weight: float
    class_counts: tuple[float, ...] | None
    ids: np.ndarray | None  # (m,) uint64, ascending
    scores: np.ndarray  # (m,) uint64, ascending

    @staticmethod
    def of(rows: Rows) -> Provenance:
        """The short form that a file remembers."""
        ids = None if rows.ids is None else _smallest(hash_ids(rows.ids))
        return Provenance(rows.count, rows.total, _class_counts(rows), ids, _sketch_of_scores(rows))

    @staticmethod
    def full(rows: Rows) -> Provenance:
        """Every hash, of rows that are compared with a remembered sketch."""
        ids = None if rows.ids is None else hash_ids(rows.ids)
        return Provenance(rows.count, rows.total, None, ids, _hash_scores(rows))

    def overlap(self, other: Provenance) -> float:
        """Share of this sketch found in all hashes of the other; by ids where both have them."""
        mine, theirs = (
            (self.ids, other.ids) if self.ids is not None and other.ids is not None else (self.scores, other.scores)
        )
        return float(np.isin(mine, theirs).mean()) if len(mine) else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "weight": self.weight,
            "class_counts": None if self.class_counts is None else list(self.class_counts),
            "ids": None if self.ids is None else _as_text(self.ids),
            "scores": _as_text(self.scores),
        }

    @staticmethod
    def from_dict(saved: dict[str, Any]) -> Provenance:
        counts = saved["class_counts"]
        ids = None if saved["ids"] is None else _from_text(saved["ids"])
        return Provenance(
            int(saved["rows"]),
            float(saved["weight"]),
            None if counts is None else tuple(counts),
            ids,
            _from_text(saved["scores"]),
        )


def _as_text(hashes: np.ndarray) -> list[str]:
    return [f"{int(value):016x}" for value in hashes]


def _from_text(words: list[str]) -> np.ndarray:
    return np.array([int(word, 16) for word in words], dtype=np.uint64)


def _class_counts(rows: Rows) -> tuple[float, ...] | None:
    """(K,) weight of each class."""
    if rows.target is not None:
        weight = None if rows.weight is None else rows.weight.cpu()
        counts = torch.bincount(rows.target.cpu(), weights=weight, minlength=rows.classes)
        return tuple(float(count) for count in counts)
    if rows.share is not None:
        share = rows.share if rows.weight is None else rows.share * rows.weight.unsqueeze(1)
        return tuple(float(count) for count in share.sum(0))
    return None


def mix(values: np.ndarray) -> np.ndarray:
    """The finishing steps of splitmix64: every input bit reaches every output bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def hash_ids(ids: Any) -> np.ndarray:
    """(n,) uint64 hashes of whole numbers or texts; the width of a text column does not matter."""
    array = ids.detach().cpu().numpy() if isinstance(ids, torch.Tensor) else np.asarray(ids)
    if array.dtype.kind in "iub":
        return mix(array.astype(np.int64).view(np.uint64) + np.uint64(0x9E3779B97F4A7C15))
    if array.dtype.kind == "f":
        return mix(array.astype(np.float64).view(np.uint64))
    text = np.ascontiguousarray(array.astype(np.str_))
    width = text.dtype.itemsize // 4
    letters = text.view(np.uint32).reshape(len(text), width) if width else np.zeros((len(text), 0), np.uint32)
    total = np.full(len(text), 0x9E3779B97F4A7C15, dtype=np.uint64)
    factors = mix(np.arange(1, width + 1, dtype=np.uint64))
    for place in range(width):  # padding zeros add nothing
        total += letters[:, place].astype(np.uint64) * (factors[place] | np.uint64(1))
    return mix(total)


def _hash_scores(rows: Rows, places: np.ndarray | None = None) -> np.ndarray:
    """uint64 hashes of a few numbers of each row (or of the rows at `places`), in float64."""
    if rows.logits is None:
        mixture = rows.confidence.cpu().numpy()  # type: ignore[union-attr]
        mixture = mixture if places is None else mixture[places]
    else:
        chosen = slice(None) if places is None else torch.from_numpy(places).to(rows.logits.device)
        first, last = (rows.logits[chosen, place].double().cpu().numpy() for place in (0, -1))
        mixture = np.where(np.isfinite(first), first, 0.0) * 0.6180339887498949
        mixture += np.where(np.isfinite(last), last, 0.0) * 0.4142135623730951
        mixture += rows.highest[chosen].double().cpu().numpy()  # type: ignore[index]
    return mix(np.ascontiguousarray(mixture + 0.0).view(np.uint64))


def _sketch_of_scores(rows: Rows) -> np.ndarray:
    """The sketch of the scores. Which rows it takes is decided by one number of each, the rest is read of those alone."""
    key = rows.confidence if rows.logits is None else rows.highest
    plain = np.ascontiguousarray(key.double().cpu().numpy() + 0.0).view(np.uint64)  # type: ignore[union-attr]
    cheap = plain * np.uint64(0x9E3779B97F4A7C15)
    places = np.arange(len(cheap))
    if len(cheap) > 16 * SKETCH:
        # keys are near uniform: a cut that leaves four sketches' worth is found without sorting
        few = np.flatnonzero(cheap < np.uint64(int(4 * SKETCH / len(cheap) * 2**64)))
        places = few if len(few) >= 2 * SKETCH else places
    if len(places) > SKETCH:
        last = np.partition(cheap[places], SKETCH - 1)[SKETCH - 1]
        places = places[cheap[places] <= last]  # rows of one key go together, whatever their order
    return np.unique(_hash_scores(rows, places))[: 4 * SKETCH]


def _smallest(hashes: np.ndarray) -> np.ndarray:
    """The smallest distinct hashes, ascending."""
    return np.unique(hashes)[:SKETCH]
