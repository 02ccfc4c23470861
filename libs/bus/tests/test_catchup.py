"""Far behind the end of the stream: a consumer per filter, and yet everything once and in order."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import Any

import pytest
from runtime_counting import add
from runtime_live import connect
from stretto_bus import Client
from stretto_bus.reading import catchup, ordered_consumer
from stretto_bus.reading.catchup import MergedConsumer, PullConsumer, SequenceSpan, open_consumer
from stretto_bus.reading.ordered_consumer import OrderedConsumer, Stored
from stretto_installation.server import EmbeddedServer
from stretto_wire.codec import encode
from stretto_wire.contract.registry import STREAM, subject_of

FILTERS = [
    "*.evt.v1.gateway.job-cancelled.*",
    "*.evt.v1.actuator.pod-started.*",
    "journal.dispatcher.3",
    "fence.dispatcher.3",
]


async def store(client: Client, count: int, seed: int) -> None:
    """Messages of all filters and of none, mixed."""
    randomness = random.Random(seed)
    others = [("journal.dispatcher.3", b"[]"), ("fence.dispatcher.3", b"{}"), ("journal.planner.3", b"[]")]
    for _ in range(0, count, 100):
        chosen = [randomness.choice([("evt", b""), ("other", b""), *others]) for _ in range(100)]
        messages = [_message(subject, data, randomness) for subject, data in chosen]
        await asyncio.gather(*[await client.bus.post(subject, data) for subject, data in messages])


def _message(subject: str, data: bytes, randomness: random.Random) -> tuple[str, bytes]:
    job = f"job-{randomness.randrange(20)}"
    if subject == "evt":
        message = add(job, randomness.randrange(9))
        return subject_of(message), encode(message)
    return (f"evt.v1.actuator.pod-started.{job}", b"{}") if subject == "other" else (subject, data)


async def taken(consumer: OrderedConsumer | MergedConsumer, count: int) -> list[Stored]:
    """The first ``count``, as a session takes them."""
    wake, found = asyncio.Event(), list[Stored]()
    consumer.on_arrival(wake)
    async with asyncio.timeout(60):
        while len(found) < count:
            wake.clear()
            found += await consumer.take()
            if not consumer.ready() and len(found) < count:
                await wake.wait()
    return found


async def test_a_long_tail_brings_what_a_tail_brings_also_what_comes_meanwhile(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catchup, "MERGE_FROM", 100)
    await store(client, 3000, seed=1)
    long = await open_consumer(client.bus, STREAM, FILTERS, 40)
    assert isinstance(long, MergedConsumer)
    storing = asyncio.create_task(store(client, 1000, seed=2))
    first = await taken(long, 500)
    await storing
    plain = await OrderedConsumer.open(client.bus, STREAM, FILTERS, 40)
    expected = await taken(plain, plain.backlog)
    assert [*first, *(await taken(long, len(expected) - len(first)))] == expected
    await store(client, 100, seed=3)
    later = [stored.seq for stored in await taken(plain, 50)]
    assert [stored.seq for stored in await taken(long, 50)][:50] == later[:50]
    await long.close()
    await plain.close()


async def test_a_filter_whose_messages_expire_holds_nobody_up(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catchup, "MERGE_FROM", 100)
    monkeypatch.setattr(catchup, "STALLED_S", 0.2)
    await store(client, 500, seed=4)
    long = await open_consumer(client.bus, STREAM, FILTERS, 1)
    assert isinstance(long, MergedConsumer)
    branch = long._branches[1]
    await branch.close()  # as if what it had were gone
    branch._consumer._queue.clear()
    branch.waiting.clear()
    plain = await OrderedConsumer.open(client.bus, STREAM, FILTERS, 1)
    assert await taken(long, plain.backlog) == await taken(plain, plain.backlog)
    await long.close()
    await plain.close()


async def test_a_lane_is_sent_no_more_than_it_has_room_for(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: messages beyond the room were dropped and sent again, most of a backlog twice."""
    monkeypatch.setattr(catchup, "MERGE_FROM", 100)
    monkeypatch.setattr(PullConsumer, "queue_max", 64)
    await store(client, 2000, seed=6)
    long = await open_consumer(client.bus, STREAM, FILTERS, 1)
    assert isinstance(long, MergedConsumer)
    tails = [branch._consumer for branch in long._branches]
    begun = [consumer._name for consumer in tails]
    for count in (0, 200, 900):
        await taken(long, count)
        await asyncio.sleep(0.2)  # a server that pushes has sent everything by now
        for branch, consumer in zip(long._branches, tails, strict=True):
            told = await client.bus.ask(f"CONSUMER.INFO.{STREAM}.{consumer._name}")
            arrived = int(told["delivered"]["consumer_seq"])
            assert arrived == consumer._expected - 1
            assert len(consumer._queue) + consumer._requested <= 64
            assert len(branch.waiting) <= 64
    assert [consumer._name for consumer in tails] == begun
    await long.close()


async def test_a_lane_of_large_messages_holds_no_more_than_it_asked_for_in_bytes(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their number alone, 2,048 of up to a MiB each would have been sent ahead."""
    monkeypatch.setattr(ordered_consumer, "PULL_BYTES", 100_000)
    sizes = [random.Random(7).choice([10, 3_000, 30_000]) for _ in range(200)]
    for size in sizes:
        await (await client.bus.post("journal.dispatcher.3", bytes(size)))
    consumer = await PullConsumer.open(client.bus, STREAM, ["journal.dispatcher.3"])
    begun, wake, found = consumer._name, asyncio.Event(), list[int]()
    consumer.on_arrival(wake)
    async with asyncio.timeout(60):
        while len(found) < len(sizes):
            wake.clear()
            await asyncio.sleep(0.02)  # the server has sent what it will
            assert sum(len(stored.data) for stored in consumer._queue if isinstance(stored, Stored)) <= 100_000
            found += [len(stored.data) for stored in await consumer.take()]
            if not consumer.ready() and len(found) < len(sizes):
                await wake.wait()
    assert found == sizes
    assert consumer._name == begun, "it was not opened anew"
    await consumer.close()


async def test_who_asks_for_what_comes_late_asks_again_and_misses_nothing(
    server: EmbeddedServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordered_consumer, "PULL_EXPIRES_S", 0.2)
    monkeypatch.setattr(ordered_consumer, "HEARTBEAT_S", 0.1)  # at most half of that
    monkeypatch.setattr(PullConsumer, "queue_max", 16)
    service = await connect(server, "dispatcher")  # which may ask, too
    consumer = await PullConsumer.open(service.bus, STREAM, ["journal.dispatcher.3"])
    reading = asyncio.create_task(taken(consumer, 60))
    await asyncio.sleep(0.5)  # what was asked for has expired
    for n in range(60):
        await (await client.bus.post("journal.dispatcher.3", b"%d" % n))
        if n == 30:
            consumer._reopen()  # as after a reconnect
    assert [stored.data for stored in await reading] == [b"%d" % n for n in range(60)]
    await consumer.close()
    await service.close()


class Present:
    """A branch that has always something."""

    done = ready = True

    def __init__(self, first: int) -> None:
        self.waiting = deque(Stored(seq, 0.0, "", {}, b"") for seq in range(first, 1000, 2))

    async def fill(self) -> None: ...

    async def close(self) -> None: ...


async def test_who_gets_full_batches_for_long_is_not_taken_for_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait at the beginning was counted on: two seconds later the expensive consumer took over, far from the end."""
    monkeypatch.setattr(catchup, "STALLED_S", 0.02)
    branches: list[Any] = [Present(0), Present(1)]
    bus: Any = None  # to open another consumer would fail
    long = MergedConsumer(bus, SequenceSpan(STREAM, FILTERS, 0, 5000), branches)
    kept, branches[0].waiting, branches[0].done = branches[0].waiting, deque[Stored](), False
    assert await long.take(10) == []
    branches[0].waiting = kept
    assert [stored.seq for stored in await long.take(10)] == list(range(10))
    await asyncio.sleep(0.06)
    assert [stored.seq for stored in await long.take(10)] == list(range(10, 20))
    branches[0].waiting = deque[Stored]()
    assert await long.take(10) == []
    await long.close()


async def test_close_to_the_end_one_consumer_is_enough(client: Client) -> None:
    await store(client, 200, seed=5)
    consumer = await open_consumer(client.bus, STREAM, FILTERS, 1)
    assert isinstance(consumer, OrderedConsumer)
    await consumer.close()
