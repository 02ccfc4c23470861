"""The contract with containers of a real Docker engine; skips where there is none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from backend_contract import BackendContract
from engine_place import Containers, engine_client


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Containers]:
    made = Containers(engine_client(), tmp_path)
    await made.start()
    yield made
    await made.end()


class TestDocker(BackendContract):
    """Of ``docker.py``."""
