"""The journal of a job: what the bus has, for admins, of this job's replay only, and recognisably whole."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from stretto_bus import BusFault
from stretto_bus.reading.ordered_consumer import Stored
from stretto_client.documents import Documents
from stretto_client.errors import Unreachable
from stretto_client.places import Place
from stretto_gateway.http.routes.journal import READERS_MAX
from stretto_gateway.requests import journal
from stretto_messages.base import CLUSTER, example_of
from stretto_messages.pods import WorkerReported
from stretto_runtime.streams import BusStreams, read
from stretto_wire.contract.excerpts import Excerpt, Stream, StreamFacts
from stretto_wire.contract.registry import STATE_PREFIX, partition_of
from stretto_wire.rest.journal import JournalEnd, StoredMessage, parameters_of

from tests.waits import wait_until

from ..gateway_process import Running
from ..rest_documents import problem, spec

FACTS, MESSAGE, END = TypeAdapter(StreamFacts), TypeAdapter(StoredMessage), TypeAdapter(JournalEnd)
TOKENS = st.sampled_from(["a", "b", "*"])
FILTERS = st.builds(
    lambda tokens, end: ".".join([*tokens, end]), st.lists(TOKENS, max_size=3), st.sampled_from(["a", "*", ">"])
)


def matches(pattern: str, subject: str) -> bool:
    """Return whether a pattern matches a subject without wildcards, as NATS defines it."""
    own, other = pattern.split("."), subject.split(".")
    if own[-1] == ">":
        return len(other) >= len(own) and matches(".".join([*own[:-1], "*"]), ".".join(other[: len(own)]))
    return len(own) == len(other) and all(one in ("*", two) for one, two in zip(own, other, strict=True))


@given(FILTERS, FILTERS)
def test_a_pattern_covers_a_filter_if_it_matches_whatever_the_filter_does(pattern: str, asked: str) -> None:
    """Method: the filter's subjects with the least in common with a pattern have a token of their own for each
    wildcard, and one or three of them for ``>``."""
    strangers = [asked.replace("*", "z").replace(">", tail) for tail in ("z", "z.z.z")]
    assert journal.covers(pattern, asked) == all(matches(pattern, subject) for subject in strangers)


@given(FILTERS, FILTERS)
def test_filters_overlap_if_a_subject_matches_both(one: str, other: str) -> None:
    """Method: of all subjects of the filters' own tokens, one is matched by both, or none is."""
    subjects = (".".join(tokens) for length in range(1, 5) for tokens in product("ab", repeat=length))
    assert journal.overlap(one, other) == any(matches(one, each) and matches(other, each) for each in subjects)


def submitted(running: Running) -> str:
    document = spec()
    with running.http() as http:
        http.post("/jobs", json=document).raise_for_status()
    return document["name"]


def snapshot_of(job: str, side: str = "a") -> str:
    return f"{STATE_PREFIX}snap.profiler.{partition_of(job)}.{job}.{side}"


def asked(running: Running, job: str, excerpt: Excerpt) -> list[bytes]:
    """Return the lines of an excerpt."""
    with running.http() as http:
        answer = http.get(f"/jobs/{job}/journal", params=[*parameters_of(excerpt)])
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/jsonl"
    return answer.content.splitlines()


async def test_an_excerpt_is_what_the_bus_has_byte_by_byte(gateway: Running) -> None:
    """Goal: a replay by the gateway has the inputs of one by the bus. Method: both read the same excerpts."""
    job = await asyncio.to_thread(submitted, gateway)
    operator = await gateway.operator()
    try:
        for _ in range(3):
            await operator.publish(replace(example_of(WorkerReported), job=job))
        for content in (b"old", bytes(range(256)) * 500):
            await operator.bus.store(snapshot_of(job), content, {"A-Header": "ä: 1"})
        for excerpt, count in (
            (Excerpt(), 0),
            (Excerpt(subject=(f"*.evt.v1.gateway.job-submitted.{job}",)), 1),
            (Excerpt(stream=Stream.REPORTS, subject=(f"*.tel.v1.worker.*.{job}",)), 3),
            (Excerpt(stream=Stream.REPORTS, subject=(f"*.tel.v1.worker.*.{job}",), headers_only=True), 3),
            (Excerpt(stream=Stream.STATE, subject=(snapshot_of(job),), last=True), 1),
        ):
            first, *between, last = await asyncio.to_thread(asked, gateway, job, excerpt)
            stored = await read(BusStreams(operator.bus), excerpt)
            assert [MESSAGE.validate_json(line) for line in between] == [
                StoredMessage(each.seq, each.time_s, each.subject, dict(each.headers), each.data) for each in stored
            ]
            assert json.loads(last) == {"messages": count, "fault": None}
            facts = FACTS.validate_json(first)
            assert facts == await BusStreams(operator.bus).facts(excerpt.stream)
            if stored:
                later = excerpt.model_copy(update={"after": stored[0].seq, "last": False})
                assert len(await asyncio.to_thread(asked, gateway, job, later)) == count + 1
    finally:
        await operator.close()


def test_of_other_jobs_it_has_nothing_but_what_a_replay_needs(gateway: Running) -> None:
    """Goal: no excerpt goes beyond a replay's need. Method: subjects of another job, partition, stream or kind."""
    job = submitted(gateway)
    own, cluster = partition_of(job), partition_of(CLUSTER)
    other = next(number for number in range(16) if number not in (own, cluster))
    refused = {
        Stream.FACTS: (
            "*.evt.v1.dispatcher.shard-leased.another", "*.evt.v1.gateway.*.*", f"journal.arbiter.{other}", ">",
            "journal.arbiter.*", f"fence.arbiter.{other}", f"*.tel.v1.worker.*.{job}", "*.evt.>",
        ),
        Stream.REPORTS: ("*.tel.v1.worker.*.another", f"*.evt.v1.arbiter.*.{job}", ">"),
        Stream.STATE: (
            snapshot_of("another"), f"{STATE_PREFIX}snap.profiler.{own}.*.a", f"{STATE_PREFIX}kept.gateway.{job}",
            f"{STATE_PREFIX}cursor.profiler.{other}.a", f"{STATE_PREFIX}snap.>", f"{STATE_PREFIX}member.>",
        ),
    }  # fmt: skip
    with gateway.http() as http:
        for stream, subjects in refused.items():
            for subject in subjects:
                answer = http.get(f"/jobs/{job}/journal", params={"stream": stream, "subject": subject})
                found = problem(answer)
                assert (found["status"], found["field"], found["value"]) == (400, "subject", subject), subject
        for wrong in (
            {"stream": "AUDIT"},
            {"stream": "DLQ"},
            {"subject": "a..b"},
            {"subject": "a b"},
            {"subject": "a.>.b"},
            {"until": 9},
        ):
            assert problem(http.get(f"/jobs/{job}/journal", params=wrong))["status"] in (400, 422), wrong
        twice = {"subject": [f"*.evt.v1.arbiter.*.{job}", f"{own}.evt.v1.*.plan-decided.{job}"]}
        assert "overlap" in problem(http.get(f"/jobs/{job}/journal", params=twice))["detail"]
        needed = [f"*.evt.v1.actuator.{name}.*" for name in ("pod-exited", "pod-started")]
        needed += [f"journal.arbiter.{cluster}", f"fence.arbiter.{cluster}", f"{own}.evt.v1.arbiter.*.{job}"]
        assert http.get(f"/jobs/{job}/journal", params={"subject": needed}).status_code == 200


async def test_a_reader_that_stands_still_holds_one_of_a_few_places_until_it_goes(gateway: Running) -> None:
    """Method: more than the sockets hold, and resists compression, is asked for and not read; the server waits."""
    job = await asyncio.to_thread(submitted, gateway)
    operator = await gateway.operator()
    for side in "ab":
        for part in range(4):
            await operator.bus.store(f"{snapshot_of(job, side)}.{part}", os.urandom(3 << 20))
    await operator.close()
    excerpt = Excerpt(stream=Stream.STATE, subject=(f"{STATE_PREFIX}snap.*.{partition_of(job)}.{job}.>",))
    params, path = [*parameters_of(excerpt)], f"/jobs/{job}/journal"

    def read_slowly() -> None:
        with gateway.http() as http:
            with ExitStack() as readers:
                for _ in range(READERS_MAX):
                    answer = readers.enter_context(http.stream("GET", path, params=params))
                    assert answer.status_code == 200
                refused = problem(http.get(path))
                assert (refused["status"], refused["field"]) == (429, "streams")
                assert "journals" in refused["detail"]
            wait_until(lambda: http.get(path).status_code == 200)

    await asyncio.to_thread(read_slowly)


async def test_a_gateway_that_is_killed_in_the_middle_leaves_no_whole_journal(own_gateway: Running) -> None:
    """Method: more than the sockets hold is on its way when the process dies."""
    job = await asyncio.to_thread(submitted, own_gateway)
    operator = await own_gateway.operator()
    for part in range(6):
        await operator.bus.store(f"{snapshot_of(job)}.{part}", os.urandom(3 << 20))
    await operator.close()
    excerpt = Excerpt(stream=Stream.STATE, subject=(f"{STATE_PREFIX}snap.*.{partition_of(job)}.{job}.>",))

    def read_on() -> None:
        with Documents(Place(own_gateway.url, own_gateway.token)) as documents:
            lines = documents.journal(job, parameters_of(excerpt))
            next(lines)
            own_gateway.process.kill()
            list(lines)

    with pytest.raises(Unreachable):
        await asyncio.to_thread(read_on)


class Breaking:
    """A stream of messages that breaks after some of them, and counts those that were taken."""

    def __init__(self, after: int) -> None:
        self.after, self.taken = after, 0

    async def facts(self, stream: Stream) -> StreamFacts:
        return StreamFacts(0.0, self.after, None)

    async def scan(self, excerpt: Excerpt) -> AsyncGenerator[Stored]:
        for seq in range(1, self.after + 1):
            self.taken = seq
            yield Stored(seq, 0.0, "a", {}, bytes(1000))
        raise BusFault("the server stopped in the middle")

    async def unreadable(self) -> list[str]:
        return []


async def test_a_fault_in_the_middle_is_the_last_line() -> None:
    body = b"".join([part async for part in journal.lines(Breaking(3), Excerpt(subject=("a",)))])
    assert body.count(b"\n") == 5
    end = END.validate_json(body.splitlines()[-1])
    assert end == JournalEnd(3, "the server stopped in the middle")


async def test_nothing_is_read_that_nobody_takes() -> None:
    source = Breaking(10_000)
    parts = journal.lines(source, Excerpt(subject=("a",)))
    first = await anext(parts)
    assert source.taken * 1000 < len(first) < journal.PART_BYTES + 2000
    await parts.aclose()
