"""The fixtures of ``runtime_fixtures``, for every test of the runtime."""

from __future__ import annotations

from runtime_fixtures import client, replicas, server
from stretto_runtime.process.telemetry import configure_logs

__all__ = ["client", "replicas", "server"]

configure_logs("test", "error")
