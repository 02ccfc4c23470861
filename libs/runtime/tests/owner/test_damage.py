"""Whatever bytes stand at a subject of log and state: they cost at most the one job that they name."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from runtime_books import UNSAVED, expected, feed, joined, settle
from runtime_counting import Add, Counter, Counting, CountingSettings, add, submission
from runtime_live import SHORT_LEASE_S, Replicas, Running, connect, eventually, reconfigured, running, until_ready
from runtime_upgraded import Upgraded
from stretto_bus import BusFault, CallRefused, Client
from stretto_bus.reading.ordered_consumer import Stored, read
from stretto_installation.provision import provision
from stretto_installation.server import EmbeddedServer
from stretto_messages.dispatcher import NextShard
from stretto_runtime import Runner
from stretto_runtime.inputs import CLUSTER, Routes, request_entry, tick_entry
from stretto_runtime.owner.state.recovery import load, replayable_s
from stretto_runtime.owner.state.seals import Damaged, unseal
from stretto_runtime.owner.state.snapshots import Cursor, Document, Snapshots
from stretto_runtime.owner.tenure.ownership import Ownership
from stretto_runtime.owner.tenure.terms import Term
from stretto_runtime.replay import replay
from stretto_runtime.streams import BusStreams
from stretto_wire.contract.registry import PARTITIONS, STATE, STATE_PREFIX, STREAM, partition_of

VICTIM = "job-a"
NUMBER = partition_of(VICTIM)
BESIDE = next(job for n in range(200) if partition_of(job := f"job-{n}") == NUMBER)
"""A job of the same partition."""
ODD = "Not~a~job"
"""A name in a subject that no job may have."""
ELSEWHERE = next(job for n in range(200) if partition_of(job := f"job-{n}") == partition_of(ODD) != NUMBER)
"""A job of the partition of ``ODD``: once it is served, so is what was stored before."""
SNAP = f"{STATE_PREFIX}snap.dispatcher.{NUMBER}.{VICTIM}"
BUCKET = (
    *(f"{STATE_PREFIX}cursor.dispatcher.{NUMBER}.{side}" for side in "ab"),
    f"{STATE_PREFIX}mark.dispatcher.{NUMBER}",
    *(f"{STATE_PREFIX}owner.dispatcher.{name}" for name in (NUMBER, f"0_{NUMBER}", "99", "x")),
    f"{STATE_PREFIX}member.dispatcher.dispatcher-ghost",
    *(f"{STATE_PREFIX}snap.dispatcher.{rest}" for rest in (f"{NUMBER}.x", f"{NUMBER}.{VICTIM}.c", "x.y.z", "99.a.a")),
    *(f"{STATE_PREFIX}snap.dispatcher.{NUMBER}.{rest}" for rest in (f"{VICTIM}.a.part", "never.a.part", "a.a.b.c.d")),
)
"""Subjects whose damage costs nothing at all."""
LOG = (
    f"journal.dispatcher.{NUMBER}",
    f"fence.dispatcher.{NUMBER}",
    f"evt.v1.gateway.job-cancelled.{VICTIM}",
    f"evt.v1.gateway.job-cancelled.{ODD}",
)
SHAPES = (
    *(b"", b"1", b"null", b'"text"', b"[]", b"{}", b"[[1]]", b"1e999", b'[null,1,"x",{}]'),
    b'{"stream":"STRETTO","seq":20}',
    *(b'[{"kind":"request","key":"a b","s":"rpc.v1.dispatcher.next-shard.a b"}]', b'[{"kind":"observation","key":5}]'),
    *(b'[{"kind":"observation","key":"job-a","s":"observed.Nothing"}]', b'{"version":1,"settings":[]}', b"[" * 9000),
    *(b'{"version":1,"settings":{},"after":99999}', b'{"seq":99999,"out_seq":9,"version":1,"fence":1}'),
    b'{"cursor": 99999, "attempt": 0, "clean": true}',
)
hostile = st.one_of(
    st.sampled_from(SHAPES),
    st.binary(max_size=300),
    st.tuples(st.sampled_from(("cut", "flip")), st.integers(0, 10_000)),
)
"""Bytes, or how to change what stands there."""


class Scaling(CountingSettings):
    factor: int = 1


class Scaled(Counting):
    """Sums the numbers times a setting."""

    settings_type = Scaling

    def deciding(self) -> dict[str, Any]:
        return {"factor": self.settings.factor}

    def to_event(self, message: Any, meta: Any) -> Any:
        event = super().to_event(message, meta)
        return Add(event.job, event.value * self.settings.factor) if isinstance(event, Add) else event


def changed(original: bytes, how: Any) -> bytes:
    if isinstance(how, bytes):
        return how
    if not original:
        return b"?"
    place = how[1] % len(original)
    return (
        original[:place] if how[0] == "cut" else original[:place] + bytes([original[place] ^ 1]) + original[place + 1 :]
    )


async def damage(client: Client, subject: str, how: Any) -> None:
    """Replace the last message of ``subject``, or add one to the log."""
    stream = STATE if subject.startswith(STATE_PREFIX) else STREAM
    found = await read(client.bus, stream, [subject], deliver_policy="last_per_subject")
    await client.bus.store(subject, changed(found[-1].data if found else b"", how))


async def add_all(client: Client, added: dict[str, list[int]], jobs: tuple[str, ...]) -> None:
    """Three numbers for each job; returns once all of them are counted."""
    for number in (3, 5, 7):
        for job in jobs:
            await client.publish(add(job, number))
            added[job].append(number)
    async with asyncio.timeout(60):
        while True:
            counted = await progress(client)
            if all(counted.get(job) == expected(added[job]) for job in jobs):
                return
            await asyncio.sleep(0.05)


async def progress(client: Client) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    async for event in client.events(patterns=["evt.v1.dispatcher.*.*"], follow=False):
        found.setdefault(event.message.job, []).append((event.message.samples_done, event.message.samples_total))
    return found


@asynccontextmanager
async def installation(folder: Path) -> AsyncIterator[tuple[EmbeddedServer, Client]]:
    server = EmbeddedServer(folder / "nats")
    await server.start()
    try:
        client = await connect(server)
        await provision(client.bus)
        yield server, client
        await client.close()
    finally:
        server.kill()


async def letters(client: Client) -> list[str]:
    return sorted(letter.headers["Nats-Msg-Id"] for letter in await client.dead_letters())


async def has_letters(client: Client, count: int) -> bool:
    return len(await letters(client)) >= count


async def survive(how: list[Any], both_sides: bool) -> None:
    """Damage everything while the service runs, then everything once more while it is away; restart it twice."""
    added: dict[str, list[int]] = {VICTIM: [], BESIDE: [], ELSEWHERE: []}
    everyone, others = (VICTIM, BESIDE, ELSEWHERE), (BESIDE, ELSEWHERE)
    with tempfile.TemporaryDirectory() as name:
        async with installation(Path(name)) as (server, client):
            await client.publish(submission(BESIDE))
            async with running(Counting, server, Path(name), lease_s=1.0, snapshot_s=0.05) as runner:
                await add_all(client, added, everyone)
                await saved_soundly(client, added)
                for number, subject in enumerate((*LOG, *BUCKET, f"{SNAP}.a")):
                    await damage(client, subject, how[number % len(how)])
                await add_all(client, added, everyone)
                await until_ready(runner)
                await saved_soundly(client, added)
            count = len(LOG) + len(BUCKET) + 1
            for number, subject in enumerate((*LOG, *BUCKET, f"{SNAP}.b", *([f"{SNAP}.a"] if both_sides else []))):
                await damage(client, subject, how[(number + 1) % len(how)])
            count += len(LOG) + len(BUCKET) + 1 + both_sides
            async with running(Counting, server, Path(name), lease_s=1.0, snapshot_s=0.05) as runner:
                await check_served(client, runner, added, others if both_sides else everyone)
                found = await letters(client)
            assert len(found) == len(set(found)) <= count
            async with running(Counting, server, Path(name), lease_s=1.0, snapshot_s=0.05) as runner:
                await check_served(client, runner, added, others if both_sides else everyone)
            assert await letters(client) == found
            again = Counting(Counting.settings_type(state_folder=Path(name)))
            done = await replay(BusStreams(client.bus), again, BESIDE)
            assert {decision.verdict for decision in done.decisions} == {"same"}
            counted = await progress(client)
            assert counted[VICTIM] == expected(added[VICTIM])[: len(counted[VICTIM])]


async def saved_soundly(client: Client, added: dict[str, list[int]]) -> None:
    """Go on until both sides of the victim are sound: each snapshot replaces the older one."""
    async with asyncio.timeout(60):
        while True:
            found = await sides(client)
            with contextlib.suppress(Damaged):
                if len([unseal(stored.subject, stored.data) for stored in found]) == 2:
                    return
            await add_all(client, added, (VICTIM,))


async def check_served(client: Client, runner: Runner, added: dict[str, list[int]], jobs: tuple[str, ...]) -> None:
    """``jobs`` go on; the victim, if it is not among them, is refused and named."""
    await add_all(client, added, jobs)
    await until_ready(runner)
    if VICTIM in jobs:
        assert VICTIM not in runner.report()["warning"]
        return
    await client.publish(add(VICTIM, 1))  # is not counted as if the job were new
    with pytest.raises(CallRefused) as refused:
        await client.call(NextShard(job=VICTIM, request_id="w.1", pod="worker-1"))
    assert refused.value.code == "damaged"
    assert refused.value.remedy
    assert VICTIM in runner.report()["warning"]
    assert runner.report()["ready"]


@example([b'{"stream":"STRETTO","seq":20}'], True)
@example([b""], False)
@example([("flip", 3)], True)
@settings(max_examples=4, suppress_health_check=list(HealthCheck))
@given(st.lists(hostile, min_size=4, max_size=12), st.booleans())
@pytest.mark.night
def test_whatever_bytes_stand_anywhere_cost_at_most_the_job_they_name(how: list[Any], both_sides: bool) -> None:
    asyncio.run(survive(how, both_sides))


SWELLING = 1_000_003
"""The number that makes a machine's state larger than the server takes."""


class SwellingCounter(Counter):
    """A counter whose state grows beyond what compression and the server's bound of a message allow."""

    def handle(self, event: Any, now: float) -> list[Any]:
        actions = super().handle(event, now)
        if isinstance(event, Add) and event.value == SWELLING:
            self.state.seen[random.Random(7).randbytes(9 << 20).hex()] = 1
        return actions


class Swelling(Counting):
    """Counts, with machines whose state can become too large."""

    def machine(self, key: str, state: Any) -> SwellingCounter:
        return SwellingCounter(state)


async def test_a_state_larger_than_the_server_takes_costs_its_job_alone(client: Client, running: Running) -> None:
    """No session ends, a job of the same partition goes on, and so it is after a restart."""
    added: dict[str, list[int]] = {VICTIM: [], BESIDE: []}
    async with running(Swelling, snapshot_s=0.05) as runner:
        await add_all(client, added, (VICTIM, BESIDE))
        await client.publish(add(VICTIM, SWELLING))
        await eventually(lambda: VICTIM in runner.report()["warning"])
        await check_served(client, runner, added, (BESIDE,))
        takeovers = runner.metrics.text().decode()
        assert not runner.report()["faults"]
    assert f'stretto_takeovers_total{{service="dispatcher"}} {PARTITIONS}.0' in takeovers
    async with running(Swelling, snapshot_s=0.05) as runner:
        await check_served(client, runner, added, (BESIDE,))
        found = await letters(client)
    async with running(Swelling, snapshot_s=0.05) as runner:
        await check_served(client, runner, added, (BESIDE,))
    assert await letters(client) == found
    assert len(found) == 2, "one for each side of its snapshot"


def routes() -> Routes:
    return Routes("dispatcher", Counting.inputs, ())


@given(st.one_of(st.sampled_from(SHAPES), st.binary(max_size=300)), st.text(max_size=20), st.sampled_from(LOG))
def test_any_message_becomes_arrivals_of_which_at_most_one_is_damaged(data: bytes, token: str, subject: str) -> None:
    found = [
        *routes().arrivals(Stored(7, 0.0, f"journal.dispatcher.{NUMBER}", {}, data), NUMBER),
        *routes().arrivals(Stored(8, 0.0, f"{token}.{subject}", {}, data), NUMBER),
    ]
    for seq in (7, 8):
        assert sum(arrival.kind == "damaged" and arrival.meta.seq == seq for arrival in found) <= 1


def test_entries_beside_a_damaged_one_keep_their_place_in_the_frame() -> None:
    subject = f"rpc.v1.dispatcher.next-shard.{VICTIM}"
    sound = request_entry(VICTIM, "w.1", subject, b"{}", "")
    foreign = request_entry(ELSEWHERE, "w.1", f"rpc.v1.dispatcher.next-shard.{ELSEWHERE}", b"{}", "")
    observed = {"kind": "observation", "key": VICTIM, "s": "observed.JobCancelled", "d": "{}"}
    for bad in (
        None,
        5,
        {**sound, "key": BESIDE},
        {**sound, "d": 5},
        {**sound, "s": f"rpc.v1.oom.x.{VICTIM}"},
        foreign,
    ):
        frame = json.dumps([bad, sound, bad, observed, tick_entry(1)]).encode()
        found = routes().arrivals(Stored(7, 0.0, f"journal.dispatcher.{NUMBER}", {}, frame), NUMBER)
        assert [(arrival.kind, arrival.source) for arrival in found] == [
            ("request", "7.1"), ("observation", "7.3"), ("tick", "7.4"), ("damaged", "7")
        ]  # fmt: skip
        assert found[-1].fault == "2 of 5 are no entries: 0, 2"
        assert found[-1].data == frame


@given(st.one_of(st.sampled_from(SHAPES), st.binary(max_size=300)))
def test_a_fence_that_cannot_be_read_begins_a_term_without_recorded_settings(data: bytes) -> None:
    term = Term.read(Stored(7, 0.0, "fence.dispatcher.3", {}, data))
    assert term == Term(7, None, None, 7)
    assert term.service(Counting(Counting.settings_type())) is None


async def send_raw(client: Client, subject: bytes, block: bytes, data: bytes) -> None:
    """Publish bytes that no client of ours would."""
    connection, head = client.bus.connection, b"NATS/1.0\r\n" + block + b"\r\n"
    command = b"HPUB %b %d %d\r\n%b%b\r\n" % (subject, len(head), len(head) + len(data), head, data)
    connection._pending.append(command)
    connection._pending_data_size += len(command)
    await client.bus.flush()


async def test_odd_subjects_and_headers_cost_a_dead_letter_at_most(client: Client, running: Running) -> None:
    """Subjects and headers that are no UTF-8, that hold control characters, or that are very long."""
    event, added = b"evt.v1.gateway.job-cancelled.", {VICTIM: []}
    odd = b"traceparent: \xff\xfe\r\nNats-Msg-Id: \xff%d\r\nce-id: \r\n: x\r\nx\r\n"
    names = (b"job-a", b"\xff\xfe", b"\x01\x7f", b"x" * 3900, "jöb".encode(), b"*")
    async with running(Counting, snapshot_s=0.05) as runner:
        for number, name in enumerate(names):
            await send_raw(client, event + name, odd % number, b'{"job":"job-b","reason":"1"}')
        await send_raw(client, b"evt.v1.dispatcher.job-progressed.job-a", b"ce-id: dispatcher:x.9:0\r\n", b"\xff")
        await add_to_victim(client, added)
        assert runner._bus.reconnects == 0
        # each name has a partition of its own; the server maps the name "*" to no partition
        await eventually(lambda: has_letters(client, len(names) - 1))
        found = await letters(client)
    assert len(found) == len(set(found)) == len(names) - 1
    async with running(Counting, snapshot_s=0.05):
        await add_to_victim(client, added)
        assert await letters(client) == found


async def add_to_victim(client: Client, added: dict[str, list[int]]) -> None:
    """Add a number, and wait for its count; an event of the service's own that is none stands in between."""
    await client.publish(add(VICTIM, 4))
    added[VICTIM].append(4)
    subject, wanted = [f"{NUMBER}.evt.v1.dispatcher.job-progressed.{VICTIM}"], len(added[VICTIM])
    async with asyncio.timeout(60):
        while True:
            stored = [each.data for each in await read(client.bus, STREAM, subject) if each.data != b"\xff"]
            if [json.loads(data)["samples_done"] for data in stored] == list(range(1, wanted + 1)):
                return
            await asyncio.sleep(0.05)


async def test_a_damaged_frame_is_set_aside_once_however_many_owners_read_it(
    client: Client, replicas: Replicas
) -> None:
    """Owners are killed without a snapshot, after the duplicate window of the dead letters has passed."""
    await reconfigured(client, "DLQ", duplicate_window=int(1e8))
    for data in SHAPES[:-3]:
        await client.bus.store(f"journal.dispatcher.{NUMBER}", data)
    for seed in range(3):
        replica = replicas.start(**{**UNSAVED, "lease_s": str(SHORT_LEASE_S)})
        await joined(client, 1)
        await feed(client, 0.3, seed=seed, jobs=(VICTIM, BESIDE, ELSEWHERE))
        (await settle(client)).check(set())
        replica.kill()
        await asyncio.to_thread(replica.wait, 20)
    found = await client.dead_letters()
    assert {letter.headers["reason"] for letter in found} == {"damaged"}
    assert {letter.headers["subject"] for letter in found} == {f"journal.dispatcher.{NUMBER}"}
    assert len({letter.headers["seq"] for letter in found}) == len(found)
    assert {letter.data for letter in found} == {data for data in SHAPES[:-3] if data != b"[]"}


@pytest.mark.parametrize("clean", [True, False])
async def test_inputs_since_an_earlier_document_are_decided_under_the_settings_of_their_term(
    client: Client, tmp_path: Path, clean: bool, running: Running
) -> None:
    """The newer document is damaged between two terms; replaying the stream confirms every decision."""

    async def term(factor: int, numbers: list[int]) -> None:
        async with running(Scaled, lease_s=1.0, snapshot_s=0.05, factor=factor):
            before = len((await progress(client)).get(VICTIM, []))
            for count, number in enumerate(numbers, before + 1):
                await client.publish(add(VICTIM, number))
                await eventually_counted(client, count)
            await eventually(lambda: has_both(client))

    await client.publish(submission(VICTIM))
    await term(2, [1, 2, 3])
    await term(10, [4])
    newest = max(await sides(client), key=lambda stored: stored.seq)
    await client.bus.store(newest.subject, b"\xff" * 100)
    if not clean:
        await client.bus.store(f"{STATE_PREFIX}mark.dispatcher.{NUMBER}", b"{}")
    await term(100, [5])
    totals = [total for _, total in (await progress(client))[VICTIM]]
    assert totals == [2, 6, 12, 52, 552]
    done = await replay(BusStreams(client.bus), Scaled(Scaled.settings_type(state_folder=tmp_path, factor=7)), VICTIM)
    assert [decision.verdict for decision in done.decisions] == ["same"] * 5
    assert len(await client.dead_letters()) == (1 if clean else 2)


async def eventually_counted(client: Client, count: int) -> None:
    async def is_counted() -> bool:
        return len((await progress(client)).get(VICTIM, [])) >= count

    await eventually(is_counted)


async def sides(client: Client) -> list[Stored]:
    """The snapshots of the victim."""
    return await read(client.bus, STATE, [f"{SNAP}.{side}" for side in "ab"], deliver_policy="last_per_subject")


async def has_both(client: Client) -> bool:
    return len(await sides(client)) == 2


async def snapshots_of(client: Client) -> Snapshots:
    """Become the owner of the victim's partition."""
    ownership = Ownership(client.bus, "dispatcher", 16, 3, lambda: None)
    return Snapshots(client.bus, "dispatcher", NUMBER, ownership.owner_key(NUMBER), await ownership.take(NUMBER))


async def test_the_machine_of_all_jobs_is_not_given_up_for_its_size(client: Client) -> None:
    """The key's last document stays, so that a larger bound of the server brings it back."""
    snapshots = await snapshots_of(client)
    small, large = Document(7, 1, b"{}"), Document(8, 1, b" " * client.bus.connection.max_payload)
    assert await snapshots.save({CLUSTER: small, BESIDE: small}, Cursor(7, 7, 1)) == frozenset()
    with pytest.raises(BusFault, match="raise max_payload of nats-server"):
        await snapshots.save({CLUSTER: large, BESIDE: large}, Cursor(8, 8, 1))
    assert (await load(snapshots, Counting(Counting.settings_type()), 1)).documents == {CLUSTER: small, BESIDE: small}
    assert await snapshots.save({BESIDE: large}, Cursor(9, 9, 1)) == {BESIDE}
    loaded = await load(snapshots, Counting(Counting.settings_type()), 1)
    assert (loaded.lost, loaded.documents) == ({BESIDE}, {CLUSTER: small})
    assert (loaded.cursor, loaded.fell_back) == (Cursor(9, 9, 1, fence=1), False)


async def test_a_document_older_than_the_inputs_since_are_kept_is_not_continued(client: Client) -> None:
    snapshots = await snapshots_of(client)
    service = Counting(Counting.settings_type())
    young, old = time.time(), time.time() - replayable_s(service) - 60
    documents = {VICTIM: Document(7, 1, b"{}", time_s=old), BESIDE: Document(8, 1, b"{}", time_s=young)}
    await snapshots.save(documents, Cursor(9, 9, 1))
    for job in documents:
        await client.bus.store(f"{STATE_PREFIX}snap.dispatcher.{NUMBER}.{job}.b", b"damaged")
    loaded = await load(snapshots, service, 1)
    assert (loaded.lost, loaded.uncertain, loaded.documents.keys()) == ({VICTIM}, {BESIDE}, {BESIDE})
    assert (loaded.cursor, loaded.fell_back) == (Cursor(8, 8, 1), True)


async def test_a_lost_job_can_be_looked_at_and_given_up(client: Client, tmp_path: Path, running: Running) -> None:
    """The job's past is replayed as far as it was decided; once its snapshots are purged, its name begins anew."""
    await client.publish(submission(VICTIM))
    added: dict[str, list[int]] = {VICTIM: []}
    async with running(Counting, snapshot_s=0.05):
        await add_all(client, added, (VICTIM,))
        await saved_soundly(client, added)
    for side in "ab":
        await client.bus.store(f"{SNAP}.{side}", b"damaged")
    async with running(Counting) as runner:
        assert VICTIM in runner.report()["warning"]
        await client.publish(add(VICTIM, 2))
    forged = {"ce-id": "dispatcher:2:7"}
    await client.bus.store(f"evt.v1.dispatcher.job-progressed.{VICTIM}", b"\xff", forged)
    done = await replay(BusStreams(client.bus), Counting(Counting.settings_type(state_folder=tmp_path)), VICTIM)
    assert {decision.verdict for decision in done.decisions} <= {"same", "not decided then", "not decided now"}
    assert done.count("same") == len(added[VICTIM])
    assert [decision.differences()[0][0] for decision in done.decisions if decision.then == b"\xff"] == ["(not JSON)"]
    for side in "ab":
        await client.bus.store(f"{SNAP}.{side}", b"", {"KV-Operation": "PURGE"})
    async with running(Counting) as runner:
        assert runner.report()["warning"] == ""
        await client.call(NextShard(job=VICTIM, request_id="w.1", pod="worker-1"))


@pytest.mark.night
async def test_owners_killed_and_the_newer_snapshot_of_every_job_damaged_lose_and_double_nothing(
    client: Client, replicas: Replicas, running: Running
) -> None:
    """The newer cursor of every partition is damaged, too; each round heals what the last one damaged."""
    await reconfigured(client, "STRETTO", duplicate_window=int(1e8))
    fed: set[str] = set()
    for seed in range(3):
        replica = replicas.start(lease_s=str(SHORT_LEASE_S), snapshot_s="0.2", snapshot_inputs="20")
        await joined(client, 1)
        fed |= await feed(client, 1.5, seed=seed)
        (await settle(client)).check(fed)
        await asyncio.sleep(0.5)
        replica.kill()
        await asyncio.to_thread(replica.wait, 20)
        filters = [f"{STATE_PREFIX}{kind}.dispatcher.>" for kind in ("snap", "cursor")]
        newest = {
            stored.subject.rpartition(".")[0]: stored.subject
            for stored in await read(client.bus, STATE, filters, deliver_policy="last_per_subject")
        }
        assert len(newest) > 40
        for subject in newest.values():
            await damage(client, subject, ("flip", seed * 7))
    async with running(Counting, lease_s=SHORT_LEASE_S):
        fed |= await feed(client, 1, seed=9)
        (await settle(client)).check(fed)
    found = await letters(client)
    assert len(found) == len(set(found)) > 100


async def test_an_earlier_document_that_new_code_continues_otherwise_costs_its_job_alone(
    client: Client, running: Running
) -> None:
    """The inputs since then were decided by the code before; deciding them again would contradict it."""
    added: dict[str, list[int]] = {VICTIM: [], BESIDE: []}
    async with running(Counting, snapshot_s=0.05):
        await add_all(client, added, (VICTIM, BESIDE))
        seqs = set[int]()
        async with asyncio.timeout(60):
            while len(seqs) < 2:  # the first snapshot is the same on both sides
                await add_all(client, added, (VICTIM,))
                found = await sides(client)
                seqs = {Document.decode(stored.subject, stored.data).seq for stored in found}
    found = await sides(client)
    await client.bus.store(found[-1].subject, b"damaged")
    for _ in range(2):
        async with running(Upgraded) as runner:
            await add_all(client, added, (BESIDE,))
            assert VICTIM in runner.report()["warning"]
            assert len(await client.dead_letters()) == 1
