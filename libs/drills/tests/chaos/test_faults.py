"""Faults on real processes and files: they hit whom they name, and nobody stays frozen."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from stretto_drills.chaos.faults import FAULTS
from stretto_drills.chaos.record import PodLife, StreamRecord
from stretto_drills.chaos.schedule import KINDS, Planned
from stretto_drills.chaos.target import ChaosTarget, NotNow, until
from stretto_runtime.process.pid import ProcessIdentity

JOB = "fired"


class Place:
    """An installation's folder with pods and services that only sleep."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.record = StreamRecord(JOB)
        self.target = ChaosTarget(folder, self.record, cast("Any", None))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.lock = (folder / "lock").open("w")  # as a supervisor has

    def sleeper(self, name: str, **environment: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.PIPE)
        self.processes[name] = process
        assert process.stdout is not None
        process.stdout.readline()  # it is itself by now, not a copy of us
        return process

    def pod(self, name: str, role: str) -> subprocess.Popen[bytes]:
        home = self.folder / "pods" / JOB / name
        home.mkdir(parents=True)
        process = self.sleeper(name, STRETTO_POD=name, STRETTO_POD_FOLDER=str(home))
        (home / "pid").write_text(f"{process.pid}\n")
        self.record.pods[name] = PodLife(name, role, 0.0)
        return process

    def service(self, name: str) -> subprocess.Popen[bytes]:
        process = self.sleeper(name)
        own = psutil.Process()
        known = {"pid": process.pid, "birth": ProcessIdentity.of(process.pid), "restarts": 0}
        state = {"pid": own.pid, "birth": ProcessIdentity.of(own.pid), "processes": {name: known}}
        (self.folder / "run").mkdir(exist_ok=True)
        (self.folder / "run" / "up.json").write_text(json.dumps(state))
        return process

    def fault(self, kind: str, chance: float = 0.0, service: str = "") -> Any:
        return FAULTS[kind](Planned(1, kind, 0.5, "", chance, 0.1, service), self.target)

    def status(self, name: str) -> str:
        return psutil.Process(self.processes[name].pid).status()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    for process in made.processes.values():
        process.kill()
        process.communicate()


async def test_a_kill_hits_the_pod_that_chance_names_and_no_other(place: Place) -> None:
    place.pod("worker-0", "worker")
    victim = place.pod("worker-1", "worker")
    assert await place.fault("worker-kill", chance=0.99).inject() == "worker-1"
    assert victim.wait(60) == -9
    assert place.processes["worker-0"].poll() is None
    assert await place.fault("worker-kill", chance=0.99).inject() == "worker-0"  # the only one that is left
    place.processes["worker-0"].wait(60)
    with pytest.raises(NotNow, match="no worker runs"):
        await place.fault("worker-kill").inject()


async def test_a_kill_in_a_later_stage_hits_no_worker_of_the_first(place: Place) -> None:
    place.pod("worker-0", "worker")
    with pytest.raises(NotNow, match="no worker is of a later stage"):
        await place.fault("stage-kill").inject()
    victim = place.pod("worker-1", "worker")
    place.record.pods["worker-1"].stage = 1
    assert await place.fault("stage-kill").inject() == "worker-1"
    assert victim.wait(60) == -9
    assert place.processes["worker-0"].poll() is None


async def test_a_pid_that_is_another_process_by_now_is_not_hit(place: Place) -> None:
    stranger = place.sleeper("stranger", STRETTO_POD="ps-0", STRETTO_POD_FOLDER="/another/pods/fired/ps-0")
    place.pod("ps-0", "ps")
    (place.folder / "pods" / JOB / "ps-0" / "pid").write_text(str(stranger.pid))
    with pytest.raises(NotNow, match="no parameter server runs"):
        await place.fault("ps-kill").inject()
    assert stranger.poll() is None


async def test_who_was_frozen_goes_on_when_it_is_healed_and_when_it_is_released(place: Place) -> None:
    place.pod("worker-0", "worker")
    place.service("oom")
    stop, freeze = place.fault("worker-stop"), place.fault("service-freeze", service="oom")
    assert (await stop.inject(), await freeze.inject()) == ("worker-0", "oom")
    for name in ("worker-0", "oom"):
        assert await until(lambda name=name: place.status(name) == psutil.STATUS_STOPPED, 5)
    assert await stop.heal()
    freeze.release()
    for name in ("worker-0", "oom"):
        assert await until(lambda name=name: place.status(name) != psutil.STATUS_STOPPED, 5)


class Silent:
    """A bus on which nobody answers."""

    async def call_pod(self, *asked: object) -> None:
        await asyncio.sleep(600)


async def test_a_mover_that_was_stopped_to_look_goes_on_when_the_run_is_interrupted_there(place: Place) -> None:
    place.pod("ps-2", "ps")
    place.target.client = cast("Any", Silent())
    place.record.migration = {"sources": ["ps-0"], "destinations": ["ps-2"]}
    fault = place.fault("mover-kill")
    striking = asyncio.create_task(fault.inject())
    assert await until(lambda: place.status("ps-2") == psutil.STATUS_STOPPED, 5)
    striking.cancel()
    fault.release()
    with pytest.raises(asyncio.CancelledError):
        await striking
    assert await until(lambda: place.status("ps-2") != psutil.STATUS_STOPPED, 5)


@pytest.mark.parametrize(("kind", "role"), [("worker-slow", "worker"), ("ps-hot", "ps")])
async def test_a_throttled_pod_stops_and_runs_in_turn_and_runs_in_the_end(place: Place, kind: str, role: str) -> None:
    place.pod(f"{role}-0", role)
    fault = place.fault(kind)
    await fault.inject()
    for stopped in (True, False, True, False):
        reached = lambda stopped=stopped: (place.status(f"{role}-0") == psutil.STATUS_STOPPED) == stopped  # noqa: E731
        assert await until(reached, 5, 0.001)
    assert await fault.heal()
    assert await until(lambda: place.status(f"{role}-0") != psutil.STATUS_STOPPED, 5)


async def test_a_service_is_killed_and_healed_by_another_process_only(place: Place) -> None:
    old = place.service("redis")
    fault = place.fault("redis-kill", service="redis")
    assert await fault.inject() == "redis"
    assert old.wait(60) == -9
    assert not await place.target.ready("redis", old.pid)
    with pytest.raises(NotNow, match="redis is restarting"):
        await place.fault("redis-kill", service="redis").inject()
    with pytest.raises(NotNow, match="not one of the processes"):
        await place.fault("bus-kill", service="nats").inject()


def stored(place: Place, number: int) -> tuple[Path, Path]:
    """A complete checkpoint of one server: its file in the store, and its copy in memory."""
    folder = place.folder / "checkpoints" / JOB / f"{JOB}-{number:06d}"
    folder.mkdir(parents=True)
    copy, file = place.folder / f"memory-{number}", folder / "one.image"
    for path in (copy, file):
        path.write_bytes(bytes(3000))
    parts = [{"pod": "ps-0", "file": "one.image", "copies": [f"file:{copy}"]}]
    (folder / "manifest.json").write_text(json.dumps({"parts": parts}))
    return file, copy


async def test_nothing_is_damaged_where_another_copy_would_do_or_there_is_nobody_to_kill(place: Place) -> None:
    stored(place, 1)
    newest = stored(place, 2)
    with pytest.raises(NotNow, match="no parameter server runs"):
        await place.fault("checkpoint-damage").inject()
    place.pod("ps-0", "ps")
    manifest = newest[0].with_name("manifest.json")
    manifest.write_text(manifest.read_text().replace("file:", "cache:"))
    with pytest.raises(NotNow, match="copy in the cache"):
        await place.fault("checkpoint-damage").inject()
    assert [path.read_bytes() for path in newest] == [bytes(3000)] * 2


@pytest.mark.parametrize("chance", [0.0, 0.1])
async def test_every_copy_of_the_newest_checkpoint_is_damaged_and_the_one_before_left(
    place: Place, chance: float
) -> None:
    server = place.pod("ps-0", "ps")
    before = stored(place, 1)
    with pytest.raises(NotNow, match="no two checkpoints"):
        await place.fault("checkpoint-damage", chance).inject()
    newest = stored(place, 2)
    told = await place.fault("checkpoint-damage", chance).inject()
    assert told.startswith(f"ps-0, {JOB}-000002/ps-0 ")
    assert server.wait(60) == -9
    assert [path.read_bytes() for path in before] == [bytes(3000)] * 2
    one, other = (path.read_bytes() for path in newest)
    assert one == other != bytes(3000)


async def test_before_a_cold_kill_no_copy_is_left_but_the_stored_one(place: Place) -> None:
    place.pod("ps-0", "ps")
    cache = place.service("redis")
    file, copy = stored(place, 1)
    await place.fault("ps-kill-cold").inject()
    assert (file.exists(), copy.exists()) == (True, False)
    assert cache.wait(60) == -9


async def test_memory_is_filled_only_where_it_is_our_own(place: Place) -> None:
    with pytest.raises(NotNow, match="may be filled"):
        await place.fault("shm-full").inject()


def test_every_kind_of_fault_can_be_done() -> None:
    assert FAULTS.keys() == {name for name, kind in KINDS.items() if not kind.planned}


async def test_until_gives_up() -> None:
    assert not await until(lambda: asyncio.sleep(0, False), 0.01, 0.001)
