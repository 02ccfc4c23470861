"""The demonstration with PyTorch from start to end: a script of several ranks, and a command as anybody has it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from stretto_cli.commands.views import audit, explain
from stretto_cli.errors import BadInput
from stretto_installation.one_machine.programs import StartOptions
from stretto_messages.base import GIB, NO_SERVERS
from stretto_messages.planner import HistoryRecorded
from stretto_messages.values import Plan

from ...story import Story
from .. import course
from ..scene import Scene, folder_of, installed, told
from ..script import Calm, kill_worker
from . import summary
from .stations import GrowingCourse, RanksCourse

ACTS = ("the ranks of a PyTorch script, of which nobody has said how many", "a command that knows nothing of Stretto")
CALM_BEFORE_KILL_S = 8.0
KILL_AT_LATEST = 0.6

Json = dict[str, Any]


def main(folder: Path | None, python: str, *, quiet: bool) -> int:
    """Run it; returns exit status 0 only if each sample counts once and every station was passed."""
    python = python_with_torch(python)
    folder = folder_of(folder)
    story = Story(quiet)
    cluster = StartOptions(folder, cpu_cores=course.CLUSTER_CPU_CORES, settings=course.SETTINGS)
    with installed(folder, story, cluster, past_jobs()) as scene:
        found = _play(scene, python)
    return told(found, summary.tables(found), folder, story, quiet)


def python_with_torch(named: str) -> str:
    """Return the Python that runs the script. ``named``: the user's; empty: the Python that runs Stretto.

    Raises BadInput: PyTorch cannot be imported there.
    """
    python = named or sys.executable
    try:
        tried = subprocess.run([python, "-c", "import torch"], capture_output=True, text=True)
    except OSError as error:
        raise BadInput(f"TORCH_PYTHON = {named}: {error.strerror}; name a Python that has PyTorch") from error
    if tried.returncode:
        why = (tried.stderr.strip().splitlines() or [f"status {tried.returncode}"])[-1]
        raise BadInput(
            f"PyTorch cannot be imported by {python}: {why}; `make setup-torch` brings it, or name a Python that has "
            "it in TORCH_PYTHON"
        )
    return python


def job(name: str, python: str) -> Json:
    """Return a job of ``user/`` with the folder and the Python of its program."""
    spec = yaml.safe_load((files(f"{__package__}.user") / f"{name}.yaml").read_text())
    program = spec["program"]
    program["command"][0], program["path"] = python, str(Path(__file__).with_name("user"))
    if python != sys.executable:  # its own packages, and from ours stretto.agent alone, which needs no other
        spec["environment"] = {"PYTHONPATH": str(_library())}
    return spec


def _library() -> Path:
    """Return the folder from which ``import stretto`` is served here."""
    found = importlib.util.find_spec("stretto")
    if found is None or found.origin is None:
        raise BadInput("Stretto's trainer is not installed: pip install stretto, whose stretto.agent scripts use")
    return Path(found.origin).parents[1]


def past_jobs() -> list[HistoryRecorded]:
    """Return invented past jobs of scripts like the first act's, which had one rank."""
    known = yaml.safe_load((files(f"{__package__}.user") / "ddp.yaml").read_text())["program"]["metadata"]
    ps, ps_cpu_cores, ps_memory_bytes = NO_SERVERS
    plan = Plan(
        workers=1,
        ps=ps,
        worker_cpu_cores=0.5,
        ps_cpu_cores=ps_cpu_cores,
        worker_memory_bytes=GIB,
        ps_memory_bytes=ps_memory_bytes,
    )
    first = HistoryRecorded(
        job="ddp-clicks-1",
        metadata=known,
        plan=plan,
        throughput=4_000.0,
        duration_s=100.0,
        ps_memory_peak_bytes=0,
        samples=400_000,
    )
    return [replace(first, job=f"ddp-clicks-{n}", throughput=4_000.0 + 100 * n) for n in range(1, 6)]


def _play(scene: Scene, python: str) -> Json:
    story = scene.story
    story.act(1, len(ACTS), ACTS[0])
    spec = job("ddp", python)
    story.tell(f"{Path(spec['program']['path'], 'ddp.py')}: DistributedDataParallel as anybody has it, and four lines")
    story.tell(f"submitting {spec['name']}: {spec['dataset']['samples']:,} samples; the file states no cores or memory")
    ranks = RanksCourse()
    ddp = scene.run(spec, ranks, _Kill(scene, spec["name"], ranks).due)
    story.chapter(f"Why: stretto explain {spec['name']}")
    story.console.print(explain.decisions(ddp, ddp["decisions"], derivation=False))
    story.chapter(f"The books: stretto audit {spec['name']}")
    books = scene.gateway.audit(spec["name"])
    story.console.print(audit.shown(books, ddp["level"], ddp["guarantee"]))
    growing = GrowingCourse()
    story.act(2, len(ACTS), ACTS[1])
    spec = job("grows", python)
    story.tell(f"submitting {spec['name']}: {' '.join(spec['program']['command'])}, in too little memory")
    grows = scene.run(spec, growing)
    stations = {**ranks.stations, **growing.stations}
    return summary.build(ddp, grows, books, stations, scene.ready_s, story.elapsed_s)


class _Kill:
    """Kills a rank once, when its job was measured as it has grown, and is calm."""

    def __init__(self, scene: Scene, job: str, stations: RanksCourse) -> None:
        self._scene, self._job, self._stations, self._calm = scene, job, stations, Calm(stations)

    def due(self) -> None:
        """Kill what is to be killed now."""
        stations, calm_s = self._stations, self._calm.lasts_s()
        ready = stations.seen("speed") and calm_s > CALM_BEFORE_KILL_S
        if stations.killed_pod is None and (ready or stations.share > KILL_AT_LATEST):
            stations.killed_pod = kill_worker(self._scene, self._job)
