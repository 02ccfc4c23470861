"""Event strategies for jobs under an arbiter: started jobs that can gain, and random events of a busy cluster."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

from closed_loop import plan, profile
from job_builders import candidate as any_candidate
from job_builders import (
    candidates_computed,
    job_ended,
    job_progressed,
    oom_forecast,
    plan_applied,
    plan_proposed,
    pod_settled,
    pod_unplaced,
    replacement_asked,
    replacement_ended,
)
from stretto_core.algorithms import SELECT
from stretto_core.arbiter.machine import ArbiterMachine
from stretto_core.arbiter.state import ArbiterSettings
from stretto_core.machine import Tick
from stretto_core.model.types import JobOpened, JobProfile
from stretto_messages.arbiter import PlanDecided
from stretto_messages.base import GIB
from stretto_messages.values import Candidate


def started(limits: ArbiterSettings, jobs: int, algorithm: str = SELECT.default) -> ArbiterMachine:
    """So many jobs under one worker and one PS each."""
    machine = ArbiterMachine(None, limits, SELECT.named(algorithm), algorithm)
    for number in range(jobs):
        job = f"job-{number}"
        machine.handle(JobOpened(job, profile(10**7)), 0.0)
        machine.handle(plan_proposed(job, "warm-start", plan(), 0.1, ("r",)), 0.0)
        machine.handle(plan_applied(job, 1, plan(), 2.0), 0.0)
    return machine


class Told:
    """An arbiter that is told of one job after another."""

    def __init__(self, machine: ArbiterMachine) -> None:
        self.machine, self.now = machine, 0.0

    def tell(self, event: Any) -> list[Any]:
        self.now += 1.0
        return [action.fact for action in self.machine.handle(event, self.now)]

    def start(self, job: str, spec: JobProfile, workers: int = 1, team: str = "default") -> list[Any]:
        """Submit a job and propose a plan: a worker and a PS take a core each."""
        self.tell(JobOpened(job, spec, team))
        return self.tell(plan_proposed(job, "warm-start", plan(workers)))

    def applied(self, job: str) -> list[Any]:
        state = self.machine.state.jobs[job]
        return self.tell(plan_applied(job, state.version, state.plan))


def offer(machine: ArbiterMachine, job: str, now: float, *rows: tuple[int, float]) -> list[PlanDecided]:
    """Candidates of so many workers, with the gain of each over the plan in force."""
    state = machine.state.jobs[job]
    assert state.plan is not None
    found = tuple(
        any_candidate(replace(state.plan, workers=w), 1000 + g, 999 + g, 1001 + g, 0.1 * w, 5.0, g) for w, g in rows
    )
    event = candidates_computed(job, state.version, state.plan, 1000.0, found)
    return [action.fact for action in machine.handle(event, now)]


def candidate(w: int, p: int, rate: float, sd: float) -> Candidate:
    wide = math.exp(1.645 * sd)
    return any_candidate(plan(w, p), rate, rate / wide, rate * wide, 0.1 * w, 5.0, rate - 1000.0)


def event_of(machine: ArbiterMachine, step: tuple[str, str, object]) -> object:
    what, job, value = step
    state = machine.state.jobs.get(job)
    match what, value:
        case "submit", (weight, hurried):
            return JobOpened(job, profile(10**7, weight=weight, deadline_s=500.0 if hurried else None))
        case "propose", (w, p, kind):
            return plan_proposed(job, kind, plan(w, p), 0.1, ("r",))
        case "replace", ended:
            return (replacement_ended if ended else replacement_asked)(job, "ps-0")
        case "compute", list() as rows:
            version = state.version if state else 0
            return candidates_computed(job, version, plan(), 1000.0, tuple(candidate(*row) for row in rows))
        case "no-room", (number, role):
            return pod_unplaced(job, f"{role}-{number}", role, "Insufficient cpu")
        case "settled", (number, role):
            return pod_settled(job, f"{role}-{number}")
        case "oom", (memory, action):
            return oom_forecast(job, action, memory, "r")
        case "apply", _:
            return plan_applied(job, state.version, state.plan or plan(), 2.0) if state else Tick()
        case "progress", int() as n:
            return job_progressed(job, n, 10**7, 1000.0)
        case _:
            return job_ended(job, value)  # type: ignore[arg-type]


def busy_cluster(rng: random.Random, machine: ArbiterMachine, names: list[str]) -> tuple[str, str, object]:
    """Draw a likely next event of one of these jobs; denser in interesting cases than a uniform choice."""
    job = rng.choice(names)
    state = machine.state.jobs.get(job)
    if state is None:
        return "submit", job, (rng.choice([1.0, 1.0, 3.0]), rng.random() < 0.3)
    if state.changing and rng.random() < 0.4:
        return ("replace", job, True) if state.replacing else ("apply", job, None)
    w, p = rng.randint(1, 6), rng.randint(1, 4)
    rows = [(rng.randint(1, 6), p, rng.uniform(500, 9000), rng.choice([0.0, 0.05, 0.6])) for _ in range(6)]
    return rng.choice(
        [
            ("propose", job, (w, p, rng.choice(["warm-start", "measure", "requested"]))),
            ("propose", job, (w, p, "measure")),
            ("compute", job, rows),
            ("oom", job, (rng.choice([GIB // 2, GIB, 3 * GIB, 20 * GIB]), rng.choice(["grow", "shrink", "none"]))),
            ("progress", job, rng.randint(0, 10**7)),
            ("replace", job, rng.random() < 0.3),
            (rng.choice(["no-room", "settled"]), job, (rng.randint(0, 2), rng.choice(["worker", "ps"]))),
            ("apply", job, None),
            ("end", job, rng.choice(["completed", "gone", "failed"])),
        ]
    )
