"""What must hold on a GPU, one test for each check of `checks.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import checks

CHECKS = list(checks.all_checks())


@pytest.mark.gpu
@pytest.mark.parametrize("check", [check for _, check in CHECKS], ids=[name for name, _ in CHECKS])
def test_on_a_gpu(check):
    check()
