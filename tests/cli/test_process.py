"""The command as a process: how fast it answers, what it imports, what pipes and terminals see."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time

import pytest

from .conftest import write

COMMAND = [sys.executable, "-c", "import sys; from reweigh.cli import main; sys.exit(main())"]


def process(*words, **keywords) -> subprocess.CompletedProcess:
    return subprocess.run([*COMMAND, *map(str, words)], capture_output=True, text=True, **keywords)


def seconds(*words) -> float:
    """Processor time of one run: what a busy machine does not change."""
    before = os.times()
    assert process(*words).returncode == 0
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


@pytest.mark.parametrize(
    "words", [["--help"], ["evaluate", "--help"], ["list"], ["show", "metric", "ECE"], ["--version"]], ids=" ".join
)
def test_answers_at_once(words):
    assert min(seconds(*words) for _ in range(3)) < 0.4


@pytest.mark.parametrize(
    "words", [["--help"], ["list"], ["list", "metric"], ["show", "metric", "ECE"], ["evaluate", "--help"]], ids=" ".join
)
def test_imports_neither_torch_nor_numpy(words):
    script = f"import sys; from reweigh.cli import main; main({words!r}); print(sorted({{'torch', 'numpy', 'rich'}} & set(sys.modules)), file=sys.stderr)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stderr.strip() == "[]"


def test_completion_of_names_needs_no_torch():
    script = """
import sys
from reweigh.cli import main
main()
print(sorted({'torch', 'numpy'} & set(sys.modules)), file=sys.stderr)
"""
    environment = {
        **os.environ,
        "_REWEIGH_COMPLETE": "complete_bash",
        "COMP_WORDS": "reweigh evaluate -m accur",
        "COMP_CWORD": "3",
    }
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert "accuracy" in found.stdout.split()
    assert "torch" not in found.stderr


def test_streams_and_status(tmp_path):
    good = process("evaluate", write(tmp_path / "a.npz", seed=0), "-m", "accuracy")
    assert (good.returncode, good.stderr) == (0, "")
    assert "\x1b" not in good.stdout
    bad = process("evaluate", tmp_path / "b.npz")
    assert (bad.returncode, bad.stdout) == (1, "")
    assert bad.stderr.startswith("reweigh: opening ")


def test_a_closed_pipe_is_no_error():
    command = " ".join(["'" + word.replace("'", "'\\''") + "'" for word in [*COMMAND, "list", "metric", "--json"]])
    found = subprocess.run(f"{command} | head -1", shell=True, capture_output=True, text=True)
    assert (found.stdout, found.stderr) == ("{\n", "")


def test_a_terminal_gets_plain_text_within_its_width():
    """On a terminal of 60 columns, too."""
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "list"], stdout=follower, stderr=follower, env={**os.environ, "COLUMNS": "60"}
    ) as started:
        os.close(follower)
        text = b""
        while True:
            try:
                piece = os.read(leader, 65536)
            except OSError:
                break
            if not piece:
                break
            text += piece
        assert started.wait() == 0
    os.close(leader)
    assert b"\x1b" not in text
    assert max(len(line) for line in text.decode().splitlines()) <= 60


def test_interrupting_ends_with_130(tmp_path):
    script = "import sys, signal, threading, os\nsignal.signal(signal.SIGINT, signal.default_int_handler)\nimport reweigh.evaluation as e\ne.evaluate = lambda *a, **k: (threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start(), __import__('time').sleep(20))\nfrom reweigh.cli import main\nsys.exit(main(['evaluate', 'x.npz']))"
    started = time.monotonic()
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (130, "reweigh: interrupted\n")
    assert time.monotonic() - started < 20


def test_without_typer_it_says_what_to_install():
    script = "import sys; sys.modules['typer'] = None; from reweigh.cli import main; sys.exit(main(['--help']))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.returncode == 1
    assert "pip install 'reweigh[cli]'" in found.stderr


def test_without_pyarrow_npz_still_works(tmp_path):
    path = write(tmp_path / "a.npz", seed=0)
    script = f"""
import sys
sys.modules['pyarrow'] = None
from reweigh.cli import main
print(main(['evaluate', {str(path)!r}, '-m', 'accuracy', '--json']))
print(main(['convert', {str(path)!r}, '-o', {str(tmp_path / "b.npz")!r}]))
print(main(['convert', {str(path)!r}, '-o', {str(tmp_path / "b.parquet")!r}]))
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert [line for line in found.stdout.splitlines() if line in "01"] == ["0", "0", "1"]
    assert "pip install 'reweigh[files]'" in found.stderr
