"""The processes of lanes and their nursery: forked again when they die, and none is left when they are closed."""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import psutil
import pytest
from program_harness import until
from stretto_programs.lanes import nursery
from stretto_programs.lanes.feed import Feed
from stretto_programs.lanes.lane import Start
from stretto_programs.lanes.nursery import Forked, Nursery
from stretto_programs.lanes.processes import LaneSettings, Processes

WAIT_S = 60.0


def test_a_process_that_was_about_to_start_does_not_outlive_the_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: the close comes while the process is being forked, before anybody can see it."""
    forked: list[Forked] = []
    starting, closed = threading.Event(), threading.Event()

    def slow(nursery: Nursery, start: Start, errors: IO[str]) -> Forked:
        process = subprocess.Popen(["sleep", "60"])
        forked.append(Forked(process.pid, io.BytesIO(), io.BytesIO(), io.BytesIO()))
        starting.set()
        assert closed.wait(WAIT_S)
        return forked[0]

    monkeypatch.setattr(Nursery, "fork", slow)
    processes = Processes(1, Feed(1, print), LaneSettings("none", {}, [], {}), print)
    assert starting.wait(WAIT_S)
    processes.close()
    closed.set()
    begun_s = time.monotonic()
    forked[0].end(begun_s + WAIT_S)  # else it would be killed then
    assert time.monotonic() < begun_s + WAIT_S, "it goes on"


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Processes, list[str]]]:
    """Two lanes whose framework does nothing, and the lines that are written to people."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "nothing.py").write_text(NOTHING)
    told: list[str] = []
    feed = Feed(2, told.append)
    processes = Processes(2, feed, LaneSettings("nothing", {}, [str(tmp_path), *sys.path], {}), told.append)
    feed.use(processes)
    yield processes, told
    processes.close()
    feed.close()
    assert not any(is_living(each) for each in nurseries())


NOTHING = """
def load(): pass
def begin(settings): pass
def taught(parts): raise AssertionError
"""


def is_living(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def nurseries() -> list[psutil.Process]:
    """Return the nurseries of this process, that live."""
    found = [each for each in psutil.Process().children() if is_living(each)]
    return [each for each in found if nursery.__name__ in each.cmdline()]


def lanes() -> list[psutil.Process]:
    return [lane for each in nurseries() for lane in each.children() if is_living(lane)]


def test_lanes_are_forked_anew_from_another_nursery_when_theirs_is_killed(
    started: tuple[Processes, list[str]], tmp_path: Path
) -> None:
    _, said = started

    def serving() -> int:
        return len([each for each in tmp_path.glob("stretto-run-*/data-worker-*") if each.suffix != ".log"])

    until(lambda: serving() == 2)
    [first], before = nurseries(), lanes()
    assert len(before) == 2
    first.kill()
    until(lambda: serving() == 4)
    until(lambda: len(lanes()) == 2)
    assert nurseries() != [first]
    until(lambda: not any(is_living(each) for each in before))
    assert sorted(said) == [
        f"data worker {place} is lost: the process that it was forked from has ended; home prepares what it had in hand"
        for place in range(2)
    ]


def test_a_lane_that_is_killed_is_forked_again_and_its_status_is_told(started: tuple[Processes, list[str]]) -> None:
    processes, said = started
    until(lambda: len(processes._requests) == 2)  # home is connected to both
    [nursery_before], victim = nurseries(), lanes()[0]
    victim.kill()
    until(lambda: len({*lanes()} - {victim}) == 2)
    assert nurseries() == [nursery_before]
    assert len(said) == 1
    assert " is lost: it ended with status -9; home prepares what it had in hand" in said[0]
