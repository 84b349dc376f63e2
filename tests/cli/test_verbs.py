"""Every verb: its text, its JSON, its exit status, its mistakes."""

from __future__ import annotations

import json
import os
import re
import sys

import numpy
import pytest

import reweigh
from reweigh import registry
from reweigh.cli._app import VERBS

from .conftest import write


def lines_fit(text: str, limit: int = 80) -> None:
    long = [line for line in text.splitlines() if len(line) > limit]
    assert not long, long


# ---- the three commands of somebody who has an NPZ and no manual


def test_error_temperature_and_repaired_file_in_three_commands(run, val, test_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = run("evaluate", "val.npz")
    assert shown.status == 0
    assert re.search(r"expected_calibration_error +0\.\d+ +\[0\.\d+, 0\.\d+\]", shown.out)
    lines_fit(shown.out)
    fitted = run("calibrate", "temperature", "val.npz", "-o", "temperature.json")
    assert fitted.status == 0
    found = float(re.search(r"temperature +(\d\.\d+)", fitted.out)[1])
    assert 2.2 < found < 2.8
    assert "reweigh apply temperature.json FILE -o repaired.parquet" in fitted.out
    applied = run("apply", "temperature.json", "test.npz", "-o", "repaired.parquet")
    assert (applied.status, applied.err) == (0, "")
    assert "0 decisions changed" in applied.out
    before, after = (
        run("evaluate", name, "--json").json["metrics"]["expected_calibration_error"]
        for name in ("test.npz", "repaired.parquet")
    )
    assert after["high"] < before["low"]


# ---- list, show, doctor


def test_list(run):
    found = run("list")
    assert found.status == 0
    assert re.search(r"metric +\d+ +accuracy, ", found.out)
    lines_fit(found.out)
    record = run("list", "--json").json
    assert {one["name"] for one in record["metric"]} == set(registry.names("metric"))
    assert "ECE" in next(one for one in record["metric"] if one["name"] == "expected_calibration_error")["aliases"]


@pytest.mark.parametrize("kind", sorted(kind for kind in registry.FOLDERS if registry.entries(kind)))
def test_list_of_a_kind(run, kind):
    for word in (kind, kind.upper(), {"loss": "losses"}.get(kind, f"{kind}s")):
        found = run("list", word)
        assert found.status == 0
        assert all(registry.entries(kind)[0].name in text for text in (found.out,))
        lines_fit(found.out)
    assert set(run("list", kind, "--json").json) == {kind}


def test_list_of_nothing(run):
    found = run("list", "metrc")
    assert (found.status, found.out) == (1, "")
    assert found.err == "reweigh: there is no kind called 'metrc'. Did you mean 'metric'?\n"


ENTRIES = [(entry.kind, entry.name) for kind in registry.FOLDERS for entry in registry.entries(kind)]


@pytest.mark.parametrize(("kind", "name"), ENTRIES, ids=str)
def test_show_everything(run, kind, name):
    found = run("show", kind, name)
    assert (found.status, found.err) == (0, "")
    assert found.out.startswith(f"{kind} {name}")
    record = run("show", kind, name, "--json").json
    assert (record["kind"], record["name"]) == (kind, name)
    assert record["documentation"]


def test_show_settings_with_their_defaults(run):
    record = run("show", "metric", "ECE", "--json").json
    settings = {one["name"]: one["default"] for one in record["settings"]}
    assert record["name"] == "expected_calibration_error"
    assert (settings["bins"], settings["binning"], settings["closed"]) == ("15", "'width'", "'right'")
    assert "predictions" not in settings
    assert re.search(r"bins +15 +int", run("show", "metric", "ece").out)
    assert re.search(r"objective +'nll' +str", run("show", "temperature").out)


def test_show_a_loss(run):
    if not registry.entries("loss"):
        pytest.skip("there are no losses yet")
    record = run("show", "loss", "FL", "--json").json
    assert record["name"] == "focal"
    assert {"formula", "source"} <= set(record)
    settings = {one["name"]: one["default"] for one in record["settings"]}
    assert settings["gamma"] == "2.0"
    assert settings["reduction"] == "(common)"


def test_a_name_of_two_things(run):
    """ECE is a loss in one field and a metric in another."""
    if not any("ECE" in entry.aliases for entry in registry.entries("loss")):
        pytest.skip("the loss of that name is not there")
    found = run("show", "ECE")
    assert found.status == 1
    assert "loss exponential_cross_entropy, metric expected_calibration_error. Say which" in found.err


def test_show_mistakes(run):
    assert "Did you mean 'accuracy'" in run("show", "acuracy").err
    assert "Did you mean" in run("show", "metric", "acuracy").err
    assert run("show", "a", "b", "c").status == 2
    assert run("show").status == 2


def test_doctor(run):
    found = run("doctor")
    assert found.status == 0
    for word in ("reweigh", "python", "torch", "numpy", "device", "GPU losses", "EXTRA"):
        assert word in found.out
    lines_fit(found.out)
    record = run("doctor", "--json").json
    assert record["reweigh"] == reweigh.__version__
    extras = {one["extra"]: one for one in record["extras"]}
    assert "pyarrow" in extras["files"]["packages"]
    assert all(one["install"] == f"pip install 'reweigh[{name}]'" for name, one in extras.items() if one["missing"])


def test_doctor_never_crashes(run, monkeypatch):
    from reweigh.cli import _installation

    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "reweigh.kernels", None)
    monkeypatch.setattr(_installation.importlib.metadata, "requires", lambda name: 1 / 0)
    monkeypatch.setattr(_installation.importlib.metadata, "version", lambda name: 1 / 0)
    found = run("doctor", "--json")
    assert found.status == 0
    assert "torch cannot be used" in found.json["devices"][0]


# ---- inspect, convert


def test_inspect(run, val, tmp_path):
    found = run("inspect", val)
    assert found.status == 0
    assert "No check found anything." in found.out
    lines_fit(found.out)
    reweigh.save(reweigh.open(val), tmp_path / "own.parquet")
    record = run("inspect", tmp_path / "own.parquet", "--json").json
    assert record["written_by_reweigh"] is True
    assert record["columns"] == {"logits": "5 x float32", "target": "int64"}
    assert record["rows"] == 1500
    assert record["rows_a_class"]["absent_classes"] == 0


def test_inspect_of_unknown_columns_says_how_to_name_them(run, tmp_path):
    numpy.savez(tmp_path / "odd.npz", resnet=numpy.zeros((5, 3)), truth=numpy.arange(5))
    found = run("inspect", tmp_path / "odd.npz")
    assert found.status == 0
    assert "--logits resnet" in found.out
    assert "5 x 3 float64" in found.out
    lines_fit(found.out)


def test_inspect_finds_what_is_wrong(run, tmp_path):
    numpy.savez(tmp_path / "p.npz", logits=numpy.full((50, 4), 0.25), labels=numpy.arange(50) % 4)
    record = run("inspect", tmp_path / "p.npz", "--json").json
    assert {one["code"] for one in record["findings"]} >= {"RW106", "RW108"}
    assert "RW106" not in run("inspect", tmp_path / "p.npz", "--ignore", "RW106").out
    (tmp_path / "bad.npz").write_bytes((tmp_path / "p.npz").read_bytes()[:700])
    bad = run("inspect", tmp_path / "bad.npz")
    assert (bad.status, bad.out) == (1, "")
    assert bad.err.count("\n") == 1


def test_convert(run, tmp_path):
    random = numpy.random.default_rng(0)
    rows = "".join(f"{a},{b},{n % 2},i{n},s{n % 3}\n" for n, (a, b) in enumerate(random.normal(size=(40, 2)).tolist()))
    (tmp_path / "t.csv").write_text("z0,z1,truth,image,site\n" + rows)
    for ending in ("parquet", "safetensors", "npz"):
        out = tmp_path / f"t.{ending}"
        found = run(
            "convert",
            tmp_path / "t.csv",
            "--logits",
            "z*",
            "--target",
            "truth",
            "--id",
            "image",
            "--group",
            "site",
            "-o",
            out,
        )
        assert (found.status, found.err) == (0, "")
        assert found.out.startswith(f"{out}: 40 rows x 2 classes")
        table = reweigh.open(out)
        assert (len(table), list(table.groups), table.ids[3]) == (40, ["site"], "i3")
    assert run("convert", out, "-o", tmp_path / "x.parquet", "--json").json["rows"] == 40
    wrong = run("convert", out, "-o", tmp_path / "x.csv")
    assert wrong.status == 1
    assert "expected one of .npz" in wrong.err


# ---- evaluate, compare


def test_evaluate_options(run, val, tmp_path):
    table = reweigh.open(val)
    sites = numpy.array(["a", "b"])[numpy.arange(len(table)) % 2]
    reweigh.save(
        reweigh.Predictions(logits=table.logits, targets=table.targets, groups={"site": sites}), tmp_path / "g.parquet"
    )
    found = run(
        "evaluate",
        tmp_path / "g.parquet",
        "-m",
        "accuracy,ECE:bins=10",
        "-m",
        "NLL",
        "--by",
        "site",
        "--by",
        "class",
        "--resamples",
        "20",
    )
    assert found.status == 0
    assert "By site:" in found.out
    assert "By class:" in found.out
    lines_fit(found.out)
    record = run(
        "evaluate", tmp_path / "g.parquet", "-m", "accuracy,ECE:bins=10", "--by", "site", "--resamples", "0", "--json"
    ).json
    assert list(record["metrics"]) == ["accuracy", "expected_calibration_error:bins=10"]
    assert record["metrics"]["accuracy"]["low"] is None
    assert set(record["by"]["site"]) == {"a", "b"}


def test_evaluate_a_run_folder(run, val, tmp_path):
    (tmp_path / "run" / "predictions").mkdir(parents=True)
    for split in ("val", "test"):
        reweigh.save(reweigh.open(val), tmp_path / "run" / "predictions" / f"{split}.parquet")
    assert "expected one of test, val (--split)" in run("evaluate", tmp_path / "run").err
    assert run("evaluate", tmp_path / "run", "--split", "val", "-m", "accuracy").status == 0


def test_evaluate_several_files_and_save(run, val, test_file, tmp_path):
    found = run("evaluate", val, test_file, "-m", "accuracy", "-o", tmp_path / "out.json")
    assert found.status == 0
    assert found.out.count("rows x 5 classes") == 2
    saved = json.loads((tmp_path / "out.json").read_text())
    assert [one["file"] for one in saved] == [str(val), str(test_file)]
    assert run("evaluate", val, test_file, "-m", "accuracy", "--json").json == saved


@pytest.mark.parametrize(
    ("claims", "status"),
    [
        (["accuracy>=0.1"], 0),
        (["accuracy>=0.999"], 3),
        (["accuracy>={value}"], 4),
        (["accuracy>=0.1", "accuracy>={value}", "ECE<=0"], 3),
    ],
)
def test_claims_decide_the_exit_status(run, val, claims, status):
    value = run("evaluate", val, "-m", "accuracy", "--json").json["metrics"]["accuracy"]["value"]
    words = [word for claim in claims for word in ("--require", claim.format(value=value))]
    found = run("evaluate", val, "-m", "accuracy", *words)
    assert found.status == status
    assert {0: "kept:", 3: "broken:", 4: "undecided:"}[status] in found.out
    assert run("evaluate", val, "-m", "accuracy", "--json", *words).status == status


def test_reference_from_a_file_and_from_json(run, val, test_file, tmp_path):
    run("evaluate", val, "-m", "accuracy,NLL", "-o", tmp_path / "old.json")
    for reference in (val, tmp_path / "old.json"):
        found = run("evaluate", val, "-m", "accuracy,NLL", "--reference", reference)
        assert found.status == 0
        assert found.out.count("kept:") == 2


def test_evaluate_outside_and_streamed(run, val, test_file):
    found = run("evaluate", val, "--outside", test_file, "-m", "accuracy", "--resamples", "10")
    assert "msp.auroc" in found.out
    streamed = run("evaluate", val, "-m", "accuracy", "--engine", "stream")
    assert "Streamed" in streamed.out


def test_compare(run, val, tmp_path):
    run("calibrate", "temperature", val, "-o", tmp_path / "t.json")
    run("apply", tmp_path / "t.json", val, "-o", tmp_path / "r.parquet")
    found = run("compare", val, tmp_path / "r.parquet", "-m", "ECE,accuracy", "--resamples", "30")
    assert found.status == 0
    assert "better" in found.out
    assert "equal" in found.out
    assert "RW101" in found.out
    record = run("compare", val, tmp_path / "r.parquet", "-m", "ECE", "--json", "-o", tmp_path / "c.json").json
    assert record["differences"]["expected_calibration_error"][0]["verdict"] == "better"
    assert json.loads((tmp_path / "c.json").read_text()) == record
    assert run("compare", val).status == 1


# ---- calibrate, apply, export


def test_calibrate_with_settings(run, val, tmp_path):
    found = run("calibrate", "temperature:objective=ece,bins=10", val, "-o", tmp_path / "t.json", "--json")
    assert found.json["calibrator"] == "temperature:objective=ece,bins=10"
    assert 1.5 < found.json["fitted"]["temperature"] < 4
    shown = run("inspect", tmp_path / "t.json", "--json").json
    assert (shown["settings"]["objective"], shown["fitted_on"]["rows"]) == ("ece", 1500)
    lines_fit(run("inspect", tmp_path / "t.json").out)


@pytest.mark.parametrize("name", registry.names("calibrator"))
def test_every_calibrator_from_the_command_line(run, tmp_path, monkeypatch, name):
    """Fitted, looked at and used, or refused in one sentence."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.npz", seed=0, rows=300, classes=3)
    seeded = {
        "meta_accuracy": "meta_accuracy:target=0.8,random_state=0",
        "meta_misclassification": "meta_misclassification:random_state=0",
    }
    given = seeded.get(name, name)
    fitted = run("calibrate", given, "a.npz", "-o", "c.json")
    if fitted.status:
        assert (fitted.status, fitted.err.count("\n")) == (1, 1)
        assert "expected head='sigmoid'" in fitted.err
        return
    lines_fit(fitted.out)
    assert run("inspect", "c.json").status == 0
    applied = run("apply", "c.json", "a.npz", "-o", "r.parquet")
    if applied.status:
        assert (applied.status, applied.err.count("\n")) == (1, 1)
    else:
        assert len(reweigh.open(tmp_path / "r.parquet")) <= 300


def test_calibrate_mistakes(run, val, tmp_path):
    out = tmp_path / "t.json"
    assert "Did you mean 'temperature'" in run("calibrate", "temprature", val, "-o", out).err
    assert (
        "no setting 'objectiv'. Did you mean 'objective'"
        in run("calibrate", "temperature:objectiv=ece", val, "-o", out).err
    )
    assert "it is a folder" in run("calibrate", "temperature", val, "-o", tmp_path).err
    assert "there is no folder" in run("calibrate", "temperature", val, "-o", tmp_path / "no" / "t.json").err
    assert "not a regular file" in run("calibrate", "temperature", val, "-o", "/dev/null").err
    assert (
        "needs the setting 'target'. Write meta_accuracy:target=VALUE"
        in run("calibrate", "meta_accuracy", val, "-o", out).err
    )
    assert run("calibrate", "temperature", val).status == 2
    assert not out.exists()


def test_apply_notices_the_fitting_rows(run, val, tmp_path):
    run("calibrate", "temperature", val, "-o", tmp_path / "t.json")
    found = run("apply", tmp_path / "t.json", val, "-o", tmp_path / "r.parquet", "--json")
    assert [one["code"] for one in found.json["findings"]] == ["RW101"]
    assert "RW101" in run("evaluate", tmp_path / "r.parquet", "-m", "accuracy").out


def test_apply_to_other_classes_is_refused(run, val, tmp_path):
    run("calibrate", "temperature", val, "-o", tmp_path / "t.json")
    other = write(tmp_path / "other.npz", seed=2, classes=3)
    found = run("apply", tmp_path / "t.json", other, "-o", tmp_path / "r.parquet")
    assert (found.status, found.err.count("\n")) == (1, 1)
    assert not (tmp_path / "r.parquet").exists()


def test_a_damaged_calibrator(run, val, tmp_path):
    run("calibrate", "temperature", val, "-o", tmp_path / "t.json")
    text = (tmp_path / "t.json").read_text()
    (tmp_path / "t.json").write_text(text.replace("softmax", "sigmoid", 1))
    for words in (("apply", tmp_path / "t.json", val, "-o", tmp_path / "r.npz"), ("inspect", tmp_path / "t.json")):
        found = run(*words)
        assert (found.status, found.err.count("\n")) == (1, 1)
        assert "SHA-256" in found.err


def test_export(run, val, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    run("calibrate", "temperature", val, "-o", tmp_path / "t.json")
    found = run("export", tmp_path / "t.json", "-o", tmp_path / "t.onnx")
    assert found.status == 0, found.err
    assert runtime.InferenceSession(str(tmp_path / "t.onnx")).get_inputs()
    assert "ends in .onnx" in run("export", tmp_path / "t.json", "-o", tmp_path / "t.bin").err


# ---- what holds for all


@pytest.mark.parametrize("verb", VERBS)
def test_help_fits_and_has_examples(run, verb):
    found = run(verb, "--help")
    assert (found.status, found.err) == (0, "")
    assert f"Usage: reweigh {verb}" in found.out
    assert f"Examples:\n    reweigh {verb}" in found.out
    assert "\x1b" not in found.out
    lines_fit(found.out)


def test_the_top(run):
    found = run("--help")
    assert found.status == 0
    assert all(f"\n  {verb} " in found.out for verb in VERBS)
    lines_fit(found.out)
    assert run().status == 2
    assert run("--version").out == f"reweigh {reweigh.__version__}\n"


def test_wrong_usage(run):
    wrong = run("evalute", "x")
    assert (wrong.status, wrong.out) == (2, "")
    assert "no such command 'evalute'. Did you mean 'evaluate'? See: reweigh --help" in wrong.err
    wrong = run("evaluate", "x", "--metrc", "a")
    assert wrong.status == 2
    assert "there is no option --metrc. Did you mean --metric? See: reweigh evaluate --help" in wrong.err
    assert "missing argument" in run("evaluate").err
    assert run("evaluate", "x", "--interval", "high").status == 2
    assert "missing option" in run("convert", "x").err


def test_errors_are_json_where_results_are(run, tmp_path):
    found = run("evaluate", tmp_path / "no.npz", "--json")
    assert found.err == ""
    assert found.json["error"]["kind"] == "input"
    assert "there is no such file" in found.json["error"]["message"]
    assert (found.status, found.json["error"]["status"]) == (1, 1)
    usage = run("evaluate", "--nonsense", "--json")
    assert (usage.status, usage.json["error"]["kind"]) == (2, "usage")


def test_debug_shows_where(run, tmp_path):
    assert "Traceback" not in run("evaluate", tmp_path / "no.npz").err
    assert "Traceback" in run("evaluate", tmp_path / "no.npz", "--debug").err


def test_warnings_are_one_line(run, tmp_path):
    (tmp_path / "t.csv").write_text("z0,z1,y\n" + "0.1,0.2,1\n" * 400 + "0.3,0.1,0")
    found = run("evaluate", tmp_path / "t.csv", "--logits", "z*", "-m", "accuracy")
    assert found.status == 0
    assert found.err.splitlines()[0].startswith("reweigh: warning: ")
    assert "site-packages" not in found.err


FAILURES = [
    (KeyError("x"), 1, "unexpected KeyError: 'x' (--debug shows where)"),
    (MemoryError(), 1, "not enough memory (allocation failed)"),
    (KeyboardInterrupt(), 130, "interrupted"),
    (OSError(28, "No space left on device", "a.npz"), 1, "a.npz: No space left on device"),
    (ValueError("two\nlines"), 1, "two lines"),
]


@pytest.mark.parametrize(("raised", "status", "text"), FAILURES)
def test_unexpected_errors_are_a_sentence(run, val, monkeypatch, raised, status, text):
    import reweigh.evaluation

    def fails(*given, **keywords):
        raise raised

    monkeypatch.setattr(reweigh.evaluation, "evaluate", fails, raising=False)
    assert run("evaluate", val) == (status, "", f"reweigh: {text}\n")


def test_ones_own_metrics(run, val, tmp_path, monkeypatch):
    (tmp_path / "my_metrics.py").write_text(
        "from reweigh import register_metric\n\n"
        "@register_metric('share_of_zero', direction='lower', range=(0, 1))\n"
        "def share_of_zero(predictions):\n"
        '    """How often class 0 is decided for."""\n'
        "    return float((predictions.predicted == 0).double().mean())\n"
    )
    monkeypatch.chdir(tmp_path)
    try:
        found = run("evaluate", val, "--import", "my_metrics", "-m", "share_of_zero", "--resamples", "20", "--json")
        assert 0 < found.json["metrics"]["share_of_zero"]["value"] < 1
        assert "How often class 0" in run("show", "--import", "my_metrics", "share_of_zero").out
        (tmp_path / "broken_metrics.py").write_text("1 / 0\n")
        (tmp_path / "needs_more.py").write_text("import a_package_that_nobody_has\n")
        assert "there is no such module" in run("list", "--import", "nowhere_metrics").err
        assert "failed with ZeroDivisionError" in run("list", "--import", "broken_metrics").err
        assert "needs the module 'a_package_that_nobody_has'" in run("list", "--import", "needs_more").err
    finally:
        registry._of_users.get("metric", {}).pop("share_of_zero", None)
        sys.path[:] = [path for path in sys.path if path != os.getcwd()]


def test_completion_knows_names(run):
    from reweigh.cli._completion import kinds, names_of

    assert ("accuracy", registry.find("metric", "accuracy").summary) in names_of("metric")("acc")
    assert [word for word, _ in names_of("metric")("ECE,acc")] == ["ECE,accuracy"]
    assert len(names_of()("")) > 20
    assert kinds("me") == ["metric"]


def test_nothing_but_plain_values_becomes_json():
    from reweigh.cli._output import plain

    given = {
        "a": float("nan"),
        "b": [float("inf"), -float("inf")],
        "c": numpy.float32(0.5),
        "d": numpy.arange(2),
        3: (True, None),
        "e": {1},
    }
    assert plain(given) == {
        "a": None,
        "b": ["infinity", "-infinity"],
        "c": 0.5,
        "d": [0, 1],
        "3": [True, None],
        "e": [1],
    }
