"""The package as installed: what importing it costs, what it runs with, what its locks and extras hold."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import reweigh

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
# Everything an extra brings, by the names it is imported under: the bare machine has none of it.
OPTIONAL = (
    "click", "h5py", "hdf5plugin", "hypothesis", "jinja2", "joblib", "kedro", "lightning", "lmdb", "matplotlib",
    "mlflow", "onnx", "onnxruntime", "onnxscript", "pandas", "polars", "pyarrow", "pycocotools", "pydantic", "pytest",
    "pytorch_lightning", "ray", "rich", "safetensors", "scipy", "sklearn", "tensorboard", "timm", "tokenizers",
    "torchdata", "torchmetrics", "torchvision", "transformers", "typer", "wandb", "yaml",
)  # fmt: skip
BARE_MACHINE = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""
FROM_SOURCE = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r})\n"


def run_python(code: str, *, bare: bool = False) -> str:
    """What a fresh interpreter prints; `bare` hides everything but torch, numpy and what they bring."""
    command = [sys.executable, "-I", "-W", "error", "-c", FROM_SOURCE + (BARE_MACHINE if bare else "") + code]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert outcome.returncode == 0, outcome.stderr[-3000:]
    return outcome.stdout


def test_import_costs_nothing():
    """No torch, no numpy, nothing from outside until something is used; so the cost is ours alone, a few files."""
    printed = run_python(
        "before = set(sys.modules); import reweigh;"
        "print(*sorted({name for name in set(sys.modules) - before if name.partition('.')[0] not in sys.stdlib_module_names}))"
    )
    assert printed.split() == ["reweigh"]


@pytest.mark.parametrize("arguments", [["--help"], ["list"], ["show", "focal"], ["evaluate", "--help"]], ids=" ".join)
def test_help_needs_no_torch(arguments):
    printed = run_python(
        f"import sys; sys.argv = ['reweigh', *{arguments!r}]\n"
        "from reweigh.cli import main\n"
        "try: status = main()\n"
        "except SystemExit as end: status = end.code\n"
        "print('\\nstatus', status or 0, [name for name in ('torch', 'numpy', 'scipy', 'sklearn') if name in sys.modules])"
    )
    assert printed.splitlines()[-1] == "status 0 []"


def test_every_public_name_resolves():
    for name in reweigh.__all__:
        assert getattr(reweigh, name) is not None, name
    assert set(reweigh.__all__) <= set(dir(reweigh))
    with pytest.raises(AttributeError, match="no attribute 'los'"):
        _ = reweigh.los


def test_runs_from_source_with_torch_and_numpy_alone():
    printed = run_python(
        bare=True,
        code="""
import numpy, torch, reweigh
torch.manual_seed(0)
logits = torch.randn(40, 5, requires_grad=True)
target = torch.randint(5, (40,))
for name in ("cross_entropy", "focal", "adaptive_focal", "selective_risk", "dual_focal"):
    loss = reweigh.loss(name)
    loss(logits, target).backward()
    assert torch.isfinite(logits.grad).all(), name
predictions = reweigh.Predictions(logits=logits.detach().numpy(), targets=target.numpy())
error = float(reweigh.metrics.expected_calibration_error(predictions))
assert 0 < error < 1
print(len(reweigh.registry.names("loss")), "losses,", round(error, 3))
""",
    )
    assert "losses" in printed


def test_every_loss_is_built_with_torch_and_numpy_alone():
    run_python(
        bare=True,
        code="""
import torch, reweigh
from reweigh import registry
for name in registry.names("loss"):
    registry.get("loss", name)
for name in registry.names("metric"):
    registry.get("metric", name)
""",
    )


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("reweigh.calibration.TemperatureScaling()", "calibration"),
        ("reweigh.open('predictions.parquet')", "files"),
    ],
)
def test_a_missing_extra_is_named(code, extra, tmp_path):
    (tmp_path / "predictions.parquet").write_bytes(b"PAR1")
    code = code.replace("predictions.parquet", str(tmp_path / "predictions.parquet"))
    printed = run_python(f"import reweigh\ntry: {code}\nexcept ImportError as error: print(error)", bare=True)
    assert f"reweigh[{extra}]" in printed


def test_command_line_names_its_extra():
    printed = run_python(
        "import sys; sys.stderr = sys.stdout\nfrom reweigh.cli import main; print(main(['list']))", bare=True
    )
    assert "reweigh[cli]" in printed and printed.split()[-1] == "1"


def test_types_are_published():
    assert (ROOT / "src" / "reweigh" / "py.typed").is_file()
    assert (Path(reweigh.__file__).parent / "py.typed").is_file()


def test_wheel_holds_every_file(tmp_path):
    """What a user installs is what is tested here: every file that git knows, nothing else."""
    pytest.importorskip("hatchling", reason="hatchling, which builds the package, is not installed")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (path,) = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(path).namelist() if name.startswith("reweigh/")}
    here = {
        path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "reweigh").rglob("*") if path.is_file()
    }
    assert packed == {name for name in here if "__pycache__" not in name}


def test_version_is_one():
    first = re.search(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert first and first[1] == reweigh.__version__
    try:
        installed = metadata.version("reweigh")
    except metadata.PackageNotFoundError:
        pytest.skip("reweigh runs from its source here, nothing is installed")
    assert installed == reweigh.__version__


# ---- what is installed beside it -----------------------------------------------------------------


def requirements(extra: str) -> list[str]:
    return [text for text in EXTRAS[extra] if not text.startswith("reweigh[")]


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_requirement_has_a_lower_bound(extra):
    for text in requirements(extra):
        assert re.match(r"[a-z0-9-]+>=\d", text), f"{extra}: {text}"


def test_core_needs_torch_and_numpy_alone():
    assert [re.split(r"[><=!]", text)[0] for text in PROJECT["project"]["dependencies"]] == ["torch", "numpy"]


def test_extra_all_is_all():
    (text,) = EXTRAS["all"]
    named = text.removeprefix("reweigh[").removesuffix("]").split(",")
    assert sorted(named) == sorted(set(EXTRAS) - {"all"})


def test_bad_releases_are_excluded():
    """Lightning 2.6.2 and 2.6.3 carried a thief of credentials."""
    everywhere = [*PROJECT["tool"]["uv"]["constraint-dependencies"]]
    for lists in (EXTRAS, PROJECT["dependency-groups"]):
        everywhere += [text for texts in lists.values() for text in texts if re.match(r"(pytorch-)?lightning\b", text)]
    assert everywhere and all("!=2.6.2" in text and "!=2.6.3" in text for text in everywhere)
    for lock in LOCKS:
        assert not re.search(r"^(pytorch-)?lightning==2\.6\.[23]\b", lock.read_text(), re.MULTILINE)


def pins(lock: Path) -> dict[str, list[tuple[str, str]]]:
    """name -> [(version, the rest of its entry)], an entry being a requirement and its hashes."""
    entries = re.split(r"\n(?=[a-zA-Z])", lock.read_text(encoding="utf-8"))
    table: dict[str, list[tuple[str, str]]] = {}
    for entry in entries:
        if found := re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;\\]+)", entry):
            table.setdefault(found[1].lower(), []).append((found[2], entry))
    return table


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_locks_are_hashed_and_name_no_place(lock):
    text = lock.read_text(encoding="utf-8")
    assert len(pins(lock)) > 20
    for name, entries in pins(lock).items():
        for _, entry in entries:
            assert "--hash=sha256:" in entry, name
    assert not re.search(r"https?:|file:|--index|--find-links|--extra|(^|\s)/\w", text)


def test_locks_fit_the_declared_requirements():
    packaging = pytest.importorskip("packaging.requirements", reason="packaging is not installed")
    tested = pins(ROOT / "requirements" / "test.txt")
    beside = pins(ROOT / "requirements" / "bench.txt")
    assert not set(tested) & set(beside), "the peers' lock repeats what the test lock pins"
    groups = PROJECT["dependency-groups"]
    wanted = [*PROJECT["project"]["dependencies"], *groups["test"], *groups["bench"]]
    wanted += [text for extra in ("cli", "files", "calibration", "metrics", "export") for text in requirements(extra)]
    for text in wanted:
        requirement = packaging.Requirement(text)
        entries = (tested | beside)[requirement.name.lower()]
        for version, _ in entries:
            assert requirement.specifier.contains(version), f"{text}, locked {version}: run scripts/lock"


def test_lock_pins_the_ordinary_torch():
    """A build with a local version (+cpu) breaks torchvision; pinned by hash, none can slip in."""
    tested = pins(ROOT / "requirements" / "test.txt")
    for name in ("torch", "torchvision"):
        ((version, entry),) = tested[name]
        assert "+" not in version and entry.count("--hash") >= 4
    assert [entry for _, entry in tested["numpy"] if "python_full_version < '3.12'" in entry]
