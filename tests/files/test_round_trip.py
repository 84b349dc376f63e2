"""What is saved comes back as it was, in every format that is written, whole and in batches."""

from __future__ import annotations

import json

import numpy
import pytest
import torch

import reweigh
from reweigh import Predictions
from reweigh.errors import InputError

from .conftest import build, full, same

ENDINGS = (".parquet", ".safetensors", ".npz")
RANDOM = numpy.random.default_rng(3)
FORMS = {
    "logits": lambda: full("logits"),
    "log probabilities": lambda: full("log_probabilities", dtype="float64"),
    "probabilities": lambda: full("probabilities"),
    "confidence": lambda: build("confidence"),
    "confidence without targets": lambda: build("confidence", targets=None),
    "half": lambda: build("logits", dtype="float16"),
    "double": lambda: build("logits", dtype="float64"),
    "no targets": lambda: build("logits", targets=None),
    "one-vs-rest": lambda: build("logits", head="sigmoid"),
    "multi-hot": lambda: build("logits", targets=RANDOM.random((60, 5)) < 0.3),
    "multi-hot numbers": lambda: build("logits", targets=RANDOM.integers(0, 2, (60, 5)).astype("int8")),
    "soft": lambda: build("logits", targets=RANDOM.dirichlet(numpy.ones(5), 60)),
    "small targets": lambda: build("logits", targets=RANDOM.integers(0, 5, 60).astype("uint8")),
    "whole ids": lambda: build("logits", ids=numpy.arange(60)[::-1].copy()),
    "masked classes": lambda: Predictions(logits=numpy.array([[0.0, -numpy.inf, 1.0]], "float32"), targets=[2]),
    "one label": lambda: Predictions(
        logits=RANDOM.normal(size=(9, 1)), targets=RANDOM.integers(0, 2, (9, 1)), head="sigmoid"
    ),
    "one row": lambda: build("logits", rows=1),
    "no rows": lambda: Predictions(logits=numpy.empty((0, 4), "float32"), targets=numpy.empty(0, "int64")),
    "many classes": lambda: build("logits", rows=20, classes=3000),
    "tensors": lambda: Predictions(logits=torch.randn(30, 4), targets=torch.arange(30) % 4, ids=torch.arange(30)),
    "column-major": lambda: Predictions(logits=numpy.asfortranarray(RANDOM.normal(size=(30, 4)))),
    "big-endian": lambda: Predictions(
        logits=RANDOM.normal(size=(30, 4)).astype(">f8"), targets=numpy.arange(30).astype(">i4") % 4
    ),
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("form", FORMS)
def test_saved_is_opened(tmp_path, form, ending):
    table = FORMS[form]()
    path = tmp_path / f"table{ending}"
    reweigh.save(table, path)
    again = reweigh.open(path)
    assert same(again, table)
    assert again.scores.dtype == table.scores.dtype
    parts = list(reweigh.files.batches(path, rows=7))
    assert all(len(part) <= 7 for part in parts)
    if len(table):
        assert same(Predictions.concatenate(parts), table)


@pytest.mark.parametrize("ending", ENDINGS)
def test_bfloat16_keeps_its_values(tmp_path, ending):
    table = Predictions(logits=torch.randn(20, 3).bfloat16(), targets=torch.arange(20) % 3)
    reweigh.save(table, tmp_path / f"half{ending}")
    again = reweigh.open(tmp_path / f"half{ending}")
    assert torch.equal(again.scores.float(), table.logits.float())
    assert again.scores.dtype == (torch.bfloat16 if ending == ".safetensors" else torch.float32)


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_same_table_gives_the_same_bytes(tmp_path, table, ending):
    for name in ("one", "two"):
        reweigh.save(table, tmp_path / f"{name}{ending}")
    assert (tmp_path / f"one{ending}").read_bytes() == (tmp_path / f"two{ending}").read_bytes()


@pytest.mark.parametrize("ending", ENDINGS)
def test_batches_are_saved_below_one_another(tmp_path, table, ending):
    reweigh.save(table, tmp_path / f"one{ending}")
    reweigh.save(reweigh.files.batches(tmp_path / f"one{ending}", rows=11), tmp_path / f"two{ending}")
    assert same(reweigh.open(tmp_path / f"two{ending}"), table)


def test_others_read_our_files(tmp_path, table):
    """The layout is the formats' own: other libraries need nothing of ours."""
    parquet = pytest.importorskip("pyarrow.parquet")
    numpy_library = pytest.importorskip("safetensors.numpy")
    for ending in ENDINGS:
        reweigh.save(table, tmp_path / f"t{ending}")
    found = parquet.read_table(tmp_path / "t.parquet")
    assert found.column_names == ["logits", "target", "id", "weight", "group.site", "group.age"]
    assert str(found.schema.field("logits").type).startswith("fixed_size_list<element: float not null>[5]")
    assert numpy.array_equal(numpy.stack(found["logits"].to_numpy()), table.logits)
    facts = json.loads(found.schema.metadata[b"reweigh"])
    assert (facts["schema"], facts["head"], facts["class_names"]) == (1, "softmax", list(table.class_names))
    assert numpy.array_equal(numpy_library.load_file(tmp_path / "t.safetensors")["logits"], table.logits)
    with numpy.load(tmp_path / "t.npz", allow_pickle=False) as archive:
        assert numpy.array_equal(archive["logits"], table.logits)
        assert archive["id"].tolist() == table.ids.tolist()


def test_formats_without_checksums_are_not_written(tmp_path, table):
    for ending in (".csv", ".jsonl", ".npy", ".txt", ""):
        with pytest.raises(InputError, match=r"expected one of .npz, .parquet"):
            reweigh.save(table, tmp_path / f"t{ending}")
    assert not list(tmp_path.iterdir())


def test_a_newer_schema_says_so(tmp_path, table, monkeypatch):
    from reweigh.files import _manifest

    monkeypatch.setattr(_manifest, "SCHEMA", 2)
    for ending in ENDINGS:
        reweigh.save(table, tmp_path / f"t{ending}")
    monkeypatch.undo()
    for ending in ENDINGS:
        with pytest.raises(InputError, match=r"schema 2.*reads schema 1.*Update Reweigh"):
            reweigh.open(tmp_path / f"t{ending}")


def test_about_must_be_plain(tmp_path):
    with pytest.raises(InputError, match=r"about"):
        reweigh.save(build(about={"model": object()}), tmp_path / "t.parquet")
    reweigh.save(build(about={1: [1.5, None], "b": {"c": "ä"}}), tmp_path / "t.npz")
    assert reweigh.open(tmp_path / "t.npz").about == {"1": [1.5, None], "b": {"c": "ä"}}


def test_only_predictions_are_saved(tmp_path):
    with pytest.raises(InputError, match=r"got ndarray, expected Predictions. Make them by reweigh.open"):
        reweigh.save([numpy.zeros((2, 2))], tmp_path / "t.npz")
