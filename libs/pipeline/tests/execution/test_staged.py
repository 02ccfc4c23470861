"""A lane that other lanes feed, in this process: the lanes before it are served here, too, and answer when told."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import numpy as np
import pytest
from stretto_pipeline.arrays import Arrays, Reader, Writer
from stretto_pipeline.execution.protocol import Kind, Prepares, joined_parts
from stretto_pipeline.execution.staged import AGAIN_S, Staged
from stretto_plane import Key, Listener, Message, Peer

WAIT_S = 60.0
MEANWHILE_S = 0.3
KEY = Key.random()


class Doubling:
    """A framework whose only preparation doubles. before: called with the number that this process is to double."""

    def __init__(self) -> None:
        self.before: Callable[[int], None] = lambda number: None
        self.made: list[ReferenceType[Prepares]] = []

    def begin(self, settings: Mapping[str, Any]) -> None:
        pass

    def taught(self, parts: Sequence[memoryview]) -> Prepares:
        is_last = bytes(parts[0]) == LAST

        def prepare(raw: Arrays) -> Arrays:
            if is_last:  # of raw values and of what is prepared of them: the latter
                return {"0": raw["1"]}
            self.before(int(raw["0"][0]))
            return {"0": 2 * raw["0"]}

        self.made.append(ref(prepare))
        return prepare


class Before:
    """A lane before the staged one: it doubles, and answers once `go_on` is set."""

    def __init__(self, folder: Path) -> None:
        self.address = f"unix:{folder}/before"
        self.asked: list[int] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self._readers: WeakKeyDictionary[Peer, Reader] = WeakKeyDictionary()
        self._writers: WeakKeyDictionary[Peer, Writer] = WeakKeyDictionary()
        self.listener = self.served()

    def served(self) -> Listener:
        return Listener(self.address, self._handle, KEY, size_bytes_max=2**20)

    def _handle(self, message: Message, peer: Peer) -> tuple[int, Sequence[Any]]:
        if message.kind == Kind.TEACH:
            return Kind.TEACH, []
        raw = self._readers.setdefault(peer, Reader()).arrays(message.parts[1:])
        self.asked.append(int(raw["0"][0]))
        self.go_on.wait(WAIT_S)
        return Kind.PREPARE, [b"1", *self._writers.setdefault(peer, Writer()).parts({"0": 2 * raw["0"]})]


FIRST, LAST = b'{"stage": 0}', b'{"stage": 1}'
PARTS = [memoryview(each) for each in joined_parts([[FIRST], [LAST]])]
AGAIN = [memoryview(each) for each in joined_parts([[FIRST], [LAST]], [7])]


@pytest.fixture
def framework() -> Doubling:
    return Doubling()


@pytest.fixture
def before(tmp_path: Path) -> Iterator[Before]:
    made = Before(tmp_path)
    yield made
    made.go_on.set()
    made.listener.close()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def staged(framework: Doubling, said: list[str]) -> Staged:
    return Staged(framework, KEY, 1, 2, said.append)


def asked(answer: Callable[[Arrays], tuple[Arrays, int]], number: int) -> int:
    return int(answer({"0": np.array([number])})[0]["0"][0])


def until(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < end_s, "it did not come in time"
        time.sleep(0.005)


@pytest.mark.parametrize("parts", [PARTS, AGAIN])
def test_a_late_answer_is_of_no_preparation_that_was_taught_again(
    staged: Staged, framework: Doubling, before: Before, said: list[str], parts: list[memoryview]
) -> None:
    """Method: the lane before keeps its first element. The number is taught again, as another lane does, or the same
    after a restart. While the next element is prepared, the late answer comes: it has the values of another one."""
    before.go_on.clear()
    staged.use("before", before.address)
    first = staged.taught(7, PARTS)
    assert asked(first, 1) == 2  # prepared here
    until(lambda: before.asked == [1])
    second = staged.taught(7, parts)

    def late_answer_comes(number: int) -> None:
        before.go_on.set()
        time.sleep(MEANWHILE_S)

    framework.before = late_answer_comes
    assert [asked(second, number) for number in range(100, 110)] == [2 * number for number in range(100, 110)]
    assert said == []
    until(lambda: len(before.asked) > 1 or asked(second, 5) != 10)


def test_two_lanes_that_teach_the_same_are_answered_of_one_stream(staged: Staged) -> None:
    first, second = staged.taught(7, PARTS), staged.taught(7, PARTS)
    assert first is second
    third = staged.taught(7, AGAIN)
    with ThreadPoolExecutor(3) as pool:
        answers = [
            pool.submit(asked, each, number)
            for number, each in zip(range(30), [first, second, third] * 10, strict=True)
        ]
        assert [each.result(WAIT_S) for each in answers] == [2 * number for number in range(30)]


def test_a_lane_that_is_lost_is_asked_again_until_it_is_gone(staged: Staged, before: Before, said: list[str]) -> None:
    """Method: all connections of a lane end, though it lives. Then it ends, home says so, and its address is served by
    another one, which nobody may ask."""
    staged.use("before", before.address)
    answer = staged.taught(7, PARTS)

    def is_asked() -> bool:
        count = len(before.asked)
        assert asked(answer, count) == 2 * count
        return len(before.asked) > count

    until(is_asked)
    before.listener.end_connections()
    until(lambda: (is_asked(), said)[1] != [])
    before.asked.clear()
    until(is_asked)
    assert said == ["before was lost, and is asked again"]
    before.listener.close()
    assert asked(answer, 3) == 6  # the loss is seen
    staged.use("before", "")
    before.asked.clear()
    before.listener = before.served()
    end_s = time.monotonic() + 2 * AGAIN_S
    while time.monotonic() < end_s:
        assert asked(answer, 3) == 6
    assert before.asked == []
    assert len(said) == 1


@pytest.mark.parametrize("is_taught_again", [False, True])
def test_a_preparation_is_forgotten_with_its_last_element(
    staged: Staged, framework: Doubling, is_taught_again: bool
) -> None:
    """Method: a preparation is forgotten, or taught with other parts, while two of its elements wait."""
    goes_on, begun = threading.Event(), threading.Event()

    def wait(number: int) -> None:
        begun.set()
        goes_on.wait(WAIT_S)

    framework.before = wait
    answer = staged.taught(7, PARTS)
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(asked, answer, number) for number in range(2)]
        assert begun.wait(WAIT_S)
        old = [*framework.made]
        if is_taught_again:
            staged.taught(7, AGAIN)
        else:
            staged.forget(7)
        goes_on.set()
        assert [each.result(WAIT_S) for each in answers] == [0, 2]
    del answer, answers
    other = staged.taught(8, PARTS)

    def is_forgotten() -> bool:
        assert asked(other, 1) == 2
        gc.collect()
        return all(each() is None for each in old)

    until(is_forgotten)
