"""Which column serves what: names recognised unasked, foreign names by the user's word, never by values."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict

from ..errors import InputError, nearest

SCORES = ("logits", "log_probabilities", "probabilities", "confidence")
RECOGNISED = {
    **{name: (name,) for name in SCORES},
    "correct": ("correct",),
    "prediction": ("prediction", "predictions"),
    "target": ("target", "targets", "label", "labels", "y"),
    "id": ("id", "ids"),
    "weight": ("weight", "weights"),
}
GROUP_PREFIX = "group."
GIVEN = "given as an array"  # in words, the column of a keyword that is an array itself; no pattern stands for it
_PLURALS = {"targets": "target", "ids": "id", "weights": "weight", "groups": "group", "predictions": "prediction"}

Pattern = str | Sequence[str] | bool | None


class ColumnNames(TypedDict, total=False):
    """The keywords that say which column is what, and how to read it."""

    logits: Pattern
    log_probabilities: Pattern
    probabilities: Pattern
    confidence: Pattern
    correct: Pattern
    prediction: Pattern
    target: Pattern
    id: Pattern
    weight: Pattern
    group: str | Sequence[str] | Mapping[str, str] | bool | None
    head: str | None
    class_names: Sequence[str] | None
    binary: bool
    partial: bool
    format: str | None
    delimiter: str | None


@dataclass(frozen=True)
class Choice:
    """The keywords, read once: `named` maps a role to what the user wrote for it (False leaves the role out)."""

    named: Mapping[str, Pattern] = field(default_factory=dict)
    group: str | Sequence[str] | Mapping[str, str] | bool | None = None
    head: str | None = None
    class_names: tuple[str, ...] | None = None
    binary: bool = False
    partial: bool = False
    format: str | None = None
    delimiter: str | None = None


@dataclass(frozen=True)
class Roles:
    """Role -> the columns that serve it; `groups` maps a group's name to its column."""

    score: str
    columns: Mapping[str, tuple[str, ...]]
    groups: Mapping[str, str] = field(default_factory=dict)
    class_names: tuple[str, ...] | None = None

    def wanted(self) -> dict[str, str]:
        """Column -> what it is read as."""
        kinds = {"target": "label", "correct": "label", "prediction": "label", "id": "text"}
        found = {name: kinds.get(role, "number") for role, names in self.columns.items() for name in names}
        return found | {name: "text" for name in self.groups.values() if name not in found}


def choice(keywords: Mapping[str, Any]) -> Choice:
    """The user's keywords; an unknown one is an error that names the nearest."""
    options = {item.name for item in fields(Choice)} - {"named"}
    named, rest = {}, {}
    for keyword, value in keywords.items():
        name = _PLURALS.get(keyword, keyword)
        if name in RECOGNISED:
            if value is not None:
                named[name] = False if value == "" else value
        elif name in options:
            rest[name] = value
        else:
            known = [*RECOGNISED, *options]
            raise InputError(
                f"opening predictions: there is no keyword {keyword!r}. Did you mean {nearest(keyword, known) or 'logits'!r}? "
                f"Known: {', '.join(known)}."
            )
    scores = [name for name in SCORES if name in named]
    if len(scores) > 1:
        raise InputError(f"opening predictions: got {' and '.join(scores)}, expected one of them.")
    names = rest.get("class_names")
    if isinstance(names, str):
        raise InputError(f"opening predictions: class_names is the text {names!r}, expected a list of names.")
    return Choice(named=named, **{**rest, "class_names": None if names is None else tuple(map(str, names))})


def resolve(columns: Mapping[str, str], chosen: Choice, label: str) -> Roles:
    """The columns of a file that serve the roles, by the user's word first and by their own names else."""
    score = _score(columns, chosen, label)
    found: dict[str, tuple[str, ...]] = {}
    names, captured = _matching(columns, chosen.named.get(score), score, label)
    found[score] = names
    roles = ["target", "id", "weight"] + (["correct", "prediction"] if score == "confidence" else [])
    for role in roles:
        given = chosen.named.get(role)
        if given is False or (given is None and not _recognised(columns, role)):
            continue
        if role == "prediction" and "correct" in found and given is None:
            continue
        found[role] = _matching(columns, given, role, label)[0]
        if role != "target" and len(found[role]) != 1:
            raise InputError(f"opening {label}: {role}={given!r} names {len(found[role])} columns, expected one.")
    unused = [
        role for role in ("correct", "prediction") if role in chosen.named and role not in roles and chosen.named[role]
    ]
    if unused:
        raise InputError(f"opening {label}: {unused[0]}= goes with confidence=, and the scores are {score}.")
    if score == "confidence" and "correct" not in found and not {"prediction", "target"} <= set(found):
        raise InputError(
            f"opening {label}: confidence needs whether each prediction was right: name a column correct=, or both "
            f"prediction= and target=. It holds {_listing(columns)}."
        )
    return Roles(score, found, _groups(columns, chosen.group, label), chosen.class_names or captured)


def _recognised(columns: Iterable[str], role: str) -> list[str]:
    known = set(columns)
    return [name for name in RECOGNISED[role] if name in known]


def _score(columns: Mapping[str, str], chosen: Choice, label: str) -> str:
    """Which of the four scores the file is read for."""
    named = [name for name in SCORES if chosen.named.get(name)]
    if named:
        return named[0]
    found = [name for name in SCORES if _recognised(columns, name) and chosen.named.get(name) is not False]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(
            f"opening {label}: it holds {' and '.join(found)}, expected one kind of scores. "
            f"Say which to use, for example {found[0]}={found[0]!r} (on the command line --{found[0].replace('_', '-')} {found[0]})."
        )
    likely = _likely(columns)
    raise InputError(
        f"opening {label}: it holds {_listing(columns)}, and none is called logits, probabilities, log_probabilities or "
        f"confidence. Say what holds the scores: logits={likely!r} (on the command line --logits {_quoted(likely)}) if "
        "they are logits, probabilities= if they sum to one, confidence= if there is one number a row."
    )


def _likely(columns: Mapping[str, str]) -> str:
    """A column to name in the example of a message: the first that is no label, or a pattern of numbered ones."""
    taken = {name for names in RECOGNISED.values() for name in names}
    others = [name for name in columns if name not in taken]
    matrices = [name for name in others if " x " in columns[name]]
    stems = [re.sub(r"\d+$", "", name) for name in others]
    for stem in [] if matrices else dict.fromkeys(stems):
        if stem and stems.count(stem) > 1 and sum(name.startswith(stem) for name in columns) == stems.count(stem):
            return f"{stem}*"
    return (matrices or others or ["NAME"])[0]


def _quoted(word: str) -> str:
    return word if re.fullmatch(r"[\w.-]+", word) else f"'{word}'"


def _listing(columns: Mapping[str, str]) -> str:
    """The columns in words, at most a dozen."""
    if not columns:
        return "no columns"
    said = [f"{name!r} ({words})" if words else repr(name) for name, words in list(columns.items())[:12]]
    more = f" and {len(columns) - 12} more" if len(columns) > 12 else ""
    return ", ".join(said) + more


def _matching(columns: Mapping[str, str], given: Pattern, role: str, label: str):
    """The columns a name, a pattern with `*` or a list stands for, and the class names a pattern tells."""
    if given is None or given is True:
        found = _recognised(columns, role)
        if len(found) != 1:
            what = f"{' and '.join(map(repr, found))}, which all mean {role}" if found else f"no column for {role}"
            raise InputError(f"opening {label}: it holds {what}. Say which to use: {role}={(found or ['NAME'])[0]!r}.")
        return (found[0],), None
    if isinstance(given, str):
        if given in columns:
            return (given,), None
        if "*" in given and "," not in given:
            return _expanded(columns, given, role, label)
        given = [part.strip() for part in given.split(",")]
    if not isinstance(given, (list, tuple)) or not all(isinstance(name, str) for name in given):
        raise InputError(
            f"opening {label}: {role} is {given!r}, expected the name of a column, a pattern such as 'z*', or a list."
        )
    for name in given:
        if name not in columns:
            guess = nearest(name, columns)
            mend = f"Did you mean {guess!r}?" if guess else f"It holds {_listing(columns)}."
            raise InputError(f"opening {label}: there is no column {name!r} for {role}. {mend}")
    if len(set(given)) != len(given):
        raise InputError(f"opening {label}: {role}={list(given)!r} names a column twice.")
    return tuple(given), None


def _expanded(columns: Mapping[str, str], pattern: str, role: str, label: str):
    """All columns of a pattern in the order of the numbers in place of `*`, or in the file's order where they are words."""
    expression = re.compile("(.*)".join(map(re.escape, pattern.split("*"))), re.DOTALL)
    matches = [
        (match[1], name) for name, words in columns.items() if words != GIVEN and (match := expression.fullmatch(name))
    ]
    if not matches:
        raise InputError(f"opening {label}: no column matches {role}={pattern!r}. It holds {_listing(columns)}.")
    captured = [word for word, _ in matches]
    if pattern.count("*") > 1 or not all(re.fullmatch(r"[0-9]+", word) for word in captured):
        distinct = len(matches) > 1 and pattern.count("*") == 1 and role in SCORES
        return tuple(name for _, name in matches), tuple(captured) if distinct else None
    numbered = sorted((int(word), name) for word, name in matches)
    for (before, _), (after, name) in itertools.pairwise(numbered):
        if after != before + 1:
            raise InputError(
                f"opening {label}: {role}={pattern!r} jumps from {before} to {after} (column {name!r}), so that classes "
                f"would be shifted. Name the columns in the order of the classes: {role}='a,b,c'."
            )
    if numbered[0][0] not in (0, 1):
        raise InputError(
            f"opening {label}: {role}={pattern!r} begins at {numbered[0][0]}, expected 0 or 1. Name the columns one by one."
        )
    return tuple(name for _, name in numbered), None


def _groups(columns: Mapping[str, str], given: Any, label: str) -> dict[str, str]:
    """Group -> column: those called `group.NAME`, and those the user names."""
    found = {name.removeprefix(GROUP_PREFIX): name for name in columns if name.startswith(GROUP_PREFIX)}
    if given is False or given == "":
        return {}
    if given is None or given is True:
        return found
    for group, asked in _asked_groups(columns, given, found, label).items():
        column = asked if asked in columns else found.get(asked, asked)
        if column not in columns:
            guess = nearest(column, columns)
            mend = f"Did you mean {guess!r}?" if guess else f"It holds {_listing(columns)}."
            raise InputError(f"opening {label}: there is no column {column!r} for group. {mend}")
        found[group] = column
    return found


def _asked_groups(columns: Mapping[str, str], given: Any, found: Mapping[str, str], label: str) -> dict[str, str]:
    """Group -> column as the user wrote it: a mapping, a name, a pattern, a comma-separated list, or several of these."""
    if isinstance(given, Mapping):
        return {str(group): str(column) for group, column in given.items()}
    asked: dict[str, str] = {}
    for part in [given] if isinstance(given, str) else given:
        for name in [part] if part in columns or part in found else [word.strip() for word in part.split(",")]:
            if "*" in name and name not in columns:
                asked |= {one: one for one in _expanded_words(columns, name, label)}
            else:
                asked[name.removeprefix(GROUP_PREFIX)] = name
    return asked


def _expanded_words(columns: Mapping[str, str], pattern: str, label: str) -> list[str]:
    expression = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
    found = [name for name in columns if expression.fullmatch(name)]
    if not found:
        raise InputError(f"opening {label}: no column matches group={pattern!r}. It holds {_listing(columns)}.")
    return found
