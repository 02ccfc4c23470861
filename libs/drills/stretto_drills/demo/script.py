"""The demonstration from start to end, reported while it happens."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from stretto_client import figures
from stretto_installation.one_machine.programs import StartOptions

from ..story import Story
from . import course, report
from .scene import Scene, folder_of, installed, told
from .stations import DemoCourse, StoreCourse

KILL_AT_LATEST = 0.55
CALM_BEFORE_KILL_S = 15.0
LOSS_AT_LATEST = 0.85
CALM_BEFORE_LOSS_S = 5.0
ACTS = (
    "a job without resources",
    "a store that turns slow, and fast again",
    "the same data at a fixed good configuration, for comparison",
)
"""Titles of the acts, one job each; the last act is played with ``--reference`` only."""
WINDOWS_BEFORE_SLOW = 2
"""Settled windows of a job before its store turns slow."""

Json = dict[str, Any]


def main(folder: Path | None, *, reference: bool, quiet: bool) -> int:
    """Run it; returns exit status 0 only if no sample was lost or repeated and every station was passed."""
    folder = folder_of(folder)
    story = Story(quiet)
    store = Path(tempfile.mkdtemp(prefix="stretto-demo-store-"))
    store.chmod(0o755)  # pods run as others
    settings = {**course.SETTINGS, "STRETTO_ALLOWED_VOLUMES": f"folder:{store}"}
    cluster = StartOptions(folder, cpu_cores=course.CLUSTER_CPU_CORES, settings=settings)
    try:
        with installed(folder, story, cluster, course.past_jobs()) as scene:
            summary = _play(scene, store, reference)
    finally:
        shutil.rmtree(store, ignore_errors=True)
    return told(summary, report.tables(summary), folder, story, quiet)


def _play(scene: Scene, store: Path, reference: bool) -> Json:
    spec, story = course.job(), scene.story
    acts = len(ACTS) if reference else len(ACTS) - 1
    story.act(1, acts, ACTS[0])
    story.tell(
        f"submitting {spec['name']}: {spec['model']['entry']}, {spec['dataset']['samples']:,} samples; the "
        "file states no workers, servers, cores or memory"
    )
    elastic = DemoCourse()
    view = scene.run(spec, elastic, _Kills(scene, spec["name"], elastic).due)
    feeding = StoreCourse()
    if elastic.ended == "finished":
        story.act(2, acts, ACTS[1])
        _play_slow_store(scene, store, feeding)
    reference_view: Json | None = None
    if reference and elastic.ended == "finished":
        plan = report.good_plan(view)
        story.act(3, acts, ACTS[2])
        story.tell(figures.plan(plan))
        reference_view = scene.run(course.reference(plan), DemoCourse())
    stations = {**elastic.stations, **feeding.stations}
    return report.build(view, reference_view, stations, scene.ready_s, story.elapsed_s, compared=reference)


def _play_slow_store(scene: Scene, store: Path, stations: StoreCourse) -> None:
    """Train a job whose store turns slow once it was measured, and fast again once data workers have come."""
    story, rate = scene.story, store / "samples-per-s"
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

    scene.run(spec, stations, turn)


class Calm:
    """The time for which no plan of a job has been applied."""

    def __init__(self, stations: DemoCourse) -> None:
        self._stations = stations
        self._since_s = time.monotonic()

    def lasts_s(self) -> float:
        """Return how long the job has been calm, as far as was asked again and again."""
        if self._stations.applying:
            self._since_s = time.monotonic()
        return time.monotonic() - self._since_s


class _Kills:
    """Kills a worker and a parameter server of a job, each once, when the job is calm."""

    def __init__(self, scene: Scene, job: str, stations: DemoCourse) -> None:
        self._scene, self._job, self._stations, self._calm = scene, job, stations, Calm(stations)

    def due(self) -> None:
        """Kill what is to be killed now."""
        stations, calm_s = self._stations, self._calm.lasts_s()
        if stations.killed_pod is None and _time_to_kill(stations, calm_s):
            stations.killed_pod = kill_worker(self._scene, self._job)
        if stations.killed_server is None and _time_to_lose(stations, calm_s):
            stations.killed_server = _kill_server(self._scene, self._job)


def _time_to_kill(stations: DemoCourse, calm_s: float) -> bool:
    """Return whether to kill now: after the elastic part, but early enough for the replacement to train."""
    ready = all(stations.seen(name) for name in ("scale-out", "migration")) and calm_s > CALM_BEFORE_KILL_S
    return stations.workers > 0 and (ready or stations.share > KILL_AT_LATEST)


def _time_to_lose(stations: DemoCourse, calm_s: float) -> bool:
    """Return whether to kill a server now: once another worker trains in the place of the killed one."""
    return stations.seen("kill") and (calm_s > CALM_BEFORE_LOSS_S or stations.share > LOSS_AT_LATEST)


def kill_worker(scene: Scene, job: str) -> str | None:
    """Kill a worker that holds a shard; return its name, None if there is none."""
    running, leased = scene.running(job, "worker"), scene.gateway.job(job)["shards"]["leased"]
    holding = sorted((pod for pod in leased.values() if pod in running), reverse=True)
    return next((pod for pod in holding if scene.kill(job, pod, "in the middle of a shard")), None)


def _kill_server(scene: Scene, job: str) -> str | None:
    """Kill the server of the highest number, while workers push to it; return its name."""
    servers = sorted(scene.running(job, "ps"), reverse=True)
    return next((pod for pod in servers if scene.kill(job, pod, "which workers push to")), None)
