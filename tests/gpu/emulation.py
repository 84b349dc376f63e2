"""Runs the CUDA kernels on a CPU: the same sources, compiled by g++ with `emulator.h` in the place of the hardware."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from reweigh import fused, kernels
from reweigh.kernels import _cuda, _launch, _sigmoid, _softmax, _statistics

MODULES = (_launch, _softmax, _sigmoid, _statistics)
EMULATOR = Path(__file__).with_name("emulator.h")


@dataclass
class EmulatedKernel:
    """Stands where a loaded kernel would."""

    function: Any
    threads: int
    shared: int
    cluster: int
    blocks_at_once: int = 3  # few, so that blocks go round their loop and partial sums are added

    def launch(self, blocks: int, call: ctypes.Structure, stream: int) -> None:
        self.function(ctypes.byref(call), blocks, self.threads, self.cluster, self.shared)


def emulate(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """From here to the end of the test, tensors on the CPU are served by the kernels for GPUs."""
    if shutil.which("g++") is None:
        pytest.skip("running GPU kernels on the CPU needs g++")
    plain = _launch.source

    def source(name: str) -> str:
        return EMULATOR.read_text() if name == "device.cuh" else plain(name)

    def load(
        text: str, names: list[str], index: Any, *, threads: int, shared: int = 0, cluster: int = 1
    ) -> list[EmulatedKernel]:
        library = compiled(text, names, folder)
        return [EmulatedKernel(getattr(library, f"emulate_{name}"), threads, shared, cluster) for name in names]

    monkeypatch.setattr(_launch, "source", source)
    for module in MODULES:
        monkeypatch.setattr(module, "load", load)
        monkeypatch.setattr(module, "stream_of", lambda index: 0)
    for module in MODULES:
        monkeypatch.setattr(module, "scratch", emulated_scratch)
    monkeypatch.setattr(_softmax, "has_clusters", lambda index: True)
    _softmax._plans.clear()
    for cached in (_softmax._kernel, _softmax._chosen, _sigmoid._kernel, _launch.row_kernels, _statistics._kernels):
        cached.cache_clear()
    _softmax._made.clear()
    monkeypatch.setattr(_cuda, "able", lambda device: True)
    monkeypatch.setattr(fused, "serves", lambda logits: True)
    monkeypatch.setitem(kernels._loaded, "cpu", _cuda)


def emulated_scratch(device: torch.device, stream: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(1, dtype=torch.int32), _launch._room(device)


def compiled(text: str, names: list[str], folder: Path) -> ctypes.CDLL:
    """The emulated kernels as a library; what was compiled before is not compiled again."""
    text += "".join(f"\nENTRY({name})" for name in names)
    stem = hashlib.sha256(text.encode()).hexdigest()[:16]
    library = folder / f"{stem}.so"
    if not library.exists():
        code = folder / f"{stem}.cpp"
        code.write_text(text)
        command = [
            "g++",
            "-std=c++17",
            "-O0",
            "-w",
            "-shared",
            "-fPIC",
            "-ffp-contract=off",
            str(code),
            "-o",
            str(library),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:4000]
    return ctypes.CDLL(str(library))
