"""Whatever happens in whatever order, the arbiter overdraws nothing and changes nobody in the middle of a change."""

from __future__ import annotations

import math

from closed_loop import MIB, plan, profile
from hypothesis import given, settings
from hypothesis import strategies as st
from stretto_core.arbiter import ArbiterMachine
from stretto_core.candidates import Candidate
from stretto_core.cluster import ArbiterSettings
from stretto_core.jobs import (
    CandidatesComputed,
    JobEnded,
    JobProgressed,
    JobSubmitted,
    OomForecast,
    PlanApplied,
    PlanDecided,
    PlanProposed,
    PlanRefused,
)
from stretto_core.machine import Tick
from stretto_core.types import GIB, Plan, Resources

CAPACITY = Resources(9.0, 20 * GIB)
JOBS = st.sampled_from(["a", "b", "c"])
COUNTS = st.integers(1, 6)
MEMORY = st.sampled_from([GIB // 2, GIB, 3 * GIB, 9 * GIB])

submit = st.builds(lambda job, weight: ("submit", job, weight), JOBS, st.sampled_from([1.0, 3.0]))
propose = st.builds(lambda job, w, p, kind: ("propose", job, (w, p, kind)), JOBS, COUNTS, COUNTS, st.booleans())
compute = st.builds(
    lambda job, rows: ("compute", job, rows),
    JOBS,
    st.lists(st.tuples(COUNTS, COUNTS, st.floats(100, 9000), st.floats(0, 0.6)), min_size=1, max_size=5),
)
forecast = st.builds(lambda job, m, a: ("oom", job, (m, a)), JOBS, MEMORY, st.sampled_from(["grow", "shrink", "none"]))
apply = st.builds(lambda job: ("apply", job, None), JOBS)
end = st.builds(lambda job, how: ("end", job, how), JOBS, st.sampled_from(["completed", "gone", "failed"]))
progress = st.builds(lambda job, n: ("progress", job, n), JOBS, st.integers(0, 10**7))
steps = st.lists(
    st.tuples(st.one_of(submit, propose, compute, forecast, apply, apply, end, progress), st.floats(0, 60)),
    max_size=60,
)


def candidate(w: int, p: int, rate: float, sd: float) -> Candidate:
    wide = math.exp(1.645 * sd)
    return Candidate(plan(w, p), rate, rate / wide, rate * wide, 0.1 * w, 5.0, rate - 1000.0)


def event_of(machine: ArbiterMachine, step: tuple[str, str, object]) -> object:
    what, job, value = step
    state = machine.state.jobs.get(job)
    match what, value:
        case "submit", float() as weight:
            return JobSubmitted(job, profile(10**7, weight=weight))
        case "propose", (w, p, first):
            return PlanProposed(job, "warm-start" if first else "measure", plan(w, p), 0.1, ("r",))
        case "compute", list() as rows:
            version = state.version if state else 0
            return CandidatesComputed(job, version, plan(), 1000.0, "x", 9, tuple(candidate(*row) for row in rows))
        case "oom", (memory, action):
            return OomForecast(job, action, memory, "r")
        case "apply", _:
            return PlanApplied(job, state.version, state.plan or plan(), 2.0) if state else Tick()
        case "progress", int() as n:
            return JobProgressed(job, n, 10**7, 1000.0)
        case _:
            return JobEnded(job, value)  # type: ignore[arg-type]


@settings(max_examples=150, deadline=None)
@given(steps)
def test_capacity_versions_and_running_changes_are_respected(
    script: list[tuple[tuple[str, str, object], float]],
) -> None:
    machine, now = ArbiterMachine(None, ArbiterSettings(CAPACITY, apply_timeout_s=1e9)), 0.0
    versions: dict[str, int] = {}
    for step, wait_s in script:
        now += wait_s
        event = event_of(machine, step)
        if isinstance(event, JobSubmitted) and event.job not in machine.state.jobs:
            versions.pop(event.job, None)
        busy = {name for name, job in machine.state.jobs.items() if job.applying}
        if isinstance(event, PlanApplied):
            busy.discard(event.job)
        for action in machine.handle(event, now):
            fact = action.fact
            assert fact.reasons
            if isinstance(fact, PlanRefused):
                continue
            assert isinstance(fact, PlanDecided)
            assert fact.job not in busy or fact.kind == "memory", "decided on in the middle of a change"
            assert fact.version == versions.get(fact.job, 0) + 1
            versions[fact.job] = fact.version
            held: Plan = fact.plan
            assert held.ps_memory_bytes >= 512 * MIB
            assert machine.state.jobs[fact.job].plan == held
        claimed = machine.state.claimed()
        assert claimed.fits(CAPACITY), f"{claimed} of {CAPACITY}"


@settings(max_examples=25, deadline=None)
@given(steps)
def test_a_machine_that_continues_from_its_snapshot_decides_the_same(
    script: list[tuple[tuple[str, str, object], float]],
) -> None:
    from pydantic import TypeAdapter
    from stretto_core.cluster import ArbiterState

    adapter = TypeAdapter(ArbiterState)
    whole, now = ArbiterMachine(None, ArbiterSettings(CAPACITY)), 0.0
    resumed = ArbiterMachine(None, ArbiterSettings(CAPACITY))
    for step, wait_s in script:
        now += wait_s
        event = event_of(whole, step)
        resumed = ArbiterMachine(adapter.validate_json(adapter.dump_json(resumed.state)), ArbiterSettings(CAPACITY))
        assert whole.handle(event, now) == resumed.handle(event, now)
