"""The processes of all lanes, and home's requests to them."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from stretto_pipeline.arrays import Arrays
from stretto_pipeline.feeding import Joined, Left, SampleRange
from stretto_plane import Key

from .feed import Feed
from .lane import Start
from .nursery import Forked, Nursery
from .protocol import Preparation
from .requests import Requests

STARTS_MAX = 5
"""Most starts of a lane: a lane that always dies would cost more than it brings."""
END_S = 2.0


@dataclass(frozen=True, slots=True)
class LaneSettings:
    """Settings of home that its lanes share.

    framework: name of the module that runs in lanes. settings: arguments of its `begin`. paths: folders of modules.
    environment: variables that lanes get beside home's own.
    """

    framework: str
    settings: Mapping[str, Any]
    paths: Sequence[str]
    environment: Mapping[str, str]


class Processes:
    """The lanes of a program, each a process that is started again if it dies. Close this before the program ends.

    count: number of lanes.
    """

    def __init__(self, count: int, feed: Feed, settings: LaneSettings, say: Callable[[str], None]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="stretto-run-"))
        self._feed, self._settings, self._say = feed, settings, say
        self._key = Key.random()
        environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, **settings.environment}
        environment["PYTHONPATH"] = os.pathsep.join(settings.paths)
        self._nursery = Nursery(settings.framework, environment, self._folder / "nursery.log")
        self._requests: dict[str, Requests] = {}
        """Requests to the serving lanes, by the names of their starts."""
        self._lanes = [_Lane(f"data worker {number}", self) for number in range(count)]
        for each in self._lanes:
            each.start()

    def ask(self, lane: str, wanted: SampleRange, preparation: Preparation, raw: Arrays) -> None:
        """Ask a lane for an element; the answer goes to the feed."""
        self._requests[lane].ask(wanted, preparation, raw)

    def close(self) -> None:
        """End all processes."""
        for lane in self._lanes:
            lane.leave()
        deadline_s = time.monotonic() + END_S
        for lane in self._lanes:
            lane.end(deadline_s)
        self._nursery.close(deadline_s + END_S)
        shutil.rmtree(self._folder, ignore_errors=True)

    def forget(self) -> None:
        """Let go of the processes: this process is a fork of the program, and they belong to the program."""
        for lane in self._lanes:
            lane.leave()
        self._nursery.forget()

    # --- for the lanes --------------------------------------------------------------------------------------

    def fork(self, start: Start, errors: IO[str]) -> Forked:
        """Return a new process of a lane. errors: file for its standard error. Raises OSError."""
        return self._nursery.fork(start, errors)

    def say(self, text: str) -> None:
        """Write a line to people."""
        self._say(text)

    def start_of(self, name: str) -> Start:
        """Return what a lane's process needs to begin."""
        address = f"unix:{self._folder}/{name.replace(' ', '-')}"
        return Start(self._key.pem.decode(), address, self._settings.framework, self._settings.settings)

    def log_of(self, name: str) -> Path:
        """Return the file for the standard error of a start."""
        return self._folder / f"{name.replace(' ', '-')}.log"

    @contextlib.contextmanager
    def serving(self, lane: _Lane, name: str, address: str) -> Generator[None]:
        """Let the feed ask a lane while the block runs. Raises PlaneError, OSError."""
        self._requests[name] = Requests(name, address, self._key, feed=self._feed, lost=lane.kill)
        self._feed.tell(Joined(name))
        try:
            yield
        finally:
            self._feed.tell(Left(name))
            self._requests.pop(name).close()


class _Lane:
    """A lane, started again whenever its process ends, until it is closed."""

    def __init__(self, name: str, processes: Processes) -> None:
        self.process: Forked | None = None
        self._name, self._processes = name, processes
        self._closed = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name=f"stretto-{self._name}", daemon=True).start()

    def kill(self) -> None:
        """Kill the process; another takes its place."""
        if self.process is not None:
            self.process.kill()

    def leave(self) -> None:
        """Let the process end; no other takes its place."""
        self._closed.set()
        if self.process is not None:
            self.process.leave()

    def end(self, deadline_s: float) -> None:
        """Wait for the end of the process until a deadline, then kill it."""
        if self.process is not None:
            self.process.end(deadline_s)

    def _run(self) -> None:
        say = self._processes.say
        for number in range(STARTS_MAX):
            if self._closed.is_set():
                return
            try:
                self._serve(f"{self._name} start {number}")
            except Exception as error:  # any error: home prepares, and another process is tried
                if not self._closed.is_set():
                    say(f"{self._name} is lost: {error}")
            finally:
                if self.process is not None and not self._closed.is_set():
                    self.process.kill()
        if not self._closed.is_set():
            say(f"{self._name} is not started any more: it ended {STARTS_MAX} times")

    def _serve(self, name: str) -> None:
        """Start the process, and let the feed ask it until the process ends. Raises PlaneError, OSError."""
        start, log = self._processes.start_of(name), self._processes.log_of(name)
        with log.open("w") as errors:
            self.process = process = self._processes.fork(start, errors)
        if self._closed.is_set():  # closed meanwhile, when there was no process to end yet
            process.kill()
            return
        if process.said() != "serving":
            told = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
            raise OSError(f"it did not start: {told[-1] if told else 'no reason told'}")
        with self._processes.serving(self, name, start.address):
            status = process.wait()
        if not self._closed.is_set():
            how = (
                "the process that it was forked from has ended" if status is None else f"it ended with status {status}"
            )
            self._processes.say(f"{self._name} is lost: {how}; home prepares what it had in hand")
