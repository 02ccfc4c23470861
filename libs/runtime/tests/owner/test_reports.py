"""Telemetry stands in a stream of its own, and is handled as if it stood among the facts: once, in one order."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime_live import SHORT_LEASE_S, Replicas, Running, eventually, published, reconfigured
from runtime_reporting import LOUD_FROM, QUIET, Reporting
from stretto_bus import BusFault, Client
from stretto_bus.reading.ordered_consumer import Stored, read
from stretto_installation.server import EmbeddedServer
from stretto_messages.base import example_of
from stretto_messages.pods import WorkerReported
from stretto_runtime.inputs import REPORTS, Routes
from stretto_runtime.owner.dead_letters import BURST_BYTES, BYTES_PER_S
from stretto_runtime.owner.reports import (
    FLOODED_TURN_S,
    POD_BURST,
    POD_REPORTS_PER_S,
    RANGE_MAX,
    TURN_REPORTS,
    TURN_S,
    ReportRange,
    Reports,
    thinned,
)
from stretto_runtime.owner.state.recovery import cursor_of, document_of
from stretto_runtime.streams import BusStreams
from stretto_wire.codec import encode
from stretto_wire.contract.registry import STREAM, TELEMETRY, TELEMETRY_KEPT_PER_POD, partition_of, subject_of

JOB, NEIGHBOUR = "job-a", next(f"n-{n}" for n in range(99) if partition_of(f"n-{n}") == partition_of("job-a"))


@pytest.fixture
async def reporters(server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[Replicas]:
    started = Replicas(server, tmp_path, "profiler")
    yield started
    started.end()


def report(job: str, number: int, pod: str = "worker-0") -> WorkerReported:
    return replace(example_of(WorkerReported), job=job, pod=pod, steps_total=number)


async def send(client: Client, *messages: WorkerReported) -> None:
    posted = [await client.bus.post(subject_of(each), encode(each)) for each in messages]
    await asyncio.gather(*posted)


async def sums(client: Client, job: str) -> list[tuple[float, float]]:
    """Count and sum in each output about the job, in stored order."""
    found = [event async for event in client.events(patterns=(f"evt.v1.profiler.hot-ps-cleared.{job}",), follow=False)]
    return [(event.message.update_time_s, event.message.peers_update_time_s) for event in found]  # type: ignore[union-attr]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 0.5)), max_size=120), st.sampled_from([0.0, 0.2, 1.0]))
def test_of_a_pod_that_sends_too_many_at_once_only_the_last_reports_are_handled(
    sent: list[tuple[str, float]], scale: float
) -> None:
    """Whatever arrives: order is kept, others lose nothing, and each pod keeps a burst and its pace."""
    every, now = [], 1000.0
    for seq, (pod, pause_s) in enumerate(sent):
        now += scale * pause_s
        every.append(Stored(seq, now, f"3.tel.v1.worker.{pod}.a", {}, b""))
    kept = thinned(every)
    assert kept == [each for each in every if each in kept]
    for pod in "abc":
        own, left = ([each for each in found if f".{pod}." in each.subject] for found in (every, kept))
        span_s = own[-1].time_s - own[0].time_s if own else 0.0
        assert left == own[len(own) - len(left) :]
        assert len(left) == min(len(own), POD_BURST + int(POD_REPORTS_PER_S * span_s))


@given(st.integers(0, 10**15), st.integers(0, 10**6), st.integers(0, RANGE_MAX))
def test_a_range_is_read_as_it_was_written(after: int, length: int, count: int) -> None:
    made = ReportRange(after, after + length, count)
    assert ReportRange.read(made.entry()["d"].encode()) == made


async def test_an_arrival_is_told_once_and_a_flood_makes_the_next_range_wait_longer(client: Client) -> None:
    routes, partition = Routes("profiler", Reporting.inputs), partition_of(JOB)
    reports, wake = Reports(client.bus, routes.telemetry(partition)), asyncio.Event()
    assert await reports.gather() is None
    for sent, pause_s in ((TURN_REPORTS, TURN_S), (TURN_REPORTS + 1, FLOODED_TURN_S), (1, TURN_S)):
        reports.on_arrival(wake)
        assert not wake.is_set()
        await send(client, *[report(JOB, number) for number in range(sent)], report(NEIGHBOUR, 1))
        async with asyncio.timeout(60):
            await wake.wait()
        async with asyncio.timeout(60):
            while (found := await reports.gather()) is None or found.count < sent + 1:
                await asyncio.sleep(0.01)
        assert reports.pause_s == pause_s
        reports.journalled(found)
        assert await reports.gather() is None
        wake.clear()
        frame = Stored(1, 0.0, f"journal.profiler.{partition}", {}, json.dumps([found.entry()]).encode())
        assert len(await reports.of(routes.arrivals(frame, partition)[0], routes, partition)) == sent + 1
    await reports.close()


NO_RANGES = (
    *(b"{}", b"[]", b'{"after":5,"to":2,"count":1}', b'{"after":0,"to":2,"count":"1"}'),
    *(b'{"after":true,"to":2,"count":1}', b'{"after":-1,"to":2,"count":1}'),
)


@given(st.one_of(st.binary(max_size=60), st.sampled_from(NO_RANGES)))
def test_bytes_that_are_no_range_are_told_apart(data: bytes) -> None:
    with pytest.raises(ValueError):
        ReportRange.read(data)


async def test_jobs_that_publish_are_saved_without_the_quiet_ones_and_a_successor_of_a_killed_owner_goes_on_exactly(
    client: Client, reporters: Replicas
) -> None:
    """The document of a job that publishes is newer than the cursor; a quiet one has none, and is replayed."""
    partition, streams = partition_of(JOB), BusStreams(client.bus)
    quiet = [name for n in range(999) if partition_of(name := f"{QUIET}-{n}") == partition][:9]
    reporters.start(script="runtime_reporting.py", snapshot_s="1", lease_s="1")
    await send(client, *[report(job, 3) for job in quiet], report(JOB, 1))
    async with asyncio.timeout(60):
        while (saved := await document_of(streams, "profiler", partition, JOB)) is None:
            await asyncio.sleep(0.05)
    assert (await cursor_of(streams, "profiler", partition)).seq < saved.seq
    assert await document_of(streams, "profiler", partition, quiet[0]) is None
    reporters.processes[-1].kill()
    await send(client, *[report(job, LOUD_FROM) for job in quiet], report(JOB, 1))
    reporters.start(script="runtime_reporting.py", snapshot_s="1", lease_s=str(SHORT_LEASE_S))
    async with asyncio.timeout(60):
        while not all([len(await sums(client, job)) for job in quiet]) or len(await sums(client, JOB)) < 2:
            await asyncio.sleep(0.05)
    assert [await sums(client, job) for job in quiet] == [[(2, 3 + LOUD_FROM)]] * len(quiet)
    assert await sums(client, JOB) == [(1, 1), (2, 2)]


async def test_a_pod_that_floods_replaces_its_own_reports_and_grows_nothing_else(
    client: Client, running: Running
) -> None:
    """A flood while no replica runs: the neighbour's reports, sent before and after it, are all handled."""
    await send(client, *[report(NEIGHBOUR, number, f"worker-{number}") for number in range(1, 50)])
    facts = (await client.bus.ask(f"STREAM.INFO.{STREAM}"))["state"]["messages"]
    for begin in range(0, 6000, 1000):
        await send(client, *[report(JOB, 1) for _ in range(begin, begin + 1000)])
    await send(client, *[report(NEIGHBOUR, number, f"worker-{number}") for number in range(50, 100)])
    assert (await client.bus.ask(f"STREAM.INFO.{STREAM}"))["state"]["messages"] == facts
    kept = Counter(each.subject for each in await read(client.bus, TELEMETRY, [">"]))
    assert kept[f"{partition_of(JOB)}.{subject_of(report(JOB, 1))}"] == TELEMETRY_KEPT_PER_POD
    async with running(Reporting):
        async with asyncio.timeout(60):
            while len(found := await sums(client, NEIGHBOUR)) < 99:
                await asyncio.sleep(0.05)
        assert found[-1] == (99, sum(range(100)))


async def test_reports_that_aged_out_before_a_successor_came_cost_only_themselves(
    client: Client, reporters: Replicas, running: Running
) -> None:
    """An owner dies without a snapshot after handling reports; the stream then drops what its journal names."""
    owner = reporters.start(script="runtime_reporting.py", snapshot_s="60", lease_s="1")
    await send(client, *[report(JOB, number) for number in range(1, 15)])
    await published(client, "profiler", 14)
    owner.kill()
    await reconfigured(client, TELEMETRY, max_msgs_per_subject=5)
    await send(client, *[report(JOB, 7) for _ in range(5)], report(NEIGHBOUR, 3))
    async with running(Reporting, lease_s=SHORT_LEASE_S) as runner:
        async with asyncio.timeout(60):
            while not await sums(client, NEIGHBOUR) or len(await sums(client, JOB)) < 19:
                await asyncio.sleep(0.05)
        assert await sums(client, NEIGHBOUR) == [(1, 3)]
        counted = runner.metrics.text().decode()
    assert 'stretto_missing_reports_total{service="profiler"} 14.0' in counted
    own = [f"{partition_of(JOB)}.evt.v1.profiler.*.{JOB}"]
    ids = [each.headers["ce-id"] for each in await read(client.bus, STREAM, own)]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("lifetime", ["never", "1s"])
async def test_a_report_chooses_neither_its_life_nor_anything_else_of_its_stream(lifetime: str, client: Client) -> None:
    """Lifetimes and rollups are refused; an id is forgotten at once, so that it suppresses nothing."""
    subject, body = subject_of(report(JOB, 1)), encode(report(JOB, 1))
    await send(client, report(JOB, 1), report(NEIGHBOUR, 1))
    for headers in ({"Nats-TTL": lifetime}, {"Nats-Rollup": "all"}, {"Nats-Rollup": "sub"}, {"Nats-Incr": "1"}):
        with pytest.raises(BusFault):
            await client.bus.store(subject, body, headers)
    assert len(await read(client.bus, TELEMETRY, [">"])) == 2
    await client.bus.store(subject, body, {"Nats-Msg-Id": "1"})
    await asyncio.sleep(0.2)  # the shortest window that the server knows, twice
    await client.bus.store(subject, body, {"Nats-Msg-Id": "1"})
    assert len(await read(client.bus, TELEMETRY, [">"])) == 4


async def test_a_jobs_dead_letters_push_out_nobody_elses(client: Client, running: Running) -> None:
    """Forty pods of one job send reports that are refused, beyond the budget; a neighbour's are set aside around it."""

    async def refuse(job: str, pods: int, each: int) -> None:
        subjects = [subject_of(report(job, 1, f"worker-{pod}")) for pod in range(pods)]
        posted = [await client.bus.post(subject, b"x" * 15_000) for subject in subjects for _ in range(each)]
        await asyncio.gather(*posted)

    async with running(Reporting) as runner:
        counted = runner.metrics.dead_letters.labels("profiler", "refused")._value
        began_s = time.monotonic()
        await refuse(NEIGHBOUR, 1, 1)
        await eventually(lambda: counted.get() == 1)
        await refuse(JOB, 40, 8)
        await eventually(lambda: counted.get() == 321)
        await refuse(NEIGHBOUR, 1, 1)
        await eventually(lambda: counted.get() == 322)
        passed_s = time.monotonic() - began_s
    letters = await client.dead_letters()
    stored = sum(len(letter.data) for letter in letters if letter.subject.endswith(f".{JOB}"))
    assert 0.9 * BURST_BYTES < stored <= BURST_BYTES + BYTES_PER_S * passed_s
    assert [letters[place].subject.endswith(f".{NEIGHBOUR}") for place in (0, 1, -1)] == [True, False, True]


async def test_odd_subjects_headers_and_ranges_cost_a_dead_letter_at_most(client: Client, running: Running) -> None:
    """Reports that no client of ours would send, and forged ranges in the journal; the neighbour is served after."""
    number = partition_of(JOB)
    async with running(Reporting, snapshot_s=0.05) as runner:
        for odd in ("\x01\x7f", "jöb", "x" * 900, JOB):
            await client.bus.store(f"tel.v1.worker.{odd}.{odd}", b"\xff", {"traceparent": "x", "ce-id": "profiler:9:0"})
        forged = {"after": 0, "to": 10**15, "count": 1}
        for body in ("{}", "5", json.dumps(forged | {"after": 10**16}), json.dumps(forged)):
            entry: dict[str, Any] = {"kind": REPORTS, "key": "", "d": body}
            await client.bus.store(f"journal.profiler.{number}", json.dumps([entry]).encode())
        await send(client, report(NEIGHBOUR, 5))
        async with asyncio.timeout(60):
            while not await sums(client, NEIGHBOUR):
                await asyncio.sleep(0.05)
        assert runner.report()["ready"]
    letters = [letter.headers["reason"] for letter in await client.dead_letters()]
    assert set(letters) <= {"refused", "damaged"}
    assert letters.count("damaged") >= 3
