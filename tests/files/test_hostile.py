"""Files made to harm: pickles, bombs, absurd claims. Nothing runs, memory stays bounded, each is one sentence."""

from __future__ import annotations

import io
import os
import pickle
import resource
import struct
import subprocess
import sys
import textwrap
import zipfile

import numpy
import pytest

import reweigh
from reweigh.errors import InputError

MEGABYTE = 1 << 20


class Payload:
    """Unpickling this would create a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def header(text: str, version: bytes = b"\x01\x00") -> bytes:
    raw = text.encode("latin1")
    return b"\x93NUMPY" + version + struct.pack("<H" if version == b"\x01\x00" else "<I", len(raw)) + raw


def npy_like(descr: str = "'<f4'", shape: str = "(2, 2)", data: bytes = b"\0" * 16, fortran: str = "False") -> bytes:
    return header(f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}}}\n") + data


def archive(path, **members: bytes):
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


def test_no_pickle_runs(tmp_path):
    trap = tmp_path / "ran"
    objects = numpy.array([Payload(trap)], dtype=object)
    numpy.savez(tmp_path / "a.npz", logits=objects, allow_pickle=True)
    numpy.save(tmp_path / "logits.npy", objects, allow_pickle=True)
    archive(tmp_path / "b.npz", logits=pickle.dumps(Payload(trap)))
    (tmp_path / "c.npz").write_bytes(pickle.dumps(Payload(trap)))
    (tmp_path / "c.npy").write_bytes(pickle.dumps(Payload(trap)))
    (tmp_path / "c.safetensors").write_bytes(pickle.dumps(Payload(trap)))
    for name in ("a.npz", "logits.npy", "b.npz", "c.npz", "c.npy", "c.safetensors"):
        with pytest.raises(InputError, match=name.replace(".", r"\.")):
            reweigh.open(tmp_path / name, logits="logits")
        with pytest.raises(InputError):
            list(reweigh.files.batches(tmp_path / name, logits="logits"))
    assert not trap.exists()


def test_an_object_array_says_how_to_save_text(tmp_path):
    numpy.savez(
        tmp_path / "a.npz",
        logits=numpy.zeros((2, 2)),
        ids=numpy.array(["a", "b"], dtype=object),
        note=numpy.array([{}, {}], dtype=object),
    )
    with pytest.raises(InputError, match=r"'ids' holds Python objects.*numpy.array\(values, dtype=str\)"):
        reweigh.open(tmp_path / "a.npz")
    assert len(reweigh.open(tmp_path / "a.npz", id=False)) == 2


CLAIMS = {
    "more than there is": npy_like(shape="(1000000000, 1000)"),
    "beyond 64 bits": npy_like(shape="(99999999999999999999999, 9)"),
    "negative": npy_like(shape="(-2, 2)"),
    "negative twice": npy_like(shape="(-2, -2)"),
    "three axes": npy_like(shape="(1, 2, 2)"),
    "text as shape": npy_like(shape="('a', 2)"),
    "code as shape": npy_like(shape="(__import__('os').getpid(), 2)"),
    "less than there is": npy_like(shape="(1, 2)"),
    "empty and endless": npy_like(shape="(0, 999999999999)", data=b""),
    "nothing a row": npy_like(descr="'|V0'", shape="(999999999999,)", data=b""),
    "empty text": npy_like(descr="'<U0'", shape="(999999999999,)", data=b""),
    "complex": npy_like(descr="'<c8'", shape="(1, 2)"),
    "a record": npy_like(descr="[('a', '<f4'), ('b', '<f4')]", shape="(2,)"),
    "a date": npy_like(descr="'<M8[s]'", shape="(2,)"),
    "an unknown type": npy_like(descr="'<q9'"),
    "no shape": header("{'descr': '<f4', 'fortran_order': False}\n") + b"\0" * 16,
    "a long header": header("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2)}" + " " * 60_000 + "\n")
    + b"\0" * 16,
    "a nested header": header("(" * 5000 + ")" * 5000 + "\n") + b"\0" * 16,
    "a later version": header("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2)}\n", b"\x03\x00") + b"\0" * 16,
    "no magic": b"hello",
    "nothing": b"",
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_absurd_arrays(tmp_path, claim):
    (tmp_path / "logits.npy").write_bytes(CLAIMS[claim])
    archive(tmp_path / "a.npz", logits=CLAIMS[claim])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in ("logits.npy", "a.npz"):
        with pytest.raises(InputError):
            reweigh.open(tmp_path / name, logits="logits")
        with pytest.raises(InputError):
            list(reweigh.files.batches(tmp_path / name, logits="logits"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def bomb(path, size: int):
    """A few kilobytes that unfold into `size` bytes of zeros."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file,
        file.open("logits.npy", "w", force_zip64=True) as stream,
    ):
        rows = size // 8
        stream.write(npy_like(shape=f"({rows}, 2)", data=b""))
        zeros = bytes(4 * MEGABYTE)
        for _ in range(rows * 8 // len(zeros)):
            stream.write(zeros)
    return path


def test_a_zip_bomb_is_refused_before_it_unfolds(tmp_path):
    path = bomb(tmp_path / "bomb.npz", 512 * MEGABYTE)
    assert path.stat().st_size < MEGABYTE
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"would unfold into 536,870,912, more than 250 times"):
        reweigh.open(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def test_a_member_that_lies_about_its_size(tmp_path):
    path = bomb(tmp_path / "bomb.npz", 64 * MEGABYTE)
    raw = bytearray(path.read_bytes())
    place = raw.rfind(b"PK\x01\x02")
    raw[place + 24 : place + 28] = struct.pack("<I", 1000)  # its unfolded size in the directory
    path.write_bytes(raw)
    with pytest.raises(InputError):
        reweigh.open(path)


def test_a_parquet_bomb_is_refused(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    column = pyarrow.array(numpy.zeros(20_000_000)).dictionary_encode()
    parquet.write_table(pyarrow.table({"z0": column, "z1": column}), tmp_path / "bomb.parquet")
    assert (tmp_path / "bomb.parquet").stat().st_size < MEGABYTE
    with pytest.raises(InputError, match=r"would unfold"):
        reweigh.open(tmp_path / "bomb.parquet", logits="z*")


def test_one_long_text_does_not_widen_every_row(tmp_path):
    ids = [str(number) for number in range(20_000)]
    ids[7] = "x" * 100_000
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"logits": list(numpy.zeros((20_000, 2))), "id": ids}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"column 'id' has 100,000 characters in row 7"):
        reweigh.open(tmp_path / "a.parquet")
    assert len(reweigh.open(tmp_path / "a.parquet", id=False)) == 20_000


def test_more_than_memory_is_said_before_it_is_read(tmp_path, monkeypatch):
    from reweigh.files import _limits

    numpy.savez(tmp_path / "a.npz", logits=numpy.zeros((1000, 1000)))
    monkeypatch.setattr(_limits, "free_memory", lambda: 1000)
    with pytest.raises(InputError, match=r"it needs 0.0 GiB of memory.*reweigh.files.batches"):
        reweigh.open(tmp_path / "a.npz")
    assert sum(len(part) for part in reweigh.files.batches(tmp_path / "a.npz", rows=100)) == 1000


def test_a_lack_of_memory_is_a_sentence(tmp_path):
    """Under a limit of the system, too: no traceback, no kill."""
    numpy.savez(tmp_path / "a.npz", logits=numpy.zeros((3_000_000, 20), "float32"))
    script = f"""
        import resource, reweigh
        import reweigh.files
        from reweigh.errors import InputError
        used = int(open("/proc/self/statm").read().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20),) * 2)
        try:
            reweigh.open({str(tmp_path / "a.npz")!r})
        except InputError as error:
            print(error)
    """
    found = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    assert "there is not enough memory" in found.stdout


def test_two_members_of_one_name(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file, pytest.warns(UserWarning, match=r"Duplicate name"):
        for value in (0.0, 1.0):
            stream = io.BytesIO()
            numpy.save(stream, numpy.full((2, 2), value))
            file.writestr("logits.npy", stream.getvalue())
    with pytest.raises(InputError, match=r"two arrays called 'logits'"):
        reweigh.open(tmp_path / "a.npz")


def test_an_encrypted_member(tmp_path):
    path = archive(tmp_path / "a.npz", logits=npy_like())
    raw = bytearray(path.read_bytes())
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        raw[raw.rfind(mark) + at] |= 1
    path.write_bytes(raw)
    with pytest.raises(InputError, match=r"a\.npz: it is damaged or not an NPZ file \(.*encrypted"):
        reweigh.open(path)


def test_names_cannot_leave_the_archive(tmp_path):
    """Members are read, never extracted: a path in a name is a name."""
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("../../logits.npy", npy_like())
    with pytest.raises(InputError, match=r"'\.\./\.\./logits'"):
        reweigh.open(tmp_path / "a.npz")
    assert len(reweigh.open(tmp_path / "a.npz", logits="../../logits")) == 2


def test_devices_and_pipes_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(InputError, match=r"neither a file nor a folder"):
        reweigh.open(tmp_path / "pipe.npz")
    with pytest.raises(InputError, match=r"neither a file nor a folder"):
        reweigh.open("/dev/zero", format="csv", logits="a,b")
