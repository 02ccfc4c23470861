"""A service that runs inside a test, and what a test waits for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from inspect import isawaitable
from pathlib import Path
from typing import Any, Protocol

from stretto_bus import Client
from stretto_bus.login import Login
from stretto_installation.server import EmbeddedServer
from stretto_runtime import Runner, Service
from stretto_runtime.owner.state.recovery import document_of
from stretto_runtime.spans.tracing import Tracing
from stretto_runtime.streams import BusStreams
from stretto_wire.contract.registry import partition_of
from warm_processes import WarmProcess, WarmProcesses

HERE = Path(__file__).parent
REPLICAS = WarmProcesses("runtime_counting")
"""Replicas start as forks: the imports of one take a second of CPU. It ends with the tests."""
SHORT_LEASE_S = 0.2
"""Lease of a replica that succeeds a dead one and has no living one beside it: it waits for twice as long, at most."""
ASK = """
import sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=60).read().decode())
except urllib.error.HTTPError as refused:
    print(refused.read().decode())
"""


class Server(Protocol):
    """One server or several."""

    @property
    def url(self) -> str: ...

    def login(self, user: str = ...) -> Login: ...

    def environment(self, user: str) -> dict[str, str]: ...


async def connect(server: Server, user: str = "operator", spans: Path | None = None) -> Client:
    """Connect; with ``spans``, what the client sends becomes spans in that folder."""
    tracing = Tracing(user, spans, 32 << 20, 200.0) if spans is not None else None
    return await Client.connect(server.url, server.login(user), tracing=tracing)


async def saved_state(client: Client, service: str, key: str) -> dict[str, Any] | None:
    """The last saved state of a machine."""
    document = await document_of(BusStreams(client.bus), service, partition_of(key), key)
    return document.whole if document else None


class Replicas:
    """Replicas of the counting service, or another one of ``user``, as processes of their own."""

    def __init__(self, server: Server, folder: Path, user: str = "dispatcher") -> None:
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("STRETTO_")},
            **server.environment(user),
        }
        self._folder = folder
        self._log = (folder / "replicas.log").open("ab")
        self._places: list[Sequence[str]] = []
        self.processes: list[subprocess.Popen[bytes] | WarmProcess] = []

    def start(
        self, beside: Sequence[str] = (), script: str = "runtime_counting.py", **settings: str
    ) -> subprocess.Popen[bytes] | WarmProcess:
        """``beside``: a command that runs it in another place (a network namespace)."""
        settings = {"state_folder": str(self._state(len(self.processes))), **settings}
        environment = {**self._environment, **{f"STRETTO_{name.upper()}": value for name, value in settings.items()}}
        if beside:
            command = [*beside, sys.executable, str(HERE / script)]
            process = subprocess.Popen(command, env=environment, stdout=self._log, stderr=self._log)
        else:
            script = str(HERE / script)
            process = REPLICAS.start(script, environment=environment, stdout=self._log, stderr=self._log)
        self.processes.append(process)
        self._places.append(beside)
        return process

    def reports(self) -> list[dict[str, Any]]:
        """Return each replica's report at /readyz, requested from its own network."""
        return [self._report(number) for number in range(len(self.processes))]

    def _report(self, number: int) -> dict[str, Any]:
        if (status := self.processes[number].poll()) is not None:
            return {"replica": number, "exit status": status}
        health = json.loads((self._state(number) / "run" / "dispatcher.json").read_text())
        url = f"http://{health['host']}:{health['port']}/readyz"
        done = subprocess.run(
            [*self._places[number], sys.executable, "-c", ASK, url], capture_output=True, text=True, check=False
        )
        return {"replica": number, **json.loads(done.stdout or json.dumps({"unreachable": done.stderr[-500:]}))}

    def _state(self, number: int) -> Path:
        return self._folder / f"state{number}"

    def end(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


async def until_ready(runner: Runner, timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not runner.report()["ready"]:
            await asyncio.sleep(0.01)


def settings_of(service: type[Service], server: EmbeddedServer, folder: Path, **more: Any) -> Any:
    return service.settings_type(
        nats_url=server.url, nats_credentials=server.login(service.name).credentials, state_folder=folder, **more
    )


Running = Callable[..., AbstractAsyncContextManager[Runner]]
"""``running`` and ``starting`` as fixtures: on the server of the test, in a folder of its own that may be named."""


@asynccontextmanager
async def starting(service: type[Service], server: EmbeddedServer, folder: Path, **more: Any) -> AsyncIterator[Runner]:
    """Run a replica inside the test, without a wait until it is ready; it leaves in the end."""
    runner = Runner(service(settings_of(service, server, folder, **more)))
    task = asyncio.create_task(runner.run())
    try:
        yield runner
    finally:
        runner.stop()
        await asyncio.wait_for(task, 60)


@asynccontextmanager
async def running(service: type[Service], server: EmbeddedServer, folder: Path, **more: Any) -> AsyncIterator[Runner]:
    """Run a replica inside the test, from when it is ready; it leaves in the end."""
    async with starting(service, server, folder, **more) as runner:
        await until_ready(runner)
        yield runner


async def eventually(condition: Callable[[], Any], timeout_s: float = 60.0) -> None:
    """Wait for a condition, or for the truth of what it awaits."""
    async with asyncio.timeout(timeout_s):
        while not (await found if isawaitable(found := condition()) else found):
            await asyncio.sleep(0.02)


async def published(client: Client, service: str, count: int) -> list[Any]:
    """The first ``count`` events of ``service``."""
    found: list[Any] = []
    async with asyncio.timeout(60):
        async for event in client.events(patterns=[f"evt.v1.{service}.*.*"]):
            found.append(event)
            if len(found) == count:
                return found
    return found


async def gone(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a replica."""
    await asyncio.to_thread(process.wait, 20)


async def epochs(client: Client) -> dict[str, list[int]]:
    """Per job: which version decided, output by output."""
    found: dict[str, list[int]] = {}
    async for event in client.events(patterns=["evt.v1.dispatcher.*.*"], follow=False):
        found.setdefault(event.message.job, []).append(event.message.epoch)
    return found


async def reconfigured(client: Client, stream: str, **changes: Any) -> dict[str, Any]:
    """Change the configuration of a stream; return the one before."""
    config = (await client.bus.ask(f"STREAM.INFO.{stream}"))["config"]
    await client.bus.ask(f"STREAM.UPDATE.{stream}", {**config, **changes})
    return config
