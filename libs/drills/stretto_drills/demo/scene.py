"""The installation on which a demonstration runs its jobs, one after the other, and tells of them by their events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import yaml
from rich.console import RenderableType
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
from stretto_messages.planner import HistoryRecorded

from ..story import Story
from .stations import Watched

JOB_LIMIT_S = 420.0
STATUS_EVERY_S = 8.0
SUMMARY = "demo-summary.json"
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


class Scene:
    """An installation that runs. ``ready_s``: seconds until all of its services were."""

    def __init__(self, gateway: Documents, folder: Path, story: Story, ready_s: float) -> None:
        self.gateway, self.folder, self.story, self.ready_s = gateway, folder, story, ready_s

    def run(self, spec: Json, stations: Watched, interfere: Callable[[], None] = lambda: None) -> Json:
        """Submit a job and report on it until it has ended; return its view. ``interfere`` is called again and again.

        Raises CliError if its event stream breaks.
        """
        job = spec["name"]
        self.gateway.submit(yaml.safe_dump(spec))
        events = self._listen(job)
        began, status_s = time.monotonic(), time.monotonic()
        while stations.ended is None:
            if time.monotonic() - began > JOB_LIMIT_S:
                self.story.tell(f"{job} has not ended after {JOB_LIMIT_S:.0f} s: giving up", "red")
                self.gateway.cancel(job, "the demonstration gave up")
                stations.ended = "given up"
                break
            with contextlib.suppress(queue.Empty):
                event = events.get(timeout=0.25)
                if isinstance(event, BaseException):
                    raise CliError(f"the event stream of {job} broke: {event}") from event
                self._tell(event, stations)
            interfere()
            if time.monotonic() - status_s > STATUS_EVERY_S and stations.ended is None:
                status_s = time.monotonic()
                self._status(job)
        return self.gateway.ended(job)

    def running(self, job: str, role: str) -> set[str]:
        """Return the pods of a job that run."""
        pods = self.gateway.job(job)["pods"]
        return {name for name, pod in pods.items() if pod["state"] == "running" and pod["role"] == role}

    def kill(self, job: str, pod: str, what: str) -> bool:
        """Kill -9 a pod; False: it does not run."""
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            pid = int((self.folder / "pods" / job / pod / "pid").read_text())
            for process in pods_of(self.folder):  # ids are reused: it is one of the pods'
                if process.pid == pid:
                    self.story.tell(f"[red]kill -9 {pid}[/red]: {pod}, {what}")
                    process.kill()
                    return True
        return False

    def _tell(self, event: Event, stations: Watched) -> None:
        passed = {name for name in stations.stations if stations.seen(name)}
        name, data = event.name, event.body["data"]
        stations.take(name, event.body["time_s"], data)
        if name in TOLD and not (name == "model-fitted" and ("fit" in passed or "fit" not in stations.stations)):
            self.story.tell(f"{event.body['service']} [bold]{name}[/bold] {render.gist(name, data)}")
        if name == "plan-decided":
            for reason in data["reasons"][1:4]:
                self.story.console.print(f"          [dim]because[/dim] {reason}", markup=True)
        for each, station in stations.stations.items():
            if station.seen_s is not None and each not in passed:
                self.story.tell(f"[green]✔ {station.title}[/green]: {station.what}")

    def _status(self, job: str) -> None:
        view = self.gateway.job(job)
        progress = view["progress"]
        share = progress["samples_done"] / max(progress["samples_total"], 1)
        rates = [point["throughput"] for point in view["throughput"]]
        self.story.tell(
            f"[cyan]{figures.bar(share)} {share:4.0%}  {figures.rate(progress['samples_per_s']):>9}  "
            f"{figures.sparkline(rates, 30)}[/cyan]"
        )

    def _listen(self, job: str) -> queue.Queue[Event | BaseException]:
        """Return the queue of a job's events, which a thread reads over a connection of its own."""
        events: queue.Queue[Event | BaseException] = queue.Queue()

        def read() -> None:
            try:
                with connect(self.folder, None, None) as gateway:
                    for event in gateway.events(job):
                        events.put(event)
            except BaseException as error:
                events.put(error)

        threading.Thread(target=read, daemon=True, name=f"events of {job}").start()
        return events


@contextlib.contextmanager
def installed(folder: Path, story: Story, cluster: StartOptions, past: Sequence[HistoryRecorded]) -> Iterator[Scene]:
    """Run an installation whose warm start reads these jobs, until the acts are over."""
    story.chapter("An installation: NATS, Redis, eight services and the gateway")
    story.tell(f"everything is kept in {folder}")
    story.tell("starting them …")
    try:
        where = start_detached(cluster, tied=True)
        place = located(folder, None, None)
        console = f"{place.url}/console/"
        story.tell(f"[bold]watch it in a browser: {console}[/bold]")
        story.tell(f"{door(folder, console, place.token)} opens that page signed in")
        story.tell(f"all ready after {where['ready_s']:.1f} s")
        asyncio.run(_seed(folder, where["nats_url"], past))
        story.tell(f"{len(past)} past jobs are in the history that warm start reads")
        with connect(folder, None, None) as gateway:
            yield Scene(gateway, folder, story, where["ready_s"])
    finally:
        with contextlib.suppress(NotRunning):  # it may not have started
            take_down(folder)
    for images in (folder / "checkpoints").glob("demo-*"):  # up to half a gigabyte that nobody will read
        shutil.rmtree(images, ignore_errors=True)


def folder_of(asked: Path | None) -> Path:
    """Return the folder of a demonstration, made anew if none was asked for."""
    folder = (asked or Path(tempfile.mkdtemp(prefix="stretto-demo-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def told(summary: Mapping[str, Any], tables: RenderableType, folder: Path, story: Story, quiet: bool) -> int:
    """Keep and print the summary; return the exit status. ``quiet``: as JSON, in place of the tables."""
    path = folder / SUMMARY
    path.write_text(json.dumps(summary, indent=2) + "\n")
    if quiet:
        print(json.dumps(summary, indent=2))  # noqa: T201 - the one document of -o json
    else:
        story.console.print(tables)
        story.console.print(str(path))
    return 0 if summary["passed"] else 1


async def _seed(folder: Path, nats_url: str, past: Sequence[HistoryRecorded]) -> None:
    client = await Client.connect(nats_url, keys_of(folder / "nats").login(), "demo")
    try:
        for each in past:
            await client.publish(each, f"demo:history:{each.job}")
    finally:
        await client.close()
