"""The fixtures of ``runtime_fixtures``, for every test of the runtime."""

from __future__ import annotations

from runtime_fixtures import client, replicas, running, server, starting
from stretto_runtime.process.telemetry import configure_logs

__all__ = ["client", "replicas", "running", "server", "starting"]

configure_logs("test", "error")
