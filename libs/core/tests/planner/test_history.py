"""The history of jobs: a job starts from its own team's, and no team pushes out another's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from closed_loop import profile
from job_builders import no_history, past_job
from stretto_core.machine import Emit
from stretto_core.model.types import JobLimits, JobOpened, JobProfile
from stretto_core.planner.history import HistoryMachine
from stretto_core.planner.machine import PlanMachine
from stretto_core.planner.state import HistorySettings
from stretto_messages.planner import HistoryMatched, PlanProposed
from stretto_messages.values import Plan

METADATA = {"model": "wide-deep"}
PLAN = Plan(4, 2, 2.0, 2.0, 2 << 30, 2 << 30)


def matched(machine: HistoryMachine, team: str) -> HistoryMatched:
    opened = JobProfile(512, 1000, JobLimits(PLAN, PLAN), metadata={**METADATA})
    (action,) = machine.handle(JobOpened("new", opened, team), 0.0)
    assert isinstance(action, Emit)
    assert isinstance(action.fact, HistoryMatched)
    return action.fact


def test_a_job_starts_from_past_jobs_of_its_own_team_and_of_everybody() -> None:
    """Another team's pods may have reported what they liked, and its jobs are not this team's to read."""
    machine = HistoryMachine()
    for job, team in (("hostile", "red"), ("own", "blue"), ("shared", None)):
        machine.handle(replace(past_job(job, METADATA, PLAN, 1e9), team=team), 0.0)
    assert {match.job for match in matched(machine, "blue").matches} == {"own", "shared"}
    assert {match.job for match in matched(machine, "green").matches} == {"shared"}


def test_a_team_of_many_jobs_pushes_out_its_own() -> None:
    machine = HistoryMachine(settings=HistorySettings(jobs_kept=10))
    machine.handle(replace(past_job("few", METADATA, PLAN, 100.0), team="blue"), 0.0)
    for number in range(50):
        machine.handle(replace(past_job(f"many-{number}", METADATA, PLAN, 1e9), team="red"), 0.0)
    assert [*machine.state.past] == ["few", *(f"many-{number}" for number in range(41, 50))]
    assert [match.job for match in matched(machine, "blue").matches] == ["few"]


@pytest.mark.parametrize(("metadata", "why"), [({}, "without model.metadata"), (METADATA, "no past job is similar")])
def test_a_small_first_plan_says_what_a_larger_one_would_need(metadata: dict[str, str], why: str) -> None:
    planner = PlanMachine()
    planner.handle(JobOpened("a", profile(metadata=metadata)), 0.0)
    (action,) = planner.handle(no_history("a"), 0.1)
    assert isinstance(action, Emit)
    assert isinstance(action.fact, PlanProposed)
    assert action.fact.reasons[0].startswith(why)
