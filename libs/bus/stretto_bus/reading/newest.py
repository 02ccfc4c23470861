"""Read a stream backwards: the newest messages of some filters before a sequence.

JetStream reads forwards only, but a consumer that is made at a sequence says how many messages it has ahead. So the
place to begin is searched by such counts, of which the server keeps an index, and few more messages are read than asked
for, however many there are.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import NamedTuple

from stretto_wire.surroundings import new_id

from stretto_bus.bus import Bus
from stretto_bus.faults import BusFault
from stretto_bus.reading.ordered_consumer import Stored, scan

SURPLUS = 4
"""Times as many messages as were asked for that may be read (taste)."""
INACTIVE_S = 5.0
Count = Callable[[int], Awaitable[int]]
"""Returns how many messages of the filters are stored from a sequence on."""


class Newest(NamedTuple):
    """Messages, newest first. Older ones may lie before the sequence ``before``; None: there are none."""

    messages: Sequence[Stored]
    before: int | None


async def newest(
    bus: Bus, stream: str, filters: Sequence[str], limit: int, before: int | None = None, since_s: float | None = None
) -> Newest:
    """Return the newest messages of ``filters``: at most ``limit``, below the sequence ``before``, and stored at
    ``since_s`` (seconds since 1970-01-01 UTC) or later. Raises BusFault."""
    facts = (await bus.ask(f"STREAM.INFO.{stream}"))["state"]
    first, end = max(1, int(facts["first_seq"])), int(facts["last_seq"]) + 1  # of an empty stream the first is 0
    end = min(end, before) if before is not None else end
    if end <= first:
        return Newest([], None)

    async def count(start: int) -> int:
        return await _count(bus, stream, filters, start)

    found: deque[Stored] = deque(maxlen=limit)
    start = await beginning(count, first, end, limit)
    dropped = too_old = False
    async with aclosing(scan(bus, stream, filters, start)) as source:
        async for stored in source:
            if stored.seq >= end:
                break
            if since_s is not None and stored.time_s < since_s:
                too_old = True
                continue
            dropped = dropped or len(found) == limit
            found.append(stored)
    if dropped:
        return Newest([*reversed(found)], found[0].seq)
    return Newest([*reversed(found)], None if too_old or start == first else start)


async def beginning(count: Count, first: int, end: int, limit: int) -> int:
    """Return a sequence from which at least ``limit`` messages lie before ``end``, but not many more; ``first`` if
    there are fewer."""
    behind = await count(end)
    low, high, width = end, end, limit
    there = 0
    while there < limit and low > first:  # gallop back
        low, high = max(first, end - width), low
        there = await count(low) - behind
        width *= SURPLUS
    while there > SURPLUS * limit and high - low > 1:  # messages may lie close together far back
        middle = (low + high) // 2
        between = await count(middle) - behind
        if between >= limit:
            low, there = middle, between
        else:
            high = middle
    return low


async def _count(bus: Bus, stream: str, filters: Sequence[str], start: int) -> int:
    """Return how many messages of the filters a consumer that is made at ``start`` has ahead."""
    name = new_id(16)
    config = {
        "name": name,
        "ack_policy": "none",
        "filter_subjects": [*filters],
        "inactive_threshold": int(INACTIVE_S * 1e9),
        "mem_storage": True,
        "num_replicas": 1,
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": start,
    }
    answer = await bus.ask(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})
    with contextlib.suppress(BusFault):  # it goes by itself
        await bus.send(f"$JS.API.CONSUMER.DELETE.{stream}.{name}", b"")
    return int(answer["num_pending"])
