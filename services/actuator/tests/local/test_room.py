"""Jobs that fill the disk: who is to blame, what is measured of a job, and what is given back."""

from __future__ import annotations

import asyncio
import ctypes
import math
import mmap
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto_actuator.backend import PodSpec, PodStatus
from stretto_actuator.local import backend as local
from stretto_actuator.local import descriptors, records
from stretto_actuator.local.backend import LocalBackend
from stretto_actuator.local.boxes import Boxes
from stretto_actuator.local.room import (
    LEAST,
    SCARCE,
    Disk,
    Images,
    Room,
    SharedMemory,
    Use,
    beyond_images,
    measured,
    to_blame,
)
from stretto_installation.one_machine.processes import end_pods
from stretto_runtime.process.removal import remove_tree
from stretto_runtime.settings import images_folder

from tests.waits import until

MIB = 1 << 20
GIB = 1 << 30
PLENTY = Room(math.inf, math.inf)
FULL = Room(MIB, 1e6)
NO_FILES = Room(GIB, 3)


def use(job: str, had_gib: float, own_gib: float, kept_gib: float = 0, *, files: float = 0, hides: bool = False) -> Use:
    return Use(job, Room(had_gib * GIB, 1e6), Room(own_gib * GIB, files), Room(kept_gib * GIB, 0), hides)


FILLER, HONEST = use("filler", 4, 3.9), use("honest", 100, 2)


@pytest.mark.parametrize(
    ("free", "uses", "early", "late"),
    [
        pytest.param(FULL, [HONEST, FILLER], "filler", "filler", id="a filler beside an honest job"),
        pytest.param(FULL, [HONEST, use("small", 90, 0.1)], None, None, id="other programs filled the disk"),
        pytest.param(FULL, [use("big", 100, 1, 20), FILLER], "filler", "filler", id="beside large checkpoints"),
        pytest.param(FULL, [use("big", 100, 1, 60)], None, "big", id="checkpoints that fill the disk by themselves"),
        pytest.param(FULL, [use(f"part-{n}", 4 - n, 1) for n in range(4)], "part-0", "part-0", id="four share it"),
        pytest.param(FULL, [HONEST, use("hider", 4, 0, hides=True)], None, "hider", id="one that hides it"),
        pytest.param(FULL, [HONEST, use("late", 1, 0.13)], None, None, id="an old job's files are not a young one's"),
        pytest.param(FULL, [HONEST, use("last", 0.06, 0.06)], None, "last", id="the last of a disk that others filled"),
        pytest.param(NO_FILES, [HONEST, use("files", 4, 0.1, files=9e5)], "files", "files", id="files"),
        pytest.param(FULL, [replace(FILLER, had=PLENTY)], None, None, id="of a pod of an earlier version"),
        pytest.param(Room(GIB, 1e6), [FILLER], None, None, id="there is room"),
    ],
)
def test_the_job_that_used_up_the_room_since_it_began_is_to_blame(
    free: Room, uses: list[Use], early: str | None, late: str | None
) -> None:
    blamed = [found and found.job for found in (to_blame(free, uses, late=when) for when in (False, True))]
    assert blamed == [early, late]


sizes = st.floats(0, 8)


@given(st.lists(st.builds(use, st.just("any"), sizes, sizes, sizes), max_size=5), st.booleans())
def test_nobody_is_blamed_who_holds_little_or_kept_to_his_checkpoints_at_first(uses: list[Use], late: bool) -> None:
    found = to_blame(FULL, uses, late=late)
    if found is not None:
        assert found.own.size_bytes + late * found.kept.size_bytes >= (SCARCE if late else LEAST).size_bytes


FILLS = """
import os, time
with open("big", "wb") as file:
    file.write(bytes(3 << 20))
still = os.open("gone", os.O_CREAT | os.O_RDWR)
os.write(still, bytes(2 << 20))
os.unlink("gone")
print("x" * (2 << 20), flush=True)
open("up", "w")
time.sleep(60)
"""
STANDS_BY = "import time; open('kept', 'w'); print('x' * (2 << 20), flush=True); open('up', 'w'); time.sleep(60)"


async def launch(backend: LocalBackend, job: str, script: str, pod: str = "worker-0") -> Path:
    place = Path(backend.places(job, pod).scratch)
    environment = {"STRETTO_POD_FOLDER": str(place)}
    command = (sys.executable, "-S", "-c", script)
    await backend.launch(PodSpec(job, pod, command, environment, 1.0, 256 * MIB))
    await until((place / "up").exists)
    return place


async def test_a_job_that_fills_the_disk_is_ended_and_its_room_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other job goes on; the end of the log stays, and the reason, also for a restarted actuator."""
    state, free = tmp_path / "state", [Room(9 * MIB, 9)]
    monkeypatch.setattr("stretto_actuator.local.room.LEAST", Room(4 * MIB, 0))
    monkeypatch.setattr(Disk, "free", lambda _: free[0])
    monkeypatch.setattr(records, "LOG_END_BYTES", 1000)
    backend = LocalBackend(state, cgroups=False)
    await backend.open()
    try:
        await launch(backend, "honest", STANDS_BY)
        scratch = await launch(backend, "filler", FILLS)
        free[0] = Room(MIB, 9)
        await until(lambda: not scratch.exists())
        free[0] = Room(9 * MIB, 9)
        pods = await ended(backend, but="honest")
        assert (pods["honest"].state, pods["honest"].used_up) == ("running", "")
        assert "of which the job held 7 MiB" in pods["filler"].used_up
        await until(lambda: (scratch.parent / "log").stat().st_size < 2000)
        assert b"x\n" in (scratch.parent / "log").read_bytes()
        await until(lambda: pods["filler"].used_up in (scratch.parent / "pod.json").read_text())
        again = {pod.job: pod for pod in await LocalBackend(state, cgroups=False).list()}
        assert again["filler"].used_up == pods["filler"].used_up
    finally:
        await backend.close()
        end_pods(state, 0.0)


async def ended(backend: LocalBackend, but: str) -> dict[str, PodStatus]:
    """Return the pods of all jobs once all ``but`` those of one have ended."""
    async with asyncio.timeout(60):
        while True:
            pods = {pod.job: pod for pod in await backend.list()}
            if all(pod.state == "exited" for job, pod in pods.items() if job != but):
                return pods
            await asyncio.sleep(0.05)


def images(job: str, held_mib: float, servers_mib: int = 1000) -> Images:
    return Images(job, held_mib * MIB, servers_mib * MIB)


@pytest.mark.parametrize(
    ("found", "blamed"),
    [
        pytest.param([images("a", 4999)], None, id="five images of full servers"),
        pytest.param([images("a", 5001), images("b", 9000, 8000)], "a", id="more than these, beside a larger job"),
        pytest.param([images("a", 6000), images("b", 7000)], "b", id="the one that holds most"),
        pytest.param([images("a", 100, 1)], None, id="little"),
    ],
)
def test_who_holds_more_shared_memory_than_its_servers_images_can_take_is_to_blame(
    found: list[Images], blamed: str | None
) -> None:
    to_end = beyond_images(found)
    assert (to_end and to_end.job) == blamed


async def test_a_job_that_fills_shared_memory_is_ended_and_what_it_wrote_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other job keeps its image."""
    state, memory = tmp_path / "state", tmp_path / "memory"
    monkeypatch.setattr("stretto_actuator.local.room.IMAGES_MOST", 0)
    monkeypatch.setattr("stretto_actuator.local.room.LEAST", Room(MIB, 0))
    short: list[bool] = []
    monkeypatch.setattr(SharedMemory, "is_short", lambda _: bool(short))
    backend = LocalBackend(state, cgroups=False, boxes=Boxes(state, (state / "checkpoints",), memory))
    await backend.open()
    try:
        for job, size in (("honest", MIB // 2), ("filler", 3 * MIB)):
            folder = images_folder(memory, state, job)
            hidden = f"f = open({str(folder / 'gone')!r}, 'wb'); f.write(bytes({size // 2})); f.flush(); "
            hidden += f"os.unlink({str(folder / 'gone')!r}); "
            shown = f"import os; open({str(folder / 'image')!r}, 'wb').write(bytes({size // 2})); "
            await launch(backend, job, shown + hidden + STANDS_BY, "ps-0")
        short.append(True)
        pods = await ended(backend, but="honest")
        assert "of memory" in pods["filler"].used_up
        assert (pods["honest"].state, pods["honest"].used_up) == ("running", "")
        await until(lambda: not images_folder(memory, state, "filler").exists())
        assert (images_folder(memory, state, "honest") / "image").exists()
    finally:
        await backend.close()
        end_pods(state, 0.0)


def test_files_without_a_name_are_measured_and_those_that_are_only_mapped_count_as_hidden(tmp_path: Path) -> None:
    device, me = os.stat(tmp_path).st_dev, [os.getpid()]
    with (tmp_path / "gone").open("w+b") as file:
        file.write(bytes(MIB))
        file.flush()
        (tmp_path / "gone").unlink()
        inode = os.fstat(file.fileno()).st_ino
        assert descriptors.unlinked(me, device, [str(tmp_path)])[inode] == MIB
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        held = ctypes.c_void_p(libc.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0))
    with pytest.raises(descriptors.HiddenFiles):
        descriptors.unlinked(me, device, [str(tmp_path)])
    libc.munmap(held, 4096)
    assert inode not in descriptors.unlinked(me, device, [str(tmp_path)])


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")
def test_what_a_pod_has_closed_counts_as_hidden_and_is_removed(tmp_path: Path) -> None:
    (tmp_path / "work/closed").mkdir(parents=True)
    (tmp_path / "work/closed/file").touch()
    (tmp_path / "work/closed").chmod(0)
    assert measured([tmp_path / "work"], os.stat(tmp_path).st_dev)[1]
    remove_tree(tmp_path / "work")
    assert not (tmp_path / "work").exists()
    pod = records.Records(tmp_path / "pods").of("j", "worker-0")
    pod.mkdir(parents=True)
    (pod / "log").write_bytes(bytes(2 * MIB))
    (pod / "log").chmod(0)
    records.Records(tmp_path / "pods").empty("j")
    assert (pod / "log").stat().st_size == records.LOG_END_BYTES


def test_of_a_log_that_grows_as_fast_as_it_is_read_no_more_is_read_than_asked_for() -> None:
    assert len(local._tail(Path("/proc/self/maps"), 100)) <= 100, "its size, as the kernel tells it, is 0"
