"""Seconds from telemetry to the plan that it causes: profiler, fitter, planner, arbiter, oom; 200 to 10,000 live jobs.

A live job has 2 workers and 1 parameter server, and a ledger that publishes its progress; only the training is left out
(``fleet``). Pods and ledgers tell as often as real ones in such a crowd, whose pods ask the profiler for the interval:
200 jobs every 1.2 s, 1,000 every six. A decision is applied a second later, as by an actuator. The figure is the
time between two stamps of the server: of the report that closed a window, and of the decision that followed
(``plan-decided`` or ``plan-refused``). The ids of the messages between them link the two. Waits by design lie before
the report (the window of 5 s or 1.5 reports, three settled windows before a measurement is proposed). Only decisions
after a proposal of the planner count: a choice in the arbiter's rounds waits up to 2 s by design.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil
import uvloop
from stretto_bus import Client
from stretto_bus.reading.ordered_consumer import scan
from stretto_core.dispatcher.state import LedgerSettings
from stretto_core.profiler.pace import report_interval_s
from stretto_installation.server import EmbeddedServer
from stretto_messages.arbiter import PlanDecided
from stretto_profiler.settings import ProfilerSettings
from stretto_wire.contract.registry import PARTITIONS, STREAM

from tests.bench.control.fleet import Job, Pod, Replica, cpu_s, fleet, sent, store
from tests.bench.log.bus import fresh_bus
from tests.bench.rows import Row, row_at_most

SERVICES = ("profiler", "fitter", "planner", "arbiter", "oom")
WORKERS, SERVERS = 2, 1
APPLY_S, BEAT_S = 1.0, 0.01
BACKLOG = 200
"""Inputs that wait for all services together where none has a backlog: those of some tenths of a second"""
REPORTS_PER_S = ProfilerSettings().reports_per_s
MEMORY_BAR_GIB, GIB = 1.5, 2**30
CHAIN = ("profile-measured", "model-fitted", "plan-proposed")
ROOM = {
    f"STRETTO_{service}_{name}": size
    for service in ("PLANNER", "ARBITER")
    for name, size in (("CPU_CORES", "90000"), ("MEMORY_BYTES", str(2**50)))
}


class Load(NamedTuple):
    """A number of jobs that come within ``arrival_s``.

    ``measured_s`` begin once nobody has a backlog, or ``drained_s`` later: whoever brings ten thousand jobs within
    minutes has to wait for the first plans of all, and that is not what the row tells.
    """

    jobs: int
    bar_s: float
    arrival_s: float = 30.0
    drained_s: float = 0.0
    measured_s: float = 40.0
    settled_s: float = 0.0
    """Time after the first arrival before which no job can get a proposal: with a report a minute, 420 s are too few"""

    @property
    def report_s(self) -> float:
        return report_interval_s(self.jobs * (WORKERS + SERVERS), REPORTS_PER_S)

    @property
    def progress_s(self) -> float:
        ledger = LedgerSettings()
        return max(ledger.progress_every_s, self.jobs / PARTITIONS / ledger.progress_per_s)


LOADS = (Load(200, 0.25), Load(1_000, 0.25), Load(10_000, 2.0, 180.0, 420.0, 90.0, 630.0))


class Decisions(NamedTuple):
    """Seconds from telemetry to decision, the number of decisions of each kind, the busy share of a core, and bytes.

    ``waiting`` are the inputs that were not handled yet when measuring began.
    """

    latencies_s: list[float]
    kinds: Counter[str]
    busy: dict[str, float]
    memory: dict[str, Memory]
    waiting: int


class Memory(NamedTuple):
    """Bytes of a process: PSS counts shared pages once over all sharers."""

    pss: int
    rss: int


def run() -> list[Row]:
    """Return the rows of each load."""
    return [each for load in LOADS for each in _rows(load, _measured(load))]


def _measured(load: Load) -> Decisions:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        return loop.run(_measure(load))


def _rows(load: Load, decisions: Decisions) -> list[Row]:
    rss_gib, pss_gib = (sum(getattr(of, kind) for of in decisions.memory.values()) / GIB for kind in ("rss", "pss"))
    each = ", ".join(f"{name} {of.rss / 2**20:.0f}" for name, of in decisions.memory.items())
    bar_gib = MEMORY_BAR_GIB if load.jobs == LOADS[-1].jobs else None
    note = f"RSS; PSS {pss_gib:.2f} GiB; MiB of RSS: {each}"
    memory = row_at_most(f"services that decide, resident, {load.jobs} live jobs", rss_gib, "GiB", bar_gib, note)
    return [_latency(load, decisions), memory]


def _latency(load: Load, decisions: Decisions) -> Row:
    ordered = sorted(decisions.latencies_s)
    if len(ordered) < 100:
        raise RuntimeError(f"{len(ordered)} decisions with {load.jobs} jobs: too few for a p99; {decisions.kinds}")
    p99_s = ordered[int(0.99 * len(ordered))]
    busy = " ".join(f"{name} {share:.0%}" for name, share in decisions.busy.items())
    waiting = f"{decisions.waiting} inputs waited at the beginning; " if load.drained_s else ""
    note = (
        f"{waiting}p50 {1000 * statistics.median(ordered):.0f} ms of {len(ordered)} decisions; of a core: {busy}, "
        f"together {sum(decisions.busy.values()):.0%}, of {os.cpu_count()} cores; load {os.getloadavg()[0]:.1f}"
    )
    return row_at_most(f"telemetry to plan, p99, {load.jobs} live jobs", 1000 * p99_s, "ms", 1000 * load.bar_s, note)


async def _measure(load: Load) -> Decisions:
    async with fresh_bus() as (client, server, folder), AsyncExitStack() as stack:
        pids = {each: await stack.enter_async_context(serving(each, server, folder, ROOM)) for each in SERVICES}
        replicas = [Replica(name, pid, folder) for name, pid in pids.items()]
        return await _live(client, load, replicas, {**pids, "server": server.pid or 0, "simulation": os.getpid()})


@asynccontextmanager
async def serving(name: str, server: EmbeddedServer, folder: Path, settings: Mapping[str, str]) -> AsyncIterator[int]:
    """Start one replica under these variables; give its process id once it is ready."""
    environment = {**os.environ, **settings, "STRETTO_NATS_URL": server.url, "STRETTO_STATE_FOLDER": str(folder)}
    command = [sys.executable, "-m", f"stretto_{name}"]
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=subprocess.DEVNULL)
    try:
        async with asyncio.timeout(60):
            while not await asyncio.to_thread(_ready, folder / "run" / f"{name}.json"):
                await asyncio.sleep(0.1)
        yield process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await asyncio.wait_for(process.wait(), 30)


def _ready(path: Path) -> bool:
    try:
        port = json.loads(path.read_text())["port"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(json.load(answer)["ready"])
    except (OSError, ValueError):
        return False


async def _live(client: Client, load: Load, services: list[Replica], pids: dict[str, int]) -> Decisions:
    """Submit the jobs one after another, so that their windows end at different times, and keep them alive."""
    simulation = Simulation(client, load)
    acting = asyncio.create_task(simulation.act())
    try:
        await simulation.live(max(load.arrival_s, load.settled_s))
        give_up_s = time.monotonic() + load.drained_s
        while (waiting := sum([await each.backlog() for each in services])) > BACKLOG and time.monotonic() < give_up_s:
            await simulation.live(1.0)
        first = await client.last_seq()
        used = Used({name: partial(cpu_s, pid) for name, pid in pids.items()})
        await simulation.live(load.measured_s)
        busy = used.shares()
        memory = {name: _memory(pids[name]) for name in SERVICES}
    finally:
        acting.cancel()
    return Decisions(*await _caused(client, first), busy, memory, waiting)


def _memory(pid: int) -> Memory:
    told = psutil.Process(pid).memory_full_info()
    return Memory(told.pss, told.rss)


class Used:
    """Return the CPU use of each of ``clocks`` from now on, and of everything else on this machine, in cores."""

    def __init__(self, clocks: Mapping[str, Callable[[], float]]) -> None:
        self._clocks = clocks
        self._begin_s, self._before = time.perf_counter(), self._now()

    def _now(self) -> dict[str, float]:
        times = psutil.cpu_times()
        used = {name: clock() for name, clock in self._clocks.items()}
        return {**used, "others": sum(times) - times.idle - times.iowait - sum(used.values())}

    def shares(self) -> dict[str, float]:
        took_s, now = time.perf_counter() - self._begin_s, self._now()
        return {name: (now[name] - before_s) / took_s for name, before_s in self._before.items()}


class Simulation:
    """The pods, ledgers and actuator of all jobs."""

    def __init__(self, client: Client, load: Load) -> None:
        self._client = client
        self._load = load
        jobs = fleet(load.jobs, WORKERS, SERVERS)
        self._jobs = {job.name: job for job in jobs}
        self._coming = deque(jobs)
        self._reporting: deque[tuple[Job, Pod]] = deque()
        self._progressing: deque[Job] = deque()
        self._gap_s = load.arrival_s / load.jobs
        self._applying: set[asyncio.Task[None]] = set()

    async def live(self, seconds: float) -> None:
        """Publish the reports and progress events that are due, for ``seconds``."""
        end = time.time() + seconds
        next_job = time.time()
        while (now := time.time()) < end:
            while self._coming and now >= next_job:
                job = self._coming.popleft()
                next_job += self._gap_s
                await store(self._client, [job.submitted(10**12)])
            await self._tell(now)
            await asyncio.sleep(BEAT_S)

    async def _tell(self, now: float) -> None:
        """Publish in turn, the longest silent job first, without waiting for acknowledgements, as pods do."""
        while self._reporting and now - self._reporting[0][1].told_s >= self._load.report_s:
            job, pod = self._reporting.popleft()
            if pod in job.pods:
                await self._client.bus.send(*sent(job.report(pod, now), now))
                self._reporting.append((job, pod))
        while self._progressing and now - self._progressing[0].progressed_s >= self._load.progress_s:
            job = self._progressing.popleft()
            await self._client.bus.send(*sent(job.progressed(now), now))
            self._progressing.append(job)

    async def act(self) -> None:
        """Apply every decided plan."""
        async for event in self._client.events(patterns=["evt.v1.arbiter.plan-decided.*"]):
            if isinstance(event.message, PlanDecided):
                task = asyncio.create_task(self._apply(event.message))
                self._applying.add(task)
                task.add_done_callback(self._applying.discard)

    async def _apply(self, decided: PlanDecided) -> None:
        await asyncio.sleep(APPLY_S)
        job, now = self._jobs[decided.job], time.time()
        known = {pod.name for pod in job.pods}
        told = job.under(decided.plan, decided.version, now)
        if not known:
            job.progressed_s = now
            self._progressing.append(job)
        self._reporting.extend((job, pod) for pod in job.pods if pod.name not in known)
        await store(self._client, told)


async def _caused(client: Client, first: int) -> tuple[list[float], Counter[str]]:
    """Follow the ids of every decision back to the report; an input's id is ``<service>:<its sequence>…``."""
    told: dict[int, tuple[str, int, str]] = {}
    latencies_s: list[float] = []
    kinds: Counter[str] = Counter()
    patterns = [f"*.evt.v1.*.{name}.*" for name in (*CHAIN, "plan-decided", "plan-refused")]
    async for stored in scan(client.bus, STREAM, patterns, headers_only=True):
        name = stored.subject.split(".")[4]
        cause = int(stored.headers["ce-id"].split(":")[1].partition(".")[0])
        if name in CHAIN:
            told[stored.seq] = name, cause, stored.headers["ce-time"]
            continue
        kinds[name] += 1
        chain = [told.get(cause)]
        while chain[-1] is not None and len(chain) < len(CHAIN):
            chain.append(told.get(chain[-1][1]))
        if stored.seq > first and [each and each[0] for each in chain] == list(reversed(CHAIN)):
            assert chain[-1] is not None
            latencies_s.append(stored.time_s - datetime.fromisoformat(chain[-1][2]).timestamp())
    return latencies_s, kinds
