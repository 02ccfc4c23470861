"""The gateway's client of the bus: what its many readers share, and the events that they are spared."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from stretto_bus.reading.lost_end import LogPlace
from stretto_bus.reading.ordered_consumer import Stored
from stretto_gateway.streams import bus as gateway_bus
from stretto_gateway.streams.bus import LOOKS, StreamBus, is_json, to_event

SUBJECT = "0.evt.v1.gateway.job-cancelled.a"


async def test_many_streams_look_after_a_break_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[LogPlace] = []
    answered = asyncio.Event()

    async def look(_bus: Any, place: LogPlace) -> int | None:
        begun.append(place)
        await answered.wait()
        return place.seq - 1

    monkeypatch.setattr(gateway_bus, "kept_of", look)
    stream = StreamBus(MagicMock())
    stream._client = SimpleNamespace(bus=None)  # type: ignore[assignment]
    streams = [asyncio.create_task(stream.kept_of(LogPlace(7, 1.0))) for _ in range(3 * LOOKS)]
    for _ in range(10 * LOOKS):
        await asyncio.sleep(0)
    assert len(begun) == LOOKS
    answered.set()
    assert await asyncio.gather(*streams) == [6] * (3 * LOOKS)


@pytest.mark.parametrize(
    "data",
    [
        *(b"{", b"[" * 100_000, b'{"a":NaN}', b'{"a":-Infinity}', b'{"a":"\xff"}', b'\xef\xbb\xbf{"a":1}'),
        *(b'{"a":' + b"[" * 900 + b"]" * 900 + b"}", '{"a":1}'.encode("utf-16"), b'{"a":' + b"9" * 5000 + b"}"),
    ],
)
def test_what_some_reader_cannot_read_becomes_no_event(data: bytes) -> None:
    assert to_event(Stored(1, 1.0, SUBJECT, {}, data)) is None
    event = to_event(Stored(1, 1.0, SUBJECT, {}, '{"job":"ü"}'.encode()))
    assert event is not None
    assert event.data == '{"job":"ü"}'


def test_the_readers_of_an_event_share_its_check() -> None:
    is_json.cache_clear()
    for _ in range(3):
        to_event(Stored(1, 1.0, SUBJECT, {}, bytes(bytearray(b"{}"))))
    assert is_json.cache_info()[:2] == (2, 1)
