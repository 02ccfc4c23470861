"""Whatever happens in whatever order, the arbiter overdraws nothing and changes nobody in the middle of a change."""

from __future__ import annotations

import pickle
import random
from dataclasses import replace

import pytest
from arbiter_builders import busy_cluster, event_of
from closed_loop import MIB, plan, profile
from hypothesis import given, settings
from hypothesis import strategies as st
from job_builders import job_ended, plan_applied, plan_proposed
from stretto_core.arbiter.machine import ArbiterMachine
from stretto_core.arbiter.state import ArbiterSettings
from stretto_core.machine import Tick
from stretto_core.model.types import JobOpened
from stretto_messages.actuator import PlanApplied, ReplacementEnded
from stretto_messages.arbiter import PlanDecided, PlanRefused, ReplacementDecided
from stretto_messages.base import GIB
from stretto_messages.values import Plan, Resources, larger, total

CAPACITY = Resources(9.0, 20 * GIB)
JOBS = st.sampled_from(["a", "b", "c", "d"])
COUNTS = st.integers(1, 6)
MEMORY = st.sampled_from([GIB // 2, GIB, 3 * GIB, 9 * GIB])

submit = st.builds(lambda *spec: ("submit", spec[0], spec[1:]), JOBS, st.sampled_from([1.0, 1.0, 3.0]), st.booleans())
KINDS = st.sampled_from(["warm-start", "measure", "requested"])
propose = st.builds(lambda job, w, p, kind: ("propose", job, (w, p, kind)), JOBS, COUNTS, COUNTS, KINDS)
replacement = st.builds(lambda job, end: ("replace", job, end), JOBS, st.booleans())
compute = st.builds(
    lambda job, rows: ("compute", job, rows),
    JOBS,
    st.lists(st.tuples(COUNTS, COUNTS, st.floats(100, 9000), st.floats(0, 0.6)), min_size=1, max_size=5),
)
forecast = st.builds(lambda job, m, a: ("oom", job, (m, a)), JOBS, MEMORY, st.sampled_from(["grow", "shrink", "none"]))
apply = st.builds(lambda job: ("apply", job, None), JOBS)
end = st.builds(lambda job, how: ("end", job, how), JOBS, st.sampled_from(["completed", "gone", "failed"]))
progress = st.builds(lambda job, n: ("progress", job, n), JOBS, st.integers(0, 10**7))
pods = st.builds(
    lambda what, job, number, role: (what, job, (number, role)),
    st.sampled_from(["no-room", "no-room", "settled"]), JOBS, st.integers(0, 2), st.sampled_from(["worker", "ps"]),
)  # fmt: skip
steps = st.lists(
    st.tuples(
        st.one_of(submit, propose, compute, forecast, apply, apply, end, progress, replacement, pods),
        st.one_of(st.sampled_from([0.0, 2.0, 20.0]), st.floats(0, 60)),
    ),
    max_size=60,
)


@settings(max_examples=150)
@given(steps)
def test_capacity_versions_and_running_changes_are_respected(
    script: list[tuple[tuple[str, str, object], float]],
) -> None:
    machine, now = ArbiterMachine(None, ArbiterSettings(CAPACITY, apply_timeout_s=1e9)), 0.0
    versions: dict[str, int] = {}
    for step, wait_s in script:
        now += wait_s
        event = event_of(machine, step)
        if isinstance(event, JobOpened) and event.job not in machine.state.jobs:
            versions.pop(event.job, None)
        busy = {name for name, job in machine.state.jobs.items() if job.changing}
        if isinstance(event, (PlanApplied, ReplacementEnded)):
            busy.discard(event.job)
        held = machine.state.claimed()
        for action in machine.handle(event, now):
            fact = action.fact
            assert fact.reasons
            if isinstance(fact, (PlanRefused, ReplacementDecided)):
                continue
            assert isinstance(fact, PlanDecided)
            assert fact.job not in busy or fact.kind == "memory", "decided on in the middle of a change"
            assert fact.version == versions.get(fact.job, 0) + 1
            versions[fact.job] = fact.version
            decided: Plan = fact.plan
            assert decided.ps_memory_bytes >= 512 * MIB
            assert machine.state.jobs[fact.job].plan == decided
        claimed = machine.state.claimed()
        assert claimed.fits(CAPACITY), f"{claimed} of {CAPACITY}"
        believed = CAPACITY - total(job.without_room for job in machine.state.jobs.values())
        assert claimed.fits(larger(believed, held)), f"{claimed} of {believed}, {held} before"


@settings(max_examples=60)
@given(
    st.integers(0, 2**32),
    st.sampled_from([CAPACITY, Resources(4.0, 9 * GIB), Resources(20.3, 60 * GIB)]),
    st.sampled_from([0.0, 2.0, 10.0]),
)
@pytest.mark.proof
def test_what_a_change_does_not_concern_is_passed_over_without_a_difference(
    seed: int, capacity: Resources, round_s: float
) -> None:
    """The other machine begins anew before every event: it knows nothing but the state, and looks at every job."""
    rng, now = random.Random(seed), 0.0
    limits = ArbiterSettings(capacity, stop_grace_s=7.0, leave_timeout_s=200.0, apply_timeout_s=90.0, round_s=round_s)
    machine, names = ArbiterMachine(None, limits), [f"job-{number}" for number in range(rng.choice([3, 6, 12]))]
    for _ in range(120):
        now += rng.choice([0.0, 0.5, 2.0, 5.0, 20.0, 60 * rng.random()])
        event = Tick() if rng.random() < 0.1 else event_of(machine, busy_cluster(rng, machine, names))
        before = {name: replace(job, applied_plans=[*job.applied_plans]) for name, job in machine.state.jobs.items()}
        state = pickle.loads(pickle.dumps(machine.state))
        state.jobs = dict(reversed(state.jobs.items()))
        afresh = ArbiterMachine(state, machine.settings)
        assert machine.handle(event, now) == afresh.handle(event, now)
        assert machine.state == afresh.state
        without_room = total(job.without_room for job in machine.state.jobs.values())
        assert machine.free() == capacity - without_room - machine.state.claimed()
        others = {name for name in names if before.get(name) != machine.state.jobs.get(name)}
        assert others <= machine.changed, "what is not saved is lost with its owner"
        machine.changed.clear()


def test_nothing_is_remembered_of_jobs_that_are_gone() -> None:
    machine = ArbiterMachine(None, ArbiterSettings(CAPACITY))
    for number in range(20):
        job, now = f"job-{number}", 1000.0 * number
        machine.handle(JobOpened(job, profile(10**7, weight=1 + number / 7)), now)
        machine.handle(plan_proposed(job, "warm-start", plan(), 0.1, ("r",)), now)
        machine.handle(plan_applied(job, 1, plan(), 2.0), now)
        machine.handle(job_ended(job, "gone"), now)
    machine.handle(Tick(), 1e6)
    machine.changed.clear()
    kept = {
        name: value for name, value in vars(machine._context.register).items() if isinstance(value, (dict, list, set))
    }
    assert not any(kept.values()), kept
    assert machine.free() == CAPACITY
