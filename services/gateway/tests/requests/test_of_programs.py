"""A job that runs a program: what it cannot have is refused at once, and level 0 is not said to stall."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pytest
from stretto_gateway.problems import Problem
from stretto_gateway.read_model.projection import Projection
from stretto_gateway.read_model.summaries import STALLED_S, as_of, summary
from stretto_gateway.requests import checks
from stretto_messages.arbiter import PlanDecided
from stretto_messages.base import NO_SERVERS, example_of
from stretto_messages.objects.decider import ObjectReleased, SizeSettled
from stretto_messages.values import Plan
from stretto_wire import JobSpec
from stretto_wire.contract.submission import ObjectAdopted
from stretto_wire.rest.views import JobView, PodView, Progress

PLAN = Plan(2, NO_SERVERS[0], 1.0, NO_SERVERS[1], 2**30, NO_SERVERS[2])


def view(level: int, **more: object) -> JobView:
    leased = {"dataset": {"samples": 900, "batch_size": 10}} if level else {}
    spec = JobSpec.parse({"name": "a", "program": {"command": ["python"], "level": level}, **leased})
    progress = Progress(
        advanced_at_s=5.0, samples_per_s=7.0, samples_done=300, samples_total=900, samples_recomputed=40
    )
    made = JobView("a", "training", spec, 0.0, "ada", level=level, guarantee=f"level {level}", plan=PLAN)
    made.progress = progress
    for name, value in more.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("ask", "level", "told"),
    [
        (lambda job: checks.check_has_parameters(job), 1, "keeps its own parameters"),
        (lambda job: checks.changed_plan(job, None, 2), 1, "there are no parameter servers"),
        (lambda job: checks.changed_plan(job, 2, None), 0, "all of its program in one worker: level 0"),
        (lambda job: checks.changed_plan(job, 2, None), 2, "all of its program in one worker: level 2"),
        (
            lambda job: checks.check_has_no_program(job, "data", 2, "data workers prepare batches for models alone"),
            1,
            "data workers prepare batches for models alone",
        ),
    ],
)
def test_what_a_program_cannot_have_is_refused_with_the_reason(
    ask: Callable[[JobView], object], level: int, told: str
) -> None:
    with pytest.raises(Problem, match=told) as caught:
        ask(view(level))
    assert caught.value.kind == "runs-program"


@pytest.mark.parametrize(("level", "remedy"), [(1, "save its model by itself"), (2, "stretto.agent.checkpoint")])
def test_a_refused_checkpoint_says_what_the_program_can_do_by_itself(level: int, remedy: str) -> None:
    with pytest.raises(Problem, match="nothing that Stretto could save") as caught:
        checks.check_has_parameters(view(level))
    assert remedy in caught.value.remedy


def test_workers_may_be_asked_for_at_level_1() -> None:
    assert checks.changed_plan(view(1), 3, None).workers == 3


def test_workers_may_be_asked_for_where_they_are_ranks_of_one_program() -> None:
    spec = JobSpec.parse(
        {
            "name": "a",
            "program": {"command": ["python"], "level": 2, "resize": "restart"},
            "dataset": {"samples": 900, "batch_size": 10},
            "resources": {"workers": {"count": {"max": 3}}},
        }
    )
    assert checks.changed_plan(view(2, spec=spec), 3, None).workers == 3


def test_a_program_that_tells_no_samples_does_not_stall_and_tells_what_it_uses() -> None:
    pods = {
        "worker-0": PodView("worker-0", "worker", "exited", cpu_used_cores=9.0, memory_used_bytes=9),
        "worker-1": PodView("worker-1", "worker", cpu_used_cores=0.5, memory_used_bytes=2**20),
    }
    line = summary(view(0, pods=pods), 6.0 + STALLED_S)
    assert (line.level, line.stalled_since_s) == (0, None)
    assert (line.cpu_used_cores, line.memory_used_bytes) == (0.5, 2**20)
    leased = view(1, pods=pods)
    assert as_of(leased, 6.0 + STALLED_S).progress.stalled_since_s == 5.0
    assert summary(leased, 6.0).cpu_used_cores is None, "samples tell how it is"


def test_books_of_a_failed_program_say_what_was_reported() -> None:
    told = "a has failed, and its ledger is not open: level 1. 300 of 900 samples were reported as trained, at most 40"
    assert checks.program_books(view(1, status="failed")).startswith(told)
    assert checks.program_books(view(0, status="failed")).endswith("level 0"), "there are no samples to tell of"


def test_an_object_of_another_controller_is_the_deciders_to_state() -> None:
    program = {"command": ["x"], "level": 0, "object": "Job/training/my-dlrm"}
    with pytest.raises(Problem, match="object") as caught:
        checks.check_object(JobSpec.parse({"name": "a", "program": program}))
    assert "stretto.dev/size" in caught.value.remedy
    checks.check_object(view(0).spec)


@pytest.mark.parametrize(("ending", "status"), [("complete", "finished"), ("failed", "failed"), ("gone", "cancelled")])
def test_an_object_is_shown_as_a_job_from_its_adoption_to_its_end(
    ending: Literal["complete", "failed", "gone"], status: str
) -> None:
    projection, adopted = Projection(), example_of(ObjectAdopted)
    settled = example_of(SizeSettled)
    plan = replace(example_of(PlanDecided), job=adopted.job, version=settled.version, plan=settled.plan)
    for second, fact in enumerate((adopted, plan, settled, settled), 1):
        projection.apply(fact, second, float(second))
    shown = projection.jobs[adopted.job]
    assert (shown.level, shown.applied_version, shown.submitted_by) == (0, settled.version, "Job/training/my-dlrm")
    assert shown.decisions[-1].outcome.applied_at_s == 3.0, "the first time counts"
    projection.apply(replace(example_of(ObjectReleased), ending=ending, reason="so it is"), 5, 5.0)
    assert (shown.status, shown.reason) == (status, "so it is")
