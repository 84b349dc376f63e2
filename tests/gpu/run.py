"""Every check on a GPU, without pytest: `scripts/gpu_check.sh` calls it. Processes share the work, because most of the
time goes into compiling; what fails is said in a line, and the exit status is 1.

    python tests/gpu/run.py [--only WORD] [--workers N] [--no-contract]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial

import torch

COMPILING = ("compiles", "compiles_with_inductor")


def contract(form: object) -> None:
    """The contract suite on the GPU."""
    from reweigh.testing import check_loss

    check_loss(form.loss, device="cuda", without=COMPILING)


def work(with_contract: bool) -> Iterator[tuple[str, Callable[[], None]]]:
    """Names and checks."""
    import checks

    yield from checks.all_checks()
    if with_contract:
        from reweigh import registry
        from reweigh.testing import variants

        for entry in registry.entries("loss"):
            for form in variants(entry.name):
                yield f"contract, {form.label}", partial(contract, form)


def share(number: int, workers: int, only: str, with_contract: bool) -> int:
    """One process's part; a line for every check."""
    torch.set_num_threads(1)
    failed = 0
    for place, (name, check) in enumerate(work(with_contract)):
        if place % workers != number or only not in name:
            continue
        start = time.perf_counter()
        try:
            check()
            print(f"ok      {time.perf_counter() - start:6.1f} s  {name}", flush=True)
        except Exception as error:  # one failure does not hide the others
            failed += 1
            words = " ".join(str(error).split())[:1500] or traceback.format_exc(limit=3)
            print(f"FAILED  {time.perf_counter() - start:6.1f} s  {name}: {words}", flush=True)
            if "CUDA error" in str(error) or "driver error" in str(error):
                break  # the context is gone, and everything after it would fail
    return failed


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="checks whose name has this word")
    parser.add_argument("--workers", type=int, default=max(1, min(14, (os.cpu_count() or 2) - 2)))
    parser.add_argument("--no-contract", action="store_true")
    parser.add_argument("--number", type=int, help="of this process; for the program's own use")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("This machine has no NVIDIA GPU that PyTorch can use: nothing was checked.")
        return 0
    if options.number is not None:
        return share(options.number, options.workers, options.only, not options.no_contract) > 0
    command = [sys.executable, __file__, *sys.argv[1:], "--workers", str(options.workers)]
    parts = [subprocess.Popen([*command, "--number", str(number)]) for number in range(options.workers)]
    failed = sum(part.wait() != 0 for part in parts)
    print(f"{failed} of {options.workers} processes had failures" if failed else "every check passed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
