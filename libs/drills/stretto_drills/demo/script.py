"""The demonstration from start to end, reported while it happens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import yaml
from stretto_bus import Client
from stretto_cli import render
from stretto_cli.commands.views.console import door
from stretto_cli.errors import CliError
from stretto_cli.options import connect, located
from stretto_client import figures
from stretto_client.documents import Documents
from stretto_client.protocol.events import Event
from stretto_installation.errors import NotRunning
from stretto_installation.one_machine.detached import start_detached, take_down
from stretto_installation.one_machine.processes import pods_of
from stretto_installation.one_machine.programs import StartOptions
from stretto_installation.server import keys_of

from ..story import Story, interruptible
from . import course, report
from .stations import DemoCourse, StoreCourse

JOB_LIMIT_S = 420.0
KILL_AT_LATEST = 0.55
CALM_BEFORE_KILL_S = 15.0
LOSS_AT_LATEST = 0.85
CALM_BEFORE_LOSS_S = 5.0
STATUS_EVERY_S = 8.0
ACTS = (
    "a job without resources",
    "a store that turns slow, and fast again",
    "the same data at a fixed good configuration, for comparison",
)
"""Titles of the acts, one job each; the last act is played with ``--reference`` only."""
WINDOWS_BEFORE_SLOW = 2
"""Settled windows of a job before its store turns slow."""
TOLD = frozenset(
    {
        "history-matched",
        "plan-decided",
        "plan-refused",
        "plan-applied",
        "pod-started",
        "pod-exited",
        "pod-resized",
        "migration-started",
        "migration-finished",
        "model-fitted",
        "straggler-detected",
        "hot-ps-detected",
        "parameters-lost",
        "columns-restored",
        "recomputation-decided",
        "job-completed",
        "job-finished",
        "job-failed",
        "checkpoint-saved",
        "data-workers-proposed",
        "data-workers-decided",
        "data-workers-changed",
    }
)

Json = dict[str, Any]


def main(folder: Path | None, *, reference: bool, quiet: bool) -> int:
    """Run it; returns exit status 0 only if no sample was lost or repeated and every station was passed."""
    folder = (folder or Path(tempfile.mkdtemp(prefix="stretto-demo-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    interruptible()
    story = Story(quiet)
    story.chapter("An installation: NATS, Redis, eight services and the gateway")
    story.tell(f"everything is kept in {folder}")
    story.tell("starting them …")
    store = Path(tempfile.mkdtemp(prefix="stretto-demo-store-"))
    store.chmod(0o755)  # pods run as others
    settings = {**course.SETTINGS, "STRETTO_ALLOWED_VOLUMES": f"folder:{store}"}
    cluster = StartOptions(folder, cpu_cores=course.CLUSTER_CPU_CORES, settings=settings)
    try:
        where = start_detached(cluster, tied=True)
        place = located(folder, None, None)
        console = f"{place.url}/console/"
        story.tell(f"[bold]watch it in a browser: {console}[/bold]")
        story.tell(f"{door(folder, console, place.token)} opens that page signed in")
        story.tell(f"all ready after {where['ready_s']:.1f} s")
        asyncio.run(_seed(folder, where["nats_url"]))
        story.tell(f"{len(course.past_jobs())} past jobs are in the history that warm start reads")
        with connect(folder, None, None) as gateway:
            summary = _play(gateway, folder, store, story, where, reference)
    finally:
        with contextlib.suppress(NotRunning):  # it may not have started
            take_down(folder)
        shutil.rmtree(store, ignore_errors=True)
    for images in (folder / "checkpoints").glob(
        "demo-*"
    ):  # of the two jobs here: half a gigabyte that nobody will read
        shutil.rmtree(images, ignore_errors=True)
    path = folder / "demo-summary.json"
    path.write_text(json.dumps(summary, indent=2) + "\n")
    if quiet:
        print(json.dumps(summary, indent=2))  # noqa: T201 - the one document of -o json
    else:
        story.console.print(report.tables(summary))
        story.console.print(str(path))
    return 0 if summary["passed"] else 1


def _play(gateway: Documents, folder: Path, store: Path, story: Story, where: Json, reference: bool) -> Json:
    spec = course.job()
    acts = len(ACTS) if reference else len(ACTS) - 1
    _announce(story, 1, acts)
    story.tell(
        f"submitting {spec['name']}: {spec['model']['entry']}, {spec['dataset']['samples']:,} samples; the "
        "file states no workers, servers, cores or memory"
    )
    elastic = DemoCourse()
    _run(gateway, folder, story, spec, elastic, _Kills(gateway, folder, story, spec["name"], elastic).due)
    view = gateway.ended(spec["name"])
    feeding = StoreCourse()
    if elastic.ended == "finished":
        _announce(story, 2, acts)
        _play_slow_store(gateway, folder, store, story, feeding)
    reference_view: Json | None = None
    if reference and elastic.ended == "finished":
        plan = report.good_plan(view)
        _announce(story, 3, acts)
        story.tell(figures.plan(plan))
        fixed = course.reference(plan)
        _run(gateway, folder, story, fixed, DemoCourse())
        reference_view = gateway.ended(fixed["name"])
    stations = {**elastic.stations, **feeding.stations}
    return report.build(view, reference_view, stations, where, story.elapsed_s, compared=reference)


def _announce(story: Story, act: int, acts: int) -> None:
    story.chapter(f"Act {act} of {acts}: {ACTS[act - 1]}")


def _play_slow_store(gateway: Documents, folder: Path, store: Path, story: Story, stations: StoreCourse) -> None:
    """Train a job whose store turns slow once it was measured, and fast again once data workers have come."""
    rate = store / "samples-per-s"
    rate.write_text("0")
    spec = course.slow_store_job(rate)
    story.tell(f"submitting {spec['name']}; the file states no number of data workers")
    turned = "fast"

    def turn() -> None:
        nonlocal turned
        if turned == "fast" and stations.settled >= WINDOWS_BEFORE_SLOW:
            turned = "slow"
            story.tell(f"[red]the store turns slow[/red]: {course.SLOW_SAMPLES_PER_S:,} samples/s for each reader")
            rate.write_text(str(course.SLOW_SAMPLES_PER_S))
        elif turned == "slow" and stations.seen("fed"):
            turned = "fast again"
            story.tell("[green]the store is fast again[/green]")
            rate.write_text("0")

    _run(gateway, folder, story, spec, stations, turn)


def _run(
    gateway: Documents,
    folder: Path,
    story: Story,
    spec: Json,
    stations: DemoCourse | StoreCourse,
    interfere: Callable[[], None] = lambda: None,
) -> None:
    """Submit a job and report on it until it has ended. ``interfere`` is called again and again meanwhile.

    Raises CliError if its event stream breaks.
    """
    job = spec["name"]
    gateway.submit(yaml.safe_dump(spec))
    events = _listen(folder, job)
    began, status_s = time.monotonic(), time.monotonic()
    while stations.ended is None:
        if time.monotonic() - began > JOB_LIMIT_S:
            story.tell(f"{job} has not ended after {JOB_LIMIT_S:.0f} s: giving up", "red")
            gateway.cancel(job, "the demonstration gave up")
            stations.ended = "given up"
            return
        with contextlib.suppress(queue.Empty):
            event = events.get(timeout=0.25)
            if isinstance(event, BaseException):
                raise CliError(f"the event stream of {job} broke: {event}") from event
            _tell(story, event, stations)
        interfere()
        if time.monotonic() - status_s > STATUS_EVERY_S and stations.ended is None:
            status_s = time.monotonic()
            _status(gateway, story, job)


class _Kills:
    """Kills a worker and a parameter server of a job, each once, when the job is calm."""

    def __init__(self, gateway: Documents, folder: Path, story: Story, job: str, stations: DemoCourse) -> None:
        self._where = gateway, folder, story, job
        self._stations = stations
        self._calm_since_s = time.monotonic()

    def due(self) -> None:
        """Kill what is to be killed now."""
        stations, now_s = self._stations, time.monotonic()
        if stations.applying:
            self._calm_since_s = now_s
        calm_s = now_s - self._calm_since_s
        if stations.killed_pod is None and _time_to_kill(stations, calm_s):
            stations.killed_pod = _kill_worker(*self._where)
        if stations.killed_server is None and _time_to_lose(stations, calm_s):
            stations.killed_server = _kill_server(*self._where)


def _tell(story: Story, event: Event, stations: DemoCourse | StoreCourse) -> None:
    passed = {name for name in stations.stations if stations.seen(name)}
    stations.take(event.name, event.body["time_s"], event.body["data"])
    if event.name in TOLD and not (event.name == "model-fitted" and "fit" in passed):
        story.tell(f"{event.body['service']} [bold]{event.name}[/bold] {render.gist(event.name, event.body['data'])}")
    if event.name == "plan-decided":
        for reason in event.body["data"]["reasons"][1:4]:
            story.console.print(f"          [dim]because[/dim] {reason}", markup=True)
    for name, station in stations.stations.items():
        if station.seen_s is not None and name not in passed:
            story.tell(f"[green]✔ {station.title}[/green]: {station.what}")


def _status(gateway: Documents, story: Story, job: str) -> None:
    view = gateway.job(job)
    progress = view["progress"]
    share = progress["samples_done"] / max(progress["samples_total"], 1)
    rates = [point["throughput"] for point in view["throughput"]]
    story.tell(
        f"[cyan]{figures.bar(share)} {share:4.0%}  {figures.rate(progress['samples_per_s']):>9}  "
        f"{figures.sparkline(rates, 30)}[/cyan]"
    )


def _time_to_kill(stations: DemoCourse, calm_s: float) -> bool:
    """Return whether to kill now: after the elastic part, but early enough for the replacement to train."""
    ready = all(stations.seen(name) for name in ("scale-out", "migration")) and calm_s > CALM_BEFORE_KILL_S
    return stations.workers > 0 and (ready or stations.share > KILL_AT_LATEST)


def _time_to_lose(stations: DemoCourse, calm_s: float) -> bool:
    """Return whether to kill a server now: once another worker trains in the place of the killed one."""
    return stations.seen("kill") and (calm_s > CALM_BEFORE_LOSS_S or stations.share > LOSS_AT_LATEST)


def _kill_worker(gateway: Documents, folder: Path, story: Story, job: str) -> str | None:
    """Kill a worker that holds a shard; return its name, None if there is none."""
    view = gateway.job(job)
    running = _running(view, "worker")
    holding = sorted((pod for pod in view["shards"]["leased"].values() if pod in running), reverse=True)
    return next((pod for pod in holding if _kill(folder, story, job, pod, "in the middle of a shard")), None)


def _kill_server(gateway: Documents, folder: Path, story: Story, job: str) -> str | None:
    """Kill the server of the highest number, while workers push to it; return its name."""
    servers = sorted(_running(gateway.job(job), "ps"), reverse=True)
    return next((pod for pod in servers if _kill(folder, story, job, pod, "which workers push to")), None)


def _running(view: Json, role: str) -> set[str]:
    return {name for name, pod in view["pods"].items() if pod["state"] == "running" and pod["role"] == role}


def _kill(folder: Path, story: Story, job: str, pod: str, what: str) -> bool:
    with contextlib.suppress(OSError, ValueError, psutil.Error):
        pid = int((folder / "pods" / job / pod / "pid").read_text())
        for process in pods_of(folder):  # ids are reused: it is one of the pods'
            if process.pid == pid:
                story.tell(f"[red]kill -9 {pid}[/red]: {pod}, {what}")
                process.kill()
                return True
    return False


def _listen(folder: Path, job: str) -> queue.Queue[Event | BaseException]:
    """Return the queue of a job's events, which a thread reads over a connection of its own."""
    events: queue.Queue[Event | BaseException] = queue.Queue()

    def read() -> None:
        try:
            with connect(folder, None, None) as gateway:
                for event in gateway.events(job):
                    events.put(event)
        except BaseException as error:
            events.put(error)

    threading.Thread(target=read, daemon=True, name=f"events of {job}").start()
    return events


async def _seed(folder: Path, nats_url: str) -> None:
    client = await Client.connect(nats_url, keys_of(folder / "nats").login(), "demo")
    try:
        for past in course.past_jobs():
            await client.publish(past, f"demo:history:{past.job}")
    finally:
        await client.close()
