"""Requests to one lane, which is served in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto_pipeline.arrays import Reader, Writer
from stretto_pipeline.execution import requests
from stretto_pipeline.execution.feed import Feed
from stretto_pipeline.execution.protocol import Kind
from stretto_pipeline.execution.requests import ANSWER_S, Requests, answer_s_of
from stretto_pipeline.feeding import CREDITS, Range
from stretto_plane import Key, Listener, Message, Peer
from test_feed import Doubled

MANY = 20
ONE_S = 0.05


@given(st.integers(1, 1024))
def test_a_lane_has_for_each_of_many_elements_as_long_as_for_one_of_few(credits: int) -> None:
    assert answer_s_of(credits) >= ANSWER_S
    assert answer_s_of(credits) / credits >= ANSWER_S / CREDITS


def test_a_lane_that_finishes_many_one_after_the_other_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the last of many answers takes longer than a lane has that was asked for few."""
    monkeypatch.setattr(requests, "ANSWER_S", MANY * ONE_S / 2)
    key, turn, answered, lost = Key.random(), threading.Lock(), threading.Semaphore(0), threading.Event()
    readers: WeakKeyDictionary[Peer, Reader] = WeakKeyDictionary()

    def handle(message: Message, peer: Peer) -> tuple[int, Sequence[Any]]:
        if message.kind == Kind.TEACH:
            return Kind.TEACH, []
        raw = readers.setdefault(peer, Reader()).arrays(message.parts[1:])
        with turn:
            time.sleep(ONE_S)
        answered.release()
        return Kind.PREPARE, [b"1", *Writer().parts({"value": 2 * raw["raw"]})]

    feed = Feed(1, MANY, lambda text: None)
    with Listener(f"unix:{tmp_path}/lane", handle, key, size_bytes_max=2**20) as listener:
        asked = Requests("lane", listener.address, key, credits=MANY, feed=feed, lost=lost.set)
        for number in range(MANY):
            asked.ask(Range("", number, 1), Doubled(), {"raw": np.array([number])})
        asked.close()
    assert all(answered.acquire(blocking=False) for _ in range(MANY))
    assert not lost.is_set()
    feed.close()
