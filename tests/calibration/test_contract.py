"""What every calibrator promises, checked on all of them."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

import reweigh
from reweigh import Predictions, calibration, registry

from .problems import NAMES, details, make, rows, softmax

SOFTMAX = [name for name in NAMES if "softmax" in details(name)["heads"]]
WEIGHTED = [name for name in NAMES if details(name)["weights"]]
UNWEIGHTED = [name for name in NAMES if not details(name)["weights"]]

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

# The checks that no calibrator over K columns can take, and why.
MORE_LABELS = "labels of three classes for two columns of logits: a column is missing"
EXPECTED = {
    "check_estimators_overwrite_params": MORE_LABELS,
    "check_estimators_fit_returns_self": MORE_LABELS,
    "check_readonly_memmap_input": MORE_LABELS,
    "check_sample_weights_pandas_series": MORE_LABELS,
    "check_sample_weights_not_an_array": MORE_LABELS,
    "check_sample_weights_list": MORE_LABELS,
    "check_sample_weights_shape": MORE_LABELS,
    "check_sample_weights_not_overwritten": MORE_LABELS,
    "check_classifier_data_not_an_array": MORE_LABELS,
    "check_classifiers_train": MORE_LABELS,
    "check_classifiers_classes": "labels are words: logits say class numbers, one a column",
}


@pytest.fixture(scope="module")
def fitted():
    """Every softmax calibrator, fitted once."""
    z, y = rows(1200)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: make(name).fit(z, y) for name in SOFTMAX}


@pytest.mark.parametrize("name", NAMES)
def test_scikit_learn_accepts_it(name):
    # the usual settings, as a user would have them: a target that every fit can be judged by where one is required
    entry = registry.get("calibrator", name)
    estimator = entry(target=0.5) if name == "meta_accuracy" else entry()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(estimator, on_fail=None, expected_failed_checks=EXPECTED)
    failed = [f"{one['check_name']}: {one['exception']!r}" for one in found if one["status"] == "failed"]
    assert not failed, "\n".join(failed)
    assert sum(one["status"] == "passed" for one in found) >= 45


@pytest.mark.parametrize("name", NAMES)
def test_names_lead_to_the_class(name):
    entry = registry.find("calibrator", name)
    kind = getattr(calibration, entry.attribute)
    assert getattr(calibration, name) is kind
    assert all(registry.get("calibrator", alias) is kind for alias in entry.aliases)
    assert isinstance(calibration.calibrator(name, **({"target": 0.5} if name == "meta_accuracy" else {})), kind)
    assert {name, entry.attribute} <= set(dir(calibration))
    assert entry.summary.endswith(".") and entry.details["formula"]


def test_unknown_names():
    with pytest.raises(AttributeError, match="no calibrator 'nothing'"):
        _ = calibration.nothing
    with pytest.raises(ValueError, match="Did you mean 'temperature_scaling'"):
        calibration.calibrator("temperature_scalin")


@pytest.mark.parametrize("name", SOFTMAX)
def test_probabilities_are_probabilities(fitted, name):
    z, _ = rows(300, seed=1)
    z[::5, 2] = -np.inf
    z[3] = [40, 0, 0, -400, 3]
    p = fitted[name].predict_proba(z)
    assert p.dtype == np.float64 and p.shape == z.shape
    assert np.isfinite(p).all() and (p >= 0).all()
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-12)
    assert (p[::5, 2] == 0).all(), "a masked class keeps no probability"
    np.testing.assert_allclose(softmax(np.clip(fitted[name].transform(z), -1e30, None)), p, atol=1e-12)


@pytest.mark.parametrize("name", SOFTMAX)
def test_accuracy_is_kept_where_declared(fitted, name):
    z, _ = rows(3000, seed=2)
    calibrator = fitted[name]
    same = bool((calibrator.predict_proba(z).argmax(1) == z.argmax(1)).all())
    assert same or not calibrator.preserves_accuracy
    if calibrator.preserves_accuracy:
        assert (calibrator.predict(z) == z.argmax(1)).all()
    elif name not in ("selective_classifier", "meta_accuracy", "meta_misclassification"):
        assert (calibrator.predict(z) == calibrator.predict_proba(z).argmax(1)).all()
    assert type(calibrator)(**calibrator.get_params(deep=False)).preserves_accuracy == calibrator.preserves_accuracy
    assert calibrator.preserves_accuracy == details(name)["preserves_accuracy"]


def test_pooled_isotonic_keeps_accuracy_and_says_so():
    z, y = rows(800)
    calibrator = calibration.IsotonicCalibration(mode="pooled").fit(z, y)
    assert calibrator.preserves_accuracy
    new, _ = rows(3000, seed=2)
    assert (calibrator.predict_proba(new).argmax(1) == new.argmax(1)).all()


@pytest.mark.parametrize("name", SOFTMAX)
def test_kinds_of_input(fitted, name):
    z, y = rows(400, seed=3)
    z = z.astype(np.float32)
    want = make(name).fit(z, y).predict_proba(z)
    forms = [
        z[::-1][::-1],
        np.asfortranarray(z),
        torch.from_numpy(z),
        z.tolist(),
        z.astype(np.float64),
        z.astype(">f4"),
    ]
    for form in forms:
        got = make(name).fit(form, y.tolist() if isinstance(form, list) else y).predict_proba(form)
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
    for half in (z.astype(np.float16), torch.from_numpy(z).half(), torch.from_numpy(z).bfloat16()):
        p = make(name).fit(half, torch.from_numpy(y)).predict_proba(half)
        assert np.isfinite(p).all()


@pytest.mark.parametrize("name", SOFTMAX)
def test_predictions_in_and_out(name):
    z, y = rows(400, seed=3)
    z = z.astype(np.float32)
    want = make(name).fit(z, y).predict_proba(z)
    ids, groups = np.arange(400) + 7, {"ward": np.arange(400) % 3}
    table = Predictions(logits=z, targets=y, ids=ids, groups=groups, class_names=list("abcde"))
    calibrator = make(name).fit(table)
    np.testing.assert_allclose(calibrator.predict_proba(table), want, rtol=1e-12, atol=1e-15)
    out = calibrator.apply(table)
    assert (out.ids == ids).all() and (out.targets == y).all() and (out.groups["ward"] == groups["ward"]).all()
    assert out.class_names == ("a", "b", "c", "d", "e") and out.about["calibrator"] == name
    p = np.concatenate([block.numpy() for _, block in out.probability_blocks()])
    np.testing.assert_allclose(p, want, atol=2e-6)
    kind = "logits" if out.kind == "logits" else "probabilities"
    assert getattr(out, kind).dtype == (np.float32 if kind == "logits" else np.float64)
    tensors = make(name).fit(Predictions(logits=torch.from_numpy(z), targets=torch.from_numpy(y)))
    np.testing.assert_allclose(tensors.predict_proba(z), want, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("kind", ["log_probabilities", "probabilities"])
def test_other_scores_of_predictions(kind):
    z, y = rows(500, seed=3)
    scores = softmax(z) if kind == "probabilities" else np.log(softmax(z))
    table = Predictions(**{kind: scores}, targets=y)
    want = calibration.TemperatureScaling().fit(z, y)
    got = calibration.TemperatureScaling().fit(table)
    assert got.temperature_ == pytest.approx(want.temperature_, rel=1e-9)
    out = got.apply(table)
    assert out.kind == ("probabilities" if kind == "probabilities" else "log_probabilities")
    p = np.concatenate([block.numpy() for _, block in out.probability_blocks()])
    np.testing.assert_allclose(p, want.predict_proba(z), atol=1e-9)


@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_are_repeated_rows(name):
    if name == "selective_classifier":
        plain = {"coverage": 0.7, "risk": None}
    else:
        plain = {}
    z, y = rows(300, seed=4)
    times = np.random.default_rng(0).integers(0, 4, 300)
    weighted = make(name, **plain).fit(z, y, sample_weight=times)
    repeated = make(name, **plain).fit(np.repeat(z, times, axis=0), np.repeat(y, times))
    new, _ = rows(100, seed=5)
    np.testing.assert_allclose(weighted.predict_proba(new), repeated.predict_proba(new), atol=1e-8)
    table = Predictions(logits=z, targets=y, weights=times, head=details(name)["heads"][0])
    np.testing.assert_allclose(
        make(name, **plain).fit(table).predict_proba(new), repeated.predict_proba(new), atol=1e-8
    )
    if name in ("selective_classifier", "conformal_classifier"):
        state = "key_threshold_" if name == "selective_classifier" else "key_quantiles_"
        assert np.all(getattr(weighted, state) == getattr(repeated, state))


@pytest.mark.parametrize("name", UNWEIGHTED)
def test_weights_are_refused(name):
    z, y = rows(300, seed=4)
    with pytest.raises(ValueError, match=r"sample_weight.*no weighted form"):
        make(name).fit(z, y, sample_weight=np.ones(300))
    with pytest.raises(ValueError, match="no weighted form"):
        make(name).fit(Predictions(logits=z, targets=y, weights=np.ones(300)))
    with pytest.raises(TypeError, match="unexpected keyword argument 'wait'"):
        make(name).fit(z, y, wait=3)


@pytest.mark.parametrize("name", SOFTMAX)
def test_a_class_may_be_absent(name):
    z, y = rows(600, seed=6)
    kept = y != 3
    settings = {"target_shares": None} if name == "prior_correction" else {}
    calibrator = make(name, **settings).fit(z[kept], y[kept])
    p = calibrator.predict_proba(z)
    assert calibrator.classes_.tolist() == [0, 1, 2, 3, 4] and p.shape == (600, 5)
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-12)


@pytest.mark.parametrize("name", SOFTMAX)
def test_masked_classes_are_left_out(name):
    z, y = rows(600, seed=7)
    masked = np.arange(600) % 3 == 0
    z[masked, 4] = -np.inf
    kept = ~(masked & (y == 4))
    p = make(name).fit(z[kept], y[kept]).predict_proba(z)
    assert np.isfinite(p).all() and (p[masked, 4] == 0).all()


@pytest.mark.parametrize("name", [name for name in SOFTMAX if name not in ("selective_classifier",)])
def test_the_order_of_rows_does_not_matter(name):
    if name in ("meta_accuracy", "meta_misclassification"):
        pytest.skip("it draws rows by number")
    z, y = rows(500, seed=8)
    z = np.round(z, 1)  # with ties
    order = np.random.default_rng(0).permutation(500)
    here, there = make(name).fit(z, y), make(name).fit(z[order], y[order])
    np.testing.assert_allclose(here.predict_proba(z), there.predict_proba(z), atol=1e-9)


BAD = {
    "NaN": (lambda z, y: (z.__setitem__((4, 1), np.nan), (z, y))[1], r"NaN \(row 4, column 1\)"),
    "infinity": (lambda z, y: (z.__setitem__((4, 1), np.inf), (z, y))[1], r"infinity \(row 4, column 1\)"),
    "row of masks": (lambda z, y: (z.__setitem__(4, -np.inf), (z, y))[1], "row 4 is all -inf"),
    "masked truth": (lambda z, y: (z.__setitem__((4, y[4]), -np.inf), (z, y))[1], "true class of row 4"),
    "label -1": (lambda z, y: (z, np.where(np.arange(len(y)) == 6, -1, y)), r"label -1 in row 6.*from 0 to 4"),
    "label 5": (lambda z, y: (z, np.where(np.arange(len(y)) == 6, 5, y)), r"label 5 in row 6.*from 0 to 4"),
    "few labels": (lambda z, y: (z, y[:-1]), "299 labels for 300 rows"),
    "one class": (lambda z, y: (z, np.full(len(y), 2)), "all have class 2"),
    "words": (lambda z, y: (z, y.astype(str)), "class numbers 0, 1"),
    "shares": (lambda z, y: (z, y + 0.5), "Unknown label type"),
    "one dimension": (lambda z, y: (z[:, 0], y), "binary_logits"),
    "one column": (lambda z, y: (z[:, :1], y * 0), "binary_logits"),
    "no rows": (lambda z, y: (z[:0], y[:0]), "0 sample"),
    "three dimensions": (lambda z, y: (z[None], y), "dim 3|3 dimensions|dim(ension)?s?.* 3|Found array with dim 3"),
    "no labels": (lambda z, y: (z, None), "y=None"),
    "complex": (lambda z, y: (z + 1j, y), "Complex data"),
    "objects": (lambda z, y: (np.array([[{}] * 5] * 300, dtype=object), y), "argument must be|float|objects"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("name", SOFTMAX)
def test_bad_input_is_one_clear_error(name, case):
    if case == "no labels" and name == "prior_correction":
        pytest.skip("it needs none where the source shares are given")
    spoil, message = BAD[case]
    z, y = rows(300, seed=9)
    with pytest.raises((ValueError, TypeError), match=message):
        make(name).fit(*spoil(z, y))


@pytest.mark.parametrize("name", SOFTMAX)
def test_bad_weights_and_other_widths(fitted, name):
    z, y = rows(300, seed=9)
    if name in WEIGHTED:
        for weight in (np.ones(299), np.full(300, np.nan), -np.ones(300), np.zeros(300), np.ones((300, 2))):
            with pytest.raises(ValueError, match=r"sample_weight|weights"):
                make(name, **({"coverage": 0.5, "risk": None} if name == "selective_classifier" else {})).fit(
                    z, y, weight
                )
    with pytest.raises(ValueError, match=r"[45] (columns|features|classes)"):
        fitted[name].predict_proba(z[:, :4])
    with pytest.raises(ValueError, match="4 columns"):
        fitted[name].predict_proba(torch.from_numpy(z[:, :4]))
    with pytest.raises(ValueError, match="NaN"):
        fitted[name].predict_proba(np.full((2, 5), np.nan))
    with pytest.raises(ValueError, match="head='sigmoid'"):
        fitted[name].predict_proba(Predictions(logits=z, head="sigmoid"))
    with pytest.raises(ValueError, match=r"4 classes|4 columns"):
        fitted[name].apply(Predictions(logits=z[:, :4]))
    with pytest.raises(ValueError, match="expected Predictions"):
        fitted[name].apply(z)


@pytest.mark.parametrize("name", NAMES)
def test_module_is_the_calibrator(name):
    z, y = rows(300, seed=10)
    calibrator = make(name).fit(z, y)
    module = calibrator.to_module()
    out = module(torch.from_numpy(z).float())
    first = out[0] if isinstance(out, tuple) else out
    p = first.exp() if module.output == "log_probabilities" else first
    np.testing.assert_allclose(p.numpy(), calibrator.predict_proba(z.astype(np.float32)), atol=1e-12)
    assert len(module.output_names) == (len(out) if isinstance(out, tuple) else 1)
    assert first.dtype == torch.float64


@pytest.mark.parametrize("name", NAMES)
def test_json_there_and_back(tmp_path, name):
    z, y = rows(300, seed=10)
    calibrator = make(name).fit(z, y)
    path = tmp_path / "mit Leerzeichen é.json"
    calibrator.save(path)
    again = calibration.load(path)
    assert type(again) is type(calibrator)
    assert np.array_equal(again.predict_proba(z), calibrator.predict_proba(z)), "bit for bit"
    assert np.array_equal(again.predict(z), calibrator.predict(z))
    assert again.fitted_on_ == calibrator.fitted_on_ and again.get_params() == calibrator.get_params()
    assert again.overlap(z) == 1.0 and again.overlap(z[:150]) == pytest.approx(0.5, abs=0.15)
    again.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
    assert clone(again).get_params() == calibrator.get_params()
    assert [child.name for child in tmp_path.iterdir() if child.name.endswith(".part")] == []


def test_rows_are_recognised_by_their_ids():
    z, y = rows(3000)
    ids = np.array([f"patient {number}" for number in range(3000)])
    table = Predictions(logits=z, targets=y, ids=ids)
    calibrator = calibration.TemperatureScaling().fit(table[:2000])
    assert calibrator.overlap(table[:2000]) == 1.0
    assert calibrator.overlap(table[2000:]) == 0.0
    assert calibrator.overlap(table[1000:]) == pytest.approx(0.5, abs=0.06)
    other = Predictions(logits=z + 1, targets=y, ids=ids.astype("U40"))
    assert calibrator.overlap(other[:2000]) == 1.0, "ids decide, whatever the scores"
    assert calibrator.fitted_on_["rows"] == 2000 and sum(calibrator.fitted_on_["class_counts"]) == 2000


def test_not_fitted():
    with pytest.raises(Exception, match="not fitted"):
        calibration.TemperatureScaling().predict_proba(np.zeros((2, 2)))
    with pytest.raises(Exception, match="not fitted"):
        calibration.TemperatureScaling().save("nowhere.json")


def test_binary_logits_by_an_explicit_word():
    z = np.array([2.0, -1.0, 0.5, -3.0])
    pair = calibration.binary_logits(z)
    assert pair.tolist() == [[0, 2.0], [0, -1.0], [0, 0.5], [0, -3.0]]
    assert torch.equal(calibration.binary_logits(torch.tensor(z)), torch.tensor(pair))
    assert np.array_equal(calibration.binary_logits(z[:, None]), pair)
    with pytest.raises(ValueError, match="one number a row"):
        calibration.binary_logits(np.zeros((3, 2)))


def test_tables_keep_their_column_names(tmp_path):
    pandas = pytest.importorskip("pandas")
    z, y = rows(200, classes=3)
    table = pandas.DataFrame(z, columns=["ant", "bee", "cat"])
    calibrator = calibration.TemperatureScaling().fit(table, y)
    calibrator.save(tmp_path / "c.json")
    again = calibration.load(tmp_path / "c.json")
    np.testing.assert_array_equal(again.predict_proba(table), calibrator.predict_proba(table))
    with pytest.raises(ValueError, match="feature names"):
        again.predict_proba(table[["bee", "ant", "cat"]])


def test_the_package_needs_no_scikit_learn_for_names():
    import subprocess
    import sys

    code = "import sys, reweigh; from reweigh import calibration; dir(calibration); print('sklearn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert reweigh.calibration.TemperatureScaling is calibration.TemperatureScaling
