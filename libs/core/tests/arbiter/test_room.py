"""Capacity that pending pods did not find is subtracted for a while, and finished jobs leave nothing behind."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import replace
from typing import Any

import pytest
from arbiter_builders import offer, started
from closed_loop import plan, profile
from job_builders import job_ended, plan_applied, plan_proposed, pod_settled, pod_unplaced
from stretto_core.arbiter.machine import ArbiterMachine
from stretto_core.arbiter.state import ArbiterSettings
from stretto_core.machine import Tick
from stretto_core.model.types import JobOpened
from stretto_messages.actuator import JobFinished
from stretto_messages.arbiter import PlanRefused
from stretto_messages.base import GIB, example_of
from stretto_messages.values import Resources

SAYS = "0/3 nodes are available: 3 Insufficient cpu."


def told(machine: ArbiterMachine, event: object, now: float) -> list[Any]:
    return [action.fact for action in machine.handle(event, now)]


def crowded(cores: float = 7.0, no_room_s: float = 300.0) -> ArbiterMachine:
    """Two jobs of two and three cores; a worker of the second finds no room, though all but five cores are free."""
    machine = started(ArbiterSettings(Resources(cores, 100 * GIB), no_room_s=no_room_s), 2)
    told(machine, plan_proposed("job-1", "requested", plan(2), 0.1, ("ada asks",)), 10.0)
    told(machine, pod_unplaced("job-1", "worker-1", "worker", SAYS), 11.0)
    return machine


def starting(machine: ArbiterMachine, workers: int, now: float) -> list[Any]:
    """A third job, which takes these workers and a server or nothing."""
    told(machine, JobOpened("job-2", profile(10**7, initial=plan(workers), fixed=True)), now)
    return told(machine, plan_proposed("job-2", "initial", plan(workers), 0.1, ("the first",)), now)


def test_nobody_gets_what_a_pod_found_no_room_for_and_is_told_so() -> None:
    machine = crowded()
    assert machine.free().cpu_cores == 1.0
    (refused,) = starting(machine, 1, 12.0)
    assert isinstance(refused, PlanRefused)
    assert refused.reasons[0].startswith("1 core ")
    assert "1 core and 1.00 GiB of it are spread over nodes too full for one pod" in refused.reasons[0]


@pytest.mark.parametrize("event", [pod_settled("job-1", "worker-1"), job_ended("job-1", "gone")])
def test_what_a_pod_has_or_does_not_want_any_more_is_believed_again(event: object) -> None:
    machine = crowded()
    starting(machine, 1, 12.0)
    (decided,) = told(machine, event, 13.0)
    assert (decided.job, decided.kind) == ("job-2", "initial")


def test_it_is_tried_again_after_a_while() -> None:
    machine = crowded()
    starting(machine, 1, 12.0)
    assert told(machine, Tick(), 310.0) == []
    (decided,) = told(machine, Tick(), 311.0)
    assert decided.job == "job-2"


def test_a_smaller_plan_is_given_at_once_and_says_what_the_one_before_lacks() -> None:
    machine = crowded(5.0, no_room_s=600.0)
    assert machine.free().cpu_cores == -1.0
    told(machine, plan_proposed("job-1", "requested", plan(1), 0.1, ("ada asks for less",)), 20.0)
    (decided,) = told(machine, Tick(), 10.0 + machine.settings.apply_timeout_s + 1.0)
    assert decided.plan.workers == 1
    assert any("no room for worker-1 of the plan before" in reason and SAYS in reason for reason in decided.reasons)
    assert machine.free().cpu_cores == -1.0, "while the change is applied, its pods wait and are counted"
    told(machine, plan_applied("job-1", 3, plan(1), 1.0), 320.0)
    assert machine.free().cpu_cores == 1.0


def test_pods_of_jobs_that_have_no_plan_or_are_gone_lower_nothing() -> None:
    machine = crowded()
    for job in ("job-9", "job-2"):
        told(machine, pod_unplaced(job, "worker-0", "worker", SAYS), 12.0)
    told(machine, pod_settled("job-0", "worker-7"), 12.0)
    assert machine.free().cpu_cores == 1.0


def sizes(machine: ArbiterMachine) -> dict[str, int]:
    """The number of entries of everything that the machine holds, saved or derived."""
    holders: list[Any] = [machine.state, machine._context.register]
    found: dict[str, int] = {}
    for holder in holders:
        names = getattr(holder, "__slots__", None) or vars(holder)
        values = {name: getattr(holder, name) for name in names}
        found |= {name: len(value) for name, value in values.items() if isinstance(value, Sized)}
    return found


def test_after_many_jobs_the_arbiter_is_as_after_one() -> None:
    """Goal: memory does not grow with the jobs of the past. Method: jobs come, get a plan and candidates, and finish;
    the snapshot writer and the alarms do their part."""
    machine, now, first = started(ArbiterSettings(Resources(64.0, 256 * GIB)), 0), 0.0, None
    for number in range(300):
        job, now = f"job-{number}", now + 10.0
        machine.handle(JobOpened(job, profile(10**7)), now)
        machine.handle(plan_proposed(job, "warm-start", plan(), 0.1, ("r",)), now)
        machine.handle(plan_applied(job, 1, plan(), 2.0), now)
        offer(machine, job, now, (2, 500.0))
        machine.handle(replace(example_of(JobFinished), job=job), now + 5.0)
        if number in (0, 299):
            machine.handle(Tick(), now := now + 24 * 3600)
            machine.changed.clear()
            first = first or sizes(machine)
    assert not machine.state.jobs
    assert sizes(machine) == first
