#!/usr/bin/env bash
# Checks everything that needs an NVIDIA GPU, on a machine that has torch and need not have anything else:
#     scripts/gpu_check.sh [--only WORD] [--workers N] [--no-contract]
# PYTHON names the interpreter (default python3). Where compute-sanitizer is installed it watches small launches.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
python=${PYTHON:-python3}
export PYTHONPATH="src:tests/gpu${PYTHONPATH:+:$PYTHONPATH}"
status=0
"$python" tests/gpu/run.py "$@" || status=1
if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
        echo "compute-sanitizer --tool $tool"
        PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 5 \
            "$python" tests/gpu/sanitize.py 2>&1 | tail -25 || status=1
    done
else
    echo "compute-sanitizer is not installed: memory accesses were not watched."
fi
exit $status
