"""Another version of a machine continues what it can read, bit by bit, and touches nothing that it cannot."""

from __future__ import annotations

import asyncio
import signal

import pytest
from runtime_books import UNSAVED, dead_owner, feed, joined, settle
from runtime_counting import Counting, CountState, add
from runtime_live import SHORT_LEASE_S, Replicas, Running, epochs, eventually, gone, published, reconfigured
from runtime_upgraded import Stuck, Upgraded, UpgradedState
from stretto_bus import Client
from stretto_bus.reading.ordered_consumer import read
from stretto_runtime.owner.machines import Machines
from stretto_runtime.owner.state.snapshots import Document
from stretto_runtime.process.faults import VersionRefusal
from stretto_wire.contract.registry import STATE, STATE_PREFIX


def factory(kind: type[Counting]) -> Counting:
    return kind(kind.settings_type())


class TestDocuments:
    """Snapshots read by another version of the code."""

    OLD = Document(10, 1, b'{"count":3,"total":9,"ticks":0,"seen":{}}')

    def test_migrated(self) -> None:
        machines = Machines(factory(Upgraded))
        machines.load({"a": self.OLD})
        assert machines.slots["a"].machine.state == UpgradedState(3, 9)
        assert machines.documents(["a"])["a"].version == 2

    def test_of_another_version_without_migration(self) -> None:
        with pytest.raises(VersionRefusal, match=r"'a' is of version 1, this is 2.*migrate\(state, from_version\)"):
            Machines(factory(Stuck)).load({"a": self.OLD})

    def test_of_a_newer_version(self) -> None:
        with pytest.raises(VersionRefusal, match=r"is of version 2, this is 1, .*run version 2"):
            Machines(factory(Counting)).load({"a": Document(10, 2, self.OLD.state)})

    @pytest.mark.parametrize(
        ("state", "lost"),
        [
            (b'{"count":3,"total":9,"ticks":0,"seen":{},"mean":3}', r"state\.mean"),
            (b'{"count":3,"total":9,"ticks":0,"seen":{"x":true}}', None),
            (b'{"count":"3","total":9,"ticks":0,"seen":{}}', r"state\.count = '3'"),
        ],
    )
    def test_of_the_same_version_that_this_code_would_change(self, state: bytes, lost: str | None) -> None:
        if lost is None:  # true is 1: nothing is lost
            Machines(factory(Counting)).load({"a": Document(10, 1, state)})
            return
        with pytest.raises(VersionRefusal, match=f"does not keep {lost}"):
            Machines(factory(Counting)).load({"a": Document(10, 1, state)})

    def test_with_a_new_field_that_has_a_default(self) -> None:
        machines = Machines(factory(Counting))
        machines.load({"a": Document(10, 1, b'{"count":3}')})
        assert machines.slots["a"].machine.state == CountState(3)


@pytest.mark.night
async def test_a_rolling_upgrade_under_load_loses_doubles_and_redecides_nothing(
    client: Client, replicas: Replicas
) -> None:
    old = [replicas.start(lease_s="1"), replicas.start(lease_s="1")]
    await joined(client, 2)
    enough = asyncio.Event()
    feeding = asyncio.create_task(feed(client, 8, seed=1, enough=enough))
    await asyncio.sleep(1)
    new = replicas.start(script="runtime_upgraded.py", lease_s="1")
    await joined(client, 3)
    await asyncio.sleep(1)
    old[0].send_signal(signal.SIGTERM)
    await gone(old[0])
    replicas.start(script="runtime_upgraded.py", lease_s="1")
    await asyncio.sleep(1)
    old[1].send_signal(signal.SIGTERM)
    await gone(old[1])
    await asyncio.sleep(1)
    enough.set()
    fed = await feeding
    found = await settle(client, 40)
    found.check(fed)
    assert new.poll() is None
    decided = await epochs(client)
    for job, deciders in decided.items():
        assert deciders == sorted(deciders), job  # once the new version has decided, the old one decides no more
    assert set().union(*decided.values()) == {0, 1}


async def test_a_version_that_cannot_continue_takes_nothing_and_says_so(
    client: Client, running: Running, starting: Running
) -> None:
    async with running(Counting, "old") as old:
        await client.publish(add("job-a", 1))
        await published(client, "dispatcher", 1)
        await eventually(lambda: b'stretto_snapshots_total{service="dispatcher"} 0.0' not in old.metrics.text())
        async with starting(Stuck, "new", lease_s=1) as stuck:
            await eventually(lambda: stuck.report()["refusal"])
            report = stuck.report()
            assert (report["ready"], report["partitions"]) == (False, [])
            assert "job-a" in report["refusal"]
            assert "version 1, this is 2" in report["refusal"]
            assert b'stretto_refusals_total{service="dispatcher"} 1.0' in stuck.metrics.text()
            await client.publish(add("job-a", 2))
            last = (await published(client, "dispatcher", 2))[1]
            assert (last.message.samples_done, last.message.samples_total) == (2, 3)
            assert old.report()["ready"]
            assert len(old.report()["partitions"]) == 16


async def test_what_a_dead_version_published_is_finished_by_one_that_decides_the_same(
    client: Client, replicas: Replicas, running: Running
) -> None:
    fed, before = await dead_owner(client, replicas)
    fed |= await feed(client, 0.5, seed=2)  # nobody has decided these
    async with running(Upgraded, lease_s=SHORT_LEASE_S, epoch=0):
        fed |= await feed(client, 1, seed=3)
        found = await settle(client)
    found.check(fed)
    assert sum(map(len, found.counted.values())) > sum(map(len, before.counted.values()))


async def test_what_a_dead_version_published_is_never_decided_otherwise(
    client: Client, replicas: Replicas, starting: Running
) -> None:
    fed, _ = await dead_owner(client, replicas)
    async with starting(Upgraded, lease_s=1) as other:
        await eventually(lambda: other.report()["refusal"])
        assert "was published, is in no snapshot, and this version decides it otherwise" in other.report()["refusal"]
        assert not other.report()["ready"]
        assert not await saved(client)
        again = replicas.start(lease_s="1")  # the remedy that the refusal names
        await joined(client, 1)
        await eventually(lambda: other.report()["refusal"])
        fed |= await feed(client, 1, seed=2)
        (await settle(client)).check(fed)
        again.send_signal(signal.SIGTERM)
        await gone(again)
        await eventually(lambda: other.report()["ready"])
        fed |= await feed(client, 0.5, seed=3)
        (await settle(client)).check(fed)
    for job, deciders in (await epochs(client)).items():
        assert deciders == sorted(deciders), job


async def test_who_is_refused_again_and_again_sets_nothing_aside_again(
    client: Client, replicas: Replicas, starting: Running
) -> None:
    await reconfigured(client, "DLQ", duplicate_window=int(1e8))
    first = replicas.start(**UNSAVED)
    await joined(client, 1)
    for number in (-1, 1):  # the first one is refused
        await client.publish(add("job-0", number))
    await published(client, "dispatcher", 1)
    first.kill()
    await gone(first)
    async with starting(Upgraded, lease_s=1) as other:
        await eventually(lambda: other.report()["refusal"])
    assert len(await client.dead_letters()) == 1


async def saved(client: Client) -> bool:
    subject = f"{STATE_PREFIX}snap.dispatcher.>"
    return bool(await read(client.bus, STATE, [subject], deliver_policy="last_per_subject"))
