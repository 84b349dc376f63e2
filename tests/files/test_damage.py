"""Damaged files by the thousand: no wrong number from a file of ours, no exception but the sentence, from any file."""

from __future__ import annotations

import json
import random
import resource

import numpy
import pytest

import reweigh
from reweigh import Predictions
from reweigh.errors import InputError

from .conftest import full, same

ROWS, CLASSES = 40, 4
MOST_GROWTH = 400 * 1024  # kilobytes over all damaged files of a format


def ours(ending):
    return lambda path: reweigh.save(full(rows=ROWS, classes=CLASSES), path.with_suffix(ending))


def columns():
    values = numpy.random.default_rng(0)
    scores = values.normal(size=(ROWS, CLASSES)).astype("float32")
    return scores, values.integers(0, CLASSES, ROWS), [f"i{number}" for number in range(ROWS)]


def foreign_npz(path):
    scores, labels, ids = columns()
    numpy.savez_compressed(path.with_suffix(".npz"), logits=scores, label=labels, id=numpy.array(ids))


def foreign_parquet(path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    scores, labels, ids = columns()
    table = pyarrow.table({"logits": list(scores), "label": labels, "id": ids, "extra": [{"a": 1}] * ROWS})
    parquet.write_table(table, path.with_suffix(".parquet"), compression="zstd", row_group_size=16)


def csv(path):
    scores, labels, ids = columns()
    rows = "".join(
        f"{','.join(map(str, row))},{label},{name}\n"
        for row, label, name in zip(scores.tolist(), labels, ids, strict=True)
    )
    path.with_suffix(".csv").write_text("z0,z1,z2,z3,label,id\n" + rows)


def jsonl(path):
    scores, labels, ids = columns()
    rows = zip(scores.tolist(), labels.tolist(), ids, strict=True)
    path.with_suffix(".jsonl").write_text(
        "".join(json.dumps({"logits": z, "label": y, "id": i}) + "\n" for z, y, i in rows)
    )


def npy(path):
    numpy.save(path.with_suffix(".npy"), columns()[0])


# what writes a sound file, and whether every damage must be noticed
FILES = {
    "ours parquet": (ours(".parquet"), True),
    "ours safetensors": (ours(".safetensors"), True),
    "ours npz": (ours(".npz"), True),
    "npz": (foreign_npz, True),
    "parquet": (foreign_parquet, False),
    "csv": (csv, False),
    "jsonl": (jsonl, False),
    "npy": (npy, False),
}
KEYWORDS = {"csv": {"logits": "z*"}, "npy": {"logits": "logits"}}


def damaged(raw: bytes, draw: random.Random) -> bytes:
    """One way in which a file goes wrong; headers and footers are hit as often as rows."""
    found = bytearray(raw)
    place = draw.choice(
        [
            draw.randrange(len(raw)),
            draw.randrange(min(len(raw), 200)),
            len(raw) - 1 - draw.randrange(min(len(raw), 1200)),
        ]
    )
    size = draw.choice([1, 2, 4, 8, 64])
    other = draw.randrange(len(raw))
    kind = draw.choice(
        ["flip", "flip", "flip", "flips", "cut", "zeros", "ones", "insert", "delete", "repeat", "swap", "noise"]
    )
    if kind == "flip":
        found[place] ^= 1 << draw.randrange(8)
    elif kind == "flips":
        for _ in range(8):
            found[draw.randrange(len(found))] ^= 1 << draw.randrange(8)
    elif kind == "cut":
        del found[place:]
    elif kind in ("zeros", "ones", "noise"):
        end = min(place + size, len(found))
        fill = {"zeros": lambda: 0, "ones": lambda: 255, "noise": lambda: draw.randrange(256)}[kind]
        found[place:end] = bytes(fill() for _ in range(end - place))
    elif kind == "insert":
        found[place:place] = draw.randbytes(size)
    elif kind == "delete":
        del found[place : place + size]
    elif kind == "repeat":
        found[place:place] = found[place : place + size]
    elif kind == "swap":
        first, second = bytes(found[place : place + size]), bytes(found[other : other + size])
        found[place : place + len(second)], found[other : other + len(first)] = second, first
    return bytes(found)


def outcome(path, sound: Predictions, number: int, keywords: dict) -> str:
    """What came of opening a damaged file: an error, the same table, or another one."""
    try:
        if number % 2:
            table = reweigh.open(path, **keywords)
        else:
            table = Predictions.concatenate(list(reweigh.files.batches(path, rows=13, **keywords)))
    except InputError as error:
        assert "\n" not in str(error)
        return "error"
    return "same" if same(table, sound) else "other"


def run(tmp_path, kind: str, count: int, seed: int) -> None:
    write, noticed = FILES[kind]
    write(tmp_path / "logits")
    (path,) = tmp_path.glob("logits.*")
    raw, keywords, draw = path.read_bytes(), KEYWORDS.get(kind, {}), random.Random(f"{kind} {seed}")
    sound = reweigh.open(path, **keywords)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {"error": 0, "same": 0, "other": 0}
    for number in range(count):
        broken = damaged(raw, draw)
        path.write_bytes(broken)
        result = outcome(path, sound, number, keywords) if broken != raw else "same"
        found[result] += 1
        assert result != "other" or not noticed, f"damage {number} of {kind} (seed {seed}) gave another table"
    assert found["error"] > count / 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_GROWTH


@pytest.mark.filterwarnings("ignore:.*the last line has no line end")
@pytest.mark.parametrize("kind", FILES)
def test_damage_is_noticed(tmp_path, kind):
    run(tmp_path, kind, 125, seed=0)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:.*the last line has no line end")
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", FILES)
def test_damage_is_noticed_ten_thousand_times(tmp_path, kind, seed):
    run(tmp_path, kind, 125, seed=seed + 1)


@pytest.mark.nightly
@pytest.mark.parametrize("ending", [".parquet", ".safetensors", ".npz"])
def test_every_single_bit(tmp_path, ending):
    """All bits of a small file, one after another."""
    path = tmp_path / f"a{ending}"
    reweigh.save(full(rows=6, classes=3), path)
    raw, sound = path.read_bytes(), reweigh.open(path)
    for bit in range(8 * len(raw)):
        broken = bytearray(raw)
        broken[bit // 8] ^= 1 << bit % 8
        path.write_bytes(broken)
        assert outcome(path, sound, 1, {}) != "other", f"bit {bit}"


@pytest.mark.parametrize("ending", [".parquet", ".safetensors", ".npz"])
def test_every_cut(tmp_path, ending):
    path = tmp_path / f"a{ending}"
    reweigh.save(full(rows=6, classes=3), path)
    raw = path.read_bytes()
    for end in range(0, len(raw), 7):
        path.write_bytes(raw[:end])
        with pytest.raises(InputError, match=rf"opening .*a\{ending}"):
            reweigh.open(path)


@pytest.mark.parametrize("ending", [".parquet", ".safetensors", ".npz"])
def test_columns_from_another_file(tmp_path, ending):
    """A column exchanged with that of another sound file: each is whole, together they are not what was written."""
    one, other = full(rows=30), full(rows=30, seed=5)
    for name, table in (("one", one), ("two", other)):
        reweigh.save(table, tmp_path / f"{name}{ending}")
    if ending == ".npz":
        with numpy.load(tmp_path / "one.npz") as first, numpy.load(tmp_path / "two.npz") as second:
            numpy.savez(tmp_path / "mixed.npz", **{**first, "logits": second["logits"].astype("float64")})
        with pytest.raises(InputError, match=r"column 'logits' is 5 x float64, its manifest says 5 x float32"):
            reweigh.open(tmp_path / "mixed.npz")
        return
    if ending == ".safetensors":
        library = pytest.importorskip("safetensors.torch")
        safe_open = pytest.importorskip("safetensors").safe_open
        tensors = library.load_file(tmp_path / "one.safetensors")
        tensors["logits"] = library.load_file(tmp_path / "two.safetensors")["logits"]
        with safe_open(tmp_path / "one.safetensors", framework="pt") as file:
            library.save_file(tensors, tmp_path / "mixed.safetensors", metadata=file.metadata())
        with pytest.raises(InputError, match=r"the tensor 'logits' does not match its SHA-256"):
            reweigh.open(tmp_path / "mixed.safetensors")
        return
    raw = bytearray((tmp_path / "one.parquet").read_bytes())
    for name in (b"logits", b"target"):  # in the footer, where the columns are named
        assert raw.count(name) > 1
    raw = (
        raw.replace(b"\x06logits", b"\x06lxgits")
        .replace(b"\x06target", b"\x06logits")
        .replace(b"\x06lxgits", b"\x06target")
    )
    (tmp_path / "mixed.parquet").write_bytes(raw)
    with pytest.raises(InputError, match=r"mixed.parquet: .* damaged"):
        reweigh.open(tmp_path / "mixed.parquet")


def test_what_another_program_rewrites_stays_readable(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    table = full(rows=30, head="sigmoid")
    reweigh.save(table, tmp_path / "one.parquet")
    found = parquet.read_table(tmp_path / "one.parquet")
    parquet.write_table(found.slice(0, 12).drop_columns(["weight"]), tmp_path / "part.parquet")
    part = reweigh.open(tmp_path / "part.parquet")
    assert (len(part), part.head, part.class_names, part.weights) == (12, "sigmoid", table.class_names, None)
    renamed = found.rename_columns(["scores", *found.column_names[1:]])
    parquet.write_table(renamed, tmp_path / "renamed.parquet")
    assert numpy.array_equal(reweigh.open(tmp_path / "renamed.parquet", logits="scores").logits, table.logits)
