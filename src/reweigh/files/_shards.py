"""Shards of one table must mean the same."""

from __future__ import annotations

from ..errors import InputError
from ..predictions import Predictions


def check_same_form(first: Predictions, other: Predictions, first_label: str, label: str) -> None:
    """An error that names the two files where kind, head, classes, names, weights, ids or groups differ."""
    for name in ("kind", "head", "target_form", "classes", "class_names"):
        mine, theirs = getattr(first, name), getattr(other, name)
        if mine != theirs:
            raise InputError(
                f"opening {label}: its {name.replace('_', ' ')} is {theirs!r}, in {first_label} it is {mine!r}. Shards must agree."
            )
    for name in ("weights", "ids"):
        if (getattr(first, name) is None) != (getattr(other, name) is None):
            raise InputError(f"opening {label}: only one of it and {first_label} has {name}. Shards must agree.")
    if set(first.groups or {}) != set(other.groups or {}):
        mine, theirs = sorted(first.groups or {}), sorted(other.groups or {})
        raise InputError(f"opening {label}: its groups are {theirs}, in {first_label} {mine}. Shards must agree.")
