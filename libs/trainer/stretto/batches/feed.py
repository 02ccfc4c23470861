"""The feed of a trainer: batches in the order in which they are trained, prepared here or by lanes elsewhere.

`stretto_pipeline.feeding` decides, and its edge carries the decisions out: a thread prepares batches here. Two threads
for each lane ask it, each with one connection and one request at a time.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from statistics import median

from stretto_pipeline.arrays import Reader, difference
from stretto_pipeline.edge import FeedEdge
from stretto_pipeline.errors import ArraysRefused
from stretto_pipeline.feeding import (
    CREDITS,
    REMEMBERED,
    Differs,
    Excluded,
    FeedMachine,
    Joined,
    Leaving,
    Left,
    Released,
    SampleRange,
)
from stretto_plane import Connection, PeerFailed, PlaneError

from ..engine.link import Access
from ..model.form import reading_to_json
from ..model.program import Program
from ..model.reading import Prepared, Reading
from .preparation import Fingerprint, Kind, arrays_of, bytes_of, difference_of, prepared_of, request_of

log = logging.getLogger("stretto.feed")

WINDOW_BYTES, WINDOW_SHARE = 64 * 1024**2, 0.05
"""Bounds of the batches that wait or are being prepared: bytes, and a share of the trainer's memory."""
CONNECT_S = 5.0
ANSWER_S = 30.0
"""Seconds after which a lane that does not answer is left. Other lanes prepare its batches long before."""
IMPORT_S = 8.0
"""Seconds after which the next data worker imports a framework though the one before does not serve yet: about as long
as an import takes on a busy machine."""
AGAIN_S = 1.0
OTHER_AGAIN_S = 30.0
"""Pauses before a lane is tried again: a lost lane, and a lane that would prepare other batches than this process."""


def window_bytes(memory_bytes: int) -> int:
    """Return the bytes of batches that may wait in a pod of this memory."""
    return min(WINDOW_BYTES, int(WINDOW_SHARE * memory_bytes))


class Feed(FeedEdge[Prepared]):
    """Prepares batches for one trainer. Without lanes it prepares them here, one ahead."""

    def __init__(self, program: Program, *, window_bytes: int = WINDOW_BYTES) -> None:
        super().__init__(FeedMachine(window_bytes))
        self._program = program
        self._lanes: dict[str, _Lane] = {}
        """Lanes in use, by address."""
        self._leaving: dict[str, _Lane] = {}
        """Lanes that were left out and still have batches in hand, by name."""
        self._numbers = itertools.count()
        self._counted = (0, 0)
        """Batches delivered, and how many of them lanes prepared, when a share was last asked for."""
        self._took: deque[tuple[float, float]] = deque(maxlen=REMEMBERED)
        """Seconds and processor seconds of the last preparations here."""

    @property
    def reading(self) -> Reading | None:
        """All that lanes need to read batches; None if they need the model for it, or what its ``build`` sets."""
        return None if self.set_by_build else self._program.reading

    @property
    def set_by_build(self) -> Sequence[str]:
        """Names of what the task's ``build`` changed, which its ``read`` may use."""
        return self._program.set_by_build

    def prepare_s(self) -> tuple[float, float]:
        """Return the median time, and processor time, of the last preparations here; 0 before the first."""
        with self._lock:
            took = [*self._took]
        return (median(s for s, _ in took), median(cpu_s for _, cpu_s in took)) if took else (0.0, 0.0)

    def share_elsewhere(self) -> float:
        """Return the share of the batches since the last call that lanes prepared."""
        with self._lock:
            delivered, from_lanes = self.counts.delivered, self.counts.from_lanes
            before, self._counted = self._counted, (delivered, from_lanes)
        return (from_lanes - before[1]) / max(1, delivered - before[0])

    def use(self, addresses: Collection[str], access: Access, fingerprint: Fingerprint) -> None:
        """Use the lanes at these addresses, and no others. A lane that is left out finishes its batches in hand."""
        with self._lock:
            if self._closed:
                return
            for address in [*self._lanes]:
                if address not in addresses:
                    gone = self._lanes.pop(address)
                    self._leaving[gone.name] = gone
                    self.tell(Leaving(gone.name))
            for address in addresses:
                if address not in self._lanes:
                    name = f"{address} ({next(self._numbers)})"
                    self._lanes[address] = _Lane(name, address, access, fingerprint, self)

    def close(self) -> None:
        """Stop preparing, here and in lanes."""
        super().close()
        with self._lock:
            for lane in (*self._lanes.values(), *self._leaving.values()):
                lane.close()

    def lane_changed(self, event: Joined | Left) -> None:
        """Note that a lane can be asked, or is lost. A lane that joins after it was left out is ignored."""
        with self._lock:
            is_used = any(lane.name == event.lane for lane in self._lanes.values())
            if is_used or isinstance(event, Left):
                self.tell(event)

    def _ask(self, lane: str, wanted: SampleRange) -> None:
        next(each for each in self._lanes.values() if each.name == lane).ask(wanted)

    def _start(self, wanted: SampleRange) -> None:
        if not self._closed:
            self._home.submit(self._prepare, wanted, functools.partial(self._timed, wanted))

    def _timed(self, wanted: SampleRange) -> tuple[Prepared, int, float]:
        begun_s, begun_cpu_s = time.monotonic(), time.thread_time()
        prepared = self._program.prepare(wanted.start, wanted.length, wanted.partition)
        busy_s = time.thread_time() - begun_cpu_s
        with self._lock:
            self._took.append((time.monotonic() - begun_s, busy_s))
        return prepared, bytes_of(prepared), busy_s

    def _difference(self, wanted: SampleRange, ours: Prepared, theirs: Prepared) -> str:
        return difference(arrays_of(ours), arrays_of(theirs))

    def _note(self, action: Differs | Excluded | Released) -> None:
        match action:
            case Differs(name, wanted):
                log.error(
                    "%s is not used, nor any other lane: it prepared %s otherwise, %s", name, wanted, self.differing
                )
            case Excluded(name):
                log.warning("%s is not used any more: it failed at several batches in a row", name)
            case Released(name):
                self._leaving.pop(name).close()

    def _failed(self, error: Exception) -> None:
        log.error("the feed has failed", exc_info=error)


class _Lane:
    """The connections to one lane, opened again and again until it is closed."""

    def __init__(self, name: str, address: str, access: Access, fingerprint: Fingerprint, feed: Feed) -> None:
        self.name = name
        """Unique to this object. A new lane may reuse an address; a late answer of the old one has another name."""
        self._address = address
        self._access = access
        self._fingerprint = fingerprint
        self._feed = feed
        self._closed = threading.Event()
        self._lost = threading.Event()
        self._asked: queue.SimpleQueue[SampleRange | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=f"lane {address}", daemon=True).start()

    def ask(self, wanted: SampleRange) -> None:
        self._asked.put(wanted)

    def close(self) -> None:
        self._closed.set()
        self._end()

    def _end(self) -> None:
        self._lost.set()
        for _ in range(CREDITS):
            self._asked.put(None)

    def _run(self) -> None:
        said = ""
        while not self._closed.is_set():
            again_s, text = AGAIN_S, ""
            try:
                text = self._serve()
                again_s = OTHER_AGAIN_S if text else AGAIN_S
            except (PlaneError, ArraysRefused, OSError, ValueError) as error:
                text = str(error)
            if text != said and not self._closed.is_set():
                log.warning("%s: %s", self._address, text or "the lane is lost")
            said = text
            self._closed.wait(again_s)

    def _serve(self) -> str:
        """Ask the lane until it is lost; return how its fingerprint differs, "" if not. Raises PlaneError."""
        with contextlib.ExitStack() as opened:
            connections = [opened.enter_context(self._open()) for _ in range(CREDITS)]
            theirs = json.loads(bytes(connections[0].call(Kind.HELLO, []).parts[0]))
            if found := difference_of(self._fingerprint, theirs):
                return f"it would prepare other batches: {found}"
            self._lost.clear()
            self._asked = queue.SimpleQueue()
            if self._closed.is_set():
                return ""
            self._feed.lane_changed(Joined(self.name))
            threads = [
                threading.Thread(target=self._work, args=(each,), name=f"lane {self._address}", daemon=True)
                for each in connections
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self._feed.lane_changed(Left(self.name))
        return ""

    def _open(self) -> Connection:
        return Connection(self._address, self._access.key, timeout_s=CONNECT_S, encrypted=self._access.encrypted)

    def _work(self, connection: Connection) -> None:
        """Ask for one batch at a time until the lane is lost."""
        reader = Reader()
        while (wanted := self._asked.get()) is not None and not self._lost.is_set():
            try:
                answer = connection.call(Kind.PREPARE, request_of(wanted), ANSWER_S)
                prepared = prepared_of(reader.arrays(answer.parts))
            except PeerFailed as error:
                log.warning("%s", error)
                self._feed.failed(self.name, wanted, str(error))
            except (PlaneError, ArraysRefused) as error:
                if not self._lost.is_set():
                    log.warning("%s: %s", self._address, error)
                break
            else:
                self._feed.answered(self.name, wanted, prepared, bytes_of(prepared))
        self._end()


class DataWorkerList:
    """Lets a feed use the lanes of the job's data workers, as they come and go. Thread-safe."""

    def __init__(self, feed: Feed, access: Access, fingerprint: Fingerprint) -> None:
        self._feed = feed
        self._access = access
        self._fingerprint = fingerprint
        self._lock = threading.Lock()
        self._lanes: dict[str, tuple[str, ...]] = {}
        """Addresses of the lanes that each data worker named, by the data worker's address."""
        self._asking: dict[str, threading.Event] = {}
        self._reading = reading_to_json(feed.reading)
        if feed.set_by_build:
            log.info(
                "data workers build the model, as build() sets %s: set in __init__ what read uses, and they need none",
                ", ".join(feed.set_by_build),
            )
        self._turn = threading.Lock() if feed.reading is None else contextlib.nullcontext()
        """Held while a data worker starts lanes that import the model's framework: at once, all would be late."""

    def use(self, addresses: Collection[str]) -> None:
        """Use the data workers at these addresses, and no others."""
        with self._lock:
            for gone in [address for address in self._asking if address not in addresses]:
                self._asking.pop(gone).set()
                self._lanes.pop(gone, None)
            for address in addresses:
                if address not in self._asking:
                    self._asking[address] = ended = threading.Event()
                    threading.Thread(
                        target=self._follow, args=(address, ended), name=f"data worker {address}", daemon=True
                    ).start()
            self._tell()

    def _follow(self, address: str, ended: threading.Event) -> None:
        """Ask a data worker for its lanes again and again. While it does not answer, its last lanes stay in use."""
        while not ended.is_set():
            with (
                contextlib.suppress(PlaneError, ValueError),
                Connection(
                    address, self._access.key, timeout_s=CONNECT_S, encrypted=self._access.encrypted
                ) as connection,
            ):
                with self._turn:
                    end_s = time.monotonic() + IMPORT_S
                    while not self._found(address, connection, ended) and time.monotonic() < end_s:
                        pass
                while not ended.wait(AGAIN_S):
                    self._found(address, connection, ended)
            ended.wait(AGAIN_S)

    def _found(self, address: str, connection: Connection, ended: threading.Event) -> bool:
        """Ask a data worker for its lanes, for which it takes its time while it has none. Return False if it has none
        and is still in use. Raises PlaneError, ValueError."""
        found = tuple(json.loads(bytes(connection.call(Kind.LANES, [self._reading]).parts[0])))
        with self._lock:
            if not ended.is_set() and self._lanes.get(address) != found:
                self._lanes[address] = found
                self._tell()
        return bool(found) or ended.is_set()

    def _tell(self) -> None:
        lanes = [lane for address in sorted(self._lanes) for lane in self._lanes[address]]
        self._feed.use(lanes, self._access, self._fingerprint)
