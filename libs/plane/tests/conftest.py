"""Keys, and listeners at each kind of address."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from stretto_plane import Handler, Key, Listener


@pytest.fixture(scope="session")
def key() -> Key:
    return Key.derive(b"a secret of an installation, 32 B", "wide-deep")


@pytest.fixture(params=["tcp", "unix", "tls", "unix-tls"])
def way(request: pytest.FixtureRequest, tmp_path: Path) -> SimpleNamespace:
    """An address to listen at, and whether with encryption."""
    address = f"unix:{tmp_path}/plane" if request.param.startswith("unix") else "127.0.0.1:0"
    return SimpleNamespace(address=address, encrypted=request.param.endswith("tls"))


@pytest.fixture
def listen(key: Key) -> Iterator[Callable[..., Listener]]:
    """Start listeners that end with the test."""
    with ExitStack() as stack:

        def start(handler: Handler, address: str = "127.0.0.1:0", **more: Any) -> Listener:
            return stack.enter_context(Listener(address, handler, key, **({"size_bytes_max": 1 << 24} | more)))

        yield start
