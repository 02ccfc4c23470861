"""Event strategies for jobs under an arbiter: started jobs that can gain, and random events of a busy cluster."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from closed_loop import plan, profile
from stretto_core.algorithms import SELECT
from stretto_core.arbiter import ArbiterMachine
from stretto_core.arbiter.state import ArbiterSettings
from stretto_core.jobs import (
    CandidatesComputed,
    JobEnded,
    JobProgressed,
    JobSubmitted,
    OomForecast,
    PlanApplied,
    PlanDecided,
    PlanProposed,
    PodSettled,
    PodUnplaced,
    ReplacementAsked,
    ReplacementEnded,
)
from stretto_core.machine import Tick
from stretto_core.model.pareto import Candidate
from stretto_messages.base import GIB


def started(limits: ArbiterSettings, jobs: int, algorithm: str = "hull") -> ArbiterMachine:
    """So many jobs under one worker and one PS each."""
    machine = ArbiterMachine(None, limits, SELECT.named(algorithm), algorithm)
    for number in range(jobs):
        job = f"job-{number}"
        machine.handle(JobSubmitted(job, profile(10**7)), 0.0)
        machine.handle(PlanProposed(job, "warm-start", plan(), 0.1, ("r",)), 0.0)
        machine.handle(PlanApplied(job, 1, plan(), 2.0), 0.0)
    return machine


def offer(machine: ArbiterMachine, job: str, now: float, *rows: tuple[int, float]) -> list[PlanDecided]:
    """Candidates of so many workers, with the gain of each over the plan in force."""
    state = machine.state.jobs[job]
    assert state.plan is not None
    found = tuple(
        Candidate(replace(state.plan, workers=w), 1000 + g, 999 + g, 1001 + g, 0.1 * w, 5.0, g) for w, g in rows
    )
    event = CandidatesComputed(job, state.version, state.plan, 1000.0, "x", 9, found)
    return [action.fact for action in machine.handle(event, now)]


def candidate(w: int, p: int, rate: float, sd: float) -> Candidate:
    wide = math.exp(1.645 * sd)
    return Candidate(plan(w, p), rate, rate / wide, rate * wide, 0.1 * w, 5.0, rate - 1000.0)


def event_of(machine: ArbiterMachine, step: tuple[str, str, object]) -> object:
    what, job, value = step
    state = machine.state.jobs.get(job)
    match what, value:
        case "submit", (weight, hurried):
            return JobSubmitted(job, profile(10**7, weight=weight, deadline_s=500.0 if hurried else None))
        case "propose", (w, p, kind):
            return PlanProposed(job, kind, plan(w, p), 0.1, ("r",))
        case "replace", ended:
            return (ReplacementEnded if ended else ReplacementAsked)(job, "ps-0")
        case "compute", list() as rows:
            version = state.version if state else 0
            return CandidatesComputed(job, version, plan(), 1000.0, "x", 9, tuple(candidate(*row) for row in rows))
        case "no-room", (number, role):
            return PodUnplaced(job, f"{role}-{number}", role, "Insufficient cpu")
        case "settled", (number, role):
            return PodSettled(job, f"{role}-{number}")
        case "oom", (memory, action):
            return OomForecast(job, action, memory, "r")
        case "apply", _:
            return PlanApplied(job, state.version, state.plan or plan(), 2.0) if state else Tick()
        case "progress", int() as n:
            return JobProgressed(job, n, 10**7, 1000.0)
        case _:
            return JobEnded(job, value)  # type: ignore[arg-type]


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
