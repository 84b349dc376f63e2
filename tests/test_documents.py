"""Every snippet and command of the documents runs, every link leads somewhere, every public name is described."""

from __future__ import annotations

import doctest
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reweigh import registry
from reweigh.cli._signature import documentation

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "reweigh"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
GENERATED = ("losses.md", "metrics.md", "calibrators.md")
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OUTPUT = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)  # lines that the page's commands print
# Lines of shell that are looked up instead: they would install, or start this very test again.
LOOKED_UP = re.compile(r"^(make|git clone|pip install|scripts/)\b")
# Runs a page's blocks one after the other, in one namespace, with the page's own line numbers.
RUNNER = """
import json, pathlib, subprocess
namespace = {"__name__": "__main__"}
for kind, line, code in json.loads(pathlib.Path("blocks.json").read_text()):
    if kind == "sh":
        outcome = subprocess.run(["sh", "-ec", code], stdin=subprocess.DEVNULL, text=True, capture_output=True)
        print(outcome.stdout)
        assert outcome.returncode == 0, f"line {line}: {code}\\n{outcome.stdout}\\n{outcome.stderr}"
    else:
        exec(compile("\\n" * line + code, "the page", "exec"), namespace)
"""


def of_the_package(kind: str) -> list[str]:
    """The package's own names; other tests register theirs."""
    return [entry.name for entry in registry.entries(kind) if entry.thing is None]


def blocks(page: Path) -> list[tuple[str, int, str]]:
    """(language, line, code) of a page's fenced blocks, shell without the lines that are only looked up."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in BLOCK.finditer(text):
        kind, code = match.groups()
        if kind == "sh":
            code = "\n".join(line for line in code.splitlines() if not LOOKED_UP.match(line))
        if code.strip():
            found.append((kind, text[: match.start()].count("\n") + 1, code))
    return found


def saved_files(page: Path) -> dict[str, str]:
    """The blocks that begin with `# PATH.py` are files."""
    named = {}
    for kind, _, code in blocks(page):
        first, _, rest = code.partition("\n")
        if kind == "python" and re.fullmatch(r"# [\w/]+\.py", first):
            named[first.removeprefix("# ")] = rest
    return named


def run_page(folder: Path, steps: list[tuple[str, int, str]]) -> str:
    """Run blocks in `folder`, with a `reweigh` command and, where it holds a copy of the package, with that copy."""
    (folder / "blocks.json").write_text(json.dumps(steps))
    commands = folder / "commands"
    commands.mkdir()
    command = commands / "reweigh"
    command.write_text(
        f'#!/bin/sh\nexec {sys.executable} -c "import sys; from reweigh.cli import main; sys.exit(main())" "$@"\n'
    )
    command.chmod(0o755)
    source = folder / "src" if (folder / "src").is_dir() else ROOT / "src"
    environment = os.environ | {
        "PYTHONPATH": f"{source}{os.pathsep}{folder}",
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "HOME": str(folder),
    }
    outcome = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUNNER],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert outcome.returncode == 0, outcome.stderr[-4000:]
    return outcome.stdout


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_every_snippet_and_command_runs(page, tmp_path):
    files = saved_files(page)
    if any(name.startswith("src/reweigh/") for name in files):
        shutil.copytree(PACKAGE, tmp_path / "src" / "reweigh", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    steps = [step for step in blocks(page) if step[2].partition("\n")[2] not in files.values()]
    printed = run_page(tmp_path, steps)
    shown = [line for text in OUTPUT.findall(page.read_text(encoding="utf-8")) for line in text.splitlines() if line]
    missing = [line for line in shown if line not in printed.splitlines()]
    assert not missing, f"{page.name} shows {missing}, the commands printed:\n{printed}"


def test_the_loss_of_the_guide_works_in_a_project_of_its_own(tmp_path):
    ((_, text),) = saved_files(ROOT / "CONTRIBUTING.md").items()
    (tmp_path / "patient.py").write_text(text.replace("from ..", "from reweigh."))
    code = 'import reweigh, patient, torch\nprint(reweigh.loss("PCE")(torch.zeros(1, 2), torch.tensor([0])).item())'
    printed = run_page(tmp_path, [("python", 1, code), ("sh", 3, "reweigh list loss --import patient")])
    assert "patient_cross_entropy" in printed and float(printed.split()[0]) == pytest.approx(
        0.5 / 0.6 * 0.693147, rel=1e-5
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_is_not_run_exists(page):
    text = page.read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"\bmake ([a-z]+)\b(?=[`\s:]* *(?:#|ARGS|PYTHON|`|$))", text, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"
    for name in re.findall(r"\bscripts/[\w.]+", text):
        assert (ROOT / name).is_file(), name
    for names in re.findall(r"(?:reweigh|'\.)\[([a-z,]+)\]", text):
        extras = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        assert all(re.search(rf"^{name} = \[", extras, re.MULTILINE) for name in names.split(",")), names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    text = page.read_text(encoding="utf-8")
    anchors = set(re.findall(r"^#+ (\S+)$", text, re.MULTILINE))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in anchors, target
        elif not target.startswith("http"):
            assert (page.parent / target.partition("#")[0]).exists(), target


@pytest.mark.parametrize(
    ("kind", "name"), [("loss", "losses.md"), ("metric", "metrics.md"), ("calibrator", "calibrators.md")]
)
def test_every_public_name_is_documented(kind, name):
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    missing = [name for name in of_the_package(kind) if f"\n## {name}\n" not in text]
    assert of_the_package(kind) and not missing, f"docs/{name} lacks {missing}; run: make docs"


def test_generated_pages_are_current():
    script = ROOT / "scripts" / "make_docs.py"
    outcome = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr


def test_the_readme_sorts_every_loss_by_what_goes_wrong():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.partition("## Which loss")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", section))
    assert set(of_the_package("loss")) == named


@pytest.mark.parametrize("name", of_the_package("loss"))
def test_every_loss_says_what_a_reader_asks(name):
    """A sentence of use, the formula, the settings, an example that runs, where it comes from."""
    entry = registry.find("loss", name)
    text = documentation(entry)
    for expected in ("use it", "Formula", "Settings", ">>> "):
        assert expected.casefold() in text.casefold(), f"the docstring of {name} lacks {expected!r}"
    assert entry.details.get("source") and entry.details.get("formula"), f"{name} names no source or formula"


MODULES = sorted(path for path in PACKAGE.rglob("*.py") if ">>> " in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_every_example_in_a_docstring_runs(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    module = importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    outcome = doctest.testmod(module)
    assert outcome.attempted and not outcome.failed
