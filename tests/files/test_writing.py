"""Files appear whole or not at all; what was there before stays."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import reweigh
from reweigh.errors import InputError
from reweigh.files import replacing

from .conftest import build, full, same

ENDINGS = [".parquet", ".safetensors", ".npz"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_failure_leaves_the_old_file(tmp_path, ending):
    path = tmp_path / f"t{ending}"
    old = full()
    reweigh.save(old, path)

    def tables():
        yield build(rows=50)
        raise RuntimeError("the loop ended early")

    with pytest.raises(RuntimeError, match=r"ended early"):
        reweigh.save(tables(), path)
    assert same(reweigh.open(path), old)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_a_full_disk_is_a_sentence(tmp_path):
    """The system's limit on the size of a file ends a write as a full disk does."""
    paths = [tmp_path / f"t{ending}" for ending in ENDINGS]
    for path in paths:
        reweigh.save(full(), path)
    before = [path.read_bytes() for path in paths]
    script = f"""
        import numpy, resource, signal, reweigh
        from reweigh.errors import InputError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        for path in {list(map(str, paths))!r}:
            try:
                reweigh.save(reweigh.Predictions(logits=numpy.zeros((100_000, 10))), path)
            except InputError as error:
                print(error)
    """
    found = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    assert found.stderr == ""
    for path, line in zip(paths, found.stdout.splitlines(), strict=True):
        assert line.startswith(f"writing {path}: ")
        assert "File too large" in line
        assert line.endswith("The file that was there is untouched.")
    assert [path.read_bytes() for path in paths] == before
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(path.name for path in paths)


@pytest.mark.parametrize("folder", ["/proc", "/sys"])
def test_a_folder_that_cannot_be_written(folder):
    if not Path(folder).is_dir():
        pytest.skip(f"there is no {folder} here")
    with pytest.raises(InputError, match=f"^writing {folder}/t.npz: [A-Z][^\n]*\\.$"):
        reweigh.save(build(), f"{folder}/t.npz")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_read_only_folder(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(InputError, match=r"Permission denied"):
            reweigh.save(build(), tmp_path / "t.npz")
    finally:
        tmp_path.chmod(0o700)


def test_targets_that_are_no_files(tmp_path):
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(InputError, match=r"it is a folder. Choose another name"):
        reweigh.save(build(), tmp_path / "folder.npz")
    with pytest.raises(InputError, match=r"there is no folder .*nowhere"):
        reweigh.save(build(), tmp_path / "nowhere" / "t.npz")
    os.symlink("/dev/null", tmp_path / "null.npz")
    with pytest.raises(InputError, match=r"not a regular file"):
        reweigh.save(build(), tmp_path / "null.npz")
    assert not Path("/dev/null").is_file()


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "there").mkdir()
    os.symlink(tmp_path / "there" / "real.npz", tmp_path / "link.npz")
    table = build()
    reweigh.save(table, tmp_path / "link.npz")
    assert (tmp_path / "link.npz").is_symlink()
    assert same(reweigh.open(tmp_path / "there" / "real.npz"), table)


def test_the_longest_name(tmp_path):
    path = tmp_path / ("n" * 251 + ".npz")
    reweigh.save(build(), path)
    assert len(reweigh.open(path)) == 60


def test_two_writers_leave_one_whole_file(tmp_path):
    """The last to finish wins; the file is never a mixture."""
    path = tmp_path / "t.txt"
    with replacing(path) as first:
        first.write(b"first " * 1000)
        with replacing(path) as second:
            second.write(b"second")
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first " * 1000


@pytest.mark.parametrize("ending", ENDINGS)
def test_permissions_are_those_of_any_new_file(tmp_path, ending):
    mask = os.umask(0o022)
    try:
        reweigh.save(build(), tmp_path / f"t{ending}")
    finally:
        os.umask(mask)
    assert (tmp_path / f"t{ending}").stat().st_mode & 0o777 == 0o644
