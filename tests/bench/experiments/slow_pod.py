"""The paper's experiments with a slow pod (DLRover-RM section 6.2, Fig. 12 and 13), at the scale of one machine.

python -m tests.bench.experiments.slow_pod --figure 12 --model wide_deep,xdeepfm,dcn   minutes; not part of `make bench`

The fault, as in the paper: one parameter server (Fig. 12) or one worker (Fig. 13) has its CPU cut to 3 % of what the
plan gives it, by the quota of its control group, once an eighth of the samples are trained. Three reactions:

none      nobody intervenes: the detectors' thresholds are out of reach. For Fig. 13 the data are partitioned
          statically, one shard per worker, as jobs without dynamic sharding do.
restart   the traditional way: when the slow pod is detected, the job is checkpointed and stopped, and submitted again
          from the checkpoint with healthy pods. Detection is Stretto's, so that only the remedy differs, and the
          store is a local folder: a remote one, as in the paper, would cost this way more.
stretto   what `stretto up` does by itself.

Beside them `calm`: the same job without a fault. Every run is an installation of its own with real pods on generated
data. Completion times count from the first plan applied. A run that is not over in time is extrapolated from its
last pace and marked so. Results: a table, and bench-results/experiments.json.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table
from stretto_bus import Client
from stretto_cli.errors import CliError
from stretto_cli.options import connect
from stretto_client.documents import Documents
from stretto_client.figures import sparkline
from stretto_installation.errors import NotRunning
from stretto_installation.one_machine.detached import start_detached, take_down
from stretto_installation.one_machine.programs import StartOptions
from stretto_installation.server import keys_of
from stretto_wire import document_of

RESULTS = Path(__file__).parents[2] / "bench-results" / "experiments.json"
ENTRIES = {"wide_deep": "WideDeep", "xdeepfm": "XDeepFM", "dcn": "DCN"}
WAYS = ("calm", "none", "restart", "stretto")
PAPER = {
    12: "paper: Stretto's way 36.4 % below none, 27.6 % below restart",
    13: "paper: Stretto's way 48.5 % below none, 37 % below restart; handled within a minute",
}
CUT = 0.03
"""the fault of section 6.2: 'set the CPU cores to 3% of that in the well-tuned resource configuration'"""
WHEN = 0.125
SETTLED_S = 3.0
LAST_PACE_S = 10.0
"""last seconds that an unfinished run is extrapolated from: few, since static partitions' healthy workers end first"""
START_S = 180.0
OUT_OF_REACH = {"STRETTO_PROFILER_STRAGGLER_SLOWDOWN": "1e9", "STRETTO_PROFILER_HOT_FACTOR": "1e9"}
GIB = 2**30
BATCH, SHARD = 256, 64
EACH = {"worker_cpu_cores": 1.0, "ps_cpu_cores": 1.0, "worker_memory_bytes": 2 * GIB, "ps_memory_bytes": 2 * GIB}
TOLD = frozenset(
    {"job-submitted", "plan-applied", "straggler-detected", "straggler-cleared", "hot-ps-detected", "hot-ps-cleared",
     "migration-started", "migration-finished", "pod-started", "pod-exited", "pod-resized", "servers-changed",
     "checkpoint-flushed", "checkpoint-restored", "shard-requeued", "job-completed", "job-finished", "job-failed"}
)  # fmt: skip
KEPT = frozenset(
    {"pod", "slowdown", "cause", "reason", "buckets", "moved_bytes", "longest_freeze_s", "took_s", "sources",
     "destinations", "update_time_s", "peers_update_time_s", "samples_lost", "samples_repeated"}
)  # fmt: skip


@dataclass(slots=True)
class Result:
    """One run; seconds since the first plan was applied. ``pace``: (time, samples trained)."""

    figure: int
    model: str
    way: str
    samples: int
    workers: int = 2
    ps: int = 2
    cut: float = CUT
    jct_s: float | None = None
    extrapolated: bool = False
    ended: str = ""
    fault_s: float | None = None
    detected_s: float | None = None
    recovered_s: float | None = None
    """time from which on the pace stays above half of that before the fault"""
    longest_gap_s: float | None = None
    """longest time between two steps of any worker but the slow one, from the detection on"""
    lost: int | None = None
    repeated: int | None = None
    told: list[str] = field(default_factory=list[str])
    pace: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    completions: dict[str, list[tuple[float, int]]] = field(default_factory=dict[str, list[tuple[float, int]]])
    """pod -> (time, samples) of its completed shards that were published one by one"""

    @property
    def victim(self) -> str:
        """Return the pod that is made slow."""
        return f"ps-{self.ps - 1}" if self.figure == 12 else f"worker-{self.workers - 1}"


class Fault:
    """The cut of a pod's CPU quota, and its end. Raises CliError without a control group that may be written."""

    def __init__(self, folder: Path, job: str, pod: str, share: float) -> None:
        record = json.loads((folder / "pods" / job / pod / "pod.json").read_text())
        found = record["group"]["folders"].get("cpu")
        if found is None:
            raise CliError("the CPU of a pod cannot be cut here: no control group may be written")
        group, version = Path(found[0]), found[1]
        self.pod = pod
        self._file = group / ("cpu.max" if version == 2 else "cpu.cfs_quota_us")
        self._whole = self._file.read_text().split()[0]
        self._cut = str(max(int(int(self._whole) * share), 1000))  # the kernel's least

    def cut(self) -> None:
        with contextlib.suppress(OSError):  # the pod may be gone
            self._file.write_text(self._cut)

    def heal(self) -> None:
        with contextlib.suppress(OSError):
            self._file.write_text(self._whole)


class Run:
    """One job under one fault, watched until it has ended."""

    def __init__(self, folder: Path, result: Result, gateway: Documents, client: Client, heal_at: float | None) -> None:
        self._folder, self.result, self._gateway, self._client = folder, result, gateway, client
        self._heal_at = heal_at
        self._job = spec_of(result)["name"]
        self._began_s: float | None = None
        self._fault: Fault | None = None
        self._pods: set[str] = set()
        self._restart: asyncio.Task[None] | None = None
        self._flushed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._done = asyncio.Event()

    async def go(self, limit_s: float) -> None:
        self._gateway.submit(yaml.safe_dump(spec_of(self.result)))
        watchers = [asyncio.create_task(self._events()), asyncio.create_task(self._telemetry())]
        ended = asyncio.create_task(self._done.wait())
        try:
            deadline = time.time() + START_S
            while not self._done.is_set() and time.time() < deadline:
                await asyncio.wait([ended, *watchers], timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
                for task in (*watchers, *([self._restart] if self._restart else [])):
                    if task.done():
                        task.result()
                deadline = self._began_s + limit_s if self._began_s else deadline
            if not self._done.is_set():
                self.result.ended = f"not over after {limit_s:.0f} s"
        finally:
            for task in (ended, *watchers, *([self._restart] if self._restart else [])):
                task.cancel()
            if self._fault is not None:
                self._fault.heal()

    async def _events(self) -> None:
        async for event in self._client.events():
            name, message = event.subject.split(".")[3], event.message
            if getattr(message, "job", "") != self._job:
                continue
            if name == "plan-applied" and self._began_s is None:
                self._began_s = event.time_s
            now = round(event.time_s - (self._began_s or event.time_s), 2)
            if name in TOLD:
                self._tell(now, name, message)
            await self._take(now, name, message)

    async def _take(self, now: float, name: str, message: Any) -> None:
        result, victim = self.result, self.result.victim
        if name == "job-progressed":
            result.pace.append((now, message.samples_done))
            self._inject(now, message.samples_done / result.samples)
        elif name == "pod-resized" and self._fault is not None and message.pod == victim:
            self._fault.cut()  # the fault is of the machine below, and no plan heals it
        elif name in ("straggler-detected", "hot-ps-detected") and message.pod == victim and self._fault is not None:
            if result.detected_s is None:
                result.detected_s = now
                if result.way == "restart":
                    self._restart = asyncio.create_task(self._start_again())
        elif name in ("pod-started", "pod-exited"):
            (self._pods.add if name == "pod-started" else self._pods.discard)(message.pod)
        elif name == "checkpoint-flushed" and self._restart is not None and not self._flushed.done():
            self._flushed.set_result(message.checkpoint.url)
        elif name == "shard-completed":
            result.completions.setdefault(message.pod, []).append((now, message.shard.length))
        elif name in ("job-finished", "job-failed"):
            result.jct_s, result.ended = now, name
            result.lost, result.repeated = (getattr(message, f"samples_{kind}", None) for kind in ("lost", "repeated"))
            self._done.set()

    def _inject(self, now: float, share: float) -> None:
        result = self.result
        if share >= WHEN and result.way != "calm" and result.fault_s is None:
            self._fault = Fault(self._folder, self._job, result.victim, result.cut)
            self._fault.cut()
            result.fault_s = now
            self._note(now, f"{self._fault.pod} has {result.cut:.0%} of its CPU")
        if self._heal_at is not None and share >= self._heal_at and self._fault is not None:
            self._fault.heal()
            self._fault = None
            self._note(now, "the fault is over")

    async def _start_again(self) -> None:
        """Checkpoint, stop and submit the job again, like an operator or a controller without live migration."""
        first = self._job
        await asyncio.to_thread(self._gateway.checkpoint, first)
        url = await self._flushed
        await asyncio.to_thread(self._gateway.cancel, first, "restarted")
        while self._pods:
            await asyncio.sleep(0.1)
        spec = spec_of(self.result)
        spec["checkpoint"] = {"restore_from": url}
        spec["name"] = self._job = f"{first}-again"
        await asyncio.to_thread(self._gateway.submit, yaml.safe_dump(spec))

    async def _telemetry(self) -> None:
        result = self.result
        async for event in self._client.reports(patterns=("tel.v1.worker.*.*",)):
            gap_s, pod = getattr(event.message, "longest_gap_s", None), getattr(event.message, "pod", "")
            if gap_s is not None and result.detected_s is not None and pod != result.victim:
                result.longest_gap_s = max(result.longest_gap_s or 0.0, gap_s)

    def _tell(self, now: float, name: str, message: Any) -> None:
        fields = {k: v for k, v in document_of(message).items() if k in KEPT}
        self._note(now, f"{name} {json.dumps(fields)[:400]}")

    def _note(self, now: float, text: str) -> None:
        self.result.told.append(f"{now:7.1f} s  {text}")
        print(self.result.told[-1], file=sys.stderr, flush=True)


def spec_of(result: Result) -> dict[str, Any]:
    static = result.figure == 13 and result.way in ("none", "restart")
    return {
        "name": f"fig{result.figure}-{result.model.replace('_', '-')}-{result.way}",
        "model": {
            "entry": f"stretto.examples.{result.model}:{ENTRIES[result.model]}",
            "arguments": {"samples": result.samples, "categories": 60_000, "seed": 7},
        },
        "dataset": {
            "name": "criteo-like",  # so that a second job goes on where the checkpoint of the first one was
            "samples": result.samples,
            "batch_size": BATCH,
            "batches_per_shard": -(-result.samples // BATCH // result.workers) if static else SHARD,
        },
        "resources": {"fixed": True, "initial": {**EACH, "workers": result.workers, "ps": result.ps}},
    }


async def measure(result: Result, limit_s: float, heal_at: float | None) -> None:
    settings = OUT_OF_REACH if result.way in ("none", "calm") else {}
    with tempfile.TemporaryDirectory(prefix="stretto-experiment-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        try:
            where = start_detached(StartOptions(folder, cpu_cores=16.0, settings=settings))
            login = keys_of(folder / "nats").login()
            client = await Client.connect(where["nats_url"], login, "experiments")
            try:
                with connect(folder, None, None) as gateway:
                    await Run(folder, result, gateway, client, heal_at).go(limit_s)
            finally:
                await client.close()
        finally:
            with contextlib.suppress(NotRunning):  # it may not have started
                take_down(folder)
    conclude(result)


def conclude(result: Result) -> None:
    """Derive the time of recovery from the pace, and the end of an unfinished run."""
    pace = result.pace
    if result.jct_s is None and len(pace) > 1:
        last_s, done = pace[-1]
        before_s, before = next(((t, n) for t, n in reversed(pace) if t <= last_s - LAST_PACE_S), pace[0])
        rate = (done - before) / max(last_s - before_s, 1e-9)
        if rate > 0:
            result.jct_s, result.extrapolated = last_s + (result.samples - done) / rate, True
    if result.fault_s is None:
        return
    calm = [(t, n) for t, n in pace if t <= result.fault_s]
    usual = (calm[-1][1] - calm[0][1]) / max(calm[-1][0] - calm[0][0], 1e-9) if len(calm) > 1 else 0.0
    back: float | None = None
    for (t0, n0), (t1, n1) in itertools.pairwise(pace):
        if t0 < result.fault_s or t1 <= t0 or n1 >= result.samples:
            continue
        back = (back if back is not None else t0) if (n1 - n0) / (t1 - t0) >= usual / 2 else None
    result.recovered_s = back


def table(results: list[Result]) -> Table:
    shown = Table(title="A slow pod, as in DLRover-RM Fig. 12 and 13", title_justify="left", header_style="bold")
    for column in ("figure", "model", "way", "completed in", "of calm", "Stretto below it", "detected after",
                   "pace back after", "shards apart, slow / peers", "longest pause", "lost, repeated",
                   "samples/s"):  # fmt: skip
        shown.add_column(column)
    of: dict[tuple[int, str, str], Result] = {(r.figure, r.model, r.way): r for r in results}
    for r in results:
        calm, ours = (of.get((r.figure, r.model, way)) for way in ("calm", "stretto"))
        below = 1 - ours.jct_s / r.jct_s if ours and ours.jct_s and r.jct_s and r.way in ("none", "restart") else None
        rates = [(n1 - n0) / max(t1 - t0, 1e-9) for (t0, n0), (t1, n1) in itertools.pairwise(r.pace)]
        shown.add_row(
            f"Fig. {r.figure}", r.model, r.way, _seconds(r.jct_s) + (" (extrapolated)" if r.extrapolated else ""),
            f"{r.jct_s / calm.jct_s:.2f}" if r.jct_s and calm and calm.jct_s else "",
            f"{below:.0%}" if below is not None else "",
            _since(r.detected_s, r.fault_s), _since(r.recovered_s, r.fault_s), _between(r), _seconds(r.longest_gap_s),
            f"{r.lost}, {r.repeated}", sparkline([max(rate, 0.0) for rate in rates], 40),
        )  # fmt: skip
    return shown


def _between(result: Result) -> str:
    """Return the median seconds from one completed shard to the next, after the slow worker's were cut."""
    gaps: dict[bool, list[float]] = {True: [], False: []}
    for pod, completed in result.completions.items():
        times = [t for t, _ in completed if result.detected_s is not None and t > result.detected_s + SETTLED_S]
        gaps[pod == result.victim] += [after - before for before, after in itertools.pairwise(times)]
    slow, peers = (statistics.median(gaps[which]) if gaps[which] else None for which in (True, False))
    return f"{slow:.2f} / {peers:.2f} s" if slow is not None and peers is not None else ""


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"


def _since(value: float | None, begin: float | None) -> str:
    return "" if value is None or begin is None else f"{value - begin:.1f} s"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.experiments.slow_pod", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--figure", type=int, choices=(12, 13), action="append", help="12, 13; both if none is given")
    parser.add_argument("--model", default="wide_deep", help=f"of {','.join(ENTRIES)}")
    parser.add_argument("--way", default=",".join(WAYS), help=f"of {','.join(WAYS)}")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--ps", type=int, default=2)
    parser.add_argument("--samples", type=int, default=1_200_000)
    parser.add_argument("--limit", type=float, default=400.0, help="seconds for one run, its start aside")
    parser.add_argument("--cut", type=float, default=CUT, help="share of its CPU that the slow pod keeps")
    parser.add_argument("--heal-at", type=float, help="share of the samples at which the pod gets its CPU back")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    results: list[Result] = []
    for figure in options.figure or (12, 13):
        for model in options.model.split(","):
            for way in options.way.split(","):
                result = Result(figure, model, way, options.samples, options.workers, options.ps, options.cut)
                print(f"Fig. {figure}, {model}, {way} …", file=sys.stderr, flush=True)
                asyncio.run(measure(result, options.limit, options.heal_at))
                results.append(result)
                options.out.parent.mkdir(exist_ok=True)
                options.out.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n", encoding="utf-8")
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(table(results))
    for figure in options.figure or (12, 13):
        console.print(f"Fig. {figure}: {PAPER[figure]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
