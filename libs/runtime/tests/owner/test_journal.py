"""Frames: one is in flight, requests that arrive meanwhile share the next, and each waiter learns the outcome."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic_core import from_json
from stretto_bus import Client
from stretto_bus.faults import Fenced
from stretto_bus.reading.ordered_consumer import read
from stretto_bus.writer import Fence, Writer
from stretto_runtime.owner.journal import QUEUE_ENTRIES, QUEUE_ENTRIES_OF_A_JOB, RANGES_TTL_S, Journal
from stretto_runtime.owner.reports import ReportRange
from stretto_runtime.process.faults import PartitionLost
from stretto_wire.contract.registry import STREAM

SUBJECT, FENCE = "journal.dispatcher.3", "fence.dispatcher.3"


async def journal_of(client: Client) -> tuple[Journal, asyncio.Event]:
    wake = asyncio.Event()
    writer = Writer(client.bus, Fence(FENCE, await client.bus.store(FENCE, b"")), wake)
    return Journal(writer, SUBJECT, 60, wake), wake


def entry(number: int) -> dict[str, Any]:
    return {"kind": "tick", "key": str(number)}


async def frames(client: Client) -> list[list[str]]:
    return [[each["key"] for each in from_json(stored.data)] for stored in await read(client.bus, STREAM, [SUBJECT])]


async def test_what_is_asked_while_a_frame_is_away_shares_the_next_which_leaves_when_it_is_back(client: Client) -> None:
    journal, _ = await journal_of(client)
    await journal.add_surely(entry(0))
    assert journal.idle
    later = [asyncio.create_task(journal.add_surely(entry(number))) for number in range(1, 4)]
    await asyncio.sleep(0.1)
    assert await frames(client) == [["0"]]
    assert not journal.idle
    journal.came_back()
    await asyncio.gather(*later)
    assert await frames(client) == [["0"], ["1", "2", "3"]]
    assert journal.idle
    journal.came_back()
    await journal.add_surely(entry(4))
    assert len(await frames(client)) == 3


async def test_a_frame_of_nothing_but_ranges_lives_no_longer_than_their_reports(client: Client) -> None:
    wake = asyncio.Event()
    writer = Writer(client.bus, Fence(FENCE, await client.bus.store(FENCE, b"")), wake)
    journal = Journal(writer, SUBJECT, 86_400, wake)
    ranges = ReportRange(0, 9, 1).entry()
    for entries in ([ranges], [ranges, ranges], [ranges, entry(0)], [entry(0), ranges]):
        await asyncio.gather(*[journal.add_surely(each) for each in entries])
        journal.came_back()
    lives = [stored.headers["Nats-TTL"] for stored in await read(client.bus, STREAM, [SUBJECT])]
    assert lives == [f"{RANGES_TTL_S}s", f"{RANGES_TTL_S}s", "86400s", "86400s"]


async def test_who_waits_for_a_frame_that_a_newer_owner_has_refused_hears_it(client: Client) -> None:
    journal, wake = await journal_of(client)
    await client.bus.store(FENCE, b"")
    with pytest.raises(PartitionLost):
        await journal.add_surely(entry(0))
    assert isinstance(journal.fault, Fenced)
    assert wake.is_set()
    assert not journal.add(entry(1))
    assert await frames(client) == []


async def test_when_ownership_ends_nobody_goes_on_waiting(client: Client) -> None:
    journal, _ = await journal_of(client)
    await journal.add_surely(entry(0))
    waiting = asyncio.create_task(journal.add_surely(entry(1)))
    await asyncio.sleep(0)
    journal.close()
    with pytest.raises(PartitionLost):
        await waiting
    journal.came_back()
    await asyncio.sleep(0.05)
    assert await frames(client) == [["0"]]


async def test_a_job_that_floods_leaves_room_for_the_requests_of_others(client: Client) -> None:
    journal, _ = await journal_of(client)
    await journal.add_surely(entry(0))
    flood = {"kind": "request", "key": "hostile"}
    assert [journal.add(flood) for _ in range(QUEUE_ENTRIES)].count(True) == QUEUE_ENTRIES_OF_A_JOB
    assert journal.add({"kind": "request", "key": "victim"})
    while not journal.idle:
        journal.came_back()
        await asyncio.sleep(0.01)
    assert journal.add(flood)
    assert journal._waiting_of == {"hostile": 1}
