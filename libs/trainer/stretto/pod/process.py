"""The common part of pods: settings, the connection to the bus, measured use of the machine, and an orderly end."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import psutil
import structlog
from stretto_messages.pods import PodPing, PodPingReply
from stretto_messages.profiler import GetReportInterval, GetReportIntervalReply
from stretto_plane import Key, PlaneError
from stretto_wire.errors import WireError
from stretto_wire.jobspec.spec import JobSpec

from ..engine.link import Access
from ..errors import CallRefused, DataError, ModelRefused, PodError
from .bus import PodBus
from .code import bring
from .credentials import identity_of
from .signals import leave_on_signals
from .tracing import PodTracing

EXIT_OK = 0
EXIT_PLATFORM = 1
EXIT_USER = 3

LOOPBACK = "127.0.0.1"
SOCKET_PATH_MAX = 280
"""Characters of a path that an address in a message may have."""
REPORT_INTERVAL_S = 1.0
"""Seconds between two reports until the profiler has said how many there are to be."""
PACE_ASKED_AFTER_S = 10.0
PACE_ASKED_EVERY_S = 300.0

_TICKS_PER_S, _PAGE_BYTES = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
_KNOWS_CHILDREN = Path("/proc/thread-self/children").exists()
"""The kernel lists children: it was built with CONFIG_PROC_CHILDREN."""

log = logging.getLogger("stretto.pod")


@dataclass(frozen=True, slots=True)
class PodSettings:
    """A pod's settings, from the variables STRETTO_… that the actuator sets."""

    job: str
    pod: str
    nats_url: str
    nats_credentials: Path | None
    nats_ca: Path | None
    spec: JobSpec
    plan_version: int
    cpu_cores: float
    memory_bytes: int
    state_folder: Path | None
    pod_folder: Path | None
    traceparent: str
    host: str = LOOPBACK
    """The host name or address at which other pods reach this one."""
    plane_key: Path | None = None
    """The file of the job's key: who has it reaches its parameter servers."""
    plane_encrypted: bool = False
    """True where connections between pods cross a network that others may read."""
    device: str = ""
    """A worker's type of devices; empty: the cluster's own cores."""
    stage: int = 0
    """A worker's stage; from 1 on it computes steps for others, and leases no shard."""
    first_layer: int = 0
    """The first layer of a worker's stage."""
    stop_grace_s: float = 15.0
    """Time between SIGTERM to the pod and SIGKILL."""

    @property
    def index(self) -> int:
        """The n of ``worker-<n>``, ``ps-<n>`` or ``data-<n>``."""
        return int(self.pod.rpartition("-")[2])

    @property
    def plane_address(self) -> str:
        """The address at which the pod listens on the plane."""
        return self._address("plane")

    def lane_address(self, number: int) -> str:
        """Return the address at which a lane of a data worker listens."""
        return self._address(f"lane-{number}")

    def _address(self, name: str) -> str:
        """Return an address for a listener: a socket in the pod's folder where pods share a machine."""
        path = f"{self.pod_folder}/{name}.sock"
        if self.host == LOOPBACK and self.pod_folder is not None and len(path) <= SOCKET_PATH_MAX:
            return f"unix:{path}"
        return f"{self.host}:0"

    @property
    def threads(self) -> int:
        """The number of threads for these cores; a framework fixes it when it first computes."""
        return max(1, round(self.cpu_cores + 0.49))


def settings_of(environment: Mapping[str, str], role: str) -> PodSettings:
    """Parse the environment. Raises PodError, which names variable, value and remedy."""

    def need(name: str) -> str:
        value = environment.get(f"STRETTO_{name}", "")
        if not value:
            raise PodError(f"STRETTO_{name} is not set; pods are started by the actuator, which sets it")
        return value

    def file(name: str) -> Path | None:
        return Path(value) if (value := environment.get(f"STRETTO_{name}")) else None

    def number(name: str, default: str) -> float:
        text = environment.get(f"STRETTO_{name}") or default
        try:
            return float(text)
        except ValueError as error:
            raise PodError(f"STRETTO_{name} = {text!r}: give a number") from error

    pod = need("POD")
    if not pod.startswith(f"{role}-") or not pod.rpartition("-")[2].isdigit():
        raise PodError(f"STRETTO_POD = {pod!r}: give {role}-<number>")
    path = need("JOB_SPEC")
    try:
        spec = JobSpec.model_validate_json(Path(path).read_bytes())
    except OSError as error:
        raise PodError(f"STRETTO_JOB_SPEC = {path!r} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise PodError(f"STRETTO_JOB_SPEC = {path!r}: {error}") from error
    encryption = environment.get("STRETTO_PLANE_ENCRYPTED") or "off"
    if encryption not in ("required", "off"):
        raise PodError(f"STRETTO_PLANE_ENCRYPTED = {encryption!r}: give required or off")
    state = environment.get("STRETTO_STATE_FOLDER", "")
    own = environment.get("STRETTO_POD_FOLDER", "")
    return PodSettings(
        job=need("JOB"),
        pod=pod,
        nats_url=need("NATS_URL"),
        nats_credentials=file("NATS_CREDENTIALS"),
        nats_ca=file("NATS_CA"),
        spec=spec,
        plan_version=int(number("PLAN_VERSION", "0")),
        cpu_cores=number("CPU_CORES", str(os.cpu_count() or 1)),
        memory_bytes=int(number("MEMORY_BYTES", str(psutil.virtual_memory().total))),
        state_folder=Path(state) if state else None,
        pod_folder=Path(own) if own else None,
        traceparent=environment.get("TRACEPARENT", ""),
        host=environment.get("STRETTO_POD_HOST") or LOOPBACK,
        plane_key=file("PLANE_KEY"),
        device=environment.get("STRETTO_DEVICE", ""),
        stage=int(number("STAGE", "0")),
        first_layer=int(number("FIRST_LAYER", "0")),
        stop_grace_s=number("STOP_GRACE_S", "15"),
        plane_encrypted=encryption == "required",
    )


def access_of(settings: PodSettings) -> Access:
    """Read the job's key, by which its pods know each other. Raises PodError."""
    if settings.plane_key is None:
        raise PodError("STRETTO_PLANE_KEY is not set; the actuator lays the job's key into each pod's files")
    try:
        return Access(Key.load(settings.plane_key), settings.plane_encrypted)
    except (OSError, ValueError, PlaneError) as error:
        raise PodError(f"STRETTO_PLANE_KEY = {str(settings.plane_key)!r} cannot be used: {error}") from None


def take_secrets(environment: MutableMapping[str, str]) -> None:
    """Add the variables of the job's secrets, which the actuator has laid into a file of this pod.

    A variable that is set already stays, as on Kubernetes. Raises PodError.
    """
    path = environment.pop("STRETTO_SECRETS", "")
    if not path:
        return
    try:
        variables = json.loads(Path(path).read_bytes())
    except (OSError, ValueError):  # the reason may show a value
        raise PodError(f"STRETTO_SECRETS = {path!r} cannot be read; the actuator writes it") from None
    for name, value in variables.items():
        environment.setdefault(name, value)


@dataclass(frozen=True, slots=True)
class Used:
    """The use of the machine since the last measurement: mean cores, and resident bytes now, without shared memory."""

    window_s: float
    cpu_cores: float
    memory_bytes: int


def resident_bytes() -> int:
    """Return the resident bytes of this process without shared memory.

    An image of a checkpoint is mapped while it is written, and the checkpoints service is charged for it.
    """
    kinds = ("RssAnon:", "RssFile:")
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(kinds))


def give_back_freed_memory() -> None:
    """Give the system back what this process has freed: glibc keeps some megabytes of it for each thread."""
    with contextlib.suppress(AttributeError, OSError):  # another C library has no such call
        ctypes.CDLL(None).malloc_trim(0)


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started, as the kernel knows them by thread: whoever searches all
    processes of the machine for their parents takes milliseconds."""
    found: list[int] = []
    with contextlib.suppress(OSError, psutil.NoSuchProcess):  # it has ended
        if not _KNOWS_CHILDREN:
            return [child.pid for child in psutil.Process(pid).children()]
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):  # this thread has
                found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_bytes().split())
    return found


class Usage:
    """Measures the CPU and memory that this process uses.

    ``with_children``: and all processes that it started. ``runs_program``: and those of the program that it runs.
    """

    def __init__(self, *, with_children: bool = False, runs_program: bool = False) -> None:
        self._with_children, self._runs_program = with_children or runs_program, runs_program
        self._at_s = time.monotonic()
        self._cpu_s = self._spent_s(self._tree())

    def _tree(self) -> list[int]:
        """Return the processes that are measured."""
        tree = [os.getpid()]
        for pid in tree if self._with_children else ():
            tree += children_of(pid)
        return tree

    def _spent_s(self, tree: list[int]) -> float:
        """Return the processor time so far, without children that have ended."""
        ticks = 0
        for pid in tree:
            with contextlib.suppress(OSError):  # it has ended
                fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
                ticks += int(fields[11]) + int(fields[12])  # utime and stime, behind the name that may have spaces
        return ticks / _TICKS_PER_S

    def _memory_bytes(self, tree: list[int]) -> int:
        if not self._with_children:
            return resident_bytes()
        held = 0
        if self._runs_program and len(tree) <= 2:  # no forks: what both share is code, and a look at all pages dear
            for pid in tree:
                with contextlib.suppress(OSError):
                    held += int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE_BYTES
            return held
        for pid in tree:  # forks share most of their pages: each counts its part of them
            with contextlib.suppress(OSError):
                lines = Path(f"/proc/{pid}/smaps_rollup").read_bytes().splitlines()
                held += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(b"Pss:"))
        return held

    def measure(self) -> Used:
        now, tree = time.monotonic(), self._tree()
        spent = self._spent_s(tree)
        window = max(1e-6, now - self._at_s)
        used = Used(window, max(0.0, spent - self._cpu_s) / window, self._memory_bytes(tree))
        self._at_s = now
        self._cpu_s = spent
        return used


class Pod:
    """The process of a pod: it answers pings from its first second, and ``leaving`` is set when it is to end."""

    def __init__(self, settings: PodSettings) -> None:
        self.settings = settings
        self.leaving = threading.Event()
        self.usage = Usage()
        self.tracing = PodTracing(settings.job, settings.pod, settings.state_folder, settings.traceparent)
        identity = identity_of(settings.nats_credentials, settings.nats_ca)
        self.bus = PodBus(settings.nats_url, settings.job, settings.pod, self.tracing, identity)
        self.access = access_of(settings)
        self._report_interval_s = REPORT_INTERVAL_S
        self._ready = False
        self._address = ""
        self._detail = "starting"

    def join(self) -> None:
        """Connect and answer pings. Raises BusError."""
        self.bus.connect()
        self.bus.serve(PodPing, self._ping)
        log.info("%s of job %s joined", self.settings.pod, self.settings.job)

    def _ping(self, _: PodPing) -> PodPingReply:
        return PodPingReply(job=self.settings.job, ready=self._ready, address=self._address, detail=self._detail[:2000])

    def ready(self, address: str = "") -> None:
        """Answer pings as ready from now on."""
        self.usage.measure()  # keep the start out of the first window
        self._address = address
        self._detail = ""
        self._ready = True

    def detail(self, text: str) -> None:
        """Set the text that pings return until the pod is ready."""
        self._detail = text

    def report_by(self, report: Callable[[], None]) -> None:
        """Run ``report`` at the interval that the profiler asks for; it grows with the number of all pods."""
        waits = itertools.chain((PACE_ASKED_AFTER_S,), itertools.repeat(PACE_ASKED_EVERY_S))
        self.every(lambda: next(waits), self._ask_pace)
        self.every(lambda: self._report_interval_s, report)

    def _ask_pace(self) -> None:
        request = GetReportInterval(job=self.settings.job, pod=self.settings.pod)
        self._report_interval_s = self.bus.call(request, GetReportIntervalReply, 10.0).interval_s

    def every(self, interval_s: Callable[[], float], work: Callable[[], object]) -> None:
        """Run ``work`` at this interval in a thread until the pod leaves; the same failure is logged only once."""

        def loop() -> None:
            last = ""
            while not self.leaving.wait(interval_s()):
                try:
                    work()
                    last = ""
                except Exception as error:
                    text = f"{type(error).__name__}: {error}"
                    if text != last:
                        log.warning("%s: %s", work.__name__, text)
                    last = text

        threading.Thread(target=loop, name=work.__name__, daemon=True).start()


def run_pod(role: str, work: Callable[[Pod], int]) -> NoReturn:
    """Start a pod, run ``work``, and end the process with its exit code.

    The process ends by ``os._exit``: no thread of the job's code, or of a library, may delay it.
    """
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
    code = EXIT_PLATFORM
    reason = ""
    pod: Pod | None = None
    try:
        take_secrets(os.environ)
        settings = settings_of(os.environ, role)
        _configure_logs(settings)
        pod = Pod(settings)
        leave_on_signals(pod.leaving)
        pod.join()
        bring(settings.spec, settings.pod_folder or Path.cwd(), role != "ps", pod.detail)
        code = work(pod)
    except (ModelRefused, DataError) as error:
        code = EXIT_USER
        reason = str(error)
        log.error("%s", error, exc_info=error.__cause__ is not None)
        if pod is not None:
            pod.detail(str(error))
    except (PodError, CallRefused, WireError) as error:
        reason = str(error)
        log.error("%s", error)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        log.exception("the pod failed")
    if pod is not None:
        pod.leaving.set()
        pod.bus.close()
        with contextlib.suppress(Exception):
            pod.tracing.close()
    # the actuator reports the last line as the reason of the pod's end
    log.info("exit %d%s", code, f": {' '.join(reason.split())[:1000]}" if reason else "")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _configure_logs(settings: PodSettings) -> None:
    trace = settings.traceparent.split("-")[1] if settings.traceparent.count("-") == 3 else "-"
    form = f"%(asctime)s %(levelname)s {settings.job} {settings.pod} trace={trace} %(message)s"
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format=form, force=True)
    logging.getLogger("nats").setLevel(logging.WARNING)
    structlog.configure(  # stretto_bus logs through it
        processors=[structlog.stdlib.add_log_level, structlog.processors.KeyValueRenderer(key_order=["event"])],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
