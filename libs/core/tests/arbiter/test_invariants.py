"""Whatever happens in whatever order, the arbiter overdraws nothing and changes nobody in the middle of a change."""

from __future__ import annotations

import pickle
import random
from dataclasses import replace

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
from stretto_messages.values import Resources, larger, total

CAPACITY = Resources(9.0, 20 * GIB)


@settings(max_examples=80)
@given(
    st.integers(0, 2**32),
    st.sampled_from([CAPACITY, Resources(4.0, 9 * GIB), Resources(20.3, 60 * GIB)]),
    st.sampled_from([0.0, 2.0, 10.0]),
    st.sampled_from([90.0, 1e9]),
)
def test_capacity_versions_and_running_changes_are_respected_by_whoever_looks_at_what_changed_alone(
    seed: int, capacity: Resources, round_s: float, apply_timeout_s: float
) -> None:
    """Another machine begins anew before every event: it knows nothing but the state, and looks at every job."""
    rng, now, versions = random.Random(seed), 0.0, dict[str, int]()
    times = {"stop_grace_s": 7.0, "leave_timeout_s": 200.0, "apply_timeout_s": apply_timeout_s, "round_s": round_s}
    machine = ArbiterMachine(None, ArbiterSettings(capacity, **times))
    names = [f"job-{number}" for number in range(rng.choice([3, 6, 12]))]
    for _ in range(120):
        now += rng.choice([0.0, 0.5, 2.0, 5.0, 20.0, 60 * rng.random()])
        event = Tick() if rng.random() < 0.1 else event_of(machine, busy_cluster(rng, machine, names))
        if isinstance(event, JobOpened) and event.job not in machine.state.jobs:
            versions.pop(event.job, None)
        busy = {name for name, job in machine.state.jobs.items() if job.changing}
        if isinstance(event, (PlanApplied, ReplacementEnded)):
            busy.discard(event.job)
        held = machine.state.claimed()
        before = {name: replace(job, applied_plans=[*job.applied_plans]) for name, job in machine.state.jobs.items()}
        state = pickle.loads(pickle.dumps(machine.state))
        state.jobs = dict(reversed(state.jobs.items()))
        afresh = ArbiterMachine(state, machine.settings)
        actions = machine.handle(event, now)
        assert actions == afresh.handle(event, now)
        assert machine.state == afresh.state
        for action in actions:
            fact = action.fact
            assert fact.reasons
            if isinstance(fact, (PlanRefused, ReplacementDecided)):
                continue
            assert isinstance(fact, PlanDecided)
            if apply_timeout_s > now:
                assert fact.job not in busy or fact.kind == "memory", "decided on in the middle of a change"
            assert fact.version == versions.get(fact.job, 0) + 1
            versions[fact.job] = fact.version
            assert fact.plan.ps_memory_bytes >= 512 * MIB
            assert machine.state.jobs[fact.job].plan == fact.plan
        claimed = machine.state.claimed()
        assert claimed.fits(capacity), f"{claimed} of {capacity}"
        believed = capacity - total(job.without_room for job in machine.state.jobs.values())
        assert claimed.fits(larger(believed, held)), f"{claimed} of {believed}, {held} before"
        assert machine.free() == believed - claimed
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
