"""`NAME:key=value,key=value`, lists of them, and the YAML values inside."""

from __future__ import annotations

import math

import pytest

from reweigh.errors import InputError
from reweigh.grammar import Named, load_yaml, parse_list, parse_one


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("focal", [("focal", {})]),
        ("focal:gamma=3", [("focal", {"gamma": 3})]),
        ("focal:gamma=3,alpha=1,F-ECE", [("focal", {"gamma": 3, "alpha": 1}), ("F-ECE", {})]),
        ("F-ECE,focal:gamma=3,alpha=1", [("F-ECE", {}), ("focal", {"gamma": 3, "alpha": 1})]),
        ("FL-53 , focal : gamma = 3 , Poly-1", [("FL-53", {}), ("focal", {"gamma": 3}), ("Poly-1", {})]),
        ("focal,gamma=3", [("focal", {"gamma": 3})]),
        ("a:x=1,b:y=2,z=3", [("a", {"x": 1}), ("b", {"y": 2, "z": 3})]),
        ("risk:time=12:30", [("risk", {"time": "12:30"})]),
        ("a:x=b:c", [("a", {"x": "b:c"})]),
        ("focal:", [("focal", {})]),
        ('a:name="x,y",z=1', [("a", {"name": "x,y", "z": 1})]),
        ("a:name='it is: so'", [("a", {"name": "it is: so"})]),
    ],
)
def test_names_and_settings(text, wanted):
    assert parse_list(text) == [Named(name, settings) for name, settings in wanted]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("3", 3), ("-3", -3), ("+3", 3), ("007", 7), ("3.5", 3.5), (".5", 0.5), ("3.", 3.0), ("1e-3", 1e-3), ("1E5", 1e5), ("-2.5e+2", -250.0),
        (".inf", math.inf), ("-.inf", -math.inf), ("true", True), ("False", False), ("null", None), ("~", None),
        ("no", "no"), ("yes", "yes"), ("on", "on"), ("off", "off"), ("1_000", "1_000"), ("0x10", "0x10"), ("2020-01-01", "2020-01-01"),
        ("1:30", "1:30"), ("mean", "mean"), ("max_other", "max_other"), ('"3"', "3"), ("'true'", "true"), ("inf", "inf"), ("1e400", math.inf),
    ],
)  # fmt: skip
def test_values_are_those_of_todays_yaml(value, wanted):
    (found,) = parse_one(f"a:x={value}").settings.values()
    assert found == wanted
    assert type(found) is type(wanted)


def test_not_a_number_is_one_of_its_kind():
    assert math.isnan(parse_one("a:x=.nan").settings["x"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a piece between commas is empty"),
        ("a,,b", "a piece between commas is empty"),
        ("a,", "a piece between commas is empty"),
        ("gamma=3", "'gamma=3' comes before any name"),
        (":gamma=3", "has no name before the colon"),
        ("a:gamma=3,gamma=4", "'gamma' is given twice for 'a'"),
        ("a:gamma=", "'gamma' has no value"),
        ("a:gamma", "not of the form key=value"),
        ("a:=3", "not of the form key=value"),
        ("a:two words=3", "not of the form key=value"),
        ("a:x=[1]", "put lists into a file and write x=@file.yaml"),
        ("a:x={b: 1}", "put lists into a file"),
        ('a:x="open', "is not closed"),
        ("a:x=&b", "the value of 'x' is not a single value"),
        ("a:x=*b", "the value of 'x': it is not plain YAML"),
        ("a:x=!!python/object:os.system", "it is not plain YAML"),
        ("a:x=@nowhere.yaml", "reading nowhere.yaml: No such file"),
    ],
)
def test_mistakes_are_named(text, message):
    with pytest.raises(InputError, match=message):
        parse_list(text)


def test_one_name_is_one():
    with pytest.raises(InputError, match=r"it names 2 things \(a, b\), one is wanted"):
        parse_one("a,b")
    assert str(parse_one("a:x=1,y=b")) == "a:x=1,y=b"


def test_files_hold_lists_and_nested_losses(tmp_path):
    path = tmp_path / "counts.yaml"
    path.write_text("[500, 30, 1e-3, no]\n")
    assert parse_one(f"seesaw:class_counts=@{path},p=0.8").settings == {"class_counts": [500, 30, 1e-3, "no"], "p": 0.8}
    path.write_text("focal:\n  gamma: 3\n  alpha: [1, 2]\n")
    assert parse_one(f"deferred:loss=@{path}").settings["loss"] == {"focal": {"gamma": 3, "alpha": [1, 2]}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: 1\na: 2\n", "the key 'a' comes twice"),
        (b"{[1]: 2}", "key must be a single value"),
        (b"a: [1\n", r"not plain YAML.*line"),
        (b"\xff\xfe", "not UTF-8"),
        (b"!!python/object/apply:os.system ['touch ran']", "not plain YAML"),
        (b"&a [*a]", "not plain YAML"),
        (b"[" * 90_000, "nests more than 64"),
        (b"9" * 5000, "not plain YAML"),
    ],
)
def test_hostile_files(tmp_path, content, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_yaml(tmp_path / "a.yaml")
    assert not (tmp_path / "ran").exists()


def test_references_are_refused(tmp_path):
    """A few lines of them can stand for ten billion values."""
    (tmp_path / "a.yaml").write_text("a: &a [x, x]\nb: [*a, *a]\n")
    with pytest.raises(InputError, match="it refers to a part of itself"):
        load_yaml(tmp_path / "a.yaml")


def test_large_files_are_not_read(tmp_path):
    with open(tmp_path / "a.yaml", "wb") as file:
        file.truncate(17 << 20)
    with pytest.raises(InputError, match="at most 16777216 are read"):
        load_yaml(tmp_path / "a.yaml")
