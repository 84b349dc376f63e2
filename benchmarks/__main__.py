"""Every benchmark in turn, each in a process of its own, so that none warms or crowds another.

Run: make bench, or python -m benchmarks [NAME...] for some of the files beside this one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main(wanted: list[str]) -> int:
    known = sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith("_"))
    unknown = [name for name in wanted if name not in known]
    if unknown:
        print(f"benchmarks: there is no benchmark {unknown[0]!r}; known: {', '.join(known)}.", file=sys.stderr)
        return 2
    status = 0
    for name in wanted or known:
        print(f"\n==== {name} ====", flush=True)
        status |= subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], cwd=HERE.parent).returncode != 0
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
