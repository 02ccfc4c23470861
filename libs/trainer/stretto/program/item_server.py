"""A data worker of a job with a program: the user's program, which computes items there, and the address that serves.

The program is the one that workers run. Where it calls :func:`stretto.agent.prepared` it becomes one process for each
of the pod's cores, which offer to compute items over the socket of the pod.
"""

from __future__ import annotations

import math
import queue
import signal
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from stretto_messages.pods import DataWorkerReported
from stretto_plane import Listener, Message, Peer

from ..agent import ADDRESS_VARIABLE, PREPARES_VARIABLE, REFUSED
from ..errors import DataError, PodError
from ..items import SERVES, framed
from ..pod.process import EXIT_OK, Pod, Usage
from ..worker.step_timer import StepTimer
from .asked import AskedSocket
from .child import Child, patience_of

REQUEST_BYTES_MAX = 1024 * 1024


class Kind(IntEnum):
    """Requests of a worker."""

    PROCESSES = 1
    """Asks how many pieces a data worker computes at once: no part; the answer's part is the number in words."""
    ITEMS = 2
    """Asks for items: the part has their numbers between spaces; the answer's part is a pickled list."""


class _Work(NamedTuple):
    """Items for whichever process is free first."""

    numbers: str
    found: Future[bytearray]


class ItemServer:
    """A data worker pod: an address at which workers ask for items, and the program whose processes compute them."""

    def __init__(self, pod: Pod) -> None:
        program = pod.settings.spec.program
        assert program is not None  # the actuator starts this process for jobs with one
        self._pod, self._level = pod, program.level
        self._processes = max(1, math.floor(pod.settings.cpu_cores))
        self._asked = AskedSocket(self._refused, lambda: None, {SERVES: self._serve})
        self._child = Child(pod, program, StepTimer())
        self._work: queue.SimpleQueue[_Work] = queue.SimpleQueue()
        self._address = ""
        self._broken = ""
        """Why the pod ends: a process of the program is lost, and it computes less than it has cores for."""
        self._lock = threading.Lock()
        self._items, self._busy_s = 0, 0.0
        self._told = 0, 0.0
        pod.usage = Usage(runs_program=True)

    def run(self) -> int:
        """Serve until asked to leave, and return the pod's exit code.

        Raises DataError: the program does not serve; PodError: one of its processes is lost, or all of them.
        """
        if not self._level:
            raise DataError("a program of level 0 has no items that others could prepare: leave resources.data out")
        settings, access = self._pod.settings, self._pod.access
        socket_path = self._asked.listen(settings.pod_folder or Path.cwd())
        with Listener(
            settings.plane_address,
            self._handle,
            access.key,
            size_bytes_max=REQUEST_BYTES_MAX,
            encrypted=access.encrypted,
        ) as listener:
            self._address = listener.address
            variables = {ADDRESS_VARIABLE: socket_path, PREPARES_VARIABLE: str(self._processes)}
            # one thread each: there is a process for each core, and what a fork inherits of a pool of threads hangs
            variables |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
            program = self._child.start(variables)
            code = self._child.wait(program, self._patience_s)
        if self._pod.leaving.is_set():
            return EXIT_OK
        if self._broken:  # the others were ended for it
            raise PodError(self._broken)
        if code < 0:
            raise PodError(f"the program that computed items was ended by {signal.Signals(-code).name}")
        if code:
            return self._child.failed(code)
        raise DataError(
            "the program ended in a data worker: let it call stretto.agent.prepared(dataset), or leave resources.data "
            "out"
        )

    def _patience_s(self) -> float | None:
        """Hang up once the pod is to end, and return the seconds that the program has for its end."""
        if not (self._pod.leaving.is_set() or self._broken):
            return None
        self._asked.hang_up()
        return patience_of(self._pod.settings.stop_grace_s)

    # --- the program ------------------------------------------------------------------------------------------

    def _refused(self, request: str) -> str:
        return f"{REFUSED} {request}: a data worker has no samples; call stretto.agent.prepared(dataset) before"

    def _serve(self, link: socket.socket, _: TextIO, __: str) -> None:
        """Have one process of the program compute one piece after the other."""
        with self._lock:
            if self._address:  # workers ask once there is somebody who answers
                self._pod.ready(self._address)
                self._pod.report_by(self._report)
                self._address = ""
        while True:
            work = self._work.get()
            began_s = time.monotonic()
            try:
                link.sendall(f"{work.numbers}\n".encode())
                is_found, body = framed(link)
            except (OSError, EOFError):
                lost = f"the process that computed items {work.numbers[:100]} is gone"
                self._broken = f"{lost}: it was killed, or ended in their code; another data worker takes its place"
                work.found.set_exception(DataError(lost))
                return
            with self._lock:
                self._items += work.numbers.count(" ") + 1
                self._busy_s += time.monotonic() - began_s
            if is_found:
                work.found.set_result(body)
            else:
                work.found.set_exception(DataError(body.decode(errors="replace")[:1000]))

    # --- workers ----------------------------------------------------------------------------------------------

    def _handle(self, message: Message, peer: Peer) -> tuple[int, Sequence[Any]]:
        if message.kind == Kind.PROCESSES:
            return Kind.PROCESSES, [str(self._processes).encode()]
        if message.kind != Kind.ITEMS:
            raise DataError(f"a request of kind {message.kind} is refused: ask for {Kind.ITEMS.name}")
        try:
            numbers = [int(number) for number in bytes(message.parts[0]).split()]
        except (IndexError, ValueError):
            raise DataError("items are asked for by their numbers, between spaces") from None
        work = _Work(" ".join(map(str, numbers)), Future())
        self._work.put(work)
        return Kind.ITEMS, [work.found.result()]

    def _report(self) -> None:
        used = self._pod.usage.measure()
        with self._lock:
            batches, busy_s = self._items // self._pod.settings.spec.dataset.batch_size, self._busy_s
        before, self._told = self._told, (batches, busy_s)
        self._pod.bus.report(
            DataWorkerReported(
                job=self._pod.settings.job,
                pod=self._pod.settings.pod,
                ended_at_s=time.time(),
                window_s=used.window_s,
                lanes=self._processes,
                batches=batches - before[0],
                busy_s=busy_s - before[1],
                cpu_used_cores=used.cpu_cores,
                cpu_limit_cores=self._pod.settings.cpu_cores,
                memory_used_bytes=used.memory_bytes,
                memory_limit_bytes=self._pod.settings.memory_bytes,
            )
        )
