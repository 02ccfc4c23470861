"""The time from a worker's kill -9 until another one has trained the rest of its shard.

Dispatcher, actuator and pods are real and train Wide & Deep. In one run the actuator observes the exit of the process.
In the other it is stopped, as if the machine were lost with it, so that missed heartbeats reveal the loss.

python -m tests.bench.state.worker_loss
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import stretto_wire as wire
from stretto_bus import Client
from stretto_installation.provision import provision
from stretto_installation.server import EmbeddedServer
from stretto_messages.actuator import JobFailed
from stretto_messages.arbiter import PlanDecided
from stretto_messages.dispatcher import ShardCompleted, ShardLeased, ShardRequeued
from stretto_messages.values import Shard

from tests.bench.rows import Row, row
from tests.integration.pods import end_pods
from tests.live_bus import decision, plan_of

JOB = "worker-loss"
LEASE_TIMEOUT_S = 6.0
LOSSES = 3
START_S = 240.0
DOCUMENT: dict[str, Any] = {
    "name": JOB,
    "model": {"entry": "stretto.examples.wide_deep:WideDeep", "arguments": {"samples": 50_000_000}},
    "dataset": {"samples": 50_000_000, "batch_size": 512, "batches_per_shard": 16},
    "checkpoint": {"every_s": None},
}


class Scene:
    """The processes, and the dispatcher's events about shards, with their times of arrival."""

    def __init__(self, folder: Path, server: EmbeddedServer, client: Client) -> None:
        self.folder, self.server, self.client = folder, server, client
        self.children: dict[str, asyncio.subprocess.Process] = {}
        self.told: list[tuple[float, Any]] = []
        self.following = asyncio.create_task(self.follow())

    async def follow(self) -> None:
        async for event in self.client.events(patterns=(f"evt.v1.*.*.{JOB}",)):
            self.told.append((time.monotonic(), event.message))

    async def start(self) -> None:
        assert self.server.keys is not None
        told = {
            "NATS_URL": self.server.url,
            "STATE_FOLDER": self.folder,
            "ACTUATOR_SIGNING_KEY_FILE": self.server.keys.signing_file,
            "DISPATCHER_LEASE_TIMEOUT_S": LEASE_TIMEOUT_S,
        }
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("STRETTO_")}
        for service in ("dispatcher", "actuator"):
            settings = told | {"NATS_CREDENTIALS": str(self.server.login(service).credentials)}
            environment = inherited | {f"STRETTO_{name}": str(value) for name, value in settings.items()}
            command = (sys.executable, "-m", f"stretto_{service}")
            self.children[service] = await asyncio.create_subprocess_exec(
                *command, env=environment, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
            )
        await self.client.publish(wire.JobSubmitted(job=JOB, spec=wire.JobSpec.parse(DOCUMENT)))
        await self.client.publish(plan_decided())

    def leased(self) -> dict[str, Shard]:
        """Return pod -> its shard, according to the events so far."""
        held: dict[str, Shard] = {}
        for _, message in self.told:
            if isinstance(message, ShardLeased):
                held[message.pod] = message.shard
            elif isinstance(message, ShardCompleted | ShardRequeued):
                held.pop(message.pod, None)
        return held

    async def until(self, find: Callable[[], Any], limit_s: float, what: str) -> Any:
        """Wait until `find` returns something true, and return it. TimeoutError names `what`."""
        deadline = time.monotonic() + limit_s
        while not (found := find()):
            if reasons := [message.reason for _, message in self.told if isinstance(message, JobFailed)]:
                raise RuntimeError(f"the job failed: {reasons[0]}")
            if time.monotonic() > deadline:
                kinds = [type(message).__name__ for _, message in self.told[-20:]]
                raise TimeoutError(f"waited {limit_s:.0f} s for {what}; the last events: {kinds}")
            await asyncio.sleep(0.005)
        return found

    async def lose(self) -> tuple[float, float]:
        """Kill a worker; return the seconds until the rest is free again, and until another worker has trained it."""
        await self.until(lambda: len(self.leased()) == 2, START_S, "two workers that train")
        pod, since = min(self.leased()), len(self.told)
        os.kill(int((self.folder / f"pods/{JOB}/{pod}/pid").read_text()), signal.SIGKILL)
        killed_s = time.monotonic()

        def said(kind: type[Any], fits: Callable[[Any], bool]) -> tuple[float, Any] | None:
            return next(((at, m) for at, m in self.told[since:] if isinstance(m, kind) and fits(m)), None)

        free_s, requeued = await self.until(
            lambda: said(ShardRequeued, lambda m: m.pod == pod), LEASE_TIMEOUT_S + 60, "its shard to be free"
        )
        trained_s, _ = await self.until(
            lambda: said(ShardCompleted, lambda m: m.shard.id == requeued.shard.id and m.pod != pod),
            LEASE_TIMEOUT_S + 60,
            "another worker that trains it",
        )
        return free_s - killed_s, trained_s - killed_s

    async def lose_unseen(self) -> tuple[float, float]:
        """Kill a worker while the actuator is stopped."""
        await self.until(lambda: len(self.leased()) == 2, START_S, "two workers that train")
        self.children["actuator"].send_signal(signal.SIGSTOP)
        try:
            return await self.lose()
        finally:
            self.children["actuator"].send_signal(signal.SIGCONT)

    async def close(self) -> None:
        self.following.cancel()
        for child in self.children.values():
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
        await end_pods(self.folder)


def plan_decided() -> PlanDecided:
    """Return two workers and one parameter server, as an arbiter would grant them."""
    return decision(JOB, plan_of(workers=2, memory=3 * 2**30))


@contextlib.asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[Scene]:
    server = EmbeddedServer(folder / "nats")
    await server.start()
    client = await Client.connect(server.url, server.login())
    try:
        await provision(client.bus)
        made = Scene(folder, server, client)
        try:
            await made.start()
            yield made
        finally:
            await made.close()
    finally:
        await client.close()
        server.kill()


async def measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="stretto-bench-") as folder:
        async with scene(Path(folder)) as made:
            seen = [await made.lose() for _ in range(LOSSES)]
            unseen = [await made.lose_unseen() for _ in range(LOSSES)]
    beyond = [trained_s - LEASE_TIMEOUT_S for _, trained_s in unseen]
    return [
        row(
            "kill -9 of a worker → its rest trained by another, by missed heartbeats", max(beyond),
            "s beyond the timeout", "<= 2 s", max(beyond) <= 2.0,
            f"the worst of {LOSSES}; heartbeat timeout {LEASE_TIMEOUT_S:.0f} s; {told(unseen)}",
        ),
        row(
            "… the actuator sees it exit", statistics.median(trained_s for _, trained_s in seen), "s", "", None,
            f"median; {told(seen)}",
        ),
    ]  # fmt: skip


def told(losses: list[tuple[float, float]]) -> str:
    return "free again and trained after " + ", ".join(f"{free:.2f} and {trained:.2f} s" for free, trained in losses)


def run() -> list[Row]:
    """Return a row for each way to notice the loss."""
    return asyncio.run(measure())


if __name__ == "__main__":
    json.dump({"rows": run()}, sys.stdout, indent=1)
