"""One installation of nats, redis and gateway for all tests of the package."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from installed_gateway import Installed, installed_gateway


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    with installed_gateway(tmp_path_factory.mktemp("installed")) as found:
        yield found
