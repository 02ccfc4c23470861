"""A job that trains: a real worker and a real parameter server in this process, with a dispatcher of the test.

What says where the parameter server is stands in for the actuator.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats
import pytest
from stretto_bus import Client
from stretto_core.dispatcher.audit import Applied, Counted, prove
from stretto_dispatcher.service import Dispatcher
from stretto_dispatcher.settings import DispatcherSettings
from stretto_installation.provision import provision
from stretto_installation.server import EmbeddedServer
from stretto_messages.actuator import GetServersReply
from stretto_messages.books import LedgerBooks
from stretto_messages.dispatcher import AuditLedger
from stretto_messages.values import ParameterServer
from stretto_runtime import serve
from stretto_wire import encode
from stretto_wire.contract.submission import JobSubmitted
from stretto_wire.jobspec.spec import JobSpec


@dataclass
class Replica:
    """A dispatcher that serves until it is stopped."""

    stop: asyncio.Event
    task: asyncio.Task[None]

    async def leave(self) -> None:
        self.stop.set()
        await self.task


@dataclass
class LiveJob:
    """The job, and what a test asks about it."""

    name: str
    server: EmbeddedServer
    client: Client
    folder: Path
    worker: Any = None
    ps: Any = None
    thread: threading.Thread | None = None
    replicas: list[Replica] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)

    def start(self, kind: type[Dispatcher] = Dispatcher) -> Replica:
        """Start one more replica of the dispatcher."""
        folder = self.folder / f"state{len(self.replicas)}"
        settings = DispatcherSettings(nats_url=self.server.url, state_folder=folder, progress_every_s=0.2)
        stop = asyncio.Event()
        self.replicas.append(Replica(stop, asyncio.create_task(serve(kind(settings), stop))))
        return self.replicas[-1]

    async def until(self, reached: Callable[[], Awaitable[Any]], limit_s: float = 60) -> Any:
        deadline = time.monotonic() + limit_s
        while not (found := await reached()):
            assert time.monotonic() < deadline
            assert self.thread is not None
            assert self.thread.is_alive()
            await asyncio.sleep(0.1)
        return found

    async def books(self) -> LedgerBooks | None:
        return (await self.client.call(AuditLedger(job=self.name))).ledger

    async def has_done(self, samples: int) -> LedgerBooks:
        """Wait until so many samples or more are done; returns the books."""

        async def reached() -> LedgerBooks | None:
            told = await self.books()
            return told if told is not None and told.samples_done >= samples else None

        found: LedgerBooks = await self.until(reached)
        return found

    def faults(self, told: LedgerBooks) -> Any:
        """Compare the books with what every column of the parameters counted."""
        applied, columns = self.ps.store.applied(), self.ps.layout.columns
        each = zip(applied.samples, applied.fingerprints, strict=True)
        counted = [Counted((i,), int(n), int(p)) for i, (n, p) in enumerate(each)]
        parts = [
            Applied(dead.shard, (i,), dead.offset, dead.offset) for dead in told.books.given_up for i in range(columns)
        ]
        return prove(told.samples_done, int(told.books.fingerprint, 16), columns, counted, parts).faults


@asynccontextmanager
async def live_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: tuple[str, str], given: dict[str, Any]
) -> AsyncIterator[LiveJob]:
    """Train ``given`` until the test is done. ``model`` is the name and the text of its module."""
    import tensorflow as tf
    from stretto.engine import Key
    from stretto.engine import ParameterServer as Server
    from stretto.pod.process import Pod, PodSettings
    from stretto.worker.agent import Worker

    module, text = model
    (tmp_path / f"{module}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for kind in ("intra", "inter"):  # cannot be changed any more if another test has used TensorFlow in this process
        monkeypatch.setattr(tf.config.threading, f"set_{kind}_op_parallelism_threads", lambda threads: None)
    server = EmbeddedServer(tmp_path / "nats", secured=False)
    await server.start()
    client = await Client.connect(server.url)
    await provision(client.bus)
    spec = JobSpec.parse(given)
    job = LiveJob(spec.name, server, client, tmp_path)
    job.start()
    await client.publish(JobSubmitted(job=job.name, spec=spec))
    listed: list[ParameterServer] = []

    async def actuator(message: Any) -> None:
        if ".get-servers." in message.subject:
            reply = GetServersReply(job=job.name, answer="ok", version=1, plan_version=1, servers=tuple(listed))
            await message.respond(encode(reply))

    beside = await nats.connect(server.url)
    await beside.subscribe("rpc.>", cb=actuator)
    key = Key.random()
    (tmp_path / "plane.pem").write_bytes(key.pem)
    of_pod = (job.name, "worker-0", server.url, None, None, spec, 1, 1.0, 2**30, None, None, "")
    pod = Pod(PodSettings(*of_pod, plane_key=tmp_path / "plane.pem"))
    await asyncio.to_thread(pod.join)
    job.worker = Worker(pod)
    job.thread = threading.Thread(target=lambda: job.ended.append(job.worker.run()), daemon=True)
    job.thread.start()

    async def program() -> Any:
        return getattr(job.worker, "program", None)

    layout = (await job.until(program)).layout
    job.ps = Server(0, layout, key=key)
    job.ps.own(range(layout.columns))
    listed.append(ParameterServer(index=0, address=job.ps.address))
    try:
        yield job
    finally:
        pod.leaving.set()
        await asyncio.to_thread(job.thread.join, 20)
        pod.bus.close()
        job.ps.close()
        await beside.close()
        for replica in job.replicas:
            await replica.leave()
        await client.close()
        server.stop()
        sys.modules.pop(module, None)
