"""Make .venv what requirements/test.txt says, and nothing else; the second call finds it so and installs nothing.

    scripts/setup            the environment of make demo, make test, make lint
    scripts/setup --peers    also .venv/peers, the packages that make bench measures beside ours

Needs the standard library alone. Three things make it safe to interrupt at any moment:
a stamp is written last, each package is compared with its own list of files before anything is believed,
and one lock file lets a second call wait for the first (or for the pip that a killed call left behind).
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import hashlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
PEERS = VENV / "peers"
STAMP = VENV / "reweigh-setup.json"
LOG = ROOT / ".cache" / "setup.log"
TEST_LOCK = ROOT / "requirements" / "test.txt"
BENCH_LOCK = ROOT / "requirements" / "bench.txt"
ROOM_NEEDED = 10 * 2**30  # bytes: 6.4 GiB installed, 2.7 GiB of archives on the way
TRIES = 3  # a download that breaks off is taken up again this often

UNREACHABLE = (
    r"NewConnectionError|NameResolution|name resolution|Network is unreachable|Connection refused|[Tt]imed out|"
    r"ConnectTimeout|ReadTimeout|Max retries|ProxyError|Connection broken|IncompleteRead|Connection (aborted|reset)"
)
# what pip printed -> the one sentence for it
EXPLANATIONS = (
    (
        r"No space left on device|Disk quota exceeded",
        "the disk is full: the installation needs about 7 GB in {root}, and 3 GB more while it works.",
    ),
    (
        r"DO NOT MATCH THE HASHES",
        "a package is not the one that was locked: a mirror or a proxy changed it, or its download was cut short. "
        "Nothing of it was installed; try again, or use another mirror (PIP_INDEX_URL=...).",
    ),
    (r"Permission denied|Read-only file system", "{root} cannot be written to: {detail}."),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSLError",
        "the package registry's certificate is not trusted here: name your organisation's with "
        "PIP_CERT=/path/to/ca.pem, and run the same command again.",
    ),
    (
        UNREACHABLE,
        "the package registry cannot be reached, so the locked packages could not be installed. Connect this machine "
        "to the network, or name a mirror (PIP_INDEX_URL=...), and run the same command again.",
    ),
    (
        r"No matching distribution|Could not find a version",
        "no package registry that pip could ask has a locked package: {detail}. Connect this machine to the network, or "
        "name a complete mirror (PIP_INDEX_URL=..., PIP_NO_INDEX unset), and run the same command again.",
    ),
)
BROKEN_OFF = (
    r"Connection broken|IncompleteRead|incomplete-download|Connection (aborted|reset)|Read timed out|DO NOT MATCH THE"
)
# settings of pip that would put the packages elsewhere, or hold other versions against the lock's
MISLEADING = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_CONSTRAINT", "PIP_REQUIRE_HASHES")


class SetupError(Exception):
    """One clear sentence for the person who called."""


def main(arguments: list[str]) -> int:
    unknown = [word for word in arguments if word != "--peers"]
    if unknown:
        print(f"setup: {unknown[0]!r} is no option of this script; --peers is the only one.", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with only_one() as lock:
            set_up(lock)
            if "--peers" in arguments:
                set_up_peers(lock)
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"setup: {error.filename or ROOT}: {error.strerror or error}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nsetup: interrupted. Run the same command again, it goes on from here.", file=sys.stderr)
        return 130
    return 0


@contextlib.contextmanager
def only_one() -> Iterator[int]:
    """Hold the lock file; pip inherits it, so a pip whose caller was killed still keeps others out."""
    LOG.parent.mkdir(exist_ok=True)
    with open(LOG.parent / "setup.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("setup: another installation is at work here, waiting for it ...", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def set_up(lock: int) -> None:
    wanted = {
        "folder": str(ROOT),
        "lock": digest(TEST_LOCK),
        "package": digest(ROOT / "pyproject.toml"),
    }
    damaged = damaged_packages(site_packages()) if python_works() else None
    if damaged == [] and read_stamp(STAMP) == wanted:
        return
    STAMP.unlink(missing_ok=True)
    for left in VENV.glob("downloads-*"):  # of a call that was killed
        shutil.rmtree(left, ignore_errors=True)
    if damaged is None or "pip" in map(name_of, damaged) or moved():
        make_environment()
        damaged = []
    for package in damaged:
        print(f"setup: {name_of(package)} is incomplete, installing it again", file=sys.stderr)
        shutil.rmtree(package)
    install(["-r", str(TEST_LOCK)], lock, site_packages(), "installing the locked packages")
    remove_strangers()
    # Its build back end is in the lock, so the package itself needs nothing from outside.
    install(["--no-build-isolation", "--no-index", "--force-reinstall", "--editable", str(ROOT)], lock)
    check = [str(PYTHON), "-I", "-c", "import torch, torchvision, reweigh"]
    outcome = subprocess.run(check, capture_output=True, text=True)
    if outcome.returncode:
        reason = (outcome.stderr.strip().splitlines() or ["no message"])[-1]
        raise SetupError(f"everything is installed, but PyTorch does not start on this machine: {reason}")
    write_stamp(STAMP, wanted)
    print("setup: done", file=sys.stderr)


def set_up_peers(lock: int) -> None:
    """The packages benchmarks compare with lie beside the environment, not in it: the tests never see them."""
    wanted = {"lock": digest(BENCH_LOCK), "python": python_version()}
    if read_stamp(PEERS / STAMP.name) == wanted and not damaged_packages(PEERS):
        return
    building = VENV / "peers.new"
    for folder in (PEERS, building):
        shutil.rmtree(folder, ignore_errors=True)
    install(["-r", str(BENCH_LOCK), "--target", str(building)], lock, building, "installing the benchmarks' peers")
    write_stamp(building / STAMP.name, wanted)
    building.rename(PEERS)
    print("setup: peers done", file=sys.stderr)


# ---- what is there -------------------------------------------------------------------------------


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_stamp(path: Path) -> dict | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write_stamp(path: Path, wanted: dict) -> None:
    """Written to a temporary name, synced, renamed: a stamp is whole or absent."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        json.dump(wanted, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)


def python_version() -> str | None:
    """The version of the environment's Python, None when it does not start."""
    command = [str(PYTHON), "-I", "-c", "import sys; print('%d.%d.%d' % sys.version_info[:3])"]
    try:
        outcome = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return outcome.stdout.strip() if outcome.returncode == 0 else None


def python_works() -> bool:
    version = python_version()
    return version is not None and (VENV / "pyvenv.cfg").is_file() and site_packages_exist()


def site_packages() -> Path:
    return next((VENV / "lib").glob("python3.*/site-packages"))


def site_packages_exist() -> bool:
    return any((VENV / "lib").glob("python3.*/site-packages/pip/__main__.py"))


def moved() -> bool:
    """Whether the checkout was moved or copied: scripts in bin/ name the folder they were made for."""
    activate = VENV / "bin" / "activate"
    return not activate.is_file() or str(VENV) not in activate.read_text(encoding="utf-8", errors="replace")


def canonical(name: str) -> str:
    """How packaging compares names: `Jinja2`, `ml_dtypes` and `ruamel.yaml` have one spelling each."""
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(dist_info: Path) -> str:
    return canonical(dist_info.name.split("-")[0])


def damaged_packages(folder: Path) -> list[Path]:
    """The .dist-info folders whose RECORD is missing, or names a file that is missing or has another size."""
    sizes = file_sizes(folder)
    return [info for info in sorted(folder.glob("*.dist-info")) if not whole(info, folder, sizes)]


def file_sizes(folder: Path) -> dict[str, int]:
    """Every file below, by its path from there; one walk is much cheaper than asking for 40,000 names."""
    sizes = {}
    waiting = [str(folder)]
    start = len(waiting[0]) + 1
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != "__pycache__":
                        waiting.append(entry.path)
                elif not entry.name.endswith(".pyc"):
                    sizes[entry.path[start:]] = entry.stat().st_size
    return sizes


def whole(info: Path, folder: Path, sizes: dict[str, int]) -> bool:
    try:
        rows = list(csv.reader((info / "RECORD").read_text(encoding="utf-8").splitlines()))
    except (OSError, ValueError, csv.Error):
        return False
    for name, _, size in (row for row in rows if len(row) == 3):
        if name.endswith(".pyc"):
            continue
        if name.startswith(("..", "/")):  # scripts in bin/; --target records them where it does not put them
            if folder != PEERS and not (folder / name).exists():
                return False
        elif name not in sizes or (size and sizes[name] != int(size)):
            return False
    return bool(rows)


# ---- making it so --------------------------------------------------------------------------------


def make_environment() -> None:
    free = shutil.disk_usage(ROOT).free
    if free < ROOM_NEEDED and not VENV.exists():
        raise SetupError(
            f"only {free / 2**30:.1f} GiB are free in {ROOT}; the installation needs {ROOM_NEEDED / 2**30:.0f} at work."
        )
    print(f"setup: making .venv with Python {'.'.join(map(str, sys.version_info[:3]))}", file=sys.stderr)
    command = [sys.executable, "-I", "-m", "venv", "--clear", str(VENV)]
    outcome = subprocess.run(command, capture_output=True, text=True)
    if outcome.returncode:
        reason = (outcome.stderr.strip() or outcome.stdout.strip() or "no message").splitlines()[-1]
        version = ".".join(map(str, sys.version_info[:2]))
        raise SetupError(
            f"Python {version} could not make the virtual environment .venv ({reason}). "
            f"On Debian and Ubuntu its venv module comes with: apt-get install python{version}-venv"
        )


def remove_strangers() -> None:
    """What the lock does not name goes, so that an old environment behaves like a fresh one."""
    pinned = re.findall(r"^([A-Za-z0-9._-]+)", TEST_LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    belongs = {canonical(name) for name in pinned} | {"pip", "reweigh"}
    strangers = {name_of(info) for info in site_packages().glob("*.dist-info")} - belongs
    if strangers:
        run_pip(["uninstall", "--yes", *sorted(strangers)])


def pip_command(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    # -I shuts out PYTHONPATH and the user's packages, not the user's pip settings (mirror, certificate, cache).
    environment = {name: value for name, value in os.environ.items() if name not in MISLEADING}
    environment |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    return [str(PYTHON), "-I", "-m", "pip", *arguments], environment


def run_pip(arguments: list[str]) -> None:
    command, environment = pip_command(arguments)
    outcome = subprocess.run(command, env=environment, capture_output=True, text=True)
    if outcome.returncode:
        raise SetupError(explain(outcome.stdout + outcome.stderr))


def install(arguments: list[str], lock: int, folder: Path | None = None, doing: str = "") -> None:
    """pip install; `folder` is where the packages appear, to show how many are there already."""
    hashed = ["--require-hashes"] if folder else []
    # Byte code is written when a module is first imported: compiling 40,000 files here would double the time.
    options = ["--no-deps", "--no-compile", "--progress-bar", "off", *hashed]
    command, environment = pip_command(["install", *options, *arguments])
    for attempt in range(1, TRIES + 1):
        with tempfile.TemporaryDirectory(dir=VENV, prefix="downloads-") as downloads:
            # Archives go to the disk that was measured, not to a small /tmp.
            code, output = watch(command, environment | {"TMPDIR": downloads}, lock, Progress(doing, folder))
        if code == 0:
            return
        if attempt == TRIES or not re.search(BROKEN_OFF, output):
            raise SetupError(explain(output))
        print("setup: the download broke off, trying again", file=sys.stderr)


def watch(command: list[str], environment: dict[str, str], lock: int, progress: Progress) -> tuple[int, str]:
    """Run pip, show where it is, keep what it says in the log; returns its exit status and its output."""
    lines: queue.Queue[str | None] = queue.Queue()
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", pass_fds=(lock,),
    )  # fmt: skip

    def read() -> None:
        for line in process.stdout or ():
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    output = []
    try:
        with open(LOG, "a", buffering=1, encoding="utf-8") as log:
            while True:
                with contextlib.suppress(queue.Empty):
                    line = lines.get(timeout=1)
                    if line is None:
                        break
                    output.append(line)
                    log.write(line)
                    progress.note(line)
                progress.show()
        return process.wait(), "".join(output)
    finally:
        progress.end()
        if process.poll() is None:
            process.terminate()
            process.wait()


class Progress:
    """One line that renews itself on a terminal, a line every quarter minute elsewhere."""

    def __init__(self, doing: str, folder: Path | None):
        self.doing = doing
        self.folder = folder
        self.terminal = sys.stderr.isatty()
        self.start = self.shown = time.monotonic()
        self.collected = 0
        self.name = ""
        self.total = 0

    def note(self, line: str) -> None:
        words = line.split()
        if line.startswith("Collecting ") and len(words) > 1:
            self.collected += 1
            self.name = words[1].replace("==", " ")
        elif line.startswith("Installing collected packages:"):
            self.total = len(words) - 3

    def show(self) -> None:
        now = time.monotonic()
        if not self.doing or now - self.shown < (0.5 if self.terminal else 15):
            return
        self.shown = now
        if self.total and self.folder:
            # An installed package has its RECORD; with --target they appear all at once at the end.
            done = sum(1 for _ in self.folder.glob("*.dist-info/RECORD"))
            what = f"unpacked {min(done, self.total)} of {self.total}"
        else:
            what = f"fetching package {self.collected}: {self.name}" if self.name else "asking the registry"
        text = f"setup: {self.doing}, {now - self.start:.0f} s, {what}"
        if self.terminal:
            print(f"\r\033[K{text[:100]}", end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        if self.terminal and self.doing:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def explain(output: str) -> str:
    """One sentence for what pip said."""
    for pattern, sentence in EXPLANATIONS:
        if re.search(pattern, output):
            return sentence.format(root=ROOT, detail=detail(output)) + f" Details: {LOG.relative_to(ROOT)}"
    return f"pip failed: {detail(output)}. Details: {LOG.relative_to(ROOT)}"


def detail(output: str) -> str:
    """The line of pip's output that says most."""
    lines = [line.strip() for line in output.splitlines()]
    errors = [line for line in lines if re.match(r"ERROR:|\w*Error: ", line)]
    return (errors or [line for line in lines if line] or ["no message"])[-1].removeprefix("ERROR: ").rstrip(".")[:200]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
