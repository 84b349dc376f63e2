"""The rooms: who imports whom, what comes from outside, where implementation lives."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "reweigh"
FILES = sorted(PACKAGE.rglob("*.py"))
# Beside torch and numpy: the command line is built on typer and the rest of its extra, calibrators are
# scikit-learn estimators by inheritance, and Triton comes with torch wherever it can run.
BASES = {
    "cli": {"click", "pydantic", "rich", "typer", "yaml"},
    "calibration": {"scipy", "sklearn"},
    "kernels": {"triton"},
}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def outside_imports(node: ast.AST) -> Iterator[tuple[str, int]]:
    """The distributions that import statements name, but for what only a type checker reads."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield alias.name.split(".")[0], child.lineno
        elif isinstance(child, ast.ImportFrom) and child.level == 0:
            yield (child.module or "").split(".")[0], child.lineno
        else:
            yield from outside_imports(child)


def test_rooms_import_only_what_is_below_them(monkeypatch, capsys):
    linter = pytest.importorskip("importlinter.cli", reason="import-linter is not installed")
    monkeypatch.chdir(ROOT)
    status = linter.lint_imports(no_cache=True)
    assert status == 0, capsys.readouterr().out


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_optional_packages_are_asked_for_not_imported(path):
    """`errors.need` names the extra that brings a package; an import statement would end in a bare ImportError."""
    room = path.relative_to(PACKAGE).parts[0]
    allowed = {"reweigh", "torch", "numpy", "__future__"} | BASES.get(room, set()) | sys.stdlib_module_names
    found = [
        f"{name} in line {line}" for name, line in outside_imports(ast.parse(path.read_text())) if name not in allowed
    ]
    assert not found, f"{relative(path)} imports {', '.join(found)}; take it from errors.need(...) where it is used"


@pytest.mark.parametrize("room", ["losses", "metrics", "calibration"])
def test_implementation_files_start_with_an_underscore(room):
    """`reweigh.losses.focal` is always the function, never a file of that name."""
    folder = PACKAGE / room
    public = [path.name for path in folder.glob("*.py") if not path.name.startswith("_")]
    assert folder.is_dir() and not public


@pytest.mark.parametrize("folder", sorted({path.parent for path in FILES}), ids=relative)
def test_every_folder_says_what_lives_there(folder):
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    assert len(text) > 60, f"{relative(folder)}/__init__.py: say what lives there, what it may import, how to add one"
