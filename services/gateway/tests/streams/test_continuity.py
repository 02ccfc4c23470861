"""A stream that has lost its end is read anew, as if nothing had been read of it before."""

from __future__ import annotations

from collections import deque

import pytest
import stretto_wire as wire
from stretto_bus.reading.ordered_consumer import OrderedConsumer, Stored
from stretto_gateway.problems import Problem
from stretto_gateway.requests.team_bytes import TeamBytes
from stretto_gateway.streams.continuity import Continuity
from stretto_gateway.streams.retention import EndedJobs


def stored(seq: int) -> Stored:
    return Stored(seq, float(seq), "0.evt.v1.a.b.c", {}, b"")


def test_a_break_is_looked_for_at_what_has_arrived_and_not_at_what_was_read() -> None:
    continuity = Continuity()
    continuity.read(stored(7))
    continuity.reconnected()
    assert continuity._before.seq == 7
    waiting = Continuity()
    waiting.consumer = OrderedConsumer.__new__(OrderedConsumer)
    waiting.consumer._queue = deque([stored(8), stored(9), "flow control"])
    waiting.read(stored(7))
    waiting.reconnected()
    assert waiting._before.seq == 9


def test_what_was_counted_of_a_lost_stream_is_counted_once_more_only() -> None:
    event = wire.JobSubmitted(
        job="a", spec=wire.JobSpec.parse({"name": "a", "model": {"entry": "m:M"}, "dataset": {"samples": 5}}), team="t"
    )
    size = len(wire.encode(event))
    counted = TeamBytes(3 * size, {}, lambda: 0.0)
    for _ in range(3):
        counted.charge(event, 0.0)
    with pytest.raises(Problem):
        counted.check(size, "t")
    counted.clear()
    counted.charge(event, 0.0)
    counted.check(size, "t")


def test_a_job_that_ended_in_a_lost_stream_may_end_at_another_time() -> None:
    ended = EndedJobs(10**6)
    ended.add("a", "t", 1.0, 5)
    ended.clear()
    ended.add("a", "t", 9.0, 5)
    assert ended.before(5.0) == []
    assert ended.before(10.0) == ["a"]
