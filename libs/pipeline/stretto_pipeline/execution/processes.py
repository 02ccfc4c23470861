"""The processes of the lanes of a chain, and home's requests to those of its last group.

Home alone starts processes. It tells each lane which lanes of the group before it serve, and which are gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from stretto_plane import Key

from ..arrays import Arrays
from ..chain import Chain
from ..feeding import Joined, Left, Range
from .feed import Feed
from .lane import Start
from .protocol import Preparation
from .requests import Requests

STARTS_MAX = 5
"""Times that a lane's process is started: one that always dies would cost more than it brings."""
END_S = 2.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of home that its lanes share.

    framework: name of the module that runs in them; settings: for its `begin`. paths: folders of modules. environment:
    variables that home has not.
    """

    framework: str
    settings: Mapping[str, Any]
    paths: Sequence[str]
    environment: Mapping[str, str]


class Processes:
    """The lanes of a chain. A process that dies is started again. Close it before the program ends."""

    def __init__(self, chain: Chain, feed: Feed, settings: Settings, say: Callable[[str], None]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="stretto-run-"))
        self._chain, self._feed, self._settings, self._say = chain, feed, settings, say
        self._key = Key.random()
        self._telling = threading.Lock()
        """held while lanes are told of each other: each hears in the order in which it happened"""
        self._serving: list[dict[str, _Lane]] = [{} for _ in chain.groups]
        """lanes that serve, by the names of their starts, for each group"""
        self._requests: dict[str, Requests] = {}
        numbers = dict.fromkeys((each.device for each in chain.groups), 0)
        self._lanes: list[_Lane] = []
        for at, group in enumerate(chain.groups):
            for _ in range(group.count):
                kind = f"{group.device} data worker" if chain.has_stages else "data worker"
                self._lanes.append(_Lane(f"{kind} {numbers[group.device]}", at, self))
                numbers[group.device] += 1
        for each in self._lanes:
            each.start()

    @property
    def pids(self) -> list[int]:
        """The processes that run now."""
        return [lane.process.pid for lane in self._lanes if lane.process is not None]

    def ask(self, lane: str, wanted: Range, preparation: Preparation, raw: Arrays) -> None:
        """Ask a lane; the answer goes to the feed."""
        self._requests[lane].ask(wanted, preparation, raw)

    def close(self) -> None:
        """End all processes."""
        for lane in self._lanes:
            lane.leave()
        deadline_s = time.monotonic() + END_S
        for lane in self._lanes:
            lane.end(deadline_s)
        shutil.rmtree(self._folder, ignore_errors=True)

    def forget(self) -> None:
        """Leave the lanes to the process that started them: this one was forked from it."""
        for lane in self._lanes:
            lane.leave()

    # --- for the lanes --------------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        """Settings of home."""
        return self._settings

    def say(self, text: str) -> None:
        """Tell people."""
        self._say(text)

    def in_place_of(self, lane: _Lane) -> str:
        """Return, in words, the processes that ask a lane, and prepare what it loses."""
        is_last = lane.at == len(self._chain.groups) - 1
        return "home" if is_last else f"{self._chain.groups[lane.at + 1].device} data workers"

    def start_of(self, name: str, at: int) -> Start:
        """Return what a lane's process needs to begin."""
        key, settings = self._key.pem.decode(), self._settings
        made = Start(key, f"unix:{self._folder}/{name.replace(' ', '-')}", settings.framework, settings.settings)
        if at == 0:
            return made
        return replace(made, feeding=self._chain.groups[at - 1].count, feeding_credits=self._chain.credits[at - 1])

    def log_of(self, name: str) -> Path:
        """Return the file for the errors of a process."""
        return self._folder / f"{name.replace(' ', '-')}.log"

    @contextlib.contextmanager
    def serving(self, lane: _Lane, name: str, address: str) -> Generator[None]:
        """Let others ask a lane that serves. Raises PlaneError, OSError."""
        is_last = lane.at == len(self._chain.groups) - 1
        if is_last:
            self._requests[name] = Requests(
                name, address, self._key, credits=self._chain.credits[-1], feed=self._feed, lost=lane.kill
            )
        with self._telling:
            self._serving[lane.at][name] = lane
            for other, each in self._serving[lane.at - 1].items() if lane.at else ():
                lane.tell(other, each.address)
            for each in () if is_last else self._serving[lane.at + 1].values():
                each.tell(name, address)
        if is_last:
            self._feed.tell(Joined(name))
        try:
            yield
        finally:
            with self._telling:
                del self._serving[lane.at][name]
                for each in () if is_last else self._serving[lane.at + 1].values():
                    each.tell(name, "")
            if is_last:
                self._feed.tell(Left(name))
                self._requests.pop(name).close()


class _Lane:
    """One lane: its process, started again until it is closed. at: the number of its group."""

    def __init__(self, name: str, at: int, processes: Processes) -> None:
        self.at = at
        self.address = ""
        self.process: subprocess.Popen[str] | None = None
        self._name, self._processes = name, processes
        self._closed = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name=f"stretto-{self._name}", daemon=True).start()

    def tell(self, lane: str, address: str) -> None:
        """Tell the process of a lane that feeds it; without an address that is gone."""
        assert self.process is not None
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has ended, or is about to
            self.process.stdin.write(json.dumps({"lane": lane, "address": address}) + "\n")
            self.process.stdin.flush()

    def kill(self) -> None:
        """End the process: another takes its place."""
        if self.process is not None:
            self.process.kill()

    def leave(self) -> None:
        """Let the process end: it ends when its standard input does."""
        self._closed.set()
        if self.process is not None:
            with contextlib.suppress(OSError):
                assert self.process.stdin is not None
                self.process.stdin.close()

    def end(self, deadline_s: float) -> None:
        """Wait for the end of the process, and make it end then."""
        if self.process is None:
            return
        try:
            self.process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _run(self) -> None:
        say = self._processes.say
        for number in range(STARTS_MAX):
            if self._closed.is_set():
                return
            try:
                self._serve(f"{self._name} start {number}")
            except Exception as error:  # of whatever kind: home prepares, and another process is tried
                if not self._closed.is_set():
                    say(f"{self._name} is lost: {error}")
            finally:
                if self.process is not None and self.process.poll() is None and not self._closed.is_set():
                    self.process.kill()
                    self.process.wait()
        if not self._closed.is_set():
            say(f"{self._name} is not started any more: it ended {STARTS_MAX} times")

    def _serve(self, name: str) -> None:
        """Start the process, and let it be asked until it is lost. Raises PlaneError, OSError."""
        settings, start = self._processes.settings, self._processes.start_of(name, self.at)
        log = self._processes.log_of(name)
        with log.open("w") as errors:
            self.process = process = subprocess.Popen(
                [sys.executable, "-P", "-m", "stretto_pipeline.execution.lane"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
                env={
                    "TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, **settings.environment,
                    "PYTHONPATH": os.pathsep.join(settings.paths),
                },
            )  # fmt: skip
        if self._closed.is_set():  # whoever closed the lane meanwhile saw no process to end
            process.kill()
            process.wait()
            return
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(asdict(start)) + "\n")
        process.stdin.flush()
        if process.stdout.readline() != "serving\n":
            told = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
            raise OSError(f"it did not start: {told[-1] if told else 'no reason told'}")
        self.address = start.address
        if start.feeding:
            threading.Thread(target=self._listen, args=(process,), daemon=True).start()
        with self._processes.serving(self, name, start.address):
            status = process.wait()
        if not self._closed.is_set():
            others = self._processes.in_place_of(self)
            say = self._processes.say
            say(f"{self._name} is lost: it ended with status {status}; what it had in hand is for {others} to prepare")

    def _listen(self, process: subprocess.Popen[str]) -> None:
        """Pass on what a lane that others feed has to say."""
        assert process.stdout is not None
        for line in process.stdout:
            self._processes.say(f"{self._name}: {line.strip()}")
