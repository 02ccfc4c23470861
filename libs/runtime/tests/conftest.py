"""A real server per test: it starts in 14 ms."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from stretto_runtime import Client, EmbeddedServer, Runner, provision
from stretto_runtime.telemetry import configure_logs

configure_logs("test", "error")

HERE = Path(__file__).parent


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    embedded = EmbeddedServer(tmp_path / "nats")
    await embedded.start()
    yield embedded
    embedded.kill()


@pytest.fixture
async def client(server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[Client]:
    connected = await connect(server, state_folder=tmp_path)
    await provision(connected.bus)
    yield connected
    await connected.close()


async def connect(server: EmbeddedServer, user: str = "operator", **options: object) -> Client:
    assert server.passwords is not None
    return await Client.connect(server.url, user, server.passwords[user], **options)  # type: ignore[arg-type]


class Replicas:
    """Replicas of the counting service as processes of their own."""

    def __init__(self, server: EmbeddedServer, folder: Path) -> None:
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("STRETTO_")},
            **server.environment("dispatcher"),
            "STRETTO_STATE_FOLDER": str(folder / "state"),
        }
        self._log = (folder / "replicas.log").open("ab")
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, **settings: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "runtime_counting.py")],
            env={**self._environment, **{f"STRETTO_{name.upper()}": value for name, value in settings.items()}},
            stdout=self._log,
            stderr=self._log,
        )
        self.processes.append(process)
        return process

    def end(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


@pytest.fixture
async def replicas(server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[Replicas]:
    started = Replicas(server, tmp_path)
    yield started
    started.end()


async def until_ready(runner: Runner, timeout_s: float = 30) -> None:
    async with asyncio.timeout(timeout_s):
        while not runner.report()["ready"]:
            await asyncio.sleep(0.01)
