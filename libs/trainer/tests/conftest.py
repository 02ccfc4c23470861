"""Common to all tests of the trainer: their helpers on the path, and processes that start warm."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# not the folder of the tests itself: `import torch` would find the folder of that name where PyTorch is not installed
sys.path.insert(0, str(Path(__file__).parent / "helpers"))

from warm_processes import WarmProcesses


@pytest.fixture(scope="session")
def warm() -> Iterator[WarmProcesses]:
    processes = WarmProcesses(
        "stretto.engine", "stretto.model.evaluate", "stretto.server.flash_checkpoint", "stretto.keras.program",
        "stretto.build", "stretto.worker.step",
    )  # fmt: skip
    yield processes
    processes.close()
