"""A real server, a real actuator, real processes as pods."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from stretto_actuator.local.backend import LocalBackend
from stretto_actuator.service import Actuator
from stretto_actuator.settings import ActuatorSettings
from stretto_bus import Client
from stretto_installation.server import EmbeddedServer
from stretto_messages.actuator import PlanApplied
from stretto_messages.base import Message
from stretto_runtime import serve

from tests.live_bus import decision, live_bus, plan_of, python_of, submission
from tests.waits import until

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode leaves the helpers beside the tests off the path
pytest.register_assert_rewrite("backend_contract")

FAKE = Path(__file__).with_name("fake_pod.py")
MIB = 2**20


class Stage:
    """The bus, an actuator in this process, and everything that was told."""

    def __init__(self, server: EmbeddedServer, client: Client, folder: Path) -> None:
        self.server, self.client, self.folder = server, client, folder
        self.events: list[Message] = []
        self._following = asyncio.create_task(self._follow())
        self._actuator: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self.backend = LocalBackend(folder)

    async def submit(self, **more: Any) -> None:
        """A job called actuated; nobody is there to take checkpoints."""
        await self.client.publish(submission("actuated", **{"checkpoint": {"every_s": None}, **more}))

    async def begin(self, workers: int = 1, ps: int = 1, settings: dict[str, Any] | None = None, **more: Any) -> None:
        """Start the actuator, and let it apply the first plan of the job."""
        await self.start(**(settings or {}))
        await self.submit(**more)
        await self.decide(1, workers, ps)
        await self.applied(1)

    def pid(self, pod: str) -> int:
        return int((self.folder / f"pods/actuated/{pod}/pid").read_text())

    async def decide(
        self, version: int, workers: int = 1, ps: int = 1, cpu: float = 0.5, memory: int = 256 * MIB
    ) -> None:
        """The arbiter's word."""
        await self.client.publish(decision("actuated", plan_of(workers, ps, cpu, memory), version))

    async def _follow(self) -> None:
        async for event in self.client.events(patterns=("evt.v1.actuator.*.*",)):
            if event.message is not None:
                self.events.append(event.message)

    async def start(self, **settings: Any) -> None:
        everything = self.server.login().credentials  # it plays several pods
        python = python_of(self.folder.parent / "fake-python", FAKE, STRETTO_NATS_CREDENTIALS=everything)
        self._stop = asyncio.Event()
        options = {
            "nats_url": self.server.url,
            "nats_credentials": self.server.login("actuator").credentials,
            "state_folder": self.folder,
            "pod_python": python,
            "lease_s": 1.0,
            "poll_s": 0.3,
            "stop_grace_s": 3.0,
            **settings,
        }
        self._actuator = asyncio.create_task(serve(Actuator(ActuatorSettings(**options)), self._stop))

    async def stop_actuator(self, abruptly: bool = False) -> None:
        if self._actuator is not None:
            if abruptly:
                self._actuator.cancel()
            self._stop.set()
            with contextlib.suppress(asyncio.CancelledError):
                await self._actuator
            self._actuator = None

    async def end(self) -> None:
        await self.stop_actuator()
        self._following.cancel()
        while pods := await self.backend.list():
            for pod in pods:
                await self.backend.kill(pod.job, pod.pod)
                await self.backend.forget(pod.job, pod.pod)
            await asyncio.sleep(0.02)

    def told(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def until(self, check: Callable[[], Any], limit_s: float = 60.0) -> Any:
        return await until(check, lambda: [type(event).__name__ for event in self.events], limit_s)

    async def applied(self, version: int) -> PlanApplied:
        return (await self.until(lambda: [e for e in self.told(PlanApplied) if e.version == version]))[0]

    async def running(self) -> list[str]:
        return sorted(pod.pod for pod in await self.backend.list() if pod.state == "running")


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with live_bus(tmp_path) as (server, client):
        made = Stage(server, client, tmp_path / "state")
        made.folder.mkdir(exist_ok=True)
        yield made
        await made.end()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Any]:
    """Containers of a real Docker engine; skips where there is none. Modules of other backends have their own."""
    from engine_place import Containers, engine_client  # found since the path was made above

    made = Containers(engine_client(), tmp_path)
    await made.start()
    yield made
    await made.end()
