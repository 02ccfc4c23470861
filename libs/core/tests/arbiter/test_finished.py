"""Finished jobs leave nothing behind in the arbiter, whose one machine sees every job."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import replace
from typing import Any

from arbiter_builders import offer, started
from closed_loop import plan, profile
from job_builders import plan_applied, plan_proposed
from stretto_core.arbiter.machine import ArbiterMachine
from stretto_core.arbiter.state import ArbiterSettings
from stretto_core.machine import Tick
from stretto_core.model.types import JobOpened
from stretto_messages.actuator import JobFinished
from stretto_messages.base import GIB, example_of
from stretto_messages.values import Resources


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
