"""A job as it was at an earlier moment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto_bus.reading.ordered_consumer import Stored
from stretto_gateway.problems import Problem
from stretto_gateway.read_model.parts import PARTS, dumped
from stretto_gateway.read_model.past import KEPT, OMITTED, PAST_PARTS, Past, check_past
from stretto_gateway.read_model.projection import Projection
from stretto_gateway.read_model.summaries import as_of
from stretto_gateway.streams.stored_events import Selection
from stretto_messages.base import Message, example_of
from stretto_messages.dispatcher import JobProgressed, ShardLeased
from stretto_wire.contract.registry import channel_of

from ..gateway_process import Running
from ..rest_documents import problem, spec
from .test_parts import EXAMPLES, JOB, SUBMITTED, VARIANTS


class Stream:
    """Stored events of one job, a second apart, with sequences from 1."""

    def __init__(self, events: Sequence[Message]) -> None:
        self.events = [SUBMITTED, *events]
        self.reads = 0

    async def stored(
        self, selection: Selection, until: int, *, has_until: bool = False
    ) -> AsyncIterator[tuple[Message, Stored]]:
        self.reads += 1
        await asyncio.sleep(0)
        for seq, message in enumerate(self.events[:until], 1):
            if channel_of(message).name in selection.names:
                yield message, Stored(seq=seq, time_s=float(seq), subject="", data=b"", headers={})


def then(events: Sequence[Message], at: int) -> dict[str, Any]:
    """The parts of the job as they were shown after the event ``at``."""
    projection = Projection()
    for seq, message in enumerate([SUBMITTED, *events][:at], 1):
        projection.apply(message, seq, float(seq))
    return without_sequence(dumped(as_of(projection.jobs[JOB], float(at)), sorted(PAST_PARTS)))


def without_sequence(body: bytes) -> dict[str, Any]:
    """A part without the sequence of the last event, which may be one of shards."""
    found = json.loads(body)
    del found["last_seq"]
    return found


@given(st.lists(st.sampled_from([*EXAMPLES[1:], *VARIANTS]), min_size=1, max_size=25), st.data())
def test_a_job_is_shown_as_it_was_shown_then(events: list[Message], data: st.DataObject) -> None:
    seen = [seq for seq, event in enumerate([SUBMITTED, *events], 1) if channel_of(event).name not in OMITTED]
    at = data.draw(st.sampled_from(seen))
    view = asyncio.run(Past(Stream(events)).view(JOB, at))
    assert without_sequence(dumped(view, sorted(PAST_PARTS))) == then(events, at)


def test_a_moment_is_folded_once_and_few_are_kept() -> None:
    stream = Stream([example_of(ShardLeased), *[example_of(JobProgressed)] * (2 * KEPT)])
    past = Past(stream)

    async def ask() -> None:
        await asyncio.gather(*(past.view(JOB, 3) for _ in range(3)))
        await past.view(JOB, 3)
        assert stream.reads == 2, "the first lease and all others, once"
        for at in range(4, 4 + KEPT):
            await past.view(JOB, at)
        before = stream.reads
        await past.view(JOB, 3)
        assert stream.reads == before + 2

    asyncio.run(ask())


def test_a_caller_with_many_questions_delays_nobody_elses() -> None:
    stream = Stream([example_of(JobProgressed)] * 60)
    past, served = Past(stream), list[str]()

    async def ask(caller: str, at: int) -> None:
        await past.view(JOB, at, caller)
        served.append(caller)

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            for at in range(2, 40):
                group.create_task(ask("script", at))
            await asyncio.sleep(0)
            group.create_task(ask("person", 50))

    asyncio.run(both())
    assert served.index("person") < 5


def test_a_moment_that_could_not_be_read_is_asked_for_again() -> None:
    stream = Stream([example_of(JobProgressed)] * 3)
    past = Past(stream)

    async def ask() -> None:
        with pytest.raises(Problem):
            await past.view("absent", 3)
        before = stream.reads
        with pytest.raises(Problem):
            await past.view("absent", 3)
        assert stream.reads > before

    asyncio.run(ask())


def test_the_past_has_no_counts_of_shards() -> None:
    check_past(set(PARTS) - {"shards"})
    with pytest.raises(Problem) as refused:
        check_past(PARTS)
    assert (refused.value.status, refused.value.errors[0].value) == (400, "shards")


def test_the_gateway_answers_about_the_past(gateway: Running) -> None:
    document = spec()
    name = document["name"]
    with gateway.http() as http:
        seq = http.post("/jobs", json=document).json()["seq"]
        assert http.delete(f"/jobs/{name}").status_code == 202
        path = f"/jobs/{name}/parts"
        now = http.get(path, params={"part": "head"}).json()
        then = http.get(path, params={"part": "head", "at": seq})
        assert (now["status"], then.json()["status"], then.json()["last_seq"]) == ("cancelled", "submitted", seq)
        held = {"If-None-Match": then.headers["ETag"]}
        assert http.get(path, params={"part": "head", "at": seq}, headers=held).status_code == 304
        future = http.get(path, params={"part": "head", "at": now["last_seq"] + 10**6})
        assert future.json() == now
        early = problem(http.get(path, params={"at": seq - 1})) if seq > 1 else {"field": "at"}
        assert early["field"] == "at"
        assert problem(http.get(path, params={"part": "shards", "at": seq}))["field"] == "part"
