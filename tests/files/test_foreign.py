"""Files and tables that others have written."""

from __future__ import annotations

import json

import numpy
import pytest
import torch

import reweigh
from reweigh.errors import InputError

RANDOM = numpy.random.default_rng(1)
ROWS, CLASSES = 50, 4
LOGITS = RANDOM.normal(size=(ROWS, CLASSES)).astype("float32")
LABELS = RANDOM.integers(0, CLASSES, ROWS)
NAMES = [f"i{number}" for number in range(ROWS)]
SITES = ["a" if number % 3 else "b" for number in range(ROWS)]
KEYWORDS = {"logits": "z*", "target": "label", "id": "image", "group": "site"}


def columns():
    return {**{f"z{k}": LOGITS[:, k] for k in range(CLASSES)}, "label": LABELS, "image": NAMES, "site": SITES}


def lines():
    rows = zip(
        *[[one.item() if hasattr(one, "item") else one for one in column] for column in columns().values()], strict=True
    )
    return [dict(zip(columns(), row, strict=True)) for row in rows]


def check(table, exact=True):
    assert (
        numpy.array_equal(numpy.asarray(table.logits), LOGITS)
        if exact
        else numpy.allclose(table.logits, LOGITS, rtol=0, atol=1e-6)
    )
    assert numpy.asarray(table.targets).tolist() == LABELS.tolist()
    assert [str(one) for one in table.ids] == NAMES
    assert list(table.groups["site"]) == SITES


def test_csv(tmp_path):
    path = tmp_path / "rows with blanks ü.csv"
    text = ",".join(columns()) + "\n" + "".join(",".join(map(str, row.values())) + "\n" for row in lines())
    path.write_text(text, encoding="utf-8-sig")
    table = reweigh.open(path, **KEYWORDS)
    check(table)
    assert table.scores.dtype == torch.float64
    check(reweigh.Predictions.concatenate(list(reweigh.files.batches(path, rows=7, **KEYWORDS))))
    path.with_suffix(".tsv").write_text(text.replace(",", "\t"))
    check(reweigh.open(path.with_suffix(".tsv"), **KEYWORDS))
    path.write_text(text.replace(",", ";"))
    with pytest.raises(InputError, match=r"no comma but ';'. Say delimiter=';'"):
        reweigh.open(path, **KEYWORDS)
    check(reweigh.open(path, delimiter=";", **KEYWORDS))


def test_csv_reads_numbers_exactly_and_ids_as_text(tmp_path):
    values = RANDOM.normal(size=(200, 2)) * 10.0 ** RANDOM.integers(-300, 300, (200, 2))
    path = tmp_path / "exact.csv"
    path.write_text("a,b,id\n" + "".join(f"{x!r},{y!r},00{n}\n" for n, (x, y) in enumerate(values.tolist())))
    table = reweigh.open(path, logits="a,b")
    assert numpy.array_equal(table.logits, values)
    assert table.ids[:2].tolist() == ["000", "001"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is empty, expected a line of column names"),
        ("a,b,a\n1,2,3\n", "two columns called 'a'"),
        ("1.0,2.0\n3,4\n", r"first line holds numbers \(1.0, 2.0, ...\), expected column names"),
        ("a,b,y\n1,2,0\n1,2\n", "damaged or not a CSV file.*2"),
        ("a,b,y\n1,x,0\n", "damaged or not a CSV file.*'x'"),
        ("a,b,y\n1,,0\n", "column 'b' is empty in row 0"),
        ("a,b,y\n1,NA,0\n", "column 'b' is empty in row 0"),
        ("a,b,y\n1,nan,0\n", r"got nan in logits \(row 0, column 1\)"),
        ("a,b,y\n1,inf,0\n", r"got inf in logits \(row 0, column 1\)"),
        ("a,b,y\n1,2,0\n1,2,\n", "column 'y' is empty in row 1"),
        ("a,b,y\n1,2,0.5\n", "target of row 0 is 0.5"),
        ("a,b,y\n", None),
    ],
)
def test_csv_says_what_is_wrong(tmp_path, text, message):
    path = tmp_path / "t.csv"
    path.write_text(text)
    if message is None:
        assert len(reweigh.open(path, logits="a,b")) == 0
        return
    with pytest.raises(InputError, match=message):
        reweigh.open(path, logits="a,b")
    with pytest.raises(InputError):
        list(reweigh.files.batches(path, logits="a,b"))


def test_csv_that_is_not_text(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,b\xff\xfe,y\n1,2,3\n")
    with pytest.raises(InputError, match=r"t.csv: it is damaged or not a CSV file"):
        reweigh.open(path, logits="a,b")


def test_csv_without_a_last_line_end_warns(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b,y\n1,2,1\n1,2,0")
    with pytest.warns(UserWarning, match=r"last line has no line end; if the file was cut"):
        assert len(reweigh.open(path, logits="a,b")) == 2


def test_json_lines(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in lines()))
    check(reweigh.open(path, **KEYWORDS))
    check(reweigh.Predictions.concatenate(list(reweigh.files.batches(path, rows=7, **KEYWORDS))))
    rows = [
        {"logits": LOGITS[n].tolist(), "label": int(LABELS[n]), "id": NAMES[n], "group.site": SITES[n]}
        for n in range(ROWS)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    check(reweigh.open(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "first line is empty"),
        ("[1, 2]\n", "first line is list, expected an object"),
        ('{"logits": [1, 2]}\n{"logits": [1, 2, 3]}\n', "has 3 values in row 1 and 2 in row 0"),
        ('{"logits": [1, 2]}\n{"logit": [1, 2]}\n', "column 'logits' is empty in row 1"),
        ('{"logits": [1, 2], "label": 1}\n{"logits": [1, 2]}\n', "column 'label' is empty in row 1"),
        ('{"logits": [1, null]}\n', "column 'logits' is empty in row 0, position 1"),
        ('{"logits": [1, 2], "logits": [3, 4]}\n', "damaged or not a file of JSON lines.*twice"),
        ('{"logits": [1, 2]}\n{"logits": [1, 2]\n', "damaged or not a file of JSON lines"),
        ('{"logits": [1, NaN]}\n', r"got nan in logits \(row 0, column 1\)"),
        ('{"logits": [[1], [2]]}\n', "damaged or not|lists of lists"),
        ('{"logits": ' + "[" * 100_000 + "]" * 100_000 + "}\n", "nests 100001 brackets"),
        ('{"logits": [1, 2]}\n{"x": ' + "[" * 100_000 + "]" * 100_000 + "}\n", "nests 100001 brackets"),
    ],
)
def test_json_lines_say_what_is_wrong(tmp_path, text, message):
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        reweigh.open(path)


def test_first_rows_that_look_whole_do_not_fix_the_type(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"logits": [1, 2], "id": "2020-01-01"}\n{"logits": [0.5, 2], "id": "b"}\n')
    table = reweigh.open(path)
    assert table.logits.tolist() == [[1.0, 2.0], [0.5, 2.0]]
    assert table.ids.tolist() == ["2020-01-01", "b"]


@pytest.mark.parametrize("save", [numpy.savez, numpy.savez_compressed])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4", "<f8"])
def test_npz(tmp_path, save, dtype):
    save(
        tmp_path / "t.npz",
        logits=numpy.asfortranarray(LOGITS.astype(dtype)),
        labels=LABELS.astype("uint8")[:, None],
        ids=numpy.array(NAMES),
        note="x",
    )
    table = reweigh.open(tmp_path / "t.npz")
    assert numpy.array_equal(table.logits, LOGITS.astype(dtype))
    assert (table.targets.tolist(), table.ids.tolist()) == (LABELS.tolist(), NAMES)
    parts = list(reweigh.files.batches(tmp_path / "t.npz", rows=9))
    assert numpy.array_equal(numpy.concatenate([part.logits for part in parts]), LOGITS.astype(dtype))


def test_npy_pairs(tmp_path):
    numpy.save(tmp_path / "val_logits.npy", LOGITS)
    numpy.save(tmp_path / "val_labels.npy", LABELS)
    numpy.save(tmp_path / "other.npy", LABELS[::-1].copy())
    for found in (
        reweigh.open(tmp_path / "val_logits.npy"),
        next(reweigh.files.batches(tmp_path / "val_logits.npy", rows=999)),
    ):
        assert numpy.array_equal(found.logits, LOGITS)
        assert found.targets.tolist() == LABELS.tolist()
    assert reweigh.open(tmp_path / "val_logits.npy", target="other.npy").targets.tolist() == LABELS[::-1].tolist()
    assert reweigh.open(tmp_path / "val_logits.npy", target=LABELS[::-1]).targets.tolist() == LABELS[::-1].tolist()
    with pytest.raises(InputError, match=r"none is called logits.*logits='other'"):
        reweigh.open(tmp_path / "other.npy")
    folder = tmp_path / "pair"
    folder.mkdir()
    numpy.save(folder / "probabilities.npy", numpy.full((5, 2), 0.5))
    numpy.save(folder / "y.npy", numpy.array([0, 1, 0, 1, 1]))
    assert reweigh.open(folder).targets.tolist() == [0, 1, 0, 1, 1]


def test_parquet_of_others(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table(columns()), tmp_path / "wide.parquet", row_group_size=9)
    check(reweigh.open(tmp_path / "wide.parquet", **KEYWORDS))
    check(reweigh.Predictions.concatenate(list(reweigh.files.batches(tmp_path / "wide.parquet", rows=7, **KEYWORDS))))
    narrow = {
        "logits": list(LOGITS),
        "label": LABELS,
        "id": NAMES,
        "group.site": pyarrow.array(SITES).dictionary_encode(),
    }
    parquet.write_table(pyarrow.table(narrow), tmp_path / "lists.parquet", compression="zstd", row_group_size=9)
    check(reweigh.open(tmp_path / "lists.parquet"))
    check(reweigh.Predictions.concatenate(list(reweigh.files.batches(tmp_path / "lists.parquet", rows=7))))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([[1.0, 2.0], [1.0]], "'logits' has 1 values in row 1 and 2 in row 0"),
        ([[1.0, 2.0], None], "'logits' is empty in row 1"),
        ([[1.0, None], [1.0, 2.0]], "'logits' is empty in row 0, position 1"),
        ([[[1.0], [2.0]], [[1.0], [2.0]]], "holds lists of lists"),
        ([{"a": 1}, {"a": 2}], "of type struct"),
        (["a", "b"], "holds text such as 'a', expected numbers"),
        ([[1, 2], [3, 4]], "got logits of type torch.int64, expected a floating-point type"),
    ],
)
def test_arrow_columns_that_do_not_fit(tmp_path, column, message):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"logits": column, "label": [0, 1]})
    parquet.write_table(table, tmp_path / "t.parquet")
    for source in (table, tmp_path / "t.parquet"):
        with pytest.raises(InputError, match=message):
            reweigh.open(source)


def data_set():
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict({name: list(values) for name, values in columns().items()})


OPEN_TABLES = {
    "pandas": lambda: pytest.importorskip("pandas").DataFrame(columns()),
    "polars": lambda: pytest.importorskip("polars").DataFrame(columns()),
    "pyarrow": lambda: pytest.importorskip("pyarrow").table(columns()),
    "datasets": data_set,
    "dictionary": columns,
    "tensors": lambda: {name: torch.as_tensor(v) if hasattr(v, "dtype") else v for name, v in columns().items()},
    "lists": lambda: {name: v.tolist() if hasattr(v, "tolist") else v for name, v in columns().items()},
    "rows": lines,
    "records": lambda: numpy.rec.fromarrays(list(map(numpy.asarray, columns().values())), names=list(columns())),
}


@pytest.mark.parametrize("kind", OPEN_TABLES)
def test_open_tables(kind):
    table = reweigh.open(OPEN_TABLES[kind](), **KEYWORDS)
    check(table, exact=kind != "datasets")
    parts = list(reweigh.files.batches(OPEN_TABLES[kind](), rows=8, **KEYWORDS))
    check(reweigh.Predictions.concatenate(parts), exact=kind != "datasets")


def test_a_data_set_keeps_its_selection():
    chosen = data_set().select([5, 3, 9])
    assert reweigh.open(chosen, **KEYWORDS).ids.tolist() == ["i5", "i3", "i9"]


def test_a_data_frame_with_lists_in_cells():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"logits": list(LOGITS), "label": LABELS, "id": NAMES, "group.site": SITES}, index=NAMES)
    check(reweigh.open(frame))


def test_a_matrix_is_columns_named_by_number():
    table = reweigh.open(LOGITS, logits="*", target=LABELS)
    assert numpy.array_equal(table.logits, LOGITS)
    both = numpy.concatenate([LOGITS, LABELS[:, None]], 1)
    table = reweigh.open(both, logits="0,1,2,3", target=str(CLASSES))
    assert (numpy.array_equal(table.logits, LOGITS), table.targets.tolist()) == (True, LABELS.tolist())
    assert torch.equal(reweigh.open(torch.as_tensor(LOGITS), logits="*").logits, torch.as_tensor(LOGITS))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "got int, expected a path, a list of paths, a data frame"),
        (None, "got NoneType, expected a path"),
        ([], "got list, expected a path"),
        (numpy.zeros(3), r"has the shape \(3,\).*reweigh.open\(\{'logits': logits, 'target': target\}\)"),
        (numpy.zeros((2, 3, 4)), r"has the shape \(2, 3, 4\)"),
        ({"logits": numpy.zeros((2, 3, 4))}, r"shape \(2, 3, 4\), expected \(rows,\) or \(rows, classes\). Flatten"),
        ({"logits": [[1.0, 2.0], [3.0]]}, "'logits' has rows of unequal length"),
        ({"logits": [object()]}, "'logits' holds objects such as <object"),
        ([{"logits": [1.0, 2.0]}, {"logit": [1.0, 2.0]}], "row 1 differs from row 0 in the key"),
        ({}, "it holds no columns"),
    ],
)
def test_what_is_no_table(given, message):
    with pytest.raises(InputError, match=message):
        reweigh.open(given)


def test_shards(tmp_path):
    for number in (0, 1, 2, 10):
        rows = slice(10 * min(number, 3), 10 * min(number, 3) + 10)
        reweigh.save(
            reweigh.Predictions(logits=LOGITS[rows], targets=LABELS[rows], ids=NAMES[rows]),
            tmp_path / f"s{number}.parquet",
        )
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "notes.txt").write_text("x")
    for source in (
        tmp_path,
        str(tmp_path / "s*.parquet"),
        [tmp_path / f"s{number}.parquet" for number in (0, 1, 2, 10)],
    ):
        assert reweigh.open(source).ids.tolist() == NAMES[:40]
        assert [one for part in reweigh.files.batches(source, rows=7) for one in part.ids] == NAMES[:40]


def test_shards_that_do_not_belong_together(tmp_path):
    reweigh.save(reweigh.Predictions(logits=LOGITS, targets=LABELS), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"holds no file of a known format"):
        (tmp_path / "empty").mkdir()
        reweigh.open(tmp_path / "empty")
    others = {
        "classes": reweigh.Predictions(logits=LOGITS[:, :3]),
        "head": reweigh.Predictions(logits=LOGITS, targets=LABELS, head="sigmoid"),
        "class names": reweigh.Predictions(logits=LOGITS, targets=LABELS, class_names=list("abcd")),
        "ids": reweigh.Predictions(logits=LOGITS, targets=LABELS, ids=NAMES),
    }
    for what, other in others.items():
        reweigh.save(other, tmp_path / "b.parquet")
        with pytest.raises(InputError, match=f"b.parquet.*{what}|target form"):
            reweigh.open(tmp_path)
        with pytest.raises(InputError, match=r"b.parquet.*Shards must agree"):
            list(reweigh.files.batches(tmp_path))
    (tmp_path / "b.parquet").unlink()
    reweigh.save(reweigh.Predictions(logits=LOGITS, targets=LABELS), tmp_path / "c.npz")
    with pytest.raises(InputError, match=r"mixes shards of .npz and .parquet"):
        reweigh.open(tmp_path)


def test_an_id_in_two_shards_is_an_error(tmp_path):
    for name, rows in (("a", slice(0, 20)), ("b", slice(19, 40))):
        reweigh.save(
            reweigh.Predictions(logits=LOGITS[rows], targets=LABELS[rows], ids=NAMES[rows]),
            tmp_path / f"{name}.parquet",
        )
    with pytest.raises(InputError, match=r"the id 'i19'"):
        reweigh.open(tmp_path)
    with pytest.raises(InputError, match=r"b.parquet: the id 'i19' is in row 0, and in row 19 of .*a.parquet"):
        list(reweigh.files.batches(tmp_path, rows=5))


def test_missing_files_name_the_nearest(tmp_path):
    (tmp_path / "predictions.parquet").touch()
    with pytest.raises(InputError, match=r"there is no such file. Did you mean .*predictions.parquet"):
        reweigh.open(tmp_path / "prediction.parquet")
    with pytest.raises(InputError, match=r"there is no such file"):
        reweigh.open(tmp_path / "nothing" / "a.npz")
    with pytest.raises(InputError, match=r"ending '.dat' belongs to no format.*format='csv'"):
        (tmp_path / "t.dat").write_text("a,b\n1,2\n")
        reweigh.open(tmp_path / "t.dat", logits="a,b")
    assert len(reweigh.open(tmp_path / "t.dat", logits="a,b", format="csv")) == 1
    with pytest.raises(InputError, match=r"there is no format called 'cvs'. Did you mean 'csv'"):
        reweigh.open(tmp_path / "t.dat", logits="a,b", format="cvs")


def test_long_and_odd_paths(tmp_path):
    with pytest.raises(InputError):
        reweigh.open(tmp_path / ("x" * 5000))
    with pytest.raises(InputError):
        reweigh.open("a\0b.npz")
    path = tmp_path / "mit Leerzeichen & ünïcode 数据 'quoted'.npz"
    numpy.savez(path, logits=LOGITS)
    assert len(reweigh.open(path)) == ROWS


@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
def test_predictions_stay_what_they_are(head):
    """An open table of ours keeps its head, names and note, whole and in batches."""
    table = reweigh.Predictions(logits=LOGITS, targets=LABELS, head=head, class_names=list("abcd"), about={"a": 1})
    for found in (reweigh.open(table), reweigh.Predictions.concatenate(list(reweigh.files.batches(table, rows=9)))):
        assert (found.head, found.class_names, found.about) == (head, tuple("abcd"), {"a": 1})
        assert numpy.array_equal(found.logits, LOGITS)


def test_columns_may_be_given_as_arrays(tmp_path):
    numpy.savez(tmp_path / "a.npz", logits=LOGITS, label=LABELS)
    pandas = pytest.importorskip("pandas")
    turned = LABELS[::-1].copy()
    for given in (turned, torch.as_tensor(turned), turned.tolist(), pandas.Series(turned)):
        assert numpy.asarray(reweigh.open(tmp_path / "a.npz", target=given).targets).tolist() == turned.tolist()
    table = reweigh.open(
        tmp_path / "a.npz",
        group={"site": numpy.array(SITES), "label": "label"},
        ids=numpy.arange(ROWS),
    )
    assert (list(table.groups["site"]), table.groups["label"].tolist(), table.ids.tolist()) == (
        SITES,
        LABELS.tolist(),
        list(range(ROWS)),
    )
    parts = list(reweigh.files.batches(tmp_path / "a.npz", rows=9, target=turned, group=numpy.array(SITES)))
    assert numpy.concatenate([part.targets for part in parts]).tolist() == turned.tolist()
    assert numpy.concatenate([part.groups["group"] for part in parts]).tolist() == SITES
    with pytest.raises(InputError, match="'target=' has 3 rows and 'logits' has 50"):
        reweigh.open(tmp_path / "a.npz", target=[0, 1, 2])
    with pytest.raises(InputError, match="it has 50 rows, and target was given with 60"):
        list(reweigh.files.batches(tmp_path / "a.npz", rows=9, target=list(range(4)) * 15))
    reweigh.save(reweigh.Predictions(logits=LOGITS), tmp_path / "b.npz")
    with pytest.raises(InputError, match="not with shards"):
        reweigh.open([tmp_path / "a.npz", tmp_path / "b.npz"], target=turned)
