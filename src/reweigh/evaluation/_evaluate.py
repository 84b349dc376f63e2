"""`evaluate`: how right, how calibrated, how selective, with intervals, for the whole and for every group."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy

from .. import files
from ..errors import InputError
from ..metrics import estimate
from ..predictions import Predictions
from ._checking import Context, Finding, run_checks
from ._choice import Asked, asked, part_of, suitable
from ._claims import Claim, Verdict, judge, of_reference, parse
from ._outside import outside_measures
from ._result import Evaluation, GroupResult, Measure, flat
from ._runs import of_run
from ._streaming import Progress, Settings, silent, stream_evaluation

STREAMED_SHARE = 0.5  # of the free memory: files that would fill more are read in a stream


def evaluate(
    predictions: Any,
    metrics: Any = None,
    *,
    interval: float | None = 0.95,
    resamples: int = 200,
    seed: int = 0,
    by: str | Sequence[str] | None = None,
    cluster: str | None = None,
    outside: Any = None,
    fit: Any = None,
    require: str | Sequence[str] | None = None,
    reference: Any = None,
    ignore: str | Sequence[str] = (),
    engine: str | None = None,
    split: str | None = None,
    progress: Progress = silent,
    **columns: Any,
) -> Evaluation:
    """Metrics of predictions (a table, a file, a folder of shards) with their intervals, and what the checks found.

    Settings:
        metrics: names with settings (`"accuracy,expected_calibration_error:bins=10"`), functions, or a list of them;
            unsaid, those that suit the scores.
        interval, resamples, seed: the level of the intervals (None for none) and the bootstrap behind most of them.
        by: groups to look at one by one; "class" is the true class. `cluster` names the group that is resampled as a
            whole, when rows come in patients or videos.
        outside: predictions on rows from outside the training distribution, to be told from these.
        fit: the rows that a calibrator was fitted on; the checks compare.
        require: claims such as `"accuracy>=0.9"`, each judged by its interval. `reference`: predictions of an earlier
            model, or an evaluation's JSON; each metric must be no worse than its interval there.
        ignore: codes or names of checks not to run.
        engine: "memory", "stream" (metrics made of sums, memory flat) or "ray" (the same over a Ray cluster); unsaid,
            a stream where the files would fill half the free memory.
        split: which predictions of a run folder to take, where it has several.
        progress: what shows progress, as `tqdm` would: called with items, a label and their number.
        columns: which column is what, as for `reweigh.open`.

    >>> table = Predictions(probabilities=[[0.9, 0.1], [0.4, 0.6]], targets=[0, 0])
    >>> evaluate(table, "accuracy")["accuracy"].value
    0.5
    """
    predictions = of_run(predictions, split, "evaluating")
    if interval is not None and not 0 < interval < 1:
        raise InputError(
            f"evaluating predictions: got interval={interval!r}, expected a share between 0 and 1, as in 0.95, or None."
        )
    claims = [parse(text) for text in ([require] if isinstance(require, str) else require or ())]
    settings = Settings(
        interval, resamples, seed, _words(by), cluster, None if metrics is None else asked(metrics), tuple(claims)
    )
    engine = _engine(predictions, engine)
    given, columns = columns, _with_groups(predictions, columns, (*_words(by), *_words(cluster)))
    if engine != "memory":
        result, sample = stream_evaluation(predictions, settings, columns, ray=engine == "ray", progress=progress)
    else:
        sample = _table(predictions, columns)
        result = _in_memory(sample, settings, _label(predictions), progress)
    if outside is not None:
        result = replace(result, outside=_outside(sample, outside, settings, given, engine))
    claims += _reference_claims(reference, settings, columns if cluster else given)
    findings = _findings(sample, result, settings, fit, given, ignore)
    return replace(result, findings=findings, verdicts=_verdicts(claims, result))


def _words(by: str | Sequence[str] | None) -> tuple[str, ...]:
    return () if by is None else (by,) if isinstance(by, str) else tuple(by)


def _label(source: Any) -> str:
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    return "the predictions"


def _table(source: Any, columns: Mapping[str, Any]) -> Predictions:
    if isinstance(source, Predictions):
        if columns:
            raise InputError(
                f"evaluating Predictions: got {sorted(columns)[0]}=, which goes with a file. A table has its columns already."
            )
        return source
    return files.open(source, **columns)


def _with_groups(source: Any, columns: dict[str, Any], named: Sequence[str]) -> dict[str, Any]:
    """A group that is looked at need not be named as a column again; "class" is the true class unless a column."""
    if isinstance(source, Predictions) or not named or isinstance(columns.get("group"), Mapping):
        return columns
    given = columns.get("group", columns.get("groups")) or []
    given = [given] if isinstance(given, str) else list(given)
    more = [name for name in dict.fromkeys(named) if name != "class" and name not in given]
    return {**{name: value for name, value in columns.items() if name != "groups"}, "group": given + more}


def _engine(source: Any, engine: str | None) -> str:
    """The engine asked for, or the one that the size of the files calls for."""
    if engine not in (None, "memory", "stream", "ray"):
        raise InputError(f"evaluating predictions: got engine={engine!r}, expected 'memory', 'stream' or 'ray'.")
    if engine is not None:
        return engine
    paths = [source] if isinstance(source, (str, os.PathLike)) else source if isinstance(source, (list, tuple)) else []
    size = sum(_size(Path(path)) for path in paths if isinstance(path, (str, os.PathLike)))
    free = files.free_memory()
    return "stream" if free is not None and size > STREAMED_SHARE * free else "memory"


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(one.stat().st_size for one in path.iterdir() if one.is_file())
    return path.stat().st_size if path.is_file() else 0


def _in_memory(table: Predictions, settings: Settings, label: str, progress: Progress = silent) -> Evaluation:
    chosen = _chosen(table, settings)
    parts = {group: _parts(table, group) for group in settings.by}
    groups = {
        group: {value: GroupResult(len(part), _measures(part, chosen, settings)) for value, part in found.items()}
        for group, found in parts.items()
    }
    level = 0.95 if settings.interval is None else settings.interval
    notes: list[str] = []
    whole = _measures(table, progress(chosen, "computing metrics", len(chosen)), settings, notes)
    return Evaluation(label, len(table), form_of(table), level, whole, groups, notes=tuple(notes))


def form_of(table: Predictions) -> str:
    """What a table holds, in words."""
    return repr(table).removeprefix("Predictions(").removesuffix(")")


def _chosen(table: Predictions, settings: Settings) -> list[Asked]:
    """The metrics asked for, those the claims are about, or the suitable ones."""
    if settings.metrics is None and table.kind != "confidence" and table.targets is None:
        return [] if not settings.claims else settings.with_claims([])
    return settings.with_claims(suitable(table) if settings.metrics is None else list(settings.metrics))


def _measures(
    table: Predictions, chosen: Iterable[Asked], settings: Settings, notes: list[str] | None = None
) -> dict[str, Measure]:
    """The numbers of a table.

    Of the whole table (with `notes`) a metric that was asked for must be computable, and one that was not is left
    out with a note; in a group, which may be small, it is undefined.
    """
    found: dict[str, Measure] = {}
    for one in chosen:
        try:
            found |= _measured(table, one, settings)
        except InputError as error:
            if notes is None:
                found[one.name] = Measure(float("nan"), None, None, one.direction)
            elif settings.metrics is None and not any(claim.metric == one.name for claim in settings.claims):
                notes.append(f"{one.name} is left out: {error}")
            else:
                raise
    return found


def _measured(table: Predictions, one: Asked, settings: Settings) -> dict[str, Measure]:
    """A metric with its interval, or without where none is wanted."""
    level, resamples = (settings.interval, settings.resamples) if settings.interval is not None else (0.95, 2)
    result = estimate(
        one.function,
        table,
        interval=level,
        resamples=resamples,
        seed=settings.seed,
        by=settings.cluster,
        **one.settings,
    )
    found = flat(one.name, result, one.direction, table.class_names)
    if settings.interval is not None:
        return found
    return {name: Measure(measure.value, None, None, measure.direction) for name, measure in found.items()}


def _parts(table: Predictions, group: str) -> dict[str, Predictions]:
    """One table a value of a group, or a true class."""
    if group == "class" and "class" not in (table.groups or {}):
        if table.target_form != "index":
            raise InputError("evaluating by class: it needs class numbers as targets, one a row.")
        targets = table.target_tensor.cpu().numpy()
        names = table.class_names or {}
        return {
            str(names[value] if names else value): table.take(targets == value)
            for value in numpy.unique(targets).tolist()
        }
    return {str(value): part for value, part in table.by(group).items()}


def _outside(
    table: Predictions, outside: Any, settings: Settings, columns: Mapping[str, Any], engine: str | None
) -> dict[str, Measure]:
    if engine in ("stream", "ray"):
        raise InputError(
            "evaluating against outside rows: all rows are ranked together, which a stream cannot. Say engine='memory'."
        )
    others = {name: columns[name] for name in columns if name not in ("target", "id", "weight", "group", "correct")}
    foreign = outside if isinstance(outside, Predictions) else files.open(outside, **others, target=False)
    return outside_measures(table, foreign, settings.interval, settings.resamples, settings.seed)


def _reference_claims(reference: Any, settings: Settings, columns: Mapping[str, Any]) -> list[Claim]:
    """What an earlier result promises."""
    if reference is None:
        return []
    label = _label(reference)
    if isinstance(reference, Evaluation):
        return of_reference(reference.metrics, reference.label)
    if isinstance(reference, (str, os.PathLike)) and os.fspath(reference).endswith(".json"):
        return of_reference(read_measures(Path(reference)), label)
    earlier = _in_memory(
        _table(reference, {} if isinstance(reference, Predictions) else columns),
        replace(settings, by=(), claims=()),
        label,
    )
    return of_reference(earlier.metrics, label)


def read_measures(path: Path) -> dict[str, Measure]:
    """The metrics of an evaluation that was saved as JSON."""
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
        found = found[0] if isinstance(found, list) and len(found) == 1 else found
        return {str(name): _measure(one) for name, one in found["metrics"].items()}
    except OSError as error:
        raise InputError(f"reading the reference {path}: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"reading the reference {path}: it is not what `reweigh evaluate --json` prints ({type(error).__name__}: {error})."
        ) from error


def _measure(saved: Mapping[str, Any]) -> Measure:
    """A measure as JSON keeps it, where an undefined value is null."""
    value = float("nan") if saved["value"] is None else float(saved["value"])
    return Measure(value, saved["low"], saved["high"], str(saved["direction"]))


def _findings(
    table: Predictions,
    result: Evaluation,
    settings: Settings,
    fit: Any,
    columns: Mapping[str, Any],
    ignore: str | Sequence[str],
) -> tuple[Finding, ...]:
    fitted = None if fit is None else fit if isinstance(fit, Predictions) else files.open(fit, **columns)
    context = Context(
        table=table, label=result.label, fit=fitted, bins=settings.bins(_chosen(table, settings)), rows=result.rows
    )
    return run_checks(context, ignore=[ignore] if isinstance(ignore, str) else ignore)


def _verdicts(claims: Iterable[Claim], result: Evaluation) -> tuple[Verdict, ...]:
    """Every claim judged; one about a metric that was not computed is an error."""
    known = {**result.metrics, **result.outside}
    found = []
    for claim in claims:
        name = claim.metric if claim.metric in known else part_of(claim.metric)[1]
        if name not in known:
            raise InputError(
                f"judging the claim {str(claim)!r}: there is no result called {claim.metric!r}, expected one of {', '.join(known)}."
            )
        found.append(judge(replace(claim, metric=name), known[name]))
    return tuple(found)
