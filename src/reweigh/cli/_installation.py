"""What is installed: versions, extras and what each lacks, devices; nothing here raises."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import re
import sys
import tomllib
from pathlib import Path
from typing import Any


def version_of(package: str) -> str | None:
    """The installed version of a package, None without it."""
    try:
        return importlib.metadata.version(package)
    except Exception:  # damaged metadata is as good as none
        return None


def _own_extras() -> dict[str, list[str]]:
    """Extra -> its requirements, from the installed metadata or, run from a checkout, from pyproject.toml."""
    try:
        found: dict[str, list[str]] = {}
        for line in importlib.metadata.requires("reweigh") or ():
            requirement, _, condition = line.partition(";")
            extra = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", condition)
            if extra:
                found.setdefault(extra[1], []).append(requirement.strip())
        if found:
            return found
    except Exception:  # not installed, or damaged metadata: the project file may know
        pass
    project = Path(__file__).parents[3] / "pyproject.toml"
    if not project.is_file():
        return {}
    return tomllib.loads(project.read_text(encoding="utf-8"))["project"].get("optional-dependencies", {})


def _packages(requirements: list[str], extras: dict[str, list[str]]) -> list[str]:
    """Names of packages, `reweigh[files]` replaced by what that extra wants."""
    found: list[str] = []
    for requirement in requirements:
        match = re.match(r"([\w.-]+)(?:\[([\w,\s-]+)\])?", requirement)
        if match is None:
            continue
        if match[1] == "reweigh":
            for inner in (match[2] or "").split(","):
                found += _packages(extras.get(inner.strip(), []), extras)
        else:
            found.append(match[1])
    return list(dict.fromkeys(found))


def extras() -> list[dict[str, Any]]:
    """Every extra with what is there, what is missing, and the command that brings it."""
    known = _own_extras()
    found = []
    for extra in known:
        if extra == "all":
            continue
        versions = {name: version_of(name) for name in _packages(known[extra], known)}
        missing = [name for name, version in versions.items() if version is None]
        record: dict[str, Any] = {"extra": extra, "packages": versions, "missing": missing}
        if missing:
            record["install"] = f"pip install 'reweigh[{extra}]'"
        found.append(record)
    return found


def devices() -> list[str]:
    """The devices torch sees, in words."""
    try:
        import torch

        found = [f"cpu, {torch.get_num_threads()} threads"]
        for number in range(torch.cuda.device_count()):
            facts = torch.cuda.get_device_properties(number)
            found.append(f"cuda:{number}, {facts.name}, {facts.total_memory / 2**30:.0f} GiB")
        if torch.backends.mps.is_available():
            found.append("mps")
        return found
    except Exception as error:  # a broken installation is what this verb is called for
        return [f"torch cannot be used: {type(error).__name__}: {error}"]


def evidence_path() -> str:
    """How losses take their evidence on the GPU, and why: what the kernels say of themselves."""
    try:
        kernels = importlib.import_module("reweigh.kernels")
        if hasattr(kernels, "describe"):
            return str(kernels.describe())
    except Exception as error:
        return f"composite PyTorch operators, because the kernels cannot be imported ({type(error).__name__}: {error})"
    return "composite PyTorch operators: no fused kernels are part of this installation"


def installation() -> dict[str, Any]:
    """All of it."""
    from .. import __version__

    return {
        "reweigh": __version__,
        "python": platform.python_version(),
        "interpreter": sys.executable,
        "platform": platform.platform(),
        "torch": version_of("torch"),
        "numpy": version_of("numpy"),
        "devices": devices(),
        "evidence": evidence_path(),
        "extras": extras(),
    }
