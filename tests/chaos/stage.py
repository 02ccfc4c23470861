"""A small installation that is scraped while something befalls it: one server, and processes of services."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from lapse import BEAT_S, LAPSE, Recording, settings_of
from runtime_counting import add
from runtime_live import HERE, connect
from stretto_bus import BusFault, Client
from stretto_installation.provision import provision
from stretto_installation.server import EmbeddedServer, free_port, tied

from tests.integration.pods import end_pods

START_S = 60.0
FULLNESS_LOOK_S = 60 / LAPSE
"""A service looks at the stream's size once a minute: of the lapse, here."""
COUNTING = (str(HERE / "runtime_counting.py"),)
"""The counting service, which poses as the dispatcher."""


@dataclass
class Stage:
    """One installation and its recording. Processes are named as pods are: a new one has a new name."""

    folder: Path
    server: EmbeddedServer
    client: Client
    starting: asyncio.Semaphore
    watched_minutes: int
    """Minutes of the lapse for which a run goes on after its fault."""
    recording: Recording = field(default_factory=Recording)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict[str, subprocess.Popen[bytes]])
    urls: dict[str, str] = field(default_factory=dict[str, str])

    def start(self, instance: str, argv: Sequence[str] = COUNTING, user: str = "dispatcher", **settings: Any) -> None:
        """Start a process as ``user``, and scrape it from now on."""
        folder = self.folder / instance
        folder.mkdir()
        port = free_port()
        defaults = {"state_folder": folder, "stream_look_s": FULLNESS_LOOK_S, "health_port": port}
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("STRETTO_")},
            **{"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(HERE)},
            **self.server.environment(user),
            **settings_of({**defaults, **settings}),
        }
        with (folder / "log").open("wb") as log:
            command = tied([sys.executable, *argv], signal.SIGKILL)
            self.processes[instance] = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        self.urls[instance] = f"http://127.0.0.1:{port}"
        self.recording.add(instance, self.urls[instance])

    async def started(
        self, instance: str, argv: Sequence[str] = COUNTING, user: str = "dispatcher", **settings: Any
    ) -> None:
        """Start a process and wait until it is ready; few processes start at a time."""
        async with self.starting:
            self.start(instance, argv, user, **settings)
            await self.ready(instance)

    async def ready(self, instance: str) -> None:
        """Wait until a process answers that it is ready."""
        async with httpx.AsyncClient(timeout=5, trust_env=False) as http:
            try:
                async with asyncio.timeout(START_S):
                    while not await self._is_ready(http, instance):
                        await asyncio.sleep(0.1)
            except TimeoutError:
                log = (self.folder / instance / "log").read_text()[-3000:]
                raise AssertionError(f"{instance} is not ready after {START_S:.0f} s: {log}") from None

    async def _is_ready(self, http: httpx.AsyncClient, instance: str) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return (await http.get(f"{self.urls[instance]}/readyz")).status_code == 200
        return False

    async def metric(self, instance: str, name: str) -> float:
        """Return the sum of a metric's present samples at one process."""
        async with httpx.AsyncClient(timeout=10, trust_env=False) as http:
            text = (await http.get(f"{self.urls[instance]}/metrics")).text
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))

    def signal(self, number: signal.Signals, *instances: str) -> None:
        """Send a signal to the processes."""
        for instance in instances:
            self.processes[instance].send_signal(number)

    async def stopped(self, *instances: str) -> None:
        """Ask processes to stop, and wait until they have."""
        self.signal(signal.SIGTERM, *instances)
        for instance in instances:
            await asyncio.to_thread(self.processes[instance].wait, 30)

    def fault(self) -> None:
        """Note that the fault begins now."""
        self.recording.mark("fault")

    async def minutes(self, lapsed: float) -> None:
        """Let so many minutes of the lapse pass."""
        await asyncio.sleep(lapsed * 60 / LAPSE)

    @asynccontextmanager
    async def load(self, per_s: float = 10.0, jobs: int = 8) -> AsyncIterator[None]:
        """Publish additions to the counting service's jobs at this real rate; what the bus refuses is let go."""

        async def publish() -> None:
            loop, serial = asyncio.get_running_loop(), itertools.count(1)
            began_s, done = loop.time(), 0
            while True:
                due = int((loop.time() - began_s) * per_s) - done
                done += due
                each = [self.client.publish(add(f"job-{next(serial) % jobs}", 1)) for _ in range(min(due, 200))]
                for failed in await asyncio.gather(*each, return_exceptions=True):
                    if failed is not None and isinstance(failed, BaseException) and not isinstance(failed, BusFault):
                        raise failed
                await asyncio.sleep(0.05)

        task = asyncio.create_task(publish())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    @property
    def pods(self) -> Path:
        """The state folder of the run's actuators."""
        return self.folder / "pods"

    def end(self) -> None:
        """Kill every process but pods."""
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


@asynccontextmanager
async def staged(
    folder: Path, starting: asyncio.Semaphore, watched_minutes: int, server: EmbeddedServer | None = None
) -> AsyncIterator[Stage]:
    """Run an installation without services, and its recording. ``starting`` bounds the starts at a time."""
    server = server or EmbeddedServer(folder / "nats")
    await server.start()
    try:
        client = await connect(server)
        await provision(client.bus)
        stage = Stage(folder, server, client, starting, watched_minutes)
        scraping = asyncio.create_task(stage.recording.run())
        try:
            yield stage
            await asyncio.sleep(BEAT_S)
        finally:
            scraping.cancel()
            await asyncio.gather(scraping, return_exceptions=True)
            stage.end()
            await end_pods(stage.pods)  # they outlive their actuator
            await client.close()
    finally:
        server.kill()
