"""A real server for every test of the bus, as the runtime's own tests start it."""

from __future__ import annotations

from runtime_fixtures import client, server
from stretto_runtime.process.telemetry import configure_logs

__all__ = ["client", "server"]

configure_logs("test", "error")
