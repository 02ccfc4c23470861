"""The process of a worker that runs the user's program: the pod to all services, and the program's source of data.

The program is a child process. It may know nothing of Stretto (level 0: its whole run is one lease), or ask for the
numbers of its samples by :mod:`stretto.agent` (level 1).
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from stretto_messages.pods import TrainUnder, TrainUnderReply, WorkerReported
from stretto_messages.values import StepTimes
from stretto_wire.program import ProgramSpec

from ..agent import ADDRESS_VARIABLE, LEAVE, NEXT, REFUSED
from ..errors import BusError, DataError
from ..pod.process import EXIT_OK, EXIT_PLATFORM, Pod, Usage, run_pod
from ..worker.leases import Leases
from ..worker.step_timer import StepTimer
from .batches import AGAIN_S, Batches
from .consistent import Consistent
from .kept import KeptCheckpoints
from .output import PrintedSteps, follow

HEARTBEAT_S = 1.0
LEAVE_S = 10.0
"""Longest time until a program that is to leave, and asks for no batch meanwhile, gets SIGTERM."""
LEAVE_SHARE = 2 / 3
"""The share of the pod's time to leave after which the program gets SIGTERM at the latest; the rest is for its end."""
ASKING_S = 2.0
"""Seconds for which a connection of the program waits until the one before it is over."""
STORE_VARIABLE = "STRETTO_PROGRAM_STORE"
"""Variable of a pod with the address of its job's folder in the store, for checkpoints of a program."""
POLL_S = 0.1
PRINTED_S = 2.0
"""Seconds for the last lines of a program that has ended; what it left behind may keep its output open for ever."""
SIGNALLED = 128
"""A shell's exit code of a process that a signal ended is this plus its number."""
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


log = logging.getLogger("stretto.worker")


class ProgramHost:
    """Runs the program of one worker."""

    def __init__(self, pod: Pod, program: ProgramSpec) -> None:
        self._pod = pod
        self._program = program
        self._meter = StepTimer()
        self._leases = Leases(pod.bus, pod.leaving)
        batch_size = pod.settings.spec.dataset.batch_size
        is_consistent = program.consistent
        self._batches = Batches(self._leases, self._meter, batch_size, pod.leaving, consistent=is_consistent)
        self._consistent: Consistent | None = None
        self._plan_version = pod.settings.plan_version
        self._cpu_cores = pod.settings.cpu_cores
        self._asking = threading.Lock()
        """Held while a process of the program takes the samples."""
        self._links: set[socket.socket] = set()
        self._printing: threading.Thread | None = None
        """Passes on what the program prints, where its job file says how a line tells its steps."""
        pod.usage = Usage(with_children=True)

    def run(self) -> int:
        """Run the program to its end and return the pod's exit code. Raises DataError: the program failed."""
        bus = self._pod.bus
        bus.serve(TrainUnder, self._train_under)
        self._pod.ready()
        self._pod.report_by(self._report)
        self._pod.every(lambda: HEARTBEAT_S, self._leases.beat)
        if self._program.level == 0:
            return self._watch()
        if self._program.consistent:
            self._consistent = self._begun_consistently()
        address = self._listen()
        code = self._wait(self._start({ADDRESS_VARIABLE: address}))
        self._hang_up()
        with self._asking:  # what the program asked for last is answered, and its connection over
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
        code = self._wait(self._start({}))
        if code == 0 and not self._pod.leaving.is_set():
            report_run(self._leases)
            return EXIT_OK
        self._leases.release(0)
        return self._failed(code)

    # --- level 1: the program asks for batches ----------------------------------------------------------------

    def _begun_consistently(self) -> Consistent:
        """Return the ledger to the last checkpoint of the program. Raises DataError."""
        pod = self._pod
        kept = KeptCheckpoints(os.environ.get(STORE_VARIABLE, ""), pod.settings.job, pod.settings.pod)
        made = Consistent(pod.bus, self._leases, self._batches, kept, pod.leaving)
        made.begin()
        return made

    def _answered(self, request: str) -> str:
        """Return the answer to a line of the program."""
        if request != NEXT and self._consistent is None:
            return f"{REFUSED} {request}: checkpoints are of level 2; state program.level: 2"
        if request != NEXT and self._consistent is not None:
            try:
                return self._consistent.answer(request)
            except BusError:  # this worker is to leave, and nobody has answered it
                return LEAVE
        refusal = self._consistent.refusal if self._consistent is not None else ""
        return f"{REFUSED} {refusal}" if refusal else self._batches.next()

    def _listen(self) -> str:
        """Listen for the program's processes; return the path of the socket."""
        folder = self._pod.settings.pod_folder or Path.cwd()
        path = folder / "agent.sock"
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        directory = os.open(folder, os.O_PATH | os.O_DIRECTORY)  # the path may be too long for an address
        listener.bind(f"/proc/self/fd/{directory}/{path.name}")
        os.close(directory)
        listener.listen()
        threading.Thread(target=self._accept, args=(listener,), name="agent", daemon=True).start()
        return str(path)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            link, _ = listener.accept()
            threading.Thread(target=self._serve, args=(link,), name="program", daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        """Answer one process of the program until it closes its connection."""
        self._links.add(link)
        try:
            self._answer(link)
        except OSError:  # the program was killed before it got its answer
            pass
        finally:
            self._links.discard(link)

    def _answer(self, link: socket.socket) -> None:
        with link, link.makefile("r", encoding="ascii") as asked:
            request = asked.readline().strip()  # before any answer, which an unread request would lose
            if not request:
                return
            if not self._asking.acquire(timeout=ASKING_S):
                refused = "another process of this pod takes its samples: let one of them ask, and hand them on"
                link.sendall(f"{REFUSED} {refused}\n".encode())
                return
            try:
                while request and not self._batches.over:
                    link.sendall(f"{self._answered(request)}\n".encode())
                    request = asked.readline().strip()
            finally:
                self._batches.forget()
                self._asking.release()

    def _hang_up(self) -> None:
        """End all connections: a process that the program left behind may hold its own for ever."""
        self._batches.over = True
        for link in list(self._links):
            with contextlib.suppress(OSError):  # it is over already
                link.shutdown(socket.SHUT_RDWR)

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
            early = "the program ended with status 0 before its samples did"
            self._batches.give_back(early)
            raise DataError(f"{early}: read stretto.agent.samples() to its end")
        if code > 0 and not leaves:
            self._batches.give_back(f"the program ended with status {code}")
        else:
            self._leases.beat()  # the last word on how far it was; a killed program never counts against its shard
        return self._failed(code)

    # --- the program ------------------------------------------------------------------------------------------

    def _start(self, more: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start the program. Raises DataError: its command or folder is not there."""
        settings, command = self._pod.settings, self._program.command
        folder = self._program.path or str(settings.pod_folder or Path.cwd())
        environment = {**os.environ, **more}
        environment["PATH"] = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))
        environment.setdefault("OMP_NUM_THREADS", str(settings.threads))
        if not settings.spec.resources.workers.extended:  # it would take what other pods were given
            environment["CUDA_VISIBLE_DEVICES"] = ""
        found = command[0] if "/" in command[0] else shutil.which(command[0], path=environment["PATH"])
        if found is None:
            raise DataError(f"program.command[0] = {command[0]}: there is no such command where the pods run")
        pattern = self._program.progress
        if pattern is not None:
            environment.setdefault("PYTHONUNBUFFERED", "1")  # a line is told when it is printed
        try:
            program = subprocess.Popen(
                [found, *command[1:]],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                preexec_fn=_die_together,
                stdout=subprocess.PIPE if pattern is not None else None,
                stderr=subprocess.STDOUT if pattern is not None else None,
            )
        except OSError as error:
            raise DataError(
                f"program.command = {' '.join(command)} cannot be run in program.path = {folder}: {error.strerror}; "
                "name a folder and a command that are there where the pods run"
            ) from error
        if pattern is not None and program.stdout is not None:
            self._printing = follow(program.stdout, PrintedSteps(pattern, self._meter))
        return program

    def _wait(self, program: subprocess.Popen[bytes]) -> int:
        """Wait until the program has ended; return its status, or minus the signal that ended it."""
        patience_s = patience_of(self._pod.settings.stop_grace_s) if self._program.level else 0.0
        asked_at_s: float | None = None
        is_ended = False
        while (code := program.poll()) is None:
            time.sleep(POLL_S)
            if not self._pod.leaving.is_set():
                if not self._program.level:
                    keep_run(self._leases)
                continue
            if asked_at_s is None:
                asked_at_s = time.monotonic()
                log.info("asked to leave: the program ends when it asks for its next batch, or in %g s", patience_s)
            if not is_ended and time.monotonic() - asked_at_s >= patience_s:
                program.terminate()
                is_ended = True
        if self._printing is not None:
            self._printing.join(PRINTED_S)
        return code

    def _failed(self, code: int) -> int:
        """Return the pod's exit code after a program that a signal ended. Raises DataError: it failed by itself."""
        if self._pod.leaving.is_set():
            return EXIT_OK
        if code < 0:
            return SIGNALLED - code
        raise DataError(f"the program ended with status {code}; `stretto logs JOB/POD` has its last words")

    # --- reports and requests ---------------------------------------------------------------------------------

    def _report(self) -> None:
        used, window, settings = self._pod.usage.measure(), self._meter.window(), self._pod.settings
        report = WorkerReported(
            job=settings.job,
            pod=settings.pod,
            plan_version=self._plan_version,
            ended_at_s=time.time(),
            window_s=used.window_s,
            steps=window.steps,
            steps_total=window.steps_total,
            samples_total=window.samples_total,
            step_time_s=window.step_s,
            longest_gap_s=window.longest_gap_s,
            times=StepTimes(emb_s=0.0, grad_s=0.0, upd_s=0.0, sync_s=0.0),  # one step is one time
            cpu_used_cores=used.cpu_cores,
            cpu_limit_cores=self._cpu_cores,
            memory_used_bytes=used.memory_bytes,
            memory_limit_bytes=settings.memory_bytes,
        )
        self._pod.bus.report(report)

    def _train_under(self, request: TrainUnder) -> TrainUnderReply:
        self._plan_version = request.plan_version
        self._cpu_cores = request.cpu_cores
        return TrainUnderReply(job=request.job)


def patience_of(grace_s: float) -> float:
    """Return the seconds until a program that is to leave gets SIGTERM; after ``grace_s`` the pod gets SIGKILL."""
    return min(LEAVE_S, grace_s * LEAVE_SHARE)


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


def _die_together() -> None:
    """Let the kernel end the program with the process that runs it, which alone reports for it."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run(pod: Pod) -> int:
    """Run the program of the pod's job. Raises DataError."""
    program = pod.settings.spec.program
    assert program is not None  # the actuator starts this process for jobs with one
    return ProgramHost(pod, program).run()


def main() -> None:
    """Run the pod until its program has ended."""
    run_pod("worker", run)
