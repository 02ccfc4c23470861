"""The taker of one job tells every failure, tries to tell it until it is heard, and ends with the job."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from stretto_checkpoints import manifest, taking
from stretto_checkpoints.memory import SharedMemory
from stretto_checkpoints.settings import CheckpointsSettings
from stretto_checkpoints.taking import Taker
from stretto_core.checkpoints import Attempt, CheckpointState, Restore
from stretto_messages.dispatcher import MarkLedgerReply
from stretto_messages.pods import GetOwnershipReply
from stretto_runtime import RuntimeFault


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
    await asyncio.wait_for(edge.heard.wait(), 5)
    (broken,) = edge.observed
    assert (broken.id, broken.damaged) == ("j-000001", False)
    assert "ZeroDivisionError" in broken.reason
    folder = tmp_path / "j/j-000001"
    folder.mkdir(parents=True, exist_ok=True)
    state.attempt, state.ended, state.expired = None, True, [attempt.url]
    taker.follow(state)
    await asyncio.wait_for(running, 5)
    assert not folder.exists()


class Servers(Edge):
    """They answer, and one of them owns everything."""

    async def call(self, *_: Any) -> Any:
        return MarkLedgerReply(job="j", answer="ok", ledger="", samples_done=0)

    async def call_pod(self, *_: Any) -> Any:
        owns_all: dict[str, Any] = {"buckets": (1,) * 64, "slices": (1,) * 12, "bucket_rows": (0,) * 64}
        return GetOwnershipReply(job="j", applied_samples=0, image_bytes=4096, **owns_all)


class Slow(SharedMemory):
    """Reserves when it is told to go on."""

    def __init__(self, folder: Path, own: Path) -> None:
        super().__init__(folder, own)
        self.begun, self.go_on = threading.Event(), threading.Event()

    def reserve(self, *args: Any) -> dict[str, str]:
        self.begun.set()
        assert self.go_on.wait(5)
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
    taker._memory = slow = Slow(folder / "shm", folder)  # pyright: ignore[reportPrivateUsage]
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
    await asyncio.wait([running], timeout=5)
    assert running.cancelled() == taken_away
    left = list((tmp_path / "shm").iterdir())
    assert bool(left) == taken_away, "whoever has the job frees what it does not want"


async def test_a_step_that_hangs_beyond_its_time_is_told_and_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "HANGS_S", 0.1)
    taker, edge, slow, running = await reserving(tmp_path, take_timeout_s=1)
    await asyncio.wait_for(edge.heard.wait(), 4)
    assert edge.observed[0].reason == "it took too long"
    taker.state.attempt, taker.state.ended = None, True
    taker.follow(taker.state)
    await asyncio.wait_for(running, 1)
    slow.go_on.set()


async def broken_of(url: str, folder: Path, store_url: str) -> Any:
    edge: Any = Edge()
    edge.tries = 1
    state = CheckpointState(job="j", restore=Restore("j-restore-1", url, [0]))
    settings = CheckpointsSettings(state_folder=folder, store_url=store_url)
    running = asyncio.create_task(Taker("j", state, edge, settings).run())
    await asyncio.wait_for(edge.heard.wait(), 5)
    running.cancel()
    return edge.observed[0]


async def test_a_store_that_fails_is_told_apart_from_a_damaged_checkpoint(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "manifest.json").write_text("{")
    store = f"file://{tmp_path}"
    assert (await broken_of(f"{store}/manifest.json", tmp_path, store)).damaged
    assert (await broken_of(f"{store}/gone/manifest.json", tmp_path, store)).damaged

    def away(*_: Any) -> Any:
        raise ConnectionError("reset by peer")

    monkeypatch.setattr(manifest.fsspec.core, "url_to_fs", away)
    broken = await broken_of("memory://store/j/1/manifest.json", tmp_path, "memory://store")
    assert not broken.damaged
    assert "check the store" in broken.reason
