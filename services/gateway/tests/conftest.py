"""Fixtures: a gateway for all tests of the package, one for a single test, and a cluster that decides."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for warm_gateway, which another process imports
pytest.register_assert_rewrite(f"{__package__}.rest_documents")  # before anything imports it

from .deciding_cluster import Cluster, deciding  # noqa: E402
from .gateway_process import Running, installed  # noqa: E402


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with installed(tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture
def own_gateway(tmp_path: Path) -> Iterator[Running]:
    """A gateway whose stream may lose what it has."""
    with installed(tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with deciding(tmp_path_factory.mktemp("cluster")) as found:
        yield found
