"""The acts with PyTorch: their stations, their jobs and their summary, without any process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from stretto_cli.errors import BadInput
from stretto_drills.demo.torch import acts, summary
from stretto_drills.demo.torch.stations import GrowingCourse, RanksCourse
from stretto_wire import JobSpec


def plan(workers: int) -> dict[str, Any]:
    return {"workers": workers, "ps": 1, "ps_memory_bytes": 2**20}


def decided(version: int, kind: str, workers: int, previous: int = 0, **more: Any) -> dict[str, Any]:
    before = plan(previous) if previous else None
    return {"version": version, "kind": kind, "plan": plan(workers), "previous": before, "reasons": ["r", "y"], **more}


def ranks(*, lost: int = 0) -> RanksCourse:
    seen, killed = RanksCourse(), "worker-1"
    seen.take("job-submitted", 0.0, {})
    seen.take("plan-decided", 1.0, decided(1, "warm-start", 1))
    seen.take("profile-measured", 2.0, {"settled": True, "throughput": 5.0, "plan": plan(1)})
    seen.take("model-fitted", 3.0, {"rmsle": 0.1, "points": 3})
    seen.take("plan-decided", 4.0, decided(2, "measure", 2, 1, throughput=9.0))
    seen.take("plan-applied", 5.0, {"version": 2, "plan": plan(2), "took_s": 1.0})
    seen.take("profile-measured", 5.5, {"settled": True, "throughput": 8.0, "plan": plan(2)})
    seen.killed_pod = killed
    seen.take("pod-exited", 6.0, {"pod": killed, "reason": "killed"})
    seen.take("pod-started", 7.0, {"pod": "worker-2", "role": "worker", "cause": "relaunch"})
    ends = {"samples_lost": lost, "samples_repeated": 0, "samples_applied": 10 - lost, "samples_expected": 10}
    seen.take("job-finished", 8.0, ends)
    return seen


def growing(reason: str = "completed") -> GrowingCourse:
    seen = GrowingCourse()
    seen.take("job-submitted", 0.0, {})
    seen.take("pod-resized", 0.5, {"pod": "worker-0", "memory_bytes": 2**29})
    assert not seen.seen("grown"), "nothing was foreseen"
    seen.take("plan-decided", 1.0, decided(2, "memory", 1, 1, reasons=["it would be full in 9 s"]))
    seen.take("pod-resized", 2.0, {"pod": "worker-0", "memory_bytes": 2**30})
    seen.take("pod-exited", 3.0, {"pod": "worker-0", "reason": reason})
    seen.take("job-finished", 4.0, {})
    return seen


def test_a_full_course_passes_every_station() -> None:
    assert ranks().complete
    assert ranks().stations["speed"].what == "8/s with 2 ranks; 9/s predicted"
    assert growing().stations["forecast"].what == "it would be full in 9 s"
    assert all(map(growing().seen, growing().stations))


def test_lost_samples_and_a_killed_command_pass_no_end() -> None:
    assert not ranks(lost=1).seen("completion")
    assert not growing("oom-killed").seen("ended")


@pytest.mark.parametrize("name", ["ddp", "grows"])
def test_the_job_files_are_valid_and_name_programs_that_are_there(name: str) -> None:
    spec = JobSpec.parse(acts.job(name, "/opt/torch/bin/python"))
    assert spec.program is not None
    python, script, *_ = spec.program.command
    assert Path(str(spec.program.path), script).is_file()
    library = Path(str(spec.environment["PYTHONPATH"]))
    assert python == "/opt/torch/bin/python"
    assert (library / "stretto" / "agent.py").is_file()
    assert "PYTHONPATH" not in JobSpec.parse(acts.job(name, sys.executable)).environment


def test_warm_start_finds_past_jobs_by_what_the_job_file_says_of_its_script() -> None:
    spec = JobSpec.parse(acts.job("ddp", sys.executable))
    assert {tuple(past.metadata.items()) for past in acts.past_jobs()} == {tuple(spec.model.metadata.items())}


@pytest.mark.parametrize(
    ("python", "remedy"),
    [("/nowhere/python", "name a Python that has PyTorch"), ("/bin/false", "`make setup-torch` brings it")],
)
def test_a_python_without_torch_is_refused_before_anything_starts(python: str, remedy: str) -> None:
    with pytest.raises(BadInput, match=remedy):
        acts.python_with_torch(python)


def test_the_summary_shows_stations_books_and_promises() -> None:
    view = {"name": "demo-ddp", "status": "finished", "guarantee": "level 2, consistent", "decisions": [], "phases": []}
    books = {"samples_total": 10, "samples_done": 10, "samples_recomputed": 0, "exact": True}
    stations = {**ranks().stations, **growing().stations}
    found = summary.build(view, {**view, "name": "demo-grows"}, books, stations, 4.0, 100.0)
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(summary.tables(found))
    shown = console.export_text()
    assert found["passed"]
    assert "a rank more, of the same script" in shown
    assert "demo-ddp: level 2, consistent" in shown
    assert not summary.build(view, view, {**books, "exact": False}, stations, 4.0, 100.0)["passed"]
    unseen = {**stations, "grown": GrowingCourse().stations["grown"]}
    assert not summary.build(view, view, books, unseen, 4.0, 1.0)["passed"]
