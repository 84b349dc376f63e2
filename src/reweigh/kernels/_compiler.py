"""CUDA C++ compiled while the program runs, and launched: NVRTC, the compiler that comes with torch, and the driver.

Both are C libraries that torch has loaded or can load, called by ctypes: nothing is installed, nothing is written to
disk, no other process runs. A launch costs the host about as much as one of PyTorch's own operators.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

OLDEST = (7, 5)  # compute capability
CLUSTERS_FROM = (9, 0)
MAX_DYNAMIC_SHARED_MEMORY = 8
NON_PORTABLE_CLUSTER_SIZE = 14  # attributes of a function, as the driver numbers them


class CompileError(RuntimeError):
    """The compiler refused generated code; its words are in the message."""


def _first(names: list[str]) -> ctypes.CDLL | None:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


@functools.cache
def _nvrtc() -> Any:
    major = (torch.version.cuda or "0").split(".")[0]
    if sys.platform == "win32":
        names = [f"nvrtc64_{major}0_0.dll", "nvrtc64_112_0.dll"]
        pattern = "nvrtc64_*.dll"
    else:
        names = [f"libnvrtc.so.{major}", "libnvrtc.so"]
        pattern = "libnvrtc[.-]*so*"
    packages = Path(torch.__file__).parents[1]
    folders = [packages / "nvidia" / f"cu{major}" / "lib", packages / "nvidia" / "cuda_nvrtc" / "lib"]
    folders += [Path(torch.__file__).parent / "lib", Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "lib64"]
    beside = [path for folder in folders for path in sorted(glob.glob(str(folder / pattern))) if "builtins" not in path]
    return _first([*names, *beside])


@functools.cache
def _driver() -> ctypes.CDLL | None:
    return _first(["nvcuda.dll"] if sys.platform == "win32" else ["libcuda.so.1", "libcuda.so"])


def why_not(device: torch.device) -> str | None:
    """Why generated kernels cannot run on this device, in words; None: they can."""
    if torch.version.hip is not None or torch.version.cuda is None:
        return "this PyTorch was not built for NVIDIA devices"
    if device.type != "cuda" or not torch.cuda.is_available():
        return "there is no NVIDIA device"
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST:
        return f"the device has compute capability {capability[0]}.{capability[1]}, the kernels need 7.5"
    if _nvrtc() is None:
        return "NVRTC, the compiler that comes with torch, was not found"
    if _driver() is None:
        return "the NVIDIA driver's library was not found"
    return None


def has_clusters(index: int) -> bool:
    """Can blocks share a row through each other's shared memory?"""
    return torch.cuda.get_device_capability(index) >= CLUSTERS_FROM


@dataclass
class Kernel:
    """A compiled function, loaded on one device."""

    function: ctypes.c_void_p
    threads: int
    shared: int  # bytes beside what the code declares
    cluster: int
    blocks_at_once: int  # blocks that the device holds at a time

    def launch(self, blocks: int, call: ctypes.Structure, stream: int) -> None:
        """Queue it; `call` is its one argument, copied at once."""
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(call))
        status = _driver().cuLaunchKernel(
            self.function, blocks, 1, 1, self.threads, 1, 1, self.shared, ctypes.c_void_p(stream), arguments, None
        )
        if status:
            _raise_driver_error(status, "launching a kernel")


def compile_source(source: str, capability: tuple[int, int]) -> tuple[bytes, bool]:
    """Machine code for a device of this capability, or portable code (True) where the compiler is older than it."""
    nvrtc = _nvrtc()
    number = ctypes.c_int()
    nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(number))
    known = (ctypes.c_int * number.value)()
    nvrtc.nvrtcGetSupportedArchs(known)
    wanted = capability[0] * 10 + capability[1]
    portable = wanted not in list(known)
    name = f"compute_{max(arch for arch in known if arch <= wanted)}" if portable else f"sm_{wanted}"
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"reweigh.cu", 0, None, None)
    try:
        options = [f"--gpu-architecture={name}".encode(), b"--std=c++17"]
        failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        if failed:
            raise CompileError(f"compiling a kernel for {name}: {_text(nvrtc, program, 'ProgramLog').decode()}")
        return _text(nvrtc, program, "PTX" if portable else "CUBIN"), portable
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _text(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer.raw


def load(source: str, names: list[str], index: int, *, threads: int, shared: int = 0, cluster: int = 1) -> list[Kernel]:
    """Compile a source and load its functions on device number `index`."""
    code, _ = compile_source(source, torch.cuda.get_device_capability(index))
    driver, module = _driver(), ctypes.c_void_p()
    with torch.cuda.device(index):
        torch.cuda.current_stream(index).query()  # the context of this device is there and current
        _checked(driver.cuModuleLoadData(ctypes.byref(module), code), "loading a kernel")
        return [_function(driver, module, name, index, threads, shared, cluster) for name in names]


def _function(driver: Any, module: Any, name: str, index: int, threads: int, shared: int, cluster: int) -> Kernel:
    function = ctypes.c_void_p()
    _checked(driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode()), f"finding {name}")
    if shared > 48 * 1024:
        _checked(driver.cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED_MEMORY, shared), "asking for shared memory")
    if cluster > 8:
        _checked(driver.cuFuncSetAttribute(function, NON_PORTABLE_CLUSTER_SIZE, 1), "asking for a large cluster")
    blocks = ctypes.c_int()
    _checked(
        driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            ctypes.byref(blocks), function, threads, ctypes.c_size_t(shared)
        ),
        "counting blocks",
    )
    processors = torch.cuda.get_device_properties(index).multi_processor_count
    return Kernel(function, threads, shared, cluster, max(1, blocks.value) * processors)


def _checked(status: int, doing: str) -> None:
    if status:
        _raise_driver_error(status, doing)


def _raise_driver_error(status: int, doing: str) -> None:
    words = ctypes.c_char_p()
    _driver().cuGetErrorString(status, ctypes.byref(words))
    raise RuntimeError(f"{doing}: {(words.value or b'unknown error').decode()} (driver error {status})")
