"""scripts/setup on a project of three tiny packages: fresh, again, damaged, killed, two at once, offline."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# A build back end inside the project, so that its editable installation needs nothing from outside.
BACK_END = """
import os, time, zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    time.sleep(float(os.environ.get("SLOW", "0")))
    info, tag = "reweigh-0.dist-info", "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    files = {
        "reweigh.pth": os.path.abspath("src"),
        f"{info}/METADATA": "Metadata-Version: 2.1\\nName: reweigh\\nVersion: 0\\n",
        f"{info}/WHEEL": tag,
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(os.path.join(folder, "reweigh-0-py3-none-any.whl"), "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return "reweigh-0-py3-none-any.whl"
"""
PROJECT = """
[build-system]
requires = []
build-backend = "back_end"
backend-path = ["."]
"""


def make_wheel(folder: Path, name: str) -> str:
    """A package of one module; returns its line of the lock."""
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}/__init__.py": f"name = {name!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{path},sha256={digest(text.encode())},{len(text)}" for path, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in files.items():
            wheel.writestr(file, text)
    return f"{name}==1.0 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


class Checkout:
    """A small project with our setup scripts."""

    def __init__(self, folder: Path):
        self.folder = folder / "check out"  # people have blanks in their folders
        self.wheels = folder / "wheels"
        self.wheels.mkdir()
        shutil.copytree(ROOT / "scripts", self.folder / "scripts")
        for name, text in {
            "src/reweigh/__init__.py": "name = 'reweigh'\n",
            "back_end.py": BACK_END,
            "pyproject.toml": PROJECT,
            "requirements/test.txt": make_wheel(self.wheels, "torch") + make_wheel(self.wheels, "torchvision"),
            "requirements/bench.txt": make_wheel(self.wheels, "peer"),
        }.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)

    def command(self, *arguments: str) -> list[str]:
        return [str(self.folder / "scripts" / "setup"), *arguments]

    def environment(self, **settings: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
        own = {
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_FIND_LINKS": self.wheels.as_uri(),
            "PIP_NO_INDEX": "1",
            "PIP_RETRIES": "0",
        }
        return kept | own | {"REWEIGH_PYTHON": sys.executable} | settings

    def run(self, *arguments: str, **settings: str) -> tuple[int, str]:
        outcome = subprocess.run(
            self.command(*arguments), env=self.environment(**settings), capture_output=True, text=True, timeout=120
        )
        return outcome.returncode, outcome.stdout + outcome.stderr

    def start(self, **settings: str) -> subprocess.Popen:
        return subprocess.Popen(
            self.command(), env=self.environment(**settings), stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def packages(self) -> Path:
        (found,) = (self.folder / ".venv" / "lib").glob("python3.*/site-packages")
        return found

    def imports(self, module: str) -> bool:
        command = [str(self.folder / ".venv" / "bin" / "python"), "-I", "-c", f"import {module}; print({module}.name)"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() == module


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Checkout:
    """Set up once; every test leaves it whole."""
    made = Checkout(tmp_path_factory.mktemp("setup"))
    status, said = made.run()
    assert status == 0, said
    return made


def test_fresh_installation(checkout):
    assert all(map(checkout.imports, ("torch", "torchvision", "reweigh")))
    assert not list((checkout.folder / ".venv").glob("downloads-*"))


def test_second_call_installs_nothing(checkout):
    before = {path: path.stat().st_mtime_ns for path in checkout.packages().iterdir()}
    assert checkout.run(PIP_FIND_LINKS="file:///nowhere") == (0, "")
    assert {path: path.stat().st_mtime_ns for path in checkout.packages().iterdir()} == before


@pytest.mark.parametrize("damage", ["truncated file", "file gone", "no record", "python gone", "stamp gone"])
def test_damage_is_mended(checkout, damage):
    packages = checkout.packages()
    if damage == "truncated file":
        (packages / "torch" / "__init__.py").write_text("")
    elif damage == "file gone":
        (packages / "torch" / "__init__.py").unlink()
    elif damage == "no record":  # what a killed pip leaves
        (packages / "torch-1.0.dist-info" / "RECORD").unlink()
    elif damage == "python gone":
        (checkout.folder / ".venv" / "bin" / "python").unlink()
    else:
        (checkout.folder / ".venv" / "reweigh-setup.json").unlink()
    status, said = checkout.run()
    assert status == 0 and checkout.imports("torch"), said
    assert "done" in said and checkout.run() == (0, "")


def test_moved_checkout_is_made_anew(checkout, tmp_path):
    moved = Checkout(tmp_path)
    shutil.copytree(checkout.folder / ".venv", moved.folder / ".venv", symlinks=True)
    status, said = moved.run()
    assert status == 0 and "making .venv" in said
    assert str(moved.folder) in (moved.folder / ".venv" / "bin" / "activate").read_text()


def test_stranger_goes_when_the_lock_changes(checkout):
    lock = checkout.folder / "requirements" / "test.txt"
    stranger = make_wheel(checkout.wheels, "stranger")
    before = lock.read_text()
    lock.write_text(before + stranger)
    assert checkout.run()[0] == 0 and checkout.imports("stranger")
    lock.write_text(before)
    assert checkout.run()[0] == 0 and not checkout.imports("stranger")


def test_killed_call_is_taken_up(checkout):
    (checkout.folder / ".venv" / "reweigh-setup.json").unlink()
    process = checkout.start(SLOW="60")
    deadline = time.monotonic() + 60
    log = checkout.folder / ".cache" / "setup.log"
    size = log.stat().st_size
    while "Preparing editable metadata" not in log.read_text()[size:] and time.monotonic() < deadline:
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    status, said = checkout.run()
    assert status == 0 and checkout.imports("reweigh"), said


def test_two_calls_take_turns(checkout):
    (checkout.folder / ".venv" / "reweigh-setup.json").unlink()
    first = checkout.start(SLOW="3")
    deadline = time.monotonic() + 60
    while not locked(checkout.folder / ".cache" / "setup.lock") and time.monotonic() < deadline:
        time.sleep(0.1)
    status, said = checkout.run()
    first.communicate(timeout=60)
    assert (first.returncode, status) == (0, 0)
    assert "waiting" in said and "done" not in said  # the second found everything in place


def locked(path: Path) -> bool:
    import fcntl

    with open(path) as file, contextlib.suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    return True


def one_sentence(said: str) -> str:
    on_the_way = ("setup: torch is incomplete", "setup: the download broke off")
    (line,) = [line for line in said.splitlines() if not line.startswith(on_the_way)]
    assert line.startswith("setup: ") and "Traceback" not in said
    return line


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {
                "PIP_NO_INDEX": "0",
                "PIP_FIND_LINKS": "",
                "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
                "PIP_RETRIES": "1",
            },
            "cannot be reached",
        ),
        ({"PIP_FIND_LINKS": ""}, "no package registry"),
    ],
)
def test_offline_machine_gets_one_sentence(checkout, settings, expected):
    shutil.rmtree(checkout.packages() / "torch")
    status, said = checkout.run(**settings)
    assert status == 1 and expected in one_sentence(said)
    assert checkout.run()[0] == 0


def test_altered_package_is_refused(checkout):
    wheel = checkout.wheels / "torch-1.0-py3-none-any.whl"
    genuine = wheel.read_bytes()
    wheel.write_bytes(genuine + b"!")
    shutil.rmtree(checkout.packages() / "torch")
    status, said = checkout.run()
    assert status == 1 and "not the one that was locked" in one_sentence(said) and not checkout.imports("torch")
    wheel.write_bytes(genuine)
    assert checkout.run()[0] == 0


def test_peers_lie_beside_the_environment(checkout):
    assert checkout.run("--peers")[0] == 0
    assert (checkout.folder / ".venv" / "peers" / "peer" / "__init__.py").is_file() and not checkout.imports("peer")
    assert checkout.run("--peers") == (0, "")
    (checkout.folder / ".venv" / "peers" / "peer" / "__init__.py").write_text("")
    assert checkout.run("--peers")[0] == 0
    assert "peer" in (checkout.folder / ".venv" / "peers" / "peer" / "__init__.py").read_text()


def test_wrong_option_is_refused(checkout):
    status, said = checkout.run("--peer")
    assert status == 2 and "--peers" in one_sentence(said)


def test_machine_without_python_or_venv(checkout, tmp_path):
    for name in ("sh", "dirname"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    environment = checkout.environment(PATH=str(tmp_path))
    del environment["REWEIGH_PYTHON"]

    def said() -> str:
        outcome = subprocess.run(checkout.command(), env=environment, capture_output=True, text=True)
        assert outcome.returncode == 1
        return one_sentence(outcome.stderr)

    assert "no Python 3.11, 3.12, 3.13 or 3.14 was found" in said()
    # Debian's python3 comes without ensurepip
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\ncase "$*" in *ensurepip*) exit 1;; esac\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    assert "apt-get install python3" in said()
    # and one that is too old is passed over
    python.write_text("#!/bin/sh\nexit 1\n")
    assert "no Python" in said()
