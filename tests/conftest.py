"""What every test shares: the thread count, hypothesis's profiles, the optional real data, the GPU's skip."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

# One core a worker: the workers share the machine, and sums come out the same on every machine.
torch.set_num_threads(1)

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # a GPU machine that has pytest alone runs the tests that draw nothing
    pass
else:
    # Timing depends on the neighbours of a shared machine, so no deadline; a big first example is no fault either.
    common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
    settings.register_profile("test", max_examples=10, derandomize=True, database=None, **common)
    settings.register_profile("nightly", max_examples=1000, print_blob=True, **common)
    settings.load_profile(os.environ.get("REWEIGH_PROFILE", "test"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Under `-m gpu` files without such a test are not even imported: a GPU machine may lack what they need."""
    if config.option.markexpr == "gpu" and collection_path.match("test_*.py"):
        return "mark.gpu" not in collection_path.read_text(encoding="utf-8") or None
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="this machine has no NVIDIA GPU that PyTorch can use"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets, logits and weights that is too large for the repository."""
    named = os.environ.get("REWEIGH_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"the real data is not at {folder}; REWEIGH_DATA names its folder")
    return folder
