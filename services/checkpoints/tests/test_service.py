"""The checkpoints service over a real bus; servers and ledger answer as the real ones do, with real files."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from stretto_bus import Client
from stretto_bus.reading.ordered_consumer import read
from stretto_checkpoints import manifest
from stretto_installation.server import EmbeddedServer
from stretto_messages.actuator import JobFailed, ServersChanged
from stretto_messages.checkpoints import (
    CheckpointFailed,
    CheckpointFlushed,
    CheckpointRestored,
    CheckpointSaved,
    SaveCheckpoint,
    SaveCheckpointReply,
)
from stretto_messages.dispatcher import JobCompleted
from stretto_messages.values import ParameterServer
from stretto_wire.contract.registry import STATE, STATE_PREFIX
from warm_processes import WarmProcess, WarmProcesses

from tests.live_bus import live_bus, submission

SERVICES = WarmProcesses("stretto_checkpoints.service")
"""The service starts as a fork of a process that has imported it, which ends with the tests."""


def store(folder: Path, pod: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{pod}.image").write_text("parameters")


class Stage:
    """Bus, the service as a process of its own, two parameter servers and a dispatcher."""

    def __init__(self, server: EmbeddedServer, client: Client, folder: Path) -> None:
        self.server, self.client, self.folder = server, client, folder
        self.imported: dict[str, list[int]] = {}
        self.calls: list[str] = []
        self.numbers: tuple[int, ...] = ()
        self.memory: dict[str, Path] = {}
        """pod -> what was reserved for its image"""
        self.refuse = ""
        self.differences = False
        """the servers add to the checkpoint that is named to them"""
        self.asked: list[str] = []
        """the checkpoints that were named to them"""
        self.files: dict[str, list[str]] = {}
        """pod -> the files of its chain"""
        self.lease_s = 1.0
        self.hold = ""
        """the verb that is not answered, once"""
        self.held = asyncio.Event()
        self._running: list[WarmProcess] = []

    async def open(self) -> None:
        connection = self.client.bus.connection
        await connection.subscribe("pod.v1.*.*.j", cb=self._answer)
        await connection.subscribe("rpc.v1.dispatcher.mark-ledger.*.j", cb=self._answer)
        await self.start()

    async def start(self) -> None:
        told = {
            "NATS_URL": self.server.url,
            "NATS_CREDENTIALS": str(self.server.login("checkpoints").credentials),
            "STATE_FOLDER": self.folder,
            "LEASE_S": self.lease_s,
            "CHECKPOINTS_POLL_S": 0.05,
            "CHECKPOINTS_MEMORY_FOLDER": self.folder,
        }
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STRETTO_")}
        environment |= {f"STRETTO_{name}": str(value) for name, value in told.items()}
        self._running.append(SERVICES.start("-m", "stretto_checkpoints", environment=environment))

    async def stop(self) -> None:
        """The oldest, in good order."""
        child = self._running.pop(0)
        child.terminate()
        await asyncio.to_thread(child.wait)

    async def kill(self) -> None:
        child = self._running.pop(0)
        child.kill()
        await asyncio.to_thread(child.wait)

    async def _answer(self, msg: Any) -> None:
        tokens, request = msg.subject.split("."), json.loads(msg.data)
        verb, pod = (tokens[3], "") if tokens[0] == "rpc" else (tokens[2], tokens[3])
        self.calls.append(verb)
        if verb == self.hold:
            self.hold = ""
            return self.held.set()
        reply: dict[str, Any] = {}
        if verb == "mark-ledger":
            reply = {"answer": "ok", "ledger": "the ledger", "samples_done": 4711}
        elif verb == "get-ownership":
            first = int(pod == f"ps-{self.numbers[0]}")  # it has all of them
            reply = {"buckets": [first] * 64, "slices": [first] * 12, "bucket_rows": [0] * 64, "image_bytes": 4096}
        elif verb == "export-state":
            self.memory[pod] = Path(request["memory_path"])
            refused = verb == self.refuse
            reply = {
                "accepted": not refused,
                "size_bytes": 50,
                "in_memory": pod == "ps-0",
                "pause_s": 0.01,
                "detail": "no shared memory",
            }
            self.asked.append(request["base_id"])
            reply["difference"] = difference = self.differences and bool(request["base_id"])
            file = f"{request['store_url']}/{pod}.image"
            self.files[pod] = [*(self.files[pod] if difference else []), file]
            store(Path(request["store_url"].removeprefix("file://")), pod)
        elif verb == "get-export-status":
            bases = [{"url": url} for url in self.files[pod][:-1]]
            columns = list(range(76)) if pod == f"ps-{self.numbers[0]}" else []
            part = json.dumps({"pod": pod, "file": f"{pod}.image", "bases": bases, "columns": columns})
            reply = {"stage": "stored", "part": part}
        elif verb == "import-state":
            self.imported[pod] = request["buckets"]
            refused = verb == self.refuse
            reply = {"accepted": not refused, "damaged": refused, "detail": "checksum differs"}
        await msg.respond(json.dumps({"job": "j", **reply}).encode())

    async def submit(self, **policy: Any) -> None:
        await self.client.publish(submission("j", checkpoint=policy))

    async def begin(self) -> None:
        """Submit the job on one server, and wait for its first checkpoint."""
        await self.submit()
        await self.serve(1, 0)
        await self.told(CheckpointFlushed)

    async def serve(self, version: int, *numbers: int) -> None:
        self.numbers = numbers
        servers = tuple(ParameterServer(index=n, address=f"127.0.0.1:{9000 + n}") for n in numbers)
        await self.client.publish(ServersChanged(job="j", version=version, servers=servers))

    async def save(self, number: int) -> SaveCheckpointReply:
        return await self.client.call(SaveCheckpoint(job="j", request_id=f"me.{number}"), timeout_s=60)

    async def told(self, kind: type[Any], count: int = 1, check: Callable[[], bool] = lambda: True) -> list[Any]:
        for _ in range(600):
            events = [e.message async for e in self.client.events(patterns=("evt.v1.checkpoints.*.*",), follow=False)]
            found = [message for message in events if isinstance(message, kind)]
            if len(found) >= count and check():
                return found
            await asyncio.sleep(0.1)
        raise AssertionError(f"{kind.__name__} was not told {count} times: {[type(e).__name__ for e in events]}")


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with live_bus(tmp_path) as (server, client):
        made = Stage(server, client, tmp_path / "state")
        await made.open()
        yield made
        while made._running:
            await made.stop()


async def test_checkpoint_on_demand_then_lost_servers_then_restore_at_another_number(stage: Stage) -> None:
    await stage.submit(keep=1, every_s=None)
    await stage.serve(1, 0, 1)
    reply = await stage.save(1)
    assert (reply.answer, reply.id) == ("begun", "j-000001")
    (saved,) = await stage.told(CheckpointSaved)
    assert (saved.checkpoint.samples, saved.checkpoint.size_bytes, saved.pause_s) == (4711, 100, 0.01)
    assert saved.memory_bytes == 50, "of one server only: it is told that the other had no room"
    assert stage.calls.index("mark-ledger") < stage.calls.index("export-state")
    (flushed,) = await stage.told(CheckpointFlushed)
    whole = manifest.read(flushed.checkpoint.url)
    assert [part["pod"] for part in whole.parts] == ["ps-0", "ps-1"]
    first = list(stage.memory.values())
    assert [(path.stat().st_size, path.stat().st_mode & 0o777) for path in first] == [(4096, 0o600)] * 2
    await stage.save(2)
    await stage.told(CheckpointFlushed, 2)
    newest = sorted(stage.memory.values())

    def only_the_newest_stays() -> bool:
        """Return the spare memory of the image before the newest, which the next one reuses."""
        there = set(stage.folder.glob("stretto.j.*/*"))
        return (
            set(newest) <= there
            and not set(first) & there
            and all(p.name.startswith("spare.") for p in there - {*newest})
        )

    await stage.told(CheckpointFlushed, 2, only_the_newest_stays)
    folder = stage.folder / "checkpoints/j"
    await stage.told(CheckpointFlushed, 2, lambda: not (folder / "j-000001").exists())
    assert (folder / "j-000002/manifest.json").exists()

    await stage.serve(2)
    await stage.serve(3, 2, 3, 4)
    (restored,) = await stage.told(CheckpointRestored)
    assert (restored.ps, restored.ledger, restored.checkpoint.id) == (3, "the ledger", "j-000002")
    assert sorted(stage.imported) == ["ps-2", "ps-3", "ps-4"]
    assert sorted(b for buckets in stage.imported.values() for b in buckets) == list(range(64))

    await stage.client.publish(JobFailed(job="j", reason="enough"))
    await stage.told(CheckpointFlushed, 2, lambda: not list(stage.folder.glob("stretto.j.*/*")))


async def test_killed_in_the_middle_of_a_return_it_is_taken_up_there_and_nothing_is_done_twice(stage: Stage) -> None:
    """Deaths at the steps of a checkpoint are the simulation's; here the process dies for real, with real files."""
    await stage.submit(every_s=None)
    await stage.serve(1, 0)
    await stage.save(1)
    await stage.told(CheckpointFlushed)
    stage.hold = "import-state"
    await stage.serve(2)
    await stage.serve(3, 1)
    await asyncio.wait_for(stage.held.wait(), 60)
    await stage.kill()
    await stage.start()
    (restored,) = await stage.told(CheckpointRestored)
    assert restored.checkpoint.id == "j-000001"
    events = [e.message async for e in stage.client.events(patterns=("evt.v1.checkpoints.*.*",), follow=False)]
    assert not [event for event in events if isinstance(event, CheckpointFailed)]


async def test_killed_it_leaves_images_in_memory_and_stopped_in_good_order_none(stage: Stage) -> None:
    await stage.begin()
    await stage.kill()
    assert list(stage.folder.glob("stretto.j.*/*"))
    await stage.start()
    await stage.save(1)
    await stage.told(CheckpointFlushed, 2)
    await stage.stop()
    assert not list(stage.folder.glob("stretto.j.*/*"))


async def test_an_heir_gets_the_images_of_whoever_is_stopped(stage: Stage) -> None:
    await stage.begin()
    (image,) = stage.folder.glob("stretto.j.*/*")
    stage.lease_s = 10.0  # on a busy machine, one of a second may expire under a living heir
    await stage.start()
    members = [f"{STATE_PREFIX}member.checkpoints.*"]
    while len({entry.subject for entry in await read(stage.client.bus, STATE, members)}) < 2:
        await asyncio.sleep(0.05)
    await stage.stop()
    assert image.exists()
    await stage.save(1)  # the heir is at work, and frees what is old
    await stage.told(CheckpointFlushed, 2, lambda: not image.exists())
    assert list(stage.folder.glob("stretto.j.*/*"))


async def test_refusal_is_told_with_its_reason_and_periodic_ones_go_on(stage: Stage) -> None:
    stage.refuse = "export-state"
    await stage.submit(every_s=1.0)
    await stage.serve(1, 0)
    failed = await stage.told(CheckpointFailed)
    assert "ps-0" in failed[0].reason
    assert "no shared memory" in failed[0].reason
    stage.refuse = ""
    await stage.told(CheckpointFlushed)
    done = JobCompleted(job="j", samples=1000, samples_abandoned=0, epochs=1, shards=4, requeued=0, started_at_s=0.0)
    await stage.client.publish(done)
    flushed = await stage.told(CheckpointFlushed, 2)
    assert flushed[-1].checkpoint.id.endswith("-final")


async def test_no_way_back_is_told(stage: Stage) -> None:
    await stage.submit(restore_from=f"file://{stage.folder}/checkpoints/nothing/1/manifest.json")
    await stage.serve(1, 0)
    (failed,) = await stage.told(CheckpointFailed)
    assert "-restore-" in failed.id
    assert "name the manifest of a complete checkpoint" in failed.reason


async def test_an_image_that_is_damaged_everywhere_is_not_read_again(stage: Stage) -> None:
    await stage.begin()
    await stage.save(1)
    await stage.told(CheckpointFlushed, 2)
    stage.refuse = "import-state"
    await stage.serve(2)
    await stage.serve(3, 1)
    (failed,) = await stage.told(CheckpointFailed)
    assert "checksum differs" in failed.reason
    assert stage.calls.count("import-state") == 2, "once each: the newest, and the one before it"


async def test_a_column_that_is_nobodys_is_not_left_out_in_silence(stage: Stage) -> None:
    await stage.submit(every_s=None)
    await stage.serve(1, 0)
    stage.numbers = (7,)  # as ps-0 answers now
    await stage.save(1)
    (failed,) = await stage.told(CheckpointFailed)
    assert "columns [0, 1, 2, 3, 4, 5, 6, 7] have no owner among servers [0]" in failed.reason


async def test_differences_keep_their_chain_in_store_and_in_memory(stage: Stage) -> None:
    """Each server has 50 bytes in every checkpoint, so that one difference may be added to a full one."""
    stage.differences = True
    await stage.submit(every_s=None, keep=1)
    await stage.serve(1, 0)
    folder = stage.folder / "checkpoints/j"

    def there() -> list[str]:
        return sorted(path.name for path in folder.iterdir())

    def in_memory() -> list[str]:
        return sorted(path.name for path in stage.folder.glob("stretto.j.*/*") if not path.name.startswith("spare."))

    for number, wanted in ((1, ["j-000001"]), (2, ["j-000001", "j-000002"]), (3, ["j-000003"])):
        await stage.save(number)
        await stage.told(
            CheckpointFlushed,
            number,
            lambda wanted=wanted: there() == wanted and in_memory() == [f"{name}.ps-0" for name in wanted],
        )
    assert stage.asked == ["", "j-000001", ""], "the differences have half the bytes of the full one"
    await stage.save(4)
    flushed = await stage.told(CheckpointFlushed, 4)
    assert manifest.read(flushed[-1].checkpoint.url).bases == ("j-000003",)
    await stage.serve(2)
    await stage.serve(3, 1)
    (restored,) = await stage.told(CheckpointRestored)
    assert restored.checkpoint.id == "j-000004"
