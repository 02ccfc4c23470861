"""The behaviour of a JetStream server that the client relies on, a function for each, on streams of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from stretto_bus.bus import Bus, Msg
from stretto_bus.faults import BusFault, Fenced, NobodyListens
from stretto_bus.reading.durable import Durable
from stretto_bus.reading.newest import newest
from stretto_bus.reading.ordered_consumer import OrderedConsumer, Stored, last_of, read
from stretto_bus.reading.stream_snapshot import StreamSnapshot, restore_stream
from stretto_bus.writer import Fence, OutgoingMessage, check_server, store_together
from stretto_installation.provision import make_stream
from stretto_wire.contract.registry import PARTITIONS, PATTERN_OF_STREAM, STORED_AS, partition_of

Contract = Callable[[Bus, str], Coroutine[Any, Any, None]]
SECOND_NS = 10**9


async def stream(bus: Bus, name: str, **config: Any) -> None:
    await make_stream(bus, {"name": name, "subjects": [f"{name}.>"], "allow_msg_ttl": True, **config})


def told(stored: list[Stored]) -> list[tuple[int, str, bytes]]:
    return [(each.seq, each.subject, each.data) for each in stored]


async def messages_are_numbered_and_read_in_order(bus: Bus, name: str) -> None:
    await stream(bus, name)
    assert [await bus.store(f"{name}.a.{i % 2}", b"%d" % i) for i in range(5)] == [1, 2, 3, 4, 5]
    assert told(await read(bus, name, [f"{name}.>"], 2))[:2] == [(2, f"{name}.a.1", b"1"), (3, f"{name}.a.0", b"2")]
    assert [each.seq for each in await read(bus, name, [f"{name}.*.0"])] == [1, 3, 5]
    assert await read(bus, name, [f"{name}.b"]) == []


async def headers_come_back(bus: Bus, name: str) -> None:
    await stream(bus, name)
    await bus.store(f"{name}.a", b"x", {"traceparent": "00-é-1", "ce-id": "7"})
    [stored] = await read(bus, name, [f"{name}.a"])
    assert (stored.headers["traceparent"], stored.headers["ce-id"], stored.data) == ("00-é-1", "7", b"x")
    [bare] = await read(bus, name, [f"{name}.a"], headers_only=True)
    assert (bare.headers["ce-id"], bare.data) == ("7", b"")


async def an_id_is_stored_once_within_the_window(bus: Bus, name: str) -> None:
    await stream(bus, name, duplicate_window=SECOND_NS)
    first = await bus.store(f"{name}.a", b"1", {"Nats-Msg-Id": "one"})
    assert await bus.store(f"{name}.b", b"2", {"Nats-Msg-Id": "one"}) == first
    answer = await (await bus.post(f"{name}.a", b"3", {"Nats-Msg-Id": "one"}))
    assert answer["duplicate"]
    await asyncio.sleep(2.5)
    assert await bus.store(f"{name}.a", b"4", {"Nats-Msg-Id": "one"}) == 2


async def a_fence_refuses_whoever_does_not_know_the_last_of_its_subject(bus: Bus, name: str) -> None:
    await stream(bus, name)
    fence = Fence(f"{name}.fence", await bus.store(f"{name}.fence", b"me"))
    await bus.store(f"{name}.a", b"1", fence.headers())
    assert await bus.store(f"{name}.a", b"2", fence.headers()) == 3
    other = await bus.store(f"{name}.fence", b"other")
    with pytest.raises(Fenced):
        await bus.store(f"{name}.a", b"3", fence.headers())
    assert await bus.store(f"{name}.a", b"3", Fence(f"{name}.fence", other).headers()) == 5
    assert await bus.store(f"{name}.new", b"", Fence(f"{name}.new", 0).headers()) == 6
    with pytest.raises(Fenced):
        await bus.store(f"{name}.new", b"", Fence(f"{name}.new", 0).headers())


async def a_fence_is_checked_before_an_id(bus: Bus, name: str) -> None:
    await stream(bus, name)
    fence = Fence(f"{name}.a", 0).headers() | {"Nats-Msg-Id": "one"}
    assert await bus.store(f"{name}.a", b"1", fence) == 1
    with pytest.raises(Fenced):
        await bus.store(f"{name}.a", b"1", fence)


async def a_refusal_tells_the_last_of_a_subject(bus: Bus, name: str) -> None:
    await stream(bus, name)
    assert await last_of(bus, f"{name}.a") == 0
    for subject in ("a", "a", "b"):
        await bus.store(f"{name}.{subject}", b"")
    assert [await last_of(bus, f"{name}.{subject}") for subject in ("a", "b", "c")] == [2, 3, 0]
    assert len(await read(bus, name, [f"{name}.>"])) == 3


async def subjects_get_their_partition(bus: Bus, name: str) -> None:
    kinds = {"subjects": [f"{name}.v1.>"], "subject_transform": {"src": PATTERN_OF_STREAM, "dest": STORED_AS}}
    await make_stream(bus, {"name": name, **kinds})
    jobs = [f"job-{number}" for number in range(40)]
    for job in jobs:
        await bus.store(f"{name}.v1.s.e.{job}", b"")
    await bus.store(f"{name}.v1.other", b"")
    assert [each.subject for each in await read(bus, name, [">"])] == [
        *(f"{partition_of(job)}.{name}.v1.s.e.{job}" for job in jobs),
        f"{name}.v1.other",
    ]
    assert len({partition_of(job) for job in jobs}) > PARTITIONS // 2
    last = Fence(f"{partition_of('job-0')}.{name}.v1.s.e.job-0", 1)
    assert await bus.store(f"{name}.v1.s.e.job-0", b"", last.headers()) == len(jobs) + 2


async def the_last_of_a_subject_replaces_the_one_before(bus: Bus, name: str) -> None:
    await stream(bus, name, max_msgs_per_subject=1)
    for value in (b"1", b"2"):
        for subject in ("a", "b"):
            await bus.store(f"{name}.{subject}", value)
    expected = [(3, f"{name}.a", b"2"), (4, f"{name}.b", b"2")]
    assert told(await read(bus, name, [f"{name}.>"])) == expected
    assert told(await read(bus, name, [f"{name}.>"], deliver_policy="last_per_subject")) == expected
    state = (await bus.ask(f"STREAM.INFO.{name}"))["state"]
    assert [state[key] for key in ("messages", "first_seq", "last_seq", "num_subjects")] == [2, 3, 4, 2]


async def a_consumer_of_the_last_ones_goes_on_with_what_comes(bus: Bus, name: str) -> None:
    await stream(bus, name, max_msgs_per_subject=1)
    for value in (b"1", b"2"):
        await bus.store(f"{name}.a", value)
    consumer = await OrderedConsumer.open(bus, name, [f"{name}.>"], deliver_policy="last_per_subject")
    assert consumer.backlog == 1
    await bus.store(f"{name}.b", b"3")
    found: list[Stored] = []
    while len(found) < 2:
        found += await consumer.batch()
    await consumer.close()
    assert told(found) == [(2, f"{name}.a", b"2"), (3, f"{name}.b", b"3")]


async def what_lives_for_a_second_goes_and_a_marker_tells(bus: Bus, name: str) -> None:
    await stream(bus, name, max_msgs_per_subject=1, subject_delete_marker_ttl=60 * SECOND_NS, allow_rollup_hdrs=True)
    consumer = await OrderedConsumer.open(bus, name, [f"{name}.>"])
    await bus.store(f"{name}.a", b"1", {"Nats-TTL": "1s"})
    await bus.store(f"{name}.b", b"1", {"Nats-TTL": "1s"})
    await asyncio.sleep(0.4)
    await bus.store(f"{name}.b", b"2", {"Nats-TTL": "60s"})  # renewed: its former end is none
    await asyncio.sleep(3.0)
    assert [each.subject for each in await read(bus, name, [f"{name}.>"]) if each.data] == [f"{name}.b"]
    found: list[Stored] = []
    while len(found) < 4:
        found += await consumer.batch()
    await consumer.close()
    assert (found[3].subject, found[3].data) == (f"{name}.a", b"")
    assert found[3].headers["Nats-Marker-Reason"] == "MaxAge"


async def a_full_stream_refuses_or_drops_its_oldest(bus: Bus, name: str) -> None:
    await make_stream(bus, {"name": f"{name}N", "subjects": [f"{name}N.>"], "max_bytes": 4000, "discard": "new"})
    await make_stream(bus, {"name": f"{name}O", "subjects": [f"{name}O.>"], "max_bytes": 4000, "discard": "old"})
    for _ in range(4):
        await bus.store(f"{name}N.a", b"x" * 900)
    with pytest.raises(BusFault, match="maximum bytes"):
        await bus.store(f"{name}N.a", b"x" * 900)
    for _ in range(10):
        await bus.store(f"{name}O.a", b"x" * 900)
    state = (await bus.ask(f"STREAM.INFO.{name}O"))["state"]
    assert (state["first_seq"], state["last_seq"]) == (7, 10)


async def a_message_that_is_too_large_is_refused(bus: Bus, name: str) -> None:
    await stream(bus, name, max_msg_size=1000)
    with pytest.raises(BusFault, match="10054"):
        await bus.store(f"{name}.a", b"x" * 1001)


async def a_batch_is_stored_whole_behind_its_fence_or_not_at_all(bus: Bus, name: str) -> None:
    await stream(bus, name, allow_atomic=True)
    fence = Fence(f"{name}.fence", await bus.store(f"{name}.fence", b""))
    outputs = [OutgoingMessage(f"{name}.a", b"%d" % number) for number in range(3)]
    assert await store_together(bus, fence, outputs, 2) == [2, 3, 4]
    await bus.store(f"{name}.fence", b"")
    with pytest.raises(Fenced):
        await store_together(bus, fence, outputs, 2)
    assert [each.data for each in await read(bus, name, [f"{name}.a"])] == [b"0", b"1", b"2"]


async def what_does_not_exist_has_its_code(bus: Bus, name: str) -> None:
    for api, code in ((f"STREAM.INFO.{name}", 10059), (f"CONSUMER.INFO.{name}.c", 10059)):
        with pytest.raises(BusFault) as found:
            await bus.ask(api)
        assert found.value.code == code
    await stream(bus, name)
    with pytest.raises(BusFault) as found:
        await bus.ask(f"CONSUMER.INFO.{name}.c")
    assert found.value.code == 10014


async def unknown_fields_are_refused(bus: Bus, name: str) -> None:
    await make_stream(bus, {"name": "EVENTS", "subjects": ["evt.v1.>"]})
    await check_server(bus)


async def subjects_are_counted(bus: Bus, name: str) -> None:
    await stream(bus, name)
    for subject in ("a.1", "a.2", "a.1", "b.1"):
        await bus.store(f"{name}.{subject}", b"")
    answer = await bus.ask(f"STREAM.INFO.{name}", {"subjects_filter": f"{name}.a.*", "offset": 0})
    assert answer["state"]["subjects"] == {f"{name}.a.1": 2, f"{name}.a.2": 1}
    assert bus.server_now() is not None


async def the_newest_are_found(bus: Bus, name: str) -> None:
    await stream(bus, name)
    for number in range(50):
        await bus.store(f"{name}.{number % 5}", b"%d" % number)
    found = await newest(bus, name, [f"{name}.3"], 2)
    assert [each.data for each in found.messages] == [b"48", b"43"]


async def a_consumer_misses_nothing_that_comes_while_it_reads(bus: Bus, name: str) -> None:
    await stream(bus, name)
    for number in range(300):
        await bus.post(f"{name}.a", b"%d" % number)
    consumer = await OrderedConsumer.open(bus, name, [f"{name}.>"], 100)
    found: list[Stored] = []
    for number in range(300, 400):
        await bus.store(f"{name}.b", b"%d" % number)
        found += await consumer.take()
    while len(found) < 301:
        found += await consumer.batch()
    await consumer.close()
    assert [int(each.data) for each in found] == [*range(99, 400)]
    assert consumer.pending == 0


async def a_request_finds_who_listens_or_nobody(bus: Bus, name: str) -> None:
    def answer(msg: Msg) -> None:
        bus.offer(msg.reply, msg.data + b"!", {"error": "none"})

    subscription = await bus.subscribe(f"{name}.*.ask", answer)
    await bus.flush()
    answered = await bus.request(f"{name}.x.ask", b"hi")
    assert (answered.data, (answered.headers or {})["error"]) == (b"hi!", "none")
    await subscription.unsubscribe()
    await bus.flush()
    with pytest.raises(NobodyListens):
        await bus.request(f"{name}.x.ask", b"hi")


async def a_durable_consumer_goes_on_where_it_stands(bus: Bus, name: str) -> None:
    await stream(bus, name)
    for number in range(4):
        await bus.store(f"{name}.a", b"%d" % number)

    async def opened() -> Durable:
        return await Durable.open(bus, name, "d", f"{name}.>", {"deliver_policy": "all"}, {"text": "1"}, 1.0)

    first = await opened()
    given = await first.next()
    assert (given.stored.data, given.pending) == (b"0", 3)
    await given.ack()
    again = await first.next()
    await again.nak()
    assert (await first.next()).stored.data == b"1"
    late = await first.next()  # not acknowledged within a second: it comes again
    assert late.stored.data == b"1"
    await late.ack()
    await first.close()
    second = await opened()
    assert (await second.next()).stored.data == b"2"
    known = await Durable.known(bus, name, "d")
    assert known is not None
    assert known["config"]["metadata"]["text"] == "1"
    await second.close()


async def a_stream_is_reconfigured_in_place(bus: Bus, name: str) -> None:
    await stream(bus, name)
    await bus.store(f"{name}.a", b"x" * 500)
    config = (await bus.ask(f"STREAM.INFO.{name}"))["config"]
    await bus.ask(f"STREAM.UPDATE.{name}", {**config, "max_msg_size": 100})
    with pytest.raises(BusFault, match="10054"):
        await bus.store(f"{name}.a", b"x" * 500)
    assert json.dumps(config["subjects"]) == json.dumps([f"{name}.>"])


async def a_snapshot_makes_its_stream_again(bus: Bus, name: str) -> None:
    """A snapshot lacks what comes later; sequences, times, fences and lifetimes are of then; ids are forgotten."""
    await stream(bus, name, duplicate_window=120 * SECOND_NS)
    config = (await bus.ask(f"STREAM.INFO.{name}"))["config"]
    await bus.store(f"{name}.short", b"", {"Nats-TTL": "1s"})
    for number in range(500):
        await bus.post(f"{name}.a", b"%d" % number, {"ce-id": "7"})
    one = await bus.store(f"{name}.b", bytes(range(256)), {"Nats-Msg-Id": "one", "Nats-TTL": "6s"})
    snapshot = StreamSnapshot(bus, name)
    chunks = [chunk async for chunk in snapshot.chunks()]
    assert (snapshot.state.messages, snapshot.state.last_seq) == (one, one)
    before = await read(bus, name, [">"])
    await bus.store(f"{name}.a", b"late")
    with pytest.raises(BusFault, match="already in use"):
        await restore_stream(bus, config, chunks)
    await bus.ask(f"STREAM.DELETE.{name}")
    with pytest.raises(BusFault):
        await bus.store(f"{name}.a", b"nowhere")
    await asyncio.sleep(1.5)
    assert (await restore_stream(bus, config, chunks)).last_seq == one
    assert (await read(bus, name, [">"]))[-500:] == before[-500:]
    assert await bus.store(f"{name}.c", b"", {"Nats-Msg-Id": "one"}) == one + 1
    assert await bus.store(f"{name}.b", b"", Fence(f"{name}.b", one).headers()) == one + 2
    await asyncio.sleep(6.5)
    assert [each.seq for each in await read(bus, name, [">"])] == [*range(2, one), one + 1, one + 2]


async def a_stream_begins_where_it_is_told(bus: Bus, name: str) -> None:
    await stream(bus, name, first_seq=1 << 40)
    state = (await bus.ask(f"STREAM.INFO.{name}"))["state"]
    assert (state["messages"], state["last_seq"]) == (0, (1 << 40) - 1)
    assert await bus.store(f"{name}.a", b"") == 1 << 40


async def led(bus: Bus, name: str) -> int:
    """Wait for a leader, who alone tells the last sequence of ``<name>.a``; return it."""
    while True:
        with contextlib.suppress(BusFault):
            return await last_of(bus, f"{name}.a")
        await asyncio.sleep(0.05)


async def step_down(bus: Bus, name: str) -> None:
    """Let the leader of a stream step down, and wait for the next one."""
    await bus.ask(f"STREAM.LEADER.STEPDOWN.{name}")
    await led(bus, name)


async def an_election_loses_nothing_acknowledged(bus: Bus, name: str) -> None:
    """Writes under way are refused, or not answered and perhaps stored; connection and consumer go on."""
    await stream(bus, name, num_replicas=3)
    await led(bus, name)
    consumer = await OrderedConsumer.open(bus, name, [f"{name}.>"])
    posted: list[asyncio.Future[dict[str, Any]]] = []
    for number in range(600):
        posted.append(await bus.post(f"{name}.a", b"%d" % number))
        await asyncio.sleep(0)  # it is sent
        if number % 200 == 100:
            stepping = asyncio.create_task(step_down(bus, name))
        elif number % 200 == 199:
            await stepping
    answers = await asyncio.gather(*posted, return_exceptions=True)
    last = await led(bus, name)
    stored = {each.seq: int(each.data) for each in await read(bus, name, [f"{name}.a"], until=last)}
    acknowledged = {answer["seq"]: number for number, answer in enumerate(answers) if isinstance(answer, dict)}
    assert acknowledged.items() <= stored.items()
    assert all(isinstance(answer, dict | BusFault) for answer in answers)
    found: list[Stored] = []
    while not found or found[-1].seq < last:
        found += await consumer.batch()
    await consumer.close()
    assert {each.seq: int(each.data) for each in found} == stored
    assert bus.reconnects == 0


async def a_batch_does_not_outlive_its_leader(bus: Bus, name: str) -> None:
    await stream(bus, name, num_replicas=3, allow_atomic=True)
    await led(bus, name)
    parts = [f"Nats-Batch-Id: one\r\nNats-Batch-Sequence: {number}\r\n" for number in (1, 2, 3)]
    for lines in parts[:2]:
        await bus.send(f"{name}.a", b"", lines)
    await bus.flush()
    await step_down(bus, name)
    with pytest.raises(BusFault, match="10176"):
        await (await bus.post(f"{name}.a", b"", f"{parts[2]}Nats-Batch-Commit: 1\r\n"))
    assert await led(bus, name) == 0


async def ids_and_fences_outlive_a_leader(bus: Bus, name: str) -> None:
    await stream(bus, name, num_replicas=3)
    await led(bus, name)
    one = await bus.store(f"{name}.a", b"", {"Nats-Msg-Id": "one"})
    await step_down(bus, name)
    answer = await (await bus.post(f"{name}.a", b"", {"Nats-Msg-Id": "one"}))
    assert (answer["seq"], answer["duplicate"]) == (one, True)
    with pytest.raises(Fenced):
        await bus.store(f"{name}.b", b"", Fence(f"{name}.a", one + 1).headers())
    assert await bus.store(f"{name}.b", b"", Fence(f"{name}.a", one).headers()) == one + 1


OF_CLUSTERS: list[Contract] = [
    an_election_loses_nothing_acknowledged,
    a_batch_does_not_outlive_its_leader,
    ids_and_fences_outlive_a_leader,
]
"""Behaviour of three servers in elections"""
CONTRACTS: list[Contract] = [
    messages_are_numbered_and_read_in_order,
    headers_come_back,
    an_id_is_stored_once_within_the_window,
    a_fence_refuses_whoever_does_not_know_the_last_of_its_subject,
    a_fence_is_checked_before_an_id,
    a_refusal_tells_the_last_of_a_subject,
    subjects_get_their_partition,
    the_last_of_a_subject_replaces_the_one_before,
    a_consumer_of_the_last_ones_goes_on_with_what_comes,
    what_lives_for_a_second_goes_and_a_marker_tells,
    a_full_stream_refuses_or_drops_its_oldest,
    a_message_that_is_too_large_is_refused,
    a_batch_is_stored_whole_behind_its_fence_or_not_at_all,
    what_does_not_exist_has_its_code,
    unknown_fields_are_refused,
    subjects_are_counted,
    the_newest_are_found,
    a_consumer_misses_nothing_that_comes_while_it_reads,
    a_request_finds_who_listens_or_nobody,
    a_durable_consumer_goes_on_where_it_stands,
    a_stream_is_reconfigured_in_place,
    a_snapshot_makes_its_stream_again,
    a_stream_begins_where_it_is_told,
]
