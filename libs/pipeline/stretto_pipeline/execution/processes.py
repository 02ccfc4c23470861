"""The processes of the lanes, and home's connections to them: one thread for each request that may be in hand."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from stretto_plane import Connection, Key, PeerFailed, PlaneError

from ..arrays import Arrays, Reader, Writer
from ..errors import ArraysRefused, in_words
from ..feeding import CREDITS, Joined, Left, Range
from .feed import Feed
from .lane import Start
from .protocol import Kind, Preparation, request

ANSWER_S = 60.0
"""Time after which a lane that does not answer is left; home prepares its elements long before."""
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
    """So many lanes. A process that dies is started again. Close it before the program ends."""

    def __init__(
        self,
        count: int,
        feed: Feed,
        settings: Settings,
        say: Callable[[str], None],
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="stretto-run-"))
        self._key = Key.random()
        self._start = Start(self._key.pem.decode(), "", settings.framework, settings.settings)
        self._lanes: dict[str, _Lane] = {}
        for number in range(count):
            name = f"data worker {number}"
            self._lanes[name] = _Lane(name, self._folder, self._key, self._start, settings, feed, say)

    @property
    def pids(self) -> list[int]:
        """The processes that run now."""
        return [lane.process.pid for lane in self._lanes.values() if lane.process is not None]

    def ask(self, lane: str, wanted: Range, preparation: Preparation, raw: Arrays) -> None:
        """Ask a lane; the answer goes to the feed."""
        self._lanes[lane.rpartition(" start ")[0]].ask(lane, wanted, preparation, raw)

    def close(self) -> None:
        """End all processes."""
        for lane in self._lanes.values():
            lane.leave()
        deadline_s = time.monotonic() + END_S
        for lane in self._lanes.values():
            lane.end(deadline_s)
        shutil.rmtree(self._folder, ignore_errors=True)

    def forget(self) -> None:
        """Leave the lanes to the process that started them: this one was forked from it."""
        for lane in self._lanes.values():
            lane.leave()


_Asked = tuple[Range, Preparation, Arrays]


class _Lane:
    """One lane: its process, started again until it is closed."""

    def __init__(
        self,
        name: str,
        folder: Path,
        key: Key,
        start: Start,
        settings: Settings,
        feed: Feed,
        say: Callable[[str], None],
    ) -> None:
        self._name, self._folder, self._key, self._start = name, folder, key, start
        self._settings, self._feed, self._say = settings, feed, say
        self.process: subprocess.Popen[str] | None = None
        self._closed = threading.Event()
        self._queues: dict[str, queue.SimpleQueue[_Asked | None]] = {}
        threading.Thread(target=self._run, name=f"stretto-{name}", daemon=True).start()

    def ask(self, lane: str, wanted: Range, preparation: Preparation, raw: Arrays) -> None:
        self._queues[lane].put((wanted, preparation, raw))

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
        for number in range(STARTS_MAX):
            if self._closed.is_set():
                return
            name = f"{self._name} start {number}"
            try:
                self._serve(name)
            except Exception as error:  # of whatever kind: home prepares, and another process is tried
                if not self._closed.is_set():
                    self._say(f"{self._name} is lost: {error}")
            finally:
                if self.process is not None and self.process.poll() is None and not self._closed.is_set():
                    self.process.kill()
                    self.process.wait()
        if not self._closed.is_set():
            self._say(f"{self._name} is not started any more: it ended {STARTS_MAX} times")

    def _serve(self, name: str) -> None:
        """Start the process, and ask it until it is lost. Raises PlaneError, OSError."""
        address = f"unix:{self._folder}/{name.replace(' ', '-')}"
        log = self._folder / f"{name.replace(' ', '-')}.log"
        with log.open("w") as errors:
            self.process = process = subprocess.Popen(
                [sys.executable, "-P", "-m", "stretto_pipeline.execution.lane"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
                env={
                    "TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, **self._settings.environment,
                    "PYTHONPATH": os.pathsep.join(self._settings.paths),
                },
            )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(asdict(replace(self._start, address=address))) + "\n")
        process.stdin.flush()
        if process.stdout.readline() != "serving\n":
            told = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
            raise OSError(f"it did not start: {told[-1] if told else 'no reason told'}")
        asked: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._queues[name] = asked
        with contextlib.ExitStack() as opened:
            links = [opened.enter_context(self._connected(address)) for _ in range(CREDITS)]
            teaching = threading.Lock()
            taught: set[int] = set()
            workers = [
                threading.Thread(target=self._work, args=(name, link, asked, taught, teaching), daemon=True)
                for link in links
            ]
            for worker in workers:
                worker.start()
            self._feed.tell(Joined(name))
            status = process.wait()
            self._feed.tell(Left(name))
            for _ in workers:
                asked.put(None)
            for worker in workers:
                worker.join()
        if not self._closed.is_set():
            self._say(f"{self._name} is lost: it ended with status {status}; home prepares what it had in hand")

    def _connected(self, address: str) -> Connection:
        return Connection(address, self._key, timeout_s=ANSWER_S)

    def _work(
        self,
        name: str,
        link: Connection,
        asked: queue.SimpleQueue[_Asked | None],
        taught: set[int],
        teaching: threading.Lock,
    ) -> None:
        """Ask one element after the other. A lane whose connection is lost is ended: another takes its place."""
        writer, reader = Writer(), Reader()
        while (job := asked.get()) is not None:
            wanted, preparation, raw = job
            try:
                with teaching:
                    if preparation.number not in taught:
                        link.call(Kind.TEACH, [str(preparation.number).encode(), *preparation.parts()])
                        taught.add(preparation.number)
                answer = link.call(Kind.PREPARE, request(preparation.number, raw, writer)).parts
                arrays = reader.arrays(answer[1:])
                self._feed.answered(name, wanted, arrays, preparation.values_of(arrays), int(bytes(answer[0])))
            except (PeerFailed, ArraysRefused) as error:
                writer = Writer()  # nobody knows how much of the schema arrived
                self._feed.failed(name, wanted, str(error))
            except (PlaneError, OSError):
                assert self.process is not None
                self.process.kill()
                return
            except Exception as error:  # a preparation that cannot be sent, or an answer that is none
                writer, reader = Writer(), Reader()
                self._feed.failed(name, wanted, in_words(error))
