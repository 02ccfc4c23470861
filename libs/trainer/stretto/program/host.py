"""The process of a worker that runs the user's program: the pod to all services, and the program's source of data.

The program is a child process. It may know nothing of Stretto (level 0: its whole run is one lease), or ask for the
numbers of its samples by :mod:`stretto.agent` (level 1). Ranks of one program have :mod:`.ranks`.
"""

from __future__ import annotations

import logging
import os
import subprocess
import time
from pathlib import Path

from stretto_wire.program import ProgramSpec

from ..agent import ADDRESS_VARIABLE, DONE, LEAVE, LEFT, NEXT, REFUSED, SEVERAL, SEVERAL_VARIABLE
from ..errors import BusError, DataError
from ..items import ITEMS, TOOK
from ..pod.process import EXIT_OK, EXIT_PLATFORM, Pod, run_pod
from ..worker.leases import HEARTBEAT_S, Leases
from .asked import AskedSocket
from .batches import AGAIN_S, Batches
from .child import EARLY, Child, patience_of
from .consistent import Consistent, consistent_of
from .far_items import FarItems
from .item_server import ItemServer
from .ranks import RankHost
from .telemetry import Telemetry

log = logging.getLogger("stretto.worker")


class ProgramHost:
    """Runs the program of one worker."""

    def __init__(self, pod: Pod, program: ProgramSpec) -> None:
        self._pod = pod
        self._program = program
        self._telemetry = Telemetry(pod)
        meter = self._telemetry.meter
        self._child = Child(pod, program, meter)
        self._leases = Leases(pod.bus, pod.leaving)
        spec = pod.settings.spec
        self._has_data_workers = spec.resources.data.mode != "off"
        self._batches = Batches(
            self._leases,
            meter,
            spec.dataset.batch_size,
            pod.leaving,
            consistent=program.consistent,
            tells_likely=self._has_data_workers,
        )
        self._consistent: Consistent | None = None
        self._items = FarItems(pod, self._telemetry.took)
        self._asked = AskedSocket(self._answered, self._batches.forget, dict.fromkeys((ITEMS, TOOK), self._items.serve))

    def run(self) -> int:
        """Run the program to its end and return the pod's exit code. Raises DataError: the program failed."""
        self._telemetry.begin()
        self._pod.every(lambda: HEARTBEAT_S, self._leases.beat)
        if self._program.level == 0:
            return self._watch()
        if self._program.consistent:
            self._consistent = consistent_of(self._pod, self._leases, self._batches, self._pod.leaving)
            self._consistent.begin()
        self._items.follow()
        address = self._asked.listen(self._pod.settings.pod_folder or Path.cwd())
        self._asked.begin()
        code = self._wait(self._child.start(self._variables(address)))
        self._batches.over = True
        self._asked.hang_up()
        with self._asked.asking:  # what the program asked for last is answered, and its connection over
            return self._ended(code)

    # --- level 0: the run is the lease ------------------------------------------------------------------------

    def _watch(self) -> int:
        """Run the program under the lease of its whole run."""
        while self._leases.shard is None:
            if self._pod.leaving.wait(AGAIN_S):
                return EXIT_OK
            reply = self._leases.next(0)
            if reply is not None and reply.shard is None:
                self._leases.wait(reply)
        code = self._wait(self._child.start({}))
        if code == 0 and not self._pod.leaving.is_set():
            report_run(self._leases)
            return EXIT_OK
        self._leases.release(0)
        return self._child.failed(code)

    # --- level 1: the program asks for batches ----------------------------------------------------------------

    def _variables(self, address: str) -> dict[str, str]:
        """Return the variables of the program. Data workers compute one batch ahead: with them it asks for each."""
        return {ADDRESS_VARIABLE: address, **({} if self._has_data_workers else {SEVERAL_VARIABLE: "1"})}

    def _answered(self, request: str) -> str:
        """Return the answer to a line of the program, which may tell the batch that it took last."""
        request, *taken = request.split()
        if len(taken) == 2 and all(number.isdecimal() for number in taken):
            self._batches.took(int(taken[0]), int(taken[1]))
        asks_next = request in (NEXT, SEVERAL)
        if request == LEFT:
            return DONE
        if not asks_next and self._consistent is None:
            return f"{REFUSED} {request}: checkpoints are of level 2; state program.level: 2"
        if not asks_next and self._consistent is not None:
            try:
                return self._consistent.answer(request)
            except BusError:  # this worker is to leave, and nobody has answered it
                return LEAVE
        refusal = self._consistent.refusal if self._consistent is not None else ""
        several = request == SEVERAL and not self._has_data_workers  # the variable may be of its environment
        return f"{REFUSED} {refusal}" if refusal else self._batches.next(several=several)

    def _ended(self, code: int) -> int:
        """Give back what the program has not trained, and return the pod's exit code. Raises DataError."""
        leaves = self._pod.leaving.is_set()
        if code == 0 and self._batches.lost and not leaves:
            log.info("the program's parameters have samples that are handed out again: another worker takes its place")
            return EXIT_PLATFORM
        if code == 0 and (leaves or self._batches.ended):
            self._batches.give_back()
            return EXIT_OK
        if code == 0:
            self._batches.give_back(EARLY)
            raise DataError(EARLY)
        if code > 0 and not leaves:
            self._batches.give_back(f"the program ended with status {code}")
        else:
            self._batches.give_back()  # a killed program never counts against its shard
        return self._child.failed(code)

    def _wait(self, program: subprocess.Popen[bytes]) -> int:
        """Wait until the program has ended; return its status, or minus the signal that ended it."""
        patience_s = patience_of(self._pod.settings.stop_grace_s) if self._program.level else 0.0

        def patience() -> float | None:
            if self._pod.leaving.is_set():
                return patience_s
            if not self._program.level:
                keep_run(self._leases)
            return None

        return self._child.wait(program, patience)


def keep_run(leases: Leases) -> None:
    """Lease the run again if its lease expired while this worker was not heard; the program runs on."""
    if not leases.current:
        leases.drop()
        reply = leases.next(0)
        if reply is not None and reply.shard is None:
            log.warning("the run of this program was leased to another worker, which runs it as well")


def report_run(leases: Leases) -> None:
    """Report the run as done until a report is in time; a report that comes late is made again under a new lease."""
    while True:
        leases.beat()  # a lease that went stale cannot be reported, and the next request is for a new one
        leases.passed(1)
        leases.completed()
        is_report = leases.has_report
        reply = leases.next(0)
        if reply is not None and (reply.answer in ("end", "unknown") or (is_report and not reply.stale)):
            return
        if reply is None or reply.shard is None:
            time.sleep(AGAIN_S)


def run(pod: Pod) -> int:
    """Run the program of the pod's job. Raises DataError."""
    program = pod.settings.spec.program
    assert program is not None  # the actuator starts this process for jobs with one
    return RankHost(pod, program).run() if program.together else ProgramHost(pod, program).run()


def main() -> None:
    """Run the pod, a worker or a data worker, until its program has ended."""
    if os.environ.get("STRETTO_POD", "").startswith("data-"):
        run_pod("data", lambda pod: ItemServer(pod).run())
    run_pod("worker", run)
