"""The lanes of a pod: processes forked from a process that has imported the user's code, and replaced when they die."""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from stretto_plane import Key

from ..batches.preparation import LEAVE_S, BatchesPrepared
from ..engine.link import Access
from ..errors import DataError, ModelRefused

if TYPE_CHECKING:
    from stretto_wire.jobspec.spec import JobSpec, ModelSpec

    from ..model.entry_point import Task
    from ..model.program import Program
    from ..model.reading import Reading

log = logging.getLogger("stretto.data_worker")

ENTRY_VARIABLE, READS_ONLY_VARIABLE = "STRETTO_LANE_ENTRY", "STRETTO_LANE_READS_ONLY"
"""Variables of the process that lanes are forked from: the entry to import, and '1' if lanes do without its model."""
_MEMORY = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}
"""Variables by which a lane that reads Parquet keeps 10 to 40 MB less of what it has freed, in no more CPU time."""
START_S = 120.0
RETRY_S = 1.0
STOP_S = LEAVE_S + 2.0
"""Seconds that a lane may take to leave: more than its trainers may take to fetch their answers."""
COUNT_S = 0.5
"""Seconds between two messages of a lane about its work."""


@dataclass(frozen=True, slots=True)
class _Told:
    """The first message of a lane to its pod: its address, or why it cannot serve."""

    address: str = ""
    refused: str = ""


class LanePool:
    """A number of lanes of a job. Thread-safe.

    ``address_of``: where a lane is to listen. ``reading``: how they read batches; None if they build the model for it,
    as models with embedding layers of their own need.
    """

    def __init__(
        self,
        spec: JobSpec,
        count: int,
        address_of: Callable[[int], str],
        access: Access,
        reading: Reading | None,
    ) -> None:
        self._spec = spec.model_dump_json()
        self._address_of = address_of
        self._access = access
        self._reading = reading
        self._leaving = threading.Event()
        self._lock = threading.Lock()
        self._moved = threading.Condition(self._lock)
        """Notified when lanes begin to serve, or end."""
        self._addresses: dict[int, str] = {}
        self._processes: dict[int, BaseProcess] = {}
        self._work: dict[int, BatchesPrepared] = {}
        """Work of each lane whose process runs now, by its number."""
        self._work_of_ended = BatchesPrepared()
        self.refused = ""
        """The reason why the user's code cannot be used, in the words of its error; empty if it can."""
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["stretto.data_worker.preload"])
        # the process that lanes are forked from finds modules by PYTHONPATH alone
        paths = os.pathsep.join(path for path in sys.path if path)
        reads_only = "" if reading is None else "1"
        variables = {ENTRY_VARIABLE: spec.model.entry, READS_ONLY_VARIABLE: reads_only, "PYTHONPATH": paths}
        variables = {**_MEMORY, **{name: os.environ[name] for name in _MEMORY if name in os.environ}, **variables}
        with _short_temporary_folder(), _environment(variables):
            forkserver.ensure_running()
        self._threads = [
            threading.Thread(target=self._keep, args=(number,), name=f"lane {number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the lanes that serve now."""
        with self._lock:
            return self._sorted()

    def until_one_serves(self, timeout_s: float) -> tuple[str, ...]:
        """Return the addresses once there is one, or after this time."""
        with self._moved:
            self._moved.wait_for(lambda: self._addresses, timeout_s)
            return self._sorted()

    @property
    def work(self) -> BatchesPrepared:
        """The work of all lanes so far, including lanes that have ended."""
        with self._lock:
            return sum(self._work.values(), self._work_of_ended)

    @property
    def pids(self) -> dict[int, int | None]:
        """The processes by their number."""
        with self._lock:
            return {number: process.pid for number, process in self._processes.items()}

    def _sorted(self) -> tuple[str, ...]:
        return tuple(self._addresses[number] for number in sorted(self._addresses))

    def close(self) -> None:
        """Let each lane answer what it was asked, and end."""
        self._leaving.set()
        with self._lock:
            processes = [*self._processes.values()]
        for process in processes:
            process.terminate()
        end_s = time.monotonic() + STOP_S
        for thread in self._threads:
            thread.join(max(0.0, end_s - time.monotonic()))
        for process in processes:
            if process.is_alive():
                process.kill()

    def _keep(self, number: int) -> None:
        """Start the lane, and start it again when it dies."""
        while not self._leaving.is_set() and not self.refused:
            ours, theirs = self._context.Pipe()
            key, encrypted = self._access.key.pem, self._access.encrypted
            arguments = (self._spec, self._reading, self._address_of(number), key, encrypted, theirs)
            process = self._context.Process(target=_serve, args=arguments, name=f"lane {number}", daemon=True)
            process.start()
            with self._lock:
                self._processes[number] = process
            theirs.close()
            if self._leaving.is_set():
                process.terminate()
            self._follow(number, process, ours)
            if not self._leaving.is_set() and not self.refused:
                log.warning("lane %d ended with exit code %s; it is started again", number, process.exitcode)
                self._leaving.wait(RETRY_S)

    def _follow(self, number: int, process: BaseProcess, told: Connection) -> None:
        """Note the address of a lane, and its end."""
        word = _Told()
        if told in wait([told, process.sentinel], START_S):
            with contextlib.suppress(EOFError, OSError):
                word = told.recv()
        if word.refused:
            self.refused = word.refused
        elif word.address:
            self._set(number, word.address)
            self._count(number, process, told)
        else:
            process.kill()
        process.join()
        told.close()
        self._set(number, "")
        with self._lock:
            self._work_of_ended += self._work.pop(number, BatchesPrepared())

    def _count(self, number: int, process: BaseProcess, told: Connection) -> None:
        """Note what a lane tells of its work until it ends. A process that user code forked may hold its pipe."""
        with contextlib.suppress(EOFError, OSError):
            while told in wait([told, process.sentinel]):
                work = told.recv()
                with self._lock:
                    self._work[number] = work

    def _set(self, number: int, address: str) -> None:
        with self._moved:
            before = len(self._addresses)
            if address:
                self._addresses[number] = address
            else:
                self._addresses.pop(number, None)
            if before != len(self._addresses):
                log.info("%d lanes serve", len(self._addresses))
            self._moved.notify_all()


@contextlib.contextmanager
def _short_temporary_folder() -> Generator[None]:
    """Let multiprocessing make its socket in the temporary folder by a short path: the kernel takes 107 bytes of it.

    Every connection uses this path again, so the descriptor stays open.
    """
    before = tempfile.gettempdir()
    tempfile.tempdir = f"/proc/self/fd/{os.open(before, os.O_PATH)}"
    try:
        yield
    finally:
        tempfile.tempdir = before


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Generator[None]:
    """Set variables for a process that starts within the block; other threads see all other variables unchanged."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(spec: str, reading: Reading | None, address: str, key: bytes, encrypted: bool, told: Connection) -> None:
    """Run in a lane's process until its pod ends, or lets it end."""
    from ..batches.preparation import fingerprint_of
    from ..model.entry_point import load
    from ..pod.signals import leave_on_signals
    from .lane import Lane

    threading.Thread(target=_end_with_pod, daemon=True).start()
    leaving = threading.Event()
    leave_on_signals(leaving)
    document: dict[str, Any] = json.loads(spec)
    try:
        task = load(cast("ModelSpec", SimpleNamespace(**document["model"])))
        reader = _program(task, spec) if reading is None else reading.reader(task)
    except (ModelRefused, DataError) as error:
        told.send(_Told(refused=str(error)))
        return
    lane = Lane(reader, fingerprint_of(document, task), address, Access(Key.of(key), encrypted))
    with contextlib.suppress(BrokenPipeError):  # what the lane was forked from is asked to end, too, and is sooner
        told.send(_Told(address=lane.address))
        while not leaving.wait(COUNT_S):
            told.send(lane.work)
    lane.leave()
    with contextlib.suppress(BrokenPipeError):
        told.send(lane.work)


def _program(task: Task, spec: str) -> Program:
    """Build the model that says which rows a batch looks up. Raises ModelRefused, DataError."""
    from stretto_wire.jobspec.spec import JobSpec

    from ..build import make_program, options_of

    return make_program(task, options_of(JobSpec.model_validate_json(spec)))


def _end_with_pod() -> None:
    """End this process when its pod's process has ended, for whatever reason."""
    pod = multiprocessing.parent_process()
    assert pod is not None
    wait([pod.sentinel])
    os._exit(1)
