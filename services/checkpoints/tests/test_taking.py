"""The taker of one job tells every failure, tries to tell it until it is heard, and ends with the job."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from stretto_checkpoints import manifest, taking
from stretto_checkpoints.cache import Cache
from stretto_checkpoints.manifest import CheckpointManifest
from stretto_checkpoints.memory import SharedMemory
from stretto_checkpoints.settings import CheckpointsSettings
from stretto_checkpoints.taker import Taker
from stretto_core.checkpoints.observations import ImagesFlushed, StepFailed
from stretto_core.checkpoints.state import Attempt, CheckpointState, Restore
from stretto_messages.dispatcher import MarkLedgerReply
from stretto_messages.pods import GetExportStatusReply, GetOwnershipReply
from stretto_messages.values import CheckpointRef
from stretto_runtime import RuntimeFault

from tests.waits import until


class Edge:
    """Every call fails as nobody foresaw; the first observation is lost with the bus."""

    def __init__(self) -> None:
        self.observed: list[Any] = []
        self.tries = 0
        self.heard = asyncio.Event()

    def server_now(self) -> float:
        return 1.0

    async def call(self, *_: Any) -> Any:
        raise ZeroDivisionError("an unreadable reply")

    async def observe(self, key: str, message: Any, trace: str = "") -> None:
        self.tries += 1
        if self.tries == 1:
            raise RuntimeFault("the bus is away")
        self.observed.append(message)
        self.heard.set()


async def test_unforeseen_failure_is_told_until_heard_and_the_taker_ends_with_its_job(tmp_path: Path) -> None:
    edge: Any = Edge()
    attempt = Attempt("j-000001", f"file://{tmp_path}/j/j-000001/manifest.json", [0], 1.0, False)
    state = CheckpointState(job="j", attempt=attempt)
    taker = Taker("j", state, edge, CheckpointsSettings(state_folder=tmp_path, store_url=f"file://{tmp_path}"))
    running = asyncio.create_task(taker.run())
    await asyncio.wait_for(edge.heard.wait(), 60)
    (broken,) = edge.observed
    assert (broken.id, broken.damaged) == ("j-000001", False)
    assert "ZeroDivisionError" in broken.reason
    folder = tmp_path / "j/j-000001"
    folder.mkdir(parents=True, exist_ok=True)
    state.attempt, state.ended, state.expired = None, True, [attempt.url]
    taker.follow(state)
    await asyncio.wait_for(running, 60)
    assert not folder.exists()


class Servers(Edge):
    """They answer, and one of them owns everything."""

    async def call(self, *_: Any) -> Any:
        return MarkLedgerReply(job="j", answer="ok", ledger="", samples_done=0)

    async def call_pod(self, *_: Any) -> Any:
        owns_all: dict[str, Any] = {"buckets": (1,) * 64, "slices": (1,) * 12, "bucket_rows": (0,) * 64}
        return GetOwnershipReply(job="j", applied_samples=0, image_bytes=4096, **owns_all)


class Stored(Edge):
    """Two servers whose images are in the store, with the columns that each had while it exported them."""

    def __init__(self, *columns: list[int]) -> None:
        super().__init__()
        self.tries = 1
        self.columns = columns

    async def call_pod(self, pod: str, *_: Any) -> Any:
        part = json.dumps({"columns": self.columns[int(pod.removeprefix("ps-"))]})
        return GetExportStatusReply(job="j", stage="stored", part=part)


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (range(38), range(38, 76), ""),
        (range(38), range(37, 76), "37 (of ps [0, 1])"),
        (range(37), range(38, 76), "37 (of ps [])"),
    ],
)
async def test_a_checkpoint_that_no_restore_could_read_is_not_complete(
    tmp_path: Path, first: range, second: range, reason: str
) -> None:
    """A column that moves between the exports of two servers is in both images, or in none."""
    edge: Any = Stored([*first], [*second])
    (url,) = folders(tmp_path, 1)
    attempt = Attempt("j-000001", url, [0, 1], 1.0, False, stage="storing")
    settings = CheckpointsSettings(state_folder=tmp_path, store_url=f"file://{tmp_path}")
    running = asyncio.create_task(Taker("j", CheckpointState(job="j", attempt=attempt), edge, settings).run())
    await asyncio.wait_for(edge.heard.wait(), 60)
    running.cancel()
    (observed,) = edge.observed
    assert isinstance(observed, StepFailed if reason else ImagesFlushed)
    assert reason in getattr(observed, "reason", "")
    assert not getattr(observed, "damaged", False), "the next attempt is another one"
    assert (tmp_path / "j/j-000001/manifest.json").exists() == (not reason)


class Slow(SharedMemory):
    """Reserves when it is told to go on."""

    def __init__(self, folder: Path, own: Path) -> None:
        super().__init__(folder, own)
        self.begun, self.go_on = threading.Event(), threading.Event()

    def reserve(self, *args: Any) -> dict[str, str]:
        self.begun.set()
        assert self.go_on.wait(60)
        return super().reserve(*args)


async def reserving(folder: Path, **settings: Any) -> tuple[Taker, Edge, Slow, asyncio.Task[None]]:
    """A taker whose first checkpoint is about to reserve memory."""
    (folder / "shm").mkdir()
    edge: Any = Servers()
    edge.tries = 1
    attempt = Attempt("j-000001", f"file://{folder}/j/j-000001/manifest.json", [0], 1.0, False)
    told = CheckpointsSettings(
        state_folder=folder, store_url=f"file://{folder}", memory_folder=folder / "shm", **settings
    )
    taker = Taker("j", CheckpointState(job="j", attempt=attempt), edge, told)
    slow = Slow(folder / "shm", folder)
    taker._memory = taker._steps._memory = slow
    running = asyncio.create_task(taker.run())
    await asyncio.to_thread(slow.begun.wait, 5)
    return taker, edge, slow, running


@pytest.mark.parametrize("taken_away", [False, True])
async def test_a_step_that_is_cancelled_while_it_reserves_memory_is_seen_to_its_end(
    tmp_path: Path, taken_away: bool
) -> None:
    """``taken_away``: the job's partition goes while the taker waits for the step that it has cancelled."""
    taker, _, slow, running = await reserving(tmp_path)
    taker.state.attempt, taker.state.ended = None, True
    taker.follow(taker.state)
    await asyncio.sleep(0.05)
    if taken_away:
        running.cancel()
        await asyncio.sleep(0.05)
    assert not running.done(), "it waits for what no cancelling stops"
    slow.go_on.set()
    await asyncio.wait([running], timeout=60)
    assert running.cancelled() == taken_away
    left = list((tmp_path / "shm").iterdir())
    assert bool(left) == taken_away, "whoever has the job frees what it does not want"


async def test_a_step_that_hangs_beyond_its_time_is_told_and_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "HANGS_S", 0.1)
    taker, edge, slow, running = await reserving(tmp_path, take_timeout_s=1)
    await asyncio.wait_for(edge.heard.wait(), 60)
    assert edge.observed[0].reason == "it took too long"
    taker.state.attempt, taker.state.ended = None, True
    taker.follow(taker.state)
    await asyncio.wait_for(running, 60)
    slow.go_on.set()


class Store:
    """Removes a folder when it is told to go on."""

    def __init__(self) -> None:
        self.removed: list[str] = []
        self.go_on = threading.Event()

    def remove(self, url: str) -> None:
        assert self.go_on.wait(60)
        self.removed.append(url.rsplit("/", 2)[1])


def folders(folder: Path, *numbers: int) -> list[str]:
    return [f"file://{folder}/j/j-{number:06d}/manifest.json" for number in numbers]


class Waiting(Edge):
    """A call is noted and never answered."""

    def __init__(self) -> None:
        super().__init__()
        self.called = asyncio.Event()

    async def call(self, *_: Any) -> Any:
        self.called.set()
        await asyncio.Event().wait()


async def attempted(taker: Taker, edge: Waiting, number: int, folder: Path) -> None:
    """Let the taker begin an attempt."""
    (url,) = folders(folder, number)
    edge.called.clear()
    taker.state.attempt = Attempt(f"j-{number:06d}", url, [0], 1.0, False)
    taker.follow(taker.state)
    await asyncio.wait_for(edge.called.wait(), 60)


async def test_no_step_waits_for_removals_and_each_folder_is_removed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost column would wait for a hundred old checkpoints; a store would be asked for them at each step."""
    edge: Any = Waiting()
    store = Store()
    monkeypatch.setattr(manifest, "remove", store.remove)
    state = CheckpointState(job="j", expired=folders(tmp_path, 1, 2, 3))
    taker = Taker("j", state, edge, CheckpointsSettings(state_folder=tmp_path, store_url=f"file://{tmp_path}"))
    running = asyncio.create_task(taker.run())
    for number in (10, 11):
        await attempted(taker, edge, number, tmp_path)
    assert store.removed == [], "two steps began while the store hung"
    store.go_on.set()
    await until(lambda: len(store.removed) == 3)
    for number in (12, 13):
        await attempted(taker, edge, number, tmp_path)
    state.expired += folders(tmp_path, 4)
    await attempted(taker, edge, 14, tmp_path)
    await until(lambda: len(store.removed) == 4)
    running.cancel()
    assert store.removed == ["j-000001", "j-000002", "j-000003", "j-000004"]


async def test_the_cache_is_closed_to_an_ended_job_while_the_store_still_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, closed = Store(), threading.Event()
    monkeypatch.setattr(manifest, "remove", store.remove)
    monkeypatch.setattr(Cache, "close_to", lambda *_: closed.set())
    state = CheckpointState(job="j", ended=True, expired=folders(tmp_path, 1))
    edge: Any = Edge()
    taker = Taker("j", state, edge, CheckpointsSettings(state_folder=tmp_path, store_url=f"file://{tmp_path}"))
    running = asyncio.create_task(taker.run())
    assert await asyncio.to_thread(closed.wait, 60)
    assert not running.done()
    store.go_on.set()
    await asyncio.wait_for(running, 60)


async def test_the_folder_of_an_attempt_that_was_given_up_is_removed_again_at_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may have been about to write into it."""
    edge: Any = Waiting()
    store = Store()
    store.go_on.set()
    monkeypatch.setattr(manifest, "remove", store.remove)
    state = CheckpointState(job="j", expired=folders(tmp_path, 1))
    taker = Taker("j", state, edge, CheckpointsSettings(state_folder=tmp_path, store_url=f"file://{tmp_path}"))
    running = asyncio.create_task(taker.run())
    await attempted(taker, edge, 10, tmp_path)
    state.expired += folders(tmp_path, 10)
    state.attempt = None
    taker.follow(state)
    await until(lambda: store.removed == ["j-000001", "j-000010"])
    for number in (11, 12):
        await attempted(taker, edge, number, tmp_path)
        await until(lambda: store.removed == ["j-000001", *["j-000010"] * (number - 9)])  # noqa: B023
    running.cancel()


async def broken_of(url: str, folder: Path, store_url: str) -> Any:
    edge: Any = Edge()
    edge.tries = 1
    state = CheckpointState(job="j", restore=Restore("j-restore-1", url, [0]))
    settings = CheckpointsSettings(state_folder=folder, store_url=store_url)
    running = asyncio.create_task(Taker("j", state, edge, settings).run())
    await asyncio.wait_for(edge.heard.wait(), 60)
    running.cancel()
    return edge.observed[0]


async def test_a_store_that_fails_is_told_apart_from_a_damaged_checkpoint(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "manifest.json").write_text("{")
    store = f"file://{tmp_path}"
    assert (await broken_of(f"{store}/manifest.json", tmp_path, store)).damaged
    assert (await broken_of(f"{store}/gone/manifest.json", tmp_path, store)).damaged

    def away(*_: Any) -> Any:
        raise ConnectionError("reset by peer")

    monkeypatch.setattr(manifest, "open_store", away)
    broken = await broken_of("memory://store/j/1/manifest.json", tmp_path, "memory://store")
    assert not broken.damaged
    assert "check the store" in broken.reason


def lay(folder: Path, number: int, ledger: str) -> None:
    (url,) = folders(folder, number)
    reference = CheckpointRef(id=f"j-{number:06d}", url=url, samples=5, size_bytes=10, ps=1)
    CheckpointManifest(reference, "j", 1.0, ledger, ({"pod": "ps-0", "file": "a"},)).write()


async def observed(attempt: Attempt, edge: Any, folder: Path) -> Any:
    """Return what a taker tells first of an attempt."""
    edge.tries = 1
    settings = CheckpointsSettings(state_folder=folder, store_url=f"file://{folder}")
    running = asyncio.create_task(Taker("j", CheckpointState(job="j", attempt=attempt), edge, settings).run())
    await asyncio.wait_for(edge.heard.wait(), 60)
    running.cancel()
    return edge.observed[0]


async def test_an_attempt_under_a_name_that_the_store_has_writes_over_nothing(tmp_path: Path) -> None:
    """The installation was restored from a backup: two checkpoints are whole that its state does not know."""
    lay(tmp_path, 1, "then")
    lay(tmp_path, 3, "then")
    (url,) = folders(tmp_path, 1)
    told = await observed(Attempt("j-000001", url, [0], 1.0, False), Edge(), tmp_path)
    assert (told.id, told.beyond, told.damaged) == ("j-000001", 3, False)


async def test_an_attempt_whose_manifest_is_there_is_complete_without_its_servers(tmp_path: Path) -> None:
    """A service wrote the manifest, and ended before it could tell it. A manifest of another ledger is none of this."""
    (url,) = folders(tmp_path, 1)
    for ledger, kind in (("then", StepFailed), ("now", ImagesFlushed)):
        lay(tmp_path, 1, ledger)
        attempt = Attempt("j-000001", url, [0], 1.0, False, stage="storing", ledger="now")
        assert isinstance(await observed(attempt, Edge(), tmp_path), kind)


async def test_a_whole_checkpoint_whose_attempt_was_given_up_stays_until_the_next_one(tmp_path: Path) -> None:
    """A backup did not know that it became whole, and a later difference may add to it."""
    for number in (1, 2):
        lay(tmp_path, number, "then")
    state = CheckpointState(job="j", expired=folders(tmp_path, 1, 2), given_up=folders(tmp_path, 2))
    settings = CheckpointsSettings(state_folder=tmp_path, store_url=f"file://{tmp_path}")
    taker = Taker("j", state, Edge(), settings)
    running = asyncio.create_task(taker.run())
    assert await until(lambda: not (tmp_path / "j/j-000001").exists() and bool(taker._removal._whole))
    assert (tmp_path / "j/j-000002/manifest.json").exists()
    state.given_up = []
    taker.follow(state)
    assert await until(lambda: not (tmp_path / "j/j-000002").exists())
    running.cancel()


@pytest.mark.parametrize(
    ("unreadable", "chosen"), [((), 5), ((5,), 4), ((5, 4), 3)], ids=["the newest", "the one before", "the known one"]
)
def test_a_return_reads_the_newest_that_is_whole_and_was_readable(
    tmp_path: Path, unreadable: tuple[int, ...], chosen: int
) -> None:
    """The state knows 3; the attempt 5 was given up, and became whole. Others lay what is no checkpoint there."""
    for number in (3, 4, 5):
        lay(tmp_path, number, "then")
    (tmp_path / "j/backup-2026").touch()
    (tmp_path / "j/j-000009").symlink_to(tmp_path)
    (tmp_path / "j/j-000008/manifest.json").mkdir(parents=True)
    (known,) = folders(tmp_path, 3)
    complete = [CheckpointRef(id="j-000003", url=known, samples=5, size_bytes=10, ps=1)]
    state = CheckpointState(job="j", folder=f"file://{tmp_path}/j", complete=complete)
    state.expired = state.given_up = folders(tmp_path, 5)
    state.unreadable = folders(tmp_path, *unreadable)
    settings = CheckpointsSettings(state_folder=tmp_path, store_url=f"file://{tmp_path}")
    edge: Any = Edge()
    found = Taker("j", state, edge, settings)._chosen(Restore("j-restore-7", known, [0]), state)
    assert found.checkpoint.id == f"j-{chosen:06d}"
