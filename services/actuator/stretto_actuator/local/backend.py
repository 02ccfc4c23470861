"""Pods as processes of this machine.

Each pod is a session of its own: a tiny shell that outlives the actuator and writes down the exit code, and the pod
itself. Its record stands in its folder (``records.py``), where a restarted actuator finds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import math
import os
import subprocess
import threading
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
from stretto_runtime.process.pid import ProcessIdentity
from stretto_runtime.settings import DAY_S, EVICTED
from stretto_wire import EVENTS_KEPT_S
from stretto_wire.surroundings import wall_s

from ..backend import HEADROOM, BackendError, Following, Places, PodSpec, PodStatus, exit_reason
from ..pod import job_volumes
from ..pod.devices import NO_DEVICES, Devices, Given, devices_of, paths
from ..settings import ActuatorSettings
from .boxes import Boxes, boxes_of, launch_of
from .control_groups import Cgroups, Group
from .ends import Ends
from .exhaustion import Guard
from .processes import PodProcesses, integer
from .records import PRIVATE, Record, Records, clear_spans
from .room import Disk, SharedMemory

LOG_BYTES = 1500
ASK_AGAIN_S = 2.0
LINE_BYTES_MAX = 2000
LOG_READ_BYTES_MAX = 1 << 20
DYING_TRIES = 50
DYING_WAIT_S = 0.02
CLEAR_EVERY_S = 3600.0

# Enter the control groups, start the pod, write down its pid and in the end its exit code. SIGTERM to the shell must
# not end it before the pod; the trap also keeps the signal at its default for the pod itself. Its own name is the
# folder in which the pod starts. Where memory is short, the kernel ends a pod before any service. A rename is tried
# again: a signal to the whole session may meet it.
SHELL = """
rename() { mv "$1" "$2" || mv "$1" "$2"; }
tell() { echo $1 > exit.tmp && rename exit.tmp exit; }
while [ "$1" != -- ]; do
  echo $$ > "$1" || { echo "not started: the pod cannot enter its control group $1"; tell 125; exit 125; }
  shift
done; shift
trap : TERM
(cd "$0" || exit; { echo 800 > /proc/self/oom_score_adj; } 2>/dev/null; exec "$@") &
child=$!
echo $child > pid.tmp && rename pid.tmp pid
wait $child; code=$?
while kill -0 $child 2>/dev/null; do wait $child; code=$?; done
tell $code
"""


def uptime_s() -> float:
    """Return the seconds since the boot: nobody steps this clock, and a restarted actuator reads it on."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def backend_of(settings: ActuatorSettings) -> LocalBackend:
    """Return the backend that the settings describe."""
    return LocalBackend(
        settings.state_folder,
        cgroups=settings.cgroups,
        boxes=boxes_of(settings),
        devices=devices_of(settings),
        pods_kept_s=settings.kept_pods_days * DAY_S,
        spans_kept_s=settings.kept_spans_days * DAY_S,
    )


class LocalBackend:
    """Pods as processes of this machine; see the module.

    ``folder`` is the installation's state folder; ``cgroups`` false: only weaker limits; ``boxes`` None: pods are not
    confined. ``devices``: those of this machine that pods get. ``clock``: the time of day; ``uptime_s``: the time since
    the boot. ``pods_kept_s``, ``spans_kept_s``: age at which the folders of ended pods and of spans go.
    """

    def __init__(
        self,
        folder: Path,
        clock: Callable[[], float] = wall_s,
        cgroups: bool = True,
        boxes: Boxes | None = None,
        devices: Devices = NO_DEVICES,
        uptime_s: Callable[[], float] = uptime_s,
        pods_kept_s: float = EVENTS_KEPT_S,
        spans_kept_s: float = EVENTS_KEPT_S,
    ) -> None:
        self._state = folder.resolve()
        self._records = Records(self._state / "pods")
        self._processes = PodProcesses(self._records)
        self._clock = clock
        self._uptime_s = uptime_s
        self._kept_s = pods_kept_s, spans_kept_s
        self._boxes = boxes
        self._devices = devices
        self._cgroups = Cgroups.of_installation(self._records.folder) if cgroups else Cgroups([])
        self._asked_at_s: dict[tuple[str, str], float] = {}
        self._children: dict[tuple[str, str], subprocess.Popen[bytes]] = {}
        self._following = Following()
        self._ends = Ends(self._following)
        self._cleared_at_s = -math.inf
        self._clearing: threading.Thread | None = None
        stores = boxes.stores if boxes is not None else (self._state / "checkpoints",)
        self._disk = Disk(self._state, stores, self._records, self._processes)
        memory = SharedMemory(boxes.memory if boxes is not None else None, self._state, self._records, self._processes)
        self._guard = Guard(self._records, self._processes, self._disk, memory)

    # the protocol ----------------------------------------------------------------------------------------------

    async def open(self) -> None:
        self._guard.start()

    async def close(self) -> None:
        await self._guard.stop()
        self._ends.close()

    def places(self, job: str, pod: str) -> Places:
        files, scratch = self._records.files(job, pod), self._records.scratch(job, pod)
        return Places(files=str(files), scratch=str(scratch), state=str(self._state))

    def follow(self, job: str, changed: Callable[[], None]) -> Callable[[], None]:
        return self._following.add(job, changed)

    async def list(self, job: str | None = None) -> Sequence[PodStatus]:
        for child in self._children.values():
            child.poll()  # our own children must not stay zombies
        result: list[PodStatus] = []
        for record in self._records.all(job):
            status = self._status(record)
            if status.state == "running":
                self._ends.watch(record)
                if "memory-watch" in record.limits:
                    self._watch_memory(record)
            result.append(status)
        return result

    async def launch(self, spec: PodSpec) -> None:
        await self._clear()
        if self._records.known(spec.job, spec.pod):
            return
        folder = self._records.of(spec.job, spec.pod)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                self._adopt_unrecorded(spec, folder)
                return
            # not earlier: one that runs already has its devices
            with self._records.choosing_devices() if spec.extended else contextlib.nullcontext():
                held = self._records.held_devices(spec.job, spec.pod) if spec.extended else ()
                given = self._devices.free_of(spec.extended, held)
                environment = spec.environment | self._devices.environment(given)
                self._start(replace(spec, environment=environment), given, folder, lock.fileno())

    async def stop(self, job: str, pod: str, grace_s: float) -> None:
        record = self._records.read(job, pod)
        if record is None or self._status(record).state != "running":
            return
        now = self._uptime_s()
        if record.stop_at_s is None:
            self._records.write(replace(record, stop_at_s=now))
        elif now - record.stop_at_s > grace_s:
            self._processes.kill(record)
            return
        # again and again: a process with many native threads has been seen to miss one
        if now - self._asked_at_s.get((job, pod), -ASK_AGAIN_S) >= ASK_AGAIN_S:
            self._asked_at_s[job, pod] = now
            self._processes.end(record)

    async def kill(self, job: str, pod: str) -> None:
        record = self._records.read(job, pod)
        if record is not None and self._status(record).state == "running":
            self._processes.kill(record)

    async def resize(self, job: str, pod: str, cpu_cores: float, memory_bytes: int) -> tuple[float, int]:
        record = self._records.read(job, pod)
        if record is None:
            raise BackendError(f"{job}/{pod} is not here; it cannot be resized")
        try:
            memory_bytes = record.group.set(cpu_cores, memory_bytes)
        except OSError as error:
            raise BackendError(f"{job}/{pod} cannot get {cpu_cores} cores and {memory_bytes} bytes: {error}") from error
        limits = _limits(record.group, cpu_cores)
        if "memory-watch" in limits:
            used = self._processes.held_bytes(record, memory_bytes)
            memory_bytes = max(memory_bytes, int(used * HEADROOM))
        if "cpu-affinity" in (*limits, *record.limits):
            self._processes.pin(record, cpu_cores)
        self._records.write(replace(record, cpu_cores=cpu_cores, memory_bytes=memory_bytes, limits=limits))
        return cpu_cores, memory_bytes

    async def logs(self, job: str, pod: str, lines: int) -> str:
        text = _tail(self._records.of(job, pod) / "log", min(lines * LINE_BYTES_MAX, LOG_READ_BYTES_MAX))
        return "\n".join(text.splitlines()[-lines:])

    async def forget(self, job: str, pod: str) -> None:
        record = self._records.read(job, pod)
        if record is None or self._status(record).state == "running":
            return
        self._processes.kill_members(record)  # what it left behind in its session
        for _ in range(DYING_TRIES):
            if record.group.remove():
                break
            await asyncio.sleep(DYING_WAIT_S)
        # nobody waits for the removal of what the pod has left, which may be millions of files
        await asyncio.to_thread(self._records.put_away, job, pod, self._clock())
        self._asked_at_s.pop((job, pod), None)
        self._guard.ended.pop((job, pod), None)
        if (child := self._children.pop((job, pod), None)) is not None:
            child.poll()

    # starting --------------------------------------------------------------------------------------------------

    async def _clear(self) -> None:
        """Remove what pods of long ago have left; of jobs that go on, names must stay used."""
        now = self._clock()
        if now - self._cleared_at_s >= CLEAR_EVERY_S:
            self._cleared_at_s = now
            await asyncio.to_thread(self._records.clear, now - self._kept_s[0], self._following)
            self._clearing = _clear_spans(self._clearing, self._state, now - self._kept_s[1], self._following)

    def _start(self, spec: PodSpec, given: Given, folder: Path, lock: int) -> None:
        group = self._cgroups.group(f"{spec.job}.{spec.pod}")
        try:
            group.make()
            group.set(spec.cpu_cores, spec.memory_bytes)
            self._records.lay(spec.job, spec.pod, spec.files)
            scratch = self._records.scratch(spec.job, spec.pod)
            self._records.lay_devices(spec.job, spec.pod, given)
            command, environment = launch_of(self._boxes, spec, paths(given), folder, scratch)
            job_volumes.link(spec.volumes, scratch)
            with os.fdopen(os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE), "ab") as log:
                child = subprocess.Popen(
                    ["/bin/sh", "-c", SHELL, str(scratch), *group.entries, "--", *command],
                    cwd=folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=(lock,),
                )
        except (OSError, ValueError) as error:  # the latter of a variable or path that nobody can have
            raise BackendError(f"{spec.job}/{spec.pod} cannot be started as {spec.command[0]}: {error}") from error
        self._children[spec.job, spec.pod] = child
        self._record_start(spec, group, child.pid)

    def _record_start(self, spec: PodSpec, group: Group, shell: int) -> None:
        birth = ProcessIdentity.of(shell)
        if birth is None:
            raise BackendError(f"{spec.job}/{spec.pod} has ended before it could be written down")
        limits = _limits(group, spec.cpu_cores)
        record = Record(
            job=spec.job,
            pod=spec.pod,
            pid=shell,
            birth=birth,
            launched_at_s=self._clock(),
            cpu_cores=spec.cpu_cores,
            memory_bytes=spec.memory_bytes,
            group=group,
            limits=limits,
            room=self._disk.free(),
        )
        self._records.write(record)
        if "cpu-affinity" in limits:
            self._processes.pin(record, spec.cpu_cores)

    def _adopt_unrecorded(self, spec: PodSpec, folder: Path) -> None:
        """The actuator died between starting this pod and writing it down: its environment names it."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                environment = process.environ()
                same = environment.get("STRETTO_POD_FOLDER") == spec.environment.get("STRETTO_POD_FOLDER")
                if same and environment.get("STRETTO_POD") == spec.pod and os.getsid(process.pid) == process.pid:
                    self._record_start(spec, self._cgroups.group(f"{spec.job}.{spec.pod}"), process.pid)
                    return
        raise BackendError(f"{folder}/lock is held by a process that is not the pod; end it, or remove the folder")

    # what is there ---------------------------------------------------------------------------------------------

    def _status(self, record: Record) -> PodStatus:
        folder = self._records.of(record.job, record.pod)
        base = PodStatus(
            job=record.job,
            pod=record.pod,
            state="running",
            cpu_cores=record.cpu_cores,
            memory_bytes=record.memory_bytes,
            limits=record.limits,
            launched_at_s=record.launched_at_s,
            adopted=(record.job, record.pod) not in self._children,
        )
        code = integer(folder / "exit")
        if code is None:
            alive = [
                process.pid
                for process in (self._processes.shell(record), self._processes.child(record))
                if process is not None
            ]
            if alive:
                return replace(base, pids=tuple(alive))
            code = integer(folder / "exit")  # it may have ended while we looked
        oom = record.oom_killed or (code == 137 and record.group.oom_kills() > 0)
        log = _tail(folder / "log", LOG_BYTES) if code not in (0, None) else ""
        reason = "evicted" if (folder / EVICTED).exists() and not oom else exit_reason(code, oom)
        used_up = record.used_up or self._guard.ended.get((record.job, record.pod), "")
        return replace(base, state="exited", exit_code=code, reason=reason, log=log, used_up=used_up)

    # weaker limits ---------------------------------------------------------------------------------------------

    def _watch_memory(self, record: Record) -> None:
        if not record.oom_killed and self._processes.held_bytes(record, record.memory_bytes) > record.memory_bytes:
            record = replace(record, oom_killed=True)
            self._records.write(record)
        if record.oom_killed:  # also one whose kill did not come to its end with an actuator before this one
            self._processes.kill(record)


def _clear_spans(
    earlier: threading.Thread | None, state: Path, before_s: float, but: Container[str]
) -> threading.Thread:
    """Remove spans of long ago in a thread for which no end of this process waits: there may be millions of them."""
    if earlier is not None and earlier.is_alive():
        return earlier
    given = (state / "spans", before_s, but)
    thread = threading.Thread(target=clear_spans, args=given, name="remove spans", daemon=True)
    thread.start()
    return thread


def _limits(group: Group, cpu_cores: float) -> tuple[str, ...]:
    """Return the means that limit a pod in this group."""
    names = list(group.names)
    if "cpu" not in group.folders and math.ceil(cpu_cores) < len(os.sched_getaffinity(0)):
        names.append("cpu-affinity")
    if "memory" not in group.folders:
        names.append("memory-watch")
    return tuple(names)


def _tail(log: Path, limit_bytes: int) -> str:
    """The last lines of a log, for people who read why a pod failed. A pod may lengthen it as fast as it is read."""
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - limit_bytes, 0))
            return file.read(limit_bytes).decode(errors="replace").strip()
    except OSError:
        return ""
