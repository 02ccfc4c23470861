"""One installation of nats, redis and gateway for all tests of the package, and processes that only sleep."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from installed_gateway import Installed, installed_gateway
from owners import Started, sleepers


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    with installed_gateway(tmp_path_factory.mktemp("installed")) as found:
        yield found


@pytest.fixture
def sleeper() -> Iterator[Started]:
    """Start processes that only sleep."""
    with sleepers() as start:
        yield start
