"""A window of a watched program is measured whether the program made a step in it or not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from stretto_core.profiler.machine import ProfilerMachine
from stretto_core.profiler.state import JobOpened
from stretto_messages.actuator import PlanApplied, PodStarted
from stretto_messages.base import GIB, NO_SERVERS, example_of
from stretto_messages.pods import WorkerReported
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import Plan, StepTimes

PLAN = Plan(1, NO_SERVERS[0], 1.0, NO_SERVERS[1], GIB, NO_SERVERS[2])


@pytest.mark.parametrize(("watched", "steps", "rates"), [(True, 0, {0.0}), (True, 3, {3.0}), (False, 0, set[float]())])
def test_use_is_told_without_steps_of_a_watched_program_alone(watched: bool, steps: int, rates: set[float]) -> None:
    machine = ProfilerMachine()
    started = replace(example_of(PodStarted), pod="worker-0", role="worker", cpu_cores=1.0, memory_bytes=GIB)
    machine.handle(JobOpened(1, watched), 0.0)
    machine.handle(started, 0.0)
    machine.handle(PlanApplied(job="j", version=1, plan=PLAN, took_s=1.0), 0.0)
    told: list[ProfileMeasured] = []
    for second in range(1, 30):
        report = replace(
            example_of(WorkerReported), pod="worker-0", plan_version=1, ended_at_s=1000.0 + second, steps=steps,
            steps_total=steps * second, samples_total=steps * second, step_time_s=0.25 if steps else 0.0,
            times=StepTimes(emb_s=0.0, grad_s=0.0, upd_s=0.0, sync_s=0.0), cpu_used_cores=0.7, memory_used_bytes=5,
        )  # fmt: skip
        told += [
            each.fact for each in machine.handle(report, 1000.0 + second) if isinstance(each.fact, ProfileMeasured)
        ]  # type: ignore[union-attr]
    assert {each.throughput for each in told} == rates
    assert all((each.workers[0].cpu_used_cores, each.workers[0].memory_used_bytes) == (pytest.approx(0.7), 5)
               for each in told)  # fmt: skip
    assert bool(told) == watched
    assert not told or told[-1].settled
