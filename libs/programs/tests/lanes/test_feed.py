"""The edge of the feed, without a framework: whatever happens to a take, the next one has its own element."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from stretto_pipeline.arrays import Arrays
from stretto_pipeline.feeding import Joined, SampleRange
from stretto_programs.lanes.feed import Feed, Raw, Stream
from stretto_programs.lanes.protocol import Preparation

NUMBERS = itertools.count()


@dataclass(frozen=True)
class Doubled:
    """Prepares an element as its double."""

    number: int = 0

    def parts(self) -> list[Any]:
        return []

    def arrays_of(self, values: Sequence[Any]) -> Arrays:
        return {"value": np.asarray(values)}

    def values_of(self, arrays: Arrays) -> list[Any]:
        return arrays["value"].tolist()

    def size_of(self, values: Sequence[Any]) -> int:
        return 8


@dataclass
class Lanes:
    """Keeps what is asked, for the test to answer."""

    asked: list[tuple[str, SampleRange, int]] = field(default_factory=list[tuple[str, SampleRange, int]])

    def ask(self, lane: str, wanted: SampleRange, preparation: Preparation, raw: Arrays) -> None:
        self.asked.append((lane, wanted, preparation.number))


def stream(prepare: Callable[[Sequence[Any]], list[Any]], number: int = 0) -> Stream:
    elements = (Raw((each,), {"raw": np.array([each])}) for each in itertools.count())
    return Stream(f"pass {next(NUMBERS)}", Doubled(number), lambda: next(elements), prepare)


def doubled(element: Sequence[Any]) -> list[Any]:
    return [2 * element[0]]


@pytest.fixture
def feed() -> Iterator[Feed]:
    made = Feed(1, lambda text: None)
    made.use(Lanes())
    yield made
    made.close()


def test_elements_come_in_order_without_any_lane(feed: Feed) -> None:
    one = stream(doubled)
    assert [feed.take_from(one)[1] for _ in range(5)] == [[0], [2], [4], [6], [8]]


def test_an_interrupt_costs_its_own_element_alone(feed: Feed) -> None:
    interrupts = [2]

    def interrupted(element: Sequence[Any]) -> list[Any]:
        if element[0] in interrupts:
            interrupts.clear()
            raise KeyboardInterrupt
        return doubled(element)

    one = stream(interrupted)
    assert [feed.take_from(one)[1] for _ in range(2)] == [[0], [2]]
    with pytest.raises(KeyboardInterrupt):
        feed.take_from(one)
    assert [feed.take_from(one)[1] for _ in range(3)] == [[6], [8], [10]]


def test_elements_are_taken_also_once_the_feed_is_closed(feed: Feed) -> None:
    one = stream(doubled)
    feed.take_from(one)
    feed.close()
    found: list[Any] = []
    taking = threading.Thread(target=lambda: found.extend(feed.take_from(one)[1] for _ in range(3)))
    taking.start()
    taking.join(60)
    assert found == [[2], [4], [6]]


def test_an_error_of_ours_stops_no_program() -> None:
    said: list[str] = []
    feed = Feed(1, said.append)
    one = stream(doubled)
    feed.take_from(one)
    feed.tell(Joined("lane"))  # no lanes are named: asking fails
    assert [feed.take_from(one)[1] for _ in range(3)] == [[2], [4], [6]]
    assert len(said) == 1
    assert said[0].startswith("no data worker is used any more: AssertionError")


def test_a_lane_is_compared_anew_for_each_preparation() -> None:
    """Method: a lane that is right about the first preparation lies about the second one."""
    said: list[str] = []
    feed, lanes = Feed(1, said.append), Lanes()
    feed.use(lanes)
    feed.tell(Joined("lane"))
    wrong_by = {1: 0, 2: 1}
    for number in wrong_by:
        one = stream(doubled, number)
        for step in range(20):
            while lanes.asked:
                lane, wanted, asked_number = lanes.asked.pop(0)
                values = [2 * wanted.start + wrong_by[asked_number]]
                feed.prepared(lane, wanted, Doubled().arrays_of(values), values, 1)
            assert feed.take_from(one)[1] == [2 * step]
        feed.end(one.name)
    assert feed.counts.from_lanes > 0
    assert len(said) == 1
    assert "prepared other values" in said[0]
    feed.close()
