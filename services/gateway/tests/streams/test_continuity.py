"""A stream that has lost its end is read anew, as if nothing had been read of it before."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
import stretto_wire as wire
from stretto_bus.reading import lost_end
from stretto_bus.reading.lost_end import LogPlace
from stretto_bus.reading.ordered_consumer import OrderedConsumer, Stored
from stretto_gateway.problems import Problem
from stretto_gateway.requests.team_bytes import TeamBytes
from stretto_gateway.streams import continuity as gateway_continuity
from stretto_gateway.streams.continuity import Continuity, kept_of
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


class Log:
    """A log of which a server tells its ends, and the times of its messages. ``looks``: the places that were looked at.

    ``cut``: the last message that was kept; later ones were stored when the server's clock had gone back.
    """

    def __init__(self, first: int, last: int, cut: int) -> None:
        self.first, self.last, self.cut = first, last, cut
        self.looks: list[int] = []

    async def ask(self, _subject: str) -> dict[str, Any]:
        return {"state": {"first_seq": self.first, "last_seq": self.last}}

    async def first_from(self, _bus: Any, _stream: str, seq: int) -> Stored | None:
        self.looks.append(seq)
        at = max(seq, self.first)
        return Stored(at, float(at) if at <= self.cut else 1.0, "a", {}, b"") if at <= self.last else None


def looked_at(log: Log, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the bus of a log; no look at it takes time."""
    monkeypatch.setattr(lost_end, "first_from", log.first_from)
    monkeypatch.setattr(lost_end, "LOOKS_AGAIN_S", 0.0)
    monkeypatch.setattr(gateway_continuity, "LOOKS_AGAIN_S", 0.0)
    return log


async def test_an_event_that_is_lost_never_counts_as_kept_although_the_clock_went_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Times alone tell that all is kept; a reader who hears of an end behind his last event would not believe it."""
    bus = looked_at(Log(1, 600, 400), monkeypatch)
    assert await kept_of(bus, LogPlace(500, 500.0)) == 499


async def test_an_event_that_has_left_the_log_is_not_lost_and_nobody_looks_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log(601, 600, 600)
    assert await kept_of(looked_at(log, monkeypatch), LogPlace(500, 500.0)) is None
    assert log.looks == []
    still = Log(500, 600, 600)
    assert await kept_of(looked_at(still, monkeypatch), LogPlace(500, 500.0)) is None
    assert still.looks == [500]


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
