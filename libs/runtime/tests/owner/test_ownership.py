"""Ownership of partitions."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime_counting import Counting, CountingSettings, add
from runtime_live import Running, connect, eventually, settings_of, until_ready
from stretto_bus import BusFault, Client
from stretto_bus.bus import Bus
from stretto_bus.faults import Fenced
from stretto_bus.reading import lost_end
from stretto_bus.reading.lost_end import Breaks, LogPlace
from stretto_bus.reading.ordered_consumer import Stored
from stretto_bus.writer import Fence, Writer
from stretto_installation.server import EmbeddedServer
from stretto_runtime import Runner
from stretto_runtime.owner.state.recovery import load
from stretto_runtime.owner.state.snapshots import Cursor, Document, Snapshots
from stretto_runtime.owner.tenure.ownership import Ownership, assign
from stretto_wire.contract.registry import PARTITIONS, STATE_PREFIX, partition_of

UNKNOWN = LogPlace(0, 0.0)
members = st.sets(st.text("abcdef0123456789", min_size=1, max_size=8), min_size=1, max_size=12)


@given(members, st.integers(1, 64))
def test_every_partition_has_one_owner_and_nobody_more_than_a_fair_share(names: set[str], partitions: int) -> None:
    owners = assign(names, partitions)
    assert sorted(owners) == list(range(partitions))
    shares = [list(owners.values()).count(name) for name in names]
    assert max(shares) <= math.ceil(partitions / len(names))
    assert set(owners.values()) <= names


async def test_a_log_that_ends_before_what_was_handled_ends_a_session_and_one_that_nobody_tells_of_does_not() -> None:
    class Server:
        last_seq: int | None = 500

        async def ask(self, _: str) -> dict[str, dict[str, int]]:
            if self.last_seq is None:
                raise BusFault("no leader")
            return {"state": {"last_seq": self.last_seq}}

    server = Server()
    breaks = Breaks()
    breaks.note(500, UNKNOWN)
    await breaks.look(cast("Bus", server))
    assert not breaks.pending
    breaks.note(501, UNKNOWN)
    with pytest.raises(BusFault, match="ends at 500, and 501 was handled or stored"):
        await breaks.look(cast("Bus", server))
    server.last_seq = None
    breaks.note(501, UNKNOWN)
    await breaks.look(cast("Bus", server))
    assert breaks.pending


async def test_a_replica_that_lags_does_not_tell_where_a_log_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    async def nothing(_bus: Bus, _stream: str, _seq: int) -> None:
        done.append("look")

    async def pause(_duration_s: float) -> None:
        done.append("pause")

    monkeypatch.setattr(lost_end, "first_from", nothing)
    monkeypatch.setattr(asyncio, "sleep", pause)
    with pytest.raises(BusFault, match="it lags"):
        await lost_end.kept_until(cast("Bus", None), UNKNOWN, LogPlace(500, 1.0), 800)
    assert done == ["look", *["pause", "look"] * (lost_end.LOOKS_MOST - 1)]


async def test_a_log_was_cut_behind_what_it_still_has_of_the_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log kept its messages up to 400, and later ones follow; its server's clock had gone back before 300."""

    async def first(_bus: Bus, _stream: str, seq: int) -> Stored:
        time_s = 1000.0 if seq < 300 else float(seq) if seq <= 400 else 9000.0
        return Stored(seq, time_s, "a", {}, b"")

    monkeypatch.setattr(lost_end, "first_from", first)
    assert await lost_end.kept_until(cast("Bus", None), LogPlace(350, 350.0), LogPlace(500, 500.0), 800) == 400


@given(members)
def test_all_replicas_come_to_the_same_answer(names: set[str]) -> None:
    assert assign(sorted(names), 16) == assign(sorted(names, reverse=True), 16)


@given(members.filter(lambda names: len(names) > 2))
def test_a_death_moves_few_partitions_that_the_dead_did_not_own(names: set[str]) -> None:
    """The cap may push some on, but most stay where they are."""
    before = assign(names, 16)
    dead = min(names)
    after = assign(names - {dead}, 16)
    moved = [p for p in range(16) if before[p] != dead and after[p] != before[p]]
    assert len(moved) <= 16 // 2


def test_without_members_nothing_is_owned() -> None:
    assert assign([], 16) == {}


async def test_a_former_owner_can_write_neither_outputs_nor_snapshots(client: Client) -> None:
    """The fence protects the stream, not a replica's belief about ownership."""
    bus = client.bus
    old = Fence("fence.dispatcher.3", await bus.store("fence.dispatcher.3", b"old"))
    await bus.store("fence.dispatcher.3", b"new")
    before = await client.last_seq()
    writer = Writer(bus, old, asyncio.Event())
    writer.send("dispatcher:1:0", "evt.v1.dispatcher.job-progressed.a", b"{}")
    with pytest.raises(Fenced):
        await writer.drain()
    assert await client.last_seq() == before

    first = Ownership(bus, "dispatcher", 16, 3, lambda: None)
    epoch = await first.take(3)
    second = Ownership(bus, "dispatcher", 16, 3, lambda: None)
    second.owners = dict(first.owners)
    newer = await second.take(3)
    key = first.owner_key(3)
    document, counting = {"job-a": Document(7, 1, b"{}")}, Counting(CountingSettings())
    with pytest.raises(Fenced):
        await Snapshots(bus, "dispatcher", 3, key, epoch).save(document, Cursor(7, 7, 1))
    with pytest.raises(Fenced):
        await load(Snapshots(bus, "dispatcher", 3, key, epoch), counting, 1)
    heir = Snapshots(bus, "dispatcher", 3, key, newer)
    await heir.save(document, Cursor(9, 8, 1))
    loaded = await load(heir, counting, 5)
    assert loaded.cursor == Cursor(9, 8, 1)
    assert loaded.documents == document


async def test_two_who_take_the_same_entry_cannot_both_have_it(client: Client) -> None:
    first, second = (Ownership(client.bus, "oom", 16, 3, lambda: None) for _ in range(2))
    await first.take(0)
    with pytest.raises(Fenced):
        await second.take(0)


async def test_who_leaves_gets_nothing_more_and_keeps_what_it_has_not_released(client: Client) -> None:
    leaving, staying = (Ownership(client.bus, "oom", 16, 3, lambda: None) for _ in range(2))
    await leaving.join()
    await staying.join()
    held = min(leaving.mine())
    epoch = await leaving.take(held)
    await leaving.hand_over()
    await eventually(lambda: staying.mine() == set(range(16)))
    assert not staying.takeable(held)
    await leaving.release(held, epoch)
    await eventually(lambda: staying.takeable(held))
    for one in (leaving, staying):
        await one.leave()


async def test_after_a_reconnect_members_whose_marker_was_missed_are_forgotten(client: Client) -> None:
    ownership = Ownership(client.bus, "oom", 16, 3, lambda: None)
    await ownership.join()
    ownership.members.add("oom-ghost")
    await ownership.refresh()
    assert ownership.members == {ownership.member}
    await ownership.leave()


async def test_an_entry_that_came_back_without_its_expiry_is_no_member_for_long(client: Client) -> None:
    """Case: a killed server may restore expired entries when it recovers."""
    changed = asyncio.Event()
    ownership = Ownership(client.bus, "oom", 16, 1, changed.set)
    await client.bus.store("$KV.STATE.member.oom.oom-ghost", b"1")
    await ownership.join()
    assert "oom-ghost" in ownership.members
    assert len(ownership.mine()) < 16
    await asyncio.wait_for(changed.wait(), 60)
    assert ownership.mine() == set(range(16))
    await ownership.leave()


async def test_a_service_can_use_only_its_own_subjects(server: EmbeddedServer, client: Client) -> None:
    planner = await connect(server, "planner")
    foreign = ("evt.v1.arbiter.plan-decided.a", "journal.arbiter.0", "fence.arbiter.0", "$KV.STATE.owner.arbiter.0")
    for subject in foreign:
        with pytest.raises(BusFault, match="'planner' may not publish"):
            await (await planner.bus.post(subject, b"{}", {}, timeout_s=60))
    assert await planner.bus.store("evt.v1.planner.plan-proposed.a", b"{}") > 0
    await planner.close()


async def test_an_entry_that_names_who_does_not_serve_it_is_given_back(client: Client, running: Running) -> None:
    """Case: the reply to a take or a release was lost; nobody else empties the entry of a live replica."""
    other = Ownership(client.bus, "dispatcher", PARTITIONS, 3, lambda: None)
    async with running(Counting) as runner:
        await other.join()
        mine = other.mine()
        await eventually(lambda: not any(other.holder(number) for number in mine))  # the runner has left them
        lost = min(mine)
        holder = other.holder(min(set(range(PARTITIONS)) - mine))
        key = other.owner_key(lost)
        named = await client.bus.store(key, holder.encode(), Fence(key, other.owners[lost][1]).headers())
        await eventually(lambda: other.owners[lost][1] > named)
        assert other.takeable(lost)
        await other.leave()
        await until_ready(runner)


@pytest.mark.parametrize(("entry", "value"), [("garbage", b"x"), ("3", b"\xff")])
async def test_an_entry_that_cannot_be_read_ends_neither_who_joins_nor_who_watches(
    client: Client, entry: str, value: bytes
) -> None:
    watching, joining = (Ownership(client.bus, "dispatcher", PARTITIONS, 3, lambda: None) for _ in range(2))
    await watching.join()
    await client.bus.store(f"{STATE_PREFIX}owner.dispatcher.{entry}", value)
    await joining.join()
    await eventually(lambda: {watching.member, joining.member} <= watching.members)
    await eventually(lambda: {watching.member, joining.member} <= joining.members)
    for one in (watching, joining):
        await one.leave()


async def test_who_is_stopped_while_a_session_breaks_ends_and_does_not_begin_again(
    server: EmbeddedServer, client: Client, tmp_path: Path
) -> None:
    breaking = asyncio.Event()

    class Slow(Counting):
        async def reconcile(self, key: str, machine: object) -> None:
            try:
                await asyncio.sleep(60)
            finally:
                breaking.set()
                await asyncio.sleep(0.2)  # an edge that has something to put away

    runner = Runner(Slow(settings_of(Slow, server, tmp_path)))
    task = asyncio.create_task(runner.run())
    await until_ready(runner)
    await client.publish(add("job-a", 1))
    await eventually(lambda: metric_of(runner, "stretto_outputs_total") == 1)
    await client.bus.store(f"fence.dispatcher.{partition_of('job-a')}", b"{}")
    await client.publish(add("job-a", 1))  # is refused, and the session ends
    await breaking.wait()
    task.cancel()
    assert await asyncio.wait([task], timeout=60) == ({task}, set())


@pytest.mark.parametrize("turns", range(5))
async def test_who_is_stopped_in_the_turn_of_news_ends(
    server: EmbeddedServer, client: Client, tmp_path: Path, turns: int
) -> None:
    runner = Runner(Counting(settings_of(Counting, server, tmp_path)))
    task = asyncio.create_task(runner.run())
    await until_ready(runner)
    await asyncio.sleep(0.1)  # it waits for news
    runner.wake()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    assert await asyncio.wait([task], timeout=60) == ({task}, set())


def metric_of(runner: Runner, name: str) -> float:
    lines = runner.metrics.text().decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name}{{")).rpartition(" ")[2])
