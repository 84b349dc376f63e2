"""Calibrator files: damage is an error, never a wrong number; ONNX graphs say what the calibrator says."""

from __future__ import annotations

import json
import os
import pickle
import stat

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reweigh import calibration
from reweigh.calibration import PlattScaling, PosteriorCorrection, TemperatureScaling
from reweigh.calibration._storage import SCHEMA, _checksum
from reweigh.errors import InputError
from reweigh.registry import register_calibrator

from .problems import NAMES, make, rows

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    z, y = rows(200, 3)
    path = tmp_path_factory.mktemp("files") / "platt.json"
    calibrator = PlattScaling().fit(z, y)
    calibrator.save(path)
    return path, calibrator, z


def test_a_file_is_readable(written):
    path, calibrator, _ = written
    content = json.loads(path.read_text())
    assert content["calibrator"] == "platt_scaling" and content["schema"] == SCHEMA
    assert content["fitted"]["slope_"]["array"] == calibrator.slope_.tolist()
    assert len(content["sha256"]) == 64


@given(st.data())
def test_no_flipped_bit_is_silent(written, data):
    path, calibrator, z = written
    raw = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[place // 8] ^= 1 << (place % 8)
    damaged = path.with_name("damaged.json")
    damaged.write_bytes(raw)
    try:
        again = calibration.load(damaged)
    except InputError as error:
        assert "\n" not in str(error) and str(damaged) in str(error)
    else:
        assert np.array_equal(again.predict_proba(z), calibrator.predict_proba(z)), "white space at the end at most"


@given(st.integers(0, 4000))
def test_no_truncation_is_silent(written, kept):
    path, *_ = written
    raw = path.read_bytes()
    cut = path.with_name("cut.json")
    cut.write_bytes(raw[: min(kept, len(raw) - 2)])
    with pytest.raises(InputError):
        calibration.load(cut)


def rewritten(path, change, *, seal=True):
    """The file with its content changed, and the checksum made right."""
    content = json.loads(path.read_text())
    content.pop("sha256")
    change(content)
    content["sha256"] = _checksum(content) if seal else "0" * 64
    other = path.with_name("other.json")
    other.write_text(json.dumps(content))
    return other


CHANGES = {
    "unknown name": (lambda c: c.update(calibrator="platt_scalin"), "Did you mean 'platt_scaling'"),
    "newer schema": (lambda c: c.update(schema=SCHEMA + 1), "newer version of reweigh"),
    "no schema": (lambda c: c.pop("schema"), "no calibrator"),
    "other format": (lambda c: c.update(format="something"), "no calibrator"),
    "missing part": (lambda c: c["fitted"].pop("slope_"), "unusable content"),
    "extra part": (lambda c: c["fitted"].update(other_=1), "unusable content"),
    "unknown setting": (lambda c: c["settings"].update(bins=3), "unusable content"),
    "wrong shape": (lambda c: c["fitted"]["slope_"].update(shape=[7]), "unusable content"),
    "wrong type": (lambda c: c["fitted"]["slope_"].update(type="object"), "unusable content"),
    "absurd shape": (lambda c: c["fitted"]["slope_"].update(shape=[10**12]), "unusable content"),
    "no number": (lambda c: c.update(classes="three"), "unusable content"),
    "a number for a name": (lambda c: c.update(calibrator=3), "unusable content"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_wrong_content_under_a_right_checksum(written, case):
    change, message = CHANGES[case]
    with pytest.raises(InputError, match=message):
        calibration.load(rewritten(written[0], change))


def test_an_edited_number_is_noticed(written):
    edited = rewritten(written[0], lambda c: c["fitted"]["slope_"]["array"].__setitem__(0, 9.0), seal=False)
    with pytest.raises(InputError, match=r"does not match its SHA-256.*fit the calibrator again"):
        calibration.load(edited)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"null",
        b"{" * 100_000,
        b"\xff\xfe\x00",
        b'{"format": "reweigh calibrator", "format": "x", "schema": 1}',
        b'{"schema": NaN}',
        b"[" * 100_000 + b"]" * 100_000,
        pickle.dumps({"a": 1}),
    ],
)
def test_other_files(tmp_path, raw):
    path = tmp_path / "file.json"
    path.write_bytes(raw)
    with pytest.raises(InputError) as error:
        calibration.load(path)
    assert "\n" not in str(error.value)


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        calibration.load(tmp_path / "nothing.json")
    with pytest.raises(InputError, match="directory"):
        calibration.load(tmp_path)
    z, y = rows(60, 3)
    with pytest.raises(InputError, match=r"writing .* failed"):
        TemperatureScaling().fit(z, y).save(tmp_path / "nowhere" / "c.json")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder(tmp_path):
    z, y = rows(60, 3)
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with pytest.raises(InputError, match="Permission denied"):
            TemperatureScaling().fit(z, y).save(tmp_path / "c.json")
    finally:
        tmp_path.chmod(0o700)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    z, y = rows(60, 3)
    path = tmp_path / "c.json"
    TemperatureScaling().fit(z, y).save(path)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"No space left on device\. An earlier file of that name is unchanged"):
        TemperatureScaling().fit(2 * z, y).save(path)
    assert path.read_bytes() == before and [child.name for child in tmp_path.iterdir()] == ["c.json"]


def test_generators_are_left_out_of_a_file(tmp_path):
    z, y = rows(600, 3)
    found = make("meta_misclassification", random_state=np.random.default_rng(3)).fit(z, y)
    found.save(tmp_path / "c.json")
    again = calibration.load(tmp_path / "c.json")
    assert again.random_state is None and np.array_equal(again.threshold_rows_, found.threshold_rows_)


@register_calibrator("halving", aliases=("HALF",))
class Halving(calibration.Calibrator):
    """Halves every logit."""

    _state = ("factor_",)

    def __init__(self, *, power: int = 1) -> None:
        self.power = power

    def fit(self, X, y=None, sample_weight=None):
        self._read(X, y, sample_weight)
        self.factor_ = 0.5**self.power
        return self

    def _build(self):
        from reweigh.calibration._maps import LogitMap, Scale

        return LogitMap(Scale(self.factor_))


def test_a_users_own_calibrator(tmp_path):
    z, y = rows(60, 3)
    calibration.calibrator("half", power=2).fit(z, y).save(tmp_path / "c.json")
    np.testing.assert_array_equal(calibration.load(tmp_path / "c.json").transform(z), z / 4)


# ---- ONNX


# one of each kind of graph; exporting takes a second, so the others wait for the night
BY_DAY = {
    "temperature_scaling",
    "ensemble_temperature_scaling",
    "dirichlet_calibration",
    "platt_scaling",
    "isotonic_calibration",
    "histogram_binning",
    "meta_misclassification",
    "posterior_correction",
    "selective_classifier",
    "conformal_classifier",
}


@pytest.mark.parametrize(
    "name", [name if name in BY_DAY else pytest.param(name, marks=pytest.mark.nightly) for name in NAMES]
)
def test_onnx_says_the_same(tmp_path, name):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    z, y = rows(260, 4)
    found = make(name).fit(z, y)
    path = tmp_path / "calibrator.onnx"
    calibration.export_onnx(found, path)
    new = rows(50, 4, seed=1)[0].astype(np.float32)
    if found.head_ == "softmax":
        new[::7, 2] = -np.inf
    new[3] = [40, 0, -1, 3]
    new[4] = [900, 0, -900, 3]
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    out = dict(zip(names, session.run(None, {"logits": new}), strict=True))
    assert names == list(found.to_module().output_names)
    p = out["probabilities"] if "probabilities" in out else np.exp(out["log_probabilities"])
    np.testing.assert_allclose(p, found.predict_proba(new), atol=1e-9, rtol=1e-6)
    if "accepted" in out:
        assert np.array_equal(out["accepted"], found.accepts(new))
    if "in_set" in out:
        assert np.array_equal(out["in_set"], found.predict_set(new))
    one = session.run(None, {"logits": new[:1]})[0]
    np.testing.assert_allclose(one, out[names[0]][:1], rtol=1e-12)


def test_onnx_refusals(tmp_path):
    pytest.importorskip("onnxscript")
    with pytest.raises(ValueError, match="name of a loss"):
        calibration.export_onnx(PosteriorCorrection(lambda p: p).fit(np.zeros((2, 2))), tmp_path / "c.onnx")
    z, y = rows(60, 3)
    with pytest.raises(InputError, match="No such file"):
        calibration.export_onnx(TemperatureScaling().fit(z, y), tmp_path / "nowhere" / "c.onnx")
    with pytest.raises(Exception, match="not fitted"):
        calibration.export_onnx(TemperatureScaling(), tmp_path / "c.onnx")
