"""What every metric promises: order, batches, threads, weights, honest refusals."""

from __future__ import annotations

import inspect
import math

import numpy
import pytest
import torch

from metrics.metric_tables import classifier, confidences, labels_table, soft_table
from reweigh import Predictions, metrics, registry
from reweigh.metrics._estimate import _flat
from reweigh.metrics._traits import traits_of

# metric -> settings that it needs; the metrics of something else than one table are left out
OF_ONE_TABLE = {
    name: {} for name in registry.names("metric") if name not in ("coco", "hard_classes", "out_of_distribution")
}
OF_ONE_TABLE["shot_accuracy"] = {"class_counts": [500, 60, 20, 3]}
OF_ONE_TABLE["expected_cost"] = {"matrix": [[0, 1, 2, 5], [1, 0, 1, 5], [3, 1, 0, 5], [9, 9, 9, 0]]}
OF_ONE_TABLE["net_benefit"] = {"positive": 1, "threshold": 0.3}
OF_ONE_TABLE["calibration_slope"] = {"scope": "top_label"}
VARIANTS = list(OF_ONE_TABLE.items()) + [
    ("expected_calibration_error", {"scope": "class_wise"}),
    ("expected_calibration_error", {"scope": "class_wise", "norm": 2, "classes": "present"}),
    ("expected_calibration_error", {"norm": "max", "closed": "left", "bins": 7}),
    ("expected_calibration_error", {"binning": "mass_tied"}),
    ("expected_calibration_error", {"debias": True}),
    ("maximum_calibration_error", {"scope": "class_wise"}),
    ("kernel_density_calibration_error", {"scope": "marginal"}),
    ("area_under_risk_coverage", {"loss": "cross_entropy", "score": "margin"}),
    ("area_under_risk_coverage", {"ties": "threshold", "score": "negative_entropy"}),
    ("excess_area_under_risk_coverage", {"loss": "cross_entropy"}),
    ("area_under_roc", {"scope": "top_label"}),
    ("area_under_roc", {"average": "macro"}),
    ("f_score", {"beta": 0.5, "threshold": 0.4}),
    ("precision", {"average": "weighted"}),
    ("score_decomposition", {"loss": "log", "scope": "class_wise"}),
    ("expected_cost", {**OF_ONE_TABLE["expected_cost"], "abstain": 0.4}),
]
IDS = [f"{name}-{'-'.join(map(str, settings.values()))[:30]}" for name, settings in VARIANTS]


def table_for(name, **options):
    return soft_table(**options) if name == "human_agreement" else classifier(**options)


def measured(name, table, settings):
    """The result as a row of numbers; a report or a table by its columns."""
    result = getattr(metrics, name)(table, **settings)
    if hasattr(result, "keys") and not isinstance(result, dict):
        result = {column: result[column] for column in result.keys()}
    return _flat(result)


def same(first, second, tolerance):
    return torch.allclose(first, second, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize(("name", "settings"), VARIANTS, ids=IDS)
def test_order_of_rows_does_not_matter(name, settings):
    table = table_for(name)
    wanted = measured(name, table, settings)
    for seed in range(2):
        order = numpy.random.default_rng(seed).permutation(len(table))
        assert same(measured(name, table[order], settings), wanted, 1e-12)


@pytest.mark.parametrize(("name", "settings"), VARIANTS, ids=IDS)
@pytest.mark.parametrize("form", ["logits", "log_probabilities", "probabilities"])
def test_the_forms_agree_and_nothing_is_written_to(name, settings, form):
    of_logits = table_for(name)
    log_p = of_logits.log_probability_matrix().numpy()
    scores = {"logits": of_logits.logits, "log_probabilities": log_p, "probabilities": numpy.exp(log_p)}[form]
    targets = of_logits.targets
    kept = scores.copy(), targets.copy()
    found = measured(name, Predictions(**{form: scores}, targets=targets), settings)
    assert (scores == kept[0]).all() and (targets == kept[1]).all()
    assert same(found, measured(name, of_logits, settings), 1e-8)


@pytest.mark.parametrize(("name", "settings"), VARIANTS, ids=IDS)
def test_order_of_tied_rows_does_not_matter(name, settings):
    if name in ("score_decomposition", "human_agreement", "calibration_slope"):
        table = confidences(ties=True) if "scope" in settings and settings["scope"] == "top_label" else table_for(name)
    else:
        table = classifier(ties=True)
    wanted = measured(name, table, settings)
    order = numpy.random.default_rng(5).permutation(len(table))
    assert same(measured(name, table[order], settings), wanted, 1e-12)


@pytest.mark.parametrize(("name", "settings"), VARIANTS, ids=IDS)
def test_whole_weights_equal_repeated_rows_or_are_refused(name, settings):
    plain = table_for(name, rows=90)
    weights = numpy.random.default_rng(1).integers(0, 4, len(plain))
    weighted = plain.reweighted(weights)
    if not traits_of(getattr(metrics, name)).weighted(**settings):
        with pytest.raises(ValueError, match="weights"):
            getattr(metrics, name)(weighted, **settings)
        return
    repeated = plain[numpy.repeat(numpy.arange(len(plain)), weights)]
    assert same(measured(name, weighted, settings), measured(name, repeated, settings), 1e-10)
    doubled = plain.reweighted(weights.astype("f4"))
    assert same(measured(name, doubled, settings), measured(name, weighted, settings), 1e-12)


@pytest.mark.parametrize(("name", "settings"), VARIANTS, ids=IDS)
def test_fractional_weights_continue_whole_ones(name, settings):
    if not traits_of(getattr(metrics, name)).weighted(**settings) or name in ("reliability", "risk_coverage_curve"):
        return
    if name == "score_decomposition" and settings.get("loss") == "log":
        return  # equal neighbouring steps are one step, and the half row added to each step sees it
    table = table_for(name, rows=90)
    weights = numpy.random.default_rng(2).integers(1, 4, len(table)).astype(float)
    near = table.reweighted(weights + 1e-9 * numpy.random.default_rng(3).random(len(table)))
    assert same(measured(name, near, settings), measured(name, table.reweighted(weights), settings), 1e-5)


@pytest.mark.parametrize(("name", "settings"), VARIANTS, ids=IDS)
def test_no_rows_are_an_error(name, settings):
    with pytest.raises(ValueError, match="row"):
        getattr(metrics, name)(table_for(name)[:0], **settings)


@pytest.mark.parametrize("name", OF_ONE_TABLE)
def test_missing_targets_are_an_error(name):
    with pytest.raises(ValueError, match=r"targets|class numbers"):
        getattr(metrics, name)(Predictions(logits=numpy.zeros((3, 4))), **OF_ONE_TABLE[name])


@pytest.mark.parametrize("name", OF_ONE_TABLE)
def test_confidences_are_enough_or_refused(name):
    table = confidences()
    try:
        value = getattr(metrics, name)(table, **OF_ONE_TABLE[name])
    except ValueError as error:
        assert "\n" not in str(error) and "expected" in str(error)
    else:
        assert value is not None


@pytest.mark.parametrize("name", OF_ONE_TABLE)
def test_label_matrices_are_served_or_refused(name):
    table = labels_table()
    try:
        result = _flat(getattr(metrics, name)(table, **OF_ONE_TABLE[name]))
    except ValueError as error:
        assert "\n" not in str(error) and "expected" in str(error)
    else:
        assert torch.isfinite(result).any()


@pytest.mark.parametrize("name", [n for n in OF_ONE_TABLE if traits_of(getattr(metrics, n)).statistics is not None])
def test_streams_equal_the_whole_table(name):
    table, settings = table_for(name), OF_ONE_TABLE[name]
    parts = [metrics.stream(name, **settings) for _ in range(3)]
    for number, rows in enumerate(numpy.array_split(numpy.arange(len(table)), 7)):
        parts[number % 3].add(table[rows])
    parts[0].merge(parts[1])
    parts[0].merge(parts[2])
    assert same(_flat(parts[0].value()), _flat(getattr(metrics, name)(table, **settings)), 1e-14)


@pytest.mark.parametrize("name", [n for n in OF_ONE_TABLE if traits_of(getattr(metrics, n)).statistics is None])
def test_what_cannot_be_streamed_names_what_can(name):
    with pytest.raises(ValueError, match=r"stream.*needs all rows at once"):
        metrics.stream(name, **OF_ONE_TABLE[name])


@pytest.mark.parametrize("name", ["expected_calibration_error", "negative_log_likelihood", "brier_score", "accuracy"])
def test_batches_and_order_leave_the_same_bits(name):
    table = classifier(rows=3000)
    whole = metrics.stream(name)
    whole.add(table)
    for seed in range(3):
        order = numpy.random.default_rng(seed).permutation(len(table))
        parts = metrics.stream(name)
        for rows in numpy.array_split(order, 11 + seed):
            parts.add(table[rows])
        assert parts.value() == whole.value()


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_leave_the_same_bits(threads):
    table = classifier(rows=20_000)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        names = ("expected_calibration_error", "negative_log_likelihood", "brier_score", "area_under_risk_coverage")
        wanted = [getattr(metrics, name)(table[:]) for name in names]
        torch.set_num_threads(threads)
        assert [getattr(metrics, name)(table[:]) for name in names] == wanted
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", registry.names("metric"))
def test_registered_details(name):
    entry = registry.find("metric", name)
    assert entry.details["direction"] in ("higher", "lower", "none")
    low, high = (float(limit) for limit in entry.details["range"])
    assert low < high and set(entry.details["heads"]) <= {"softmax", "sigmoid", "boxes"}
    function = getattr(metrics, name)
    assert function is registry.get("metric", name) and function.__name__ == name
    text = inspect.getdoc(function)
    assert ">>>" in text and text.split("\n")[0].endswith((".", ":"))


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("NLL", "negative_log_likelihood"),
        ("aurc", "area_under_risk_coverage"),
        ("AUGRC", "area_under_generalized_risk"),
        ("smECE", "smooth_calibration_error"),
    ],
)
def test_aliases(alias, name):
    assert registry.get("metric", alias) is getattr(metrics, name)


def test_unknown_names():
    with pytest.raises(AttributeError, match="acuracy"):
        _ = metrics.acuracy
    with pytest.raises(ValueError, match="accuracy"):
        metrics.estimate("acuracy", classifier())
    assert {"accuracy", "estimate", "stream"} <= set(dir(metrics))


def test_weights_that_sum_to_nothing():
    table = classifier(weights=[0.0] * 200)
    for name in ("accuracy", "brier_score", "area_under_risk_coverage"):
        with pytest.raises(ValueError, match="sum to 0"):
            getattr(metrics, name)(table)


def test_a_row_without_weight_hides_an_infinite_cost():
    table = Predictions(probabilities=[[1.0, 0.0], [0.5, 0.5]], targets=[1, 0], weights=[0.0, 2.0])
    assert metrics.negative_log_likelihood(table) == pytest.approx(math.log(2))
    assert metrics.negative_log_likelihood(table.reweighted([1.0, 1.0])) == math.inf
