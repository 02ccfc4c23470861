"""Finished jobs cost a document at rest, then nothing, and nobody decides otherwise for it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from runtime_bucket import Factory
from runtime_counting import Add, CountState, Take, add
from runtime_ending import FORGOTTEN_AFTER_S, Ending, EndingCounter
from runtime_live import SHORT_LEASE_S, Replicas, Running, eventually, published, reconfigured, saved_state
from stretto_bus import Client
from stretto_bus.reading.ordered_consumer import read
from stretto_core.machine import CoreError
from stretto_messages.dispatcher import JobProgressed
from stretto_runtime import Runner
from stretto_runtime.owner.machines import FREED_SHARE, Machines
from stretto_runtime.owner.state.recovery import recovered
from stretto_runtime.owner.state.snapshots import Document
from stretto_wire.contract.registry import STATE, STATE_PREFIX, STREAM, partition_of

SNAPS = f"{STATE_PREFIX}snap.dispatcher."
POKES = [f"poke-{number}" for number in range(60)]
"""Jobs of every partition that never end: their inputs show the owners how late it is."""
AGE_NS = 100_000_000
"""The least age that the server takes"""


FACTORY = Factory(EndingCounter, job=CountState)
FACTORY.forgotten_after_s = 100.0


class Owner:
    """An owner's machines and its bucket, without a bus."""

    def __init__(self) -> None:
        self.machines = Machines(FACTORY)
        self.bucket: dict[str, dict[str, bytes]] = {}
        """Key -> side -> document"""

    def save(self) -> None:
        documents = self.machines.documents(sorted(self.machines.dirty))
        for key, document in documents.items():
            for output in document.outputs(key)[1]:
                self.bucket.setdefault(key, {})[output.subject] = output.data
            document.saved()
        self.machines.rest(documents)

    def free(self, now: float) -> None:
        gone = self.machines.aged_out(now)
        for key in gone:
            del self.bucket[key]
        self.machines.forget(gone)

    def take_over(self) -> None:
        """Become the successor, which has the bucket only."""
        self.save()
        documents: dict[str, Document] = {}
        for key, sides in self.bucket.items():
            found = [Document.decode(subject, data) for subject, data in sides.items()]
            documents[key] = max(found, key=lambda document: document.ordinal)
        self.machines = Machines(FACTORY)
        self.machines.load(documents)


one_step = st.tuples(
    st.sampled_from("abc"),
    st.sampled_from([0, 0, 0, 1, 2, -1, 666, "ask"]),
    st.sampled_from([0.0, 1.0, 30.0, 99.0, 101.0, 106.0, 400.0]),
    st.sets(st.sampled_from(["save", "free", "take over"])),
)


@given(st.lists(one_step, max_size=60))
def test_whoever_rests_frees_or_takes_over_decides_as_one_who_keeps_everything(steps: list[Any]) -> None:
    """Goal: forgetting depends on stored times alone. Method: an owner that saves, lets rest, removes and hands over
    at any moment makes the same decisions, and gives the same known replies, as one that does nothing of it."""
    lasting, owner, now = Machines(FACTORY), Owner(), 1000.0
    for seq, (key, value, later_s, deeds) in enumerate(steps, start=1):
        now += later_s
        event = Take("w.1", key) if value == "ask" else Add(key, value)
        decided: list[Any] = []
        for machines in (lasting, owner.machines):
            known = machines.find(key, now)
            decided.append(known.remembered("w.1") if known is not None else None)
            try:
                decided.append(machines.handle(key, event, now, seq))
            except (CoreError, RuntimeError) as error:
                decided.append(str(error))
            if value == "ask":
                machines.remember(key, now, "w.1", "", str(seq))
        assert decided[:2] == decided[2:]
        if "save" in deeds:
            owner.save()
        if "free" in deeds:
            owner.free(now)
        if "take over" in deeds:
            owner.take_over()


@given(st.integers(0, 40), st.integers(0, 40))
def test_of_ended_jobs_that_aged_out_nothing_stays(ended: int, living: int) -> None:
    """Goal: memory and bucket return to the start. Method: some jobs end and others do not; all are idle for long."""
    owner = Owner()
    for number in range(ended + living):
        owner.machines.handle(f"job-{number}", Add("", 0 if number < ended else 1), 1000.0, number + 1)
    owner.save()
    assert (len(owner.machines.resting), len(owner.machines.slots)) == (ended, living)
    owner.free(1000.0 + FREED_SHARE * FACTORY.forgotten_after_s)
    assert len(owner.bucket) == ended + living
    owner.free(1001.0 + FREED_SHARE * FACTORY.forgotten_after_s)
    assert len(owner.bucket) == len(owner.machines.keys) == living
    assert not owner.machines.resting


async def age_out(client: Client) -> None:
    """Let the stream keep nothing for a moment: all that it has is then older than it keeps. Owners take again."""
    config = await reconfigured(client, STREAM, max_age=AGE_NS, duplicate_window=AGE_NS)
    async with asyncio.timeout(60):
        while (await client.bus.ask(f"STREAM.INFO.{STREAM}"))["state"]["messages"]:
            await asyncio.sleep(0.02)
    await reconfigured(client, STREAM, **config)


async def snapshots(client: Client) -> dict[str, int]:
    """The number of sound sides in the bucket, by job."""
    entries = await read(client.bus, STATE, [f"{SNAPS}>"], deliver_policy="last_per_subject")
    found: dict[str, int] = {}
    for stored in entries:
        if stored.data:
            key = stored.subject.removeprefix(SNAPS).split(".")[1]
            found[key] = found.get(key, 0) + 1
    return found


async def until_gone(client: Client, jobs: set[str]) -> None:
    """Give every partition inputs until no snapshot of ``jobs`` is left."""
    async with asyncio.timeout(60):
        while (await snapshots(client)).keys() & jobs:
            for poke in POKES:
                await client.publish(add(poke, 1))


async def until_saved(client: Client, jobs: set[str]) -> None:
    async with asyncio.timeout(60):
        while not jobs <= (await snapshots(client)).keys():
            await asyncio.sleep(0.05)


def machines_of(runner: Runner) -> list[Machines]:
    return [partition.machines for partition, _ in runner._partitions.values() if partition.machines]


def held(runner: Runner) -> set[str]:
    return {key for machines in machines_of(runner) for key in machines.keys}


async def test_jobs_that_aged_out_leave_memory_and_bucket_and_come_back_as_unknown(
    client: Client, running: Running
) -> None:
    """Goal: a service outlives its jobs' events at constant cost. Method: jobs end, and are due, but stay as long as
    the stream holds their events; these age out, and nothing is left of the jobs; a late message finds none."""
    jobs = {f"job-{number}" for number in range(100)}
    async with running(Ending) as runner:
        assert {partition_of(poke) for poke in POKES} == set(range(16))
        for value in (5, 0):
            for job in jobs:
                await client.publish(add(job, value))
        await until_saved(client, jobs)
        await eventually(lambda: {key for machines in machines_of(runner) for key in machines.resting} == jobs)
        last_s = time.time()
        await eventually(lambda: time.time() - last_s > 1.5 * FORGOTTEN_AFTER_S)
        for poke in POKES:
            await client.publish(add(poke, 1))
        await until_saved(client, set(POKES))
        assert held(runner) == {*jobs, *POKES}, "a replay could still meet their events"
        await age_out(client)
        await until_gone(client, jobs)
        await eventually(lambda: held(runner) == set(POKES))
        seq = await client.publish(add("job-0", 7))
        late = await output_after(client, seq, "job-0")
        assert (late.samples_done, late.samples_total) == (1, 7), "as of a job that never was"
        await eventually(lambda: runner.report()["ready"])
        assert not runner.report().get("warning")


async def output_after(client: Client, seq: int, job: str) -> JobProgressed:
    """The first output about ``job`` stored after ``seq``."""
    async with asyncio.timeout(60):
        async for event in client.events(patterns=[f"evt.v1.dispatcher.*.{job}"], from_seq=seq + 1):
            assert isinstance(event.message, JobProgressed)
            return event.message
    raise AssertionError("the service published nothing")


async def test_a_killed_owners_successor_forgets_the_same_jobs(
    client: Client, replicas: Replicas, running: Running
) -> None:
    """Goal: forgetting survives deaths. Method: owners are killed before the documents are removed, in the middle of
    a removal (a side is removed by hand), and after a job of a forgotten name has begun."""
    first = replicas.start(script="runtime_ending.py", lease_s="1")
    jobs = {"job-a", "job-b", "job-c"}
    for value in (5, 0):
        for job in jobs:
            await client.publish(add(job, value))
    last_s = (await published(client, "dispatcher", 6))[-1].time_s
    await until_saved(client, jobs)
    for job in jobs:
        while (await saved_state(client, "dispatcher", job) or {}).get("ticks") != 1:  # its end is not saved yet
            await asyncio.sleep(0.02)
    first.kill()
    await eventually(lambda: time.time() - last_s > 1.2 * FORGOTTEN_AFTER_S)
    older = await older_side(client, "job-b")
    await client.bus.store(older, b"", {"KV-Operation": "PURGE"})
    second = replicas.start(script="runtime_ending.py", lease_s=str(SHORT_LEASE_S))
    seq = 0
    for job in ("job-a", "job-b"):
        seq = await client.publish(add(job, 7))
        message = await output_after(client, seq, job)
        assert (message.samples_done, message.samples_total) == (1, 7)
    second.kill()
    async with running(Ending, lease_s=SHORT_LEASE_S):
        for job in ("job-a", "job-b"):
            seq = await client.publish(add(job, 1))
            message = await output_after(client, seq, job)
            assert (message.samples_done, message.samples_total) == (2, 8), "the new job of that name is continued"
    assert not await client.dead_letters()


async def older_side(client: Client, job: str) -> str:
    entries = await read(client.bus, STATE, [f"{SNAPS}*.{job}.>"], deliver_policy="last_per_subject")
    document = recovered(entries).documents[str(partition_of(job)), job]
    (older,) = (stored.subject for stored in entries if not stored.subject.endswith(f".{document.side}"))
    return older
