"""The contract with containers of a real Docker engine; skips where there is none."""

from __future__ import annotations

from backend_contract import BackendContract


class TestDocker(BackendContract):
    """The contract, with ``docker.py``."""
