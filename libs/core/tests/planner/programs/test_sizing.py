"""The size of a watched program follows what its worker uses, and each change has its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from stretto_core.model.types import JobLimits, JobOpened, JobProfile
from stretto_core.planner.machine import PlanMachine
from stretto_core.planner.programs.sizing import ProgramUse, SizingRules, sized
from stretto_messages.actuator import PlanApplied
from stretto_messages.base import GIB, NO_SERVERS, example_of
from stretto_messages.planner import PlanProposed
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import Plan, WorkerProfile

MIB = 2**20
PS, PS_CORES, PS_BYTES = NO_SERVERS
PLAN = Plan(1, PS, 1.0, PS_CORES, 2 * GIB, PS_BYTES)
LIMITS = JobLimits(replace(PLAN, worker_cpu_cores=0.1, worker_memory_bytes=64 * MIB),
                   replace(PLAN, worker_cpu_cores=64.0, worker_memory_bytes=8 * GIB))  # fmt: skip
RULES = SizingRules()
WINDOW_S = 5.0


def window(plan: Plan, version: int, cores: float, memory: float, rate: float, pod: str) -> ProfileMeasured:
    worker = WorkerProfile(
        pod=pod, step_time_s=1 / rate if rate else 0.0, samples_per_s=rate, cpu_used_cores=cores,
        memory_used_bytes=int(memory),
    )  # fmt: skip
    return replace(
        example_of(ProfileMeasured), plan=plan, plan_version=version, workers=(worker,), ps=(), throughput=rate,
        settled=True,
    )  # fmt: skip


class Watched:
    """A program under a plan that is changed as is asked for."""

    def __init__(self, most_cores: float = 64.0, only_memory: bool = False) -> None:
        self.state, self.plan, self.version, self.now = ProgramUse(), PLAN, 1, 1000.0
        self.most_cores, self.only_memory = most_cores, only_memory
        self.told: list[str] = []

    def run(
        self, windows: int, cores: Callable[[Plan], float], memory: Callable[[float], float],
        rate: Callable[[Plan], float] = lambda plan: 0.0, pod: str = "worker-0",
    ) -> None:  # fmt: skip
        for _ in range(windows):
            self.now += WINDOW_S
            event = window(self.plan, self.version, cores(self.plan), memory(self.now), rate(self.plan), pod)
            if (found := sized(
                self.state, event, LIMITS, self.most_cores, self.now, RULES, self.only_memory
            )) is not None:  # fmt: skip
                self.plan, reason = found
                self.version += 1
                self.told.append(reason)


def steady(value: float) -> Callable[[object], float]:
    return lambda _: value


def test_memory_that_grows_is_foreseen_and_given_before_it_is_full() -> None:
    job = Watched()
    growth = 4 * MIB
    job.run(300, steady(0.8), lambda now: 512 * MIB + growth * (now - 1000.0))
    assert "worker-0 uses" in job.told[0]
    assert "4.0 MiB more each second, so that it would be full in" in job.told[0]
    used = 512 * MIB + growth * (job.now - 1000.0)
    assert used < job.plan.worker_memory_bytes, "it never ran full"
    assert len(job.told) <= 4, "each request is for ten minutes"


def test_memory_near_its_limit_gets_more_at_once_and_a_job_of_a_stated_size_as_well() -> None:
    job = Watched(only_memory=True)
    job.run(1, steady(0.01), steady(1.8 * GIB))
    assert job.plan.worker_memory_bytes == pytest.approx(1.25 * 1.8 * GIB, abs=64 * MIB)
    job.run(400, steady(0.01), steady(1.8 * GIB))
    assert len(job.told) == 1, "its cores are as its job file states"


def test_beyond_its_limit_nothing_is_asked_for() -> None:
    job = Watched()
    job.plan = replace(PLAN, worker_memory_bytes=8 * GIB)
    job.run(30, steady(0.8), steady(7.9 * GIB))
    assert job.told == []


def test_memory_is_given_back_late_and_never_below_the_highest_use() -> None:
    job = Watched()
    job.run(10, steady(0.8), steady(700 * MIB))
    job.run(49, steady(0.8), steady(100 * MIB))
    assert job.told == []
    job.run(2, steady(0.8), steady(100 * MIB))
    assert job.plan.worker_memory_bytes == 17 * 64 * MIB, "1.5 times 700 MiB, in whole steps"
    assert "has never used more than 0.68 GiB of 2.00 GiB" in job.told[0]
    job.run(200, steady(0.8), steady(100 * MIB))
    assert len(job.told) == 1


@pytest.mark.parametrize(("kib_per_s", "changes"), [(3.4, 1), (64.0, 0)])
def test_memory_that_grows_by_the_lines_that_a_program_prints_is_given_back(kib_per_s: float, changes: int) -> None:
    """Method: 3.4 KiB a second were measured for a program that prints two lines a second."""
    job = Watched()
    job.run(70, steady(0.8), lambda now: 400 * MIB + kib_per_s * 1024 * (now - 1000.0))
    assert len(job.told) == changes


def test_another_worker_begins_anew_but_what_the_last_one_needed_is_known() -> None:
    job = Watched()
    job.run(10, steady(0.8), steady(1.5 * GIB))
    job.run(100, steady(0.8), steady(100 * MIB), pod="worker-1")
    assert job.told == []


def test_a_program_that_can_use_more_cores_gets_them_up_to_the_clusters() -> None:
    job = Watched(most_cores=4.0)
    job.run(60, lambda plan: min(plan.worker_cpu_cores, 3.0), steady(1.2 * GIB))
    assert job.plan.worker_cpu_cores == pytest.approx(3.5, abs=0.3)
    assert job.told[0] == "worker-0 uses 1.00 of 1 cores, nearly all"
    changes = len(job.told)
    job.run(200, lambda plan: min(plan.worker_cpu_cores, 3.0), steady(1.2 * GIB))
    assert len(job.told) <= changes + 1, "it comes to rest"


def test_cores_that_bring_nothing_are_given_back_and_not_tried_again() -> None:
    job = Watched()
    job.run(100, lambda plan: min(plan.worker_cpu_cores, 0.99), steady(1.2 * GIB))
    assert job.plan.worker_cpu_cores == 1.0
    assert job.told[1] == "more cores brought nothing: it used 0.99 of 1.5 cores, and 0.99 when it had 1"
    assert len(job.told) == 2


def test_cores_that_spin_without_a_step_more_bring_nothing() -> None:
    job = Watched()
    job.run(100, lambda plan: plan.worker_cpu_cores, steady(1.2 * GIB), lambda plan: 20.0)
    assert job.plan.worker_cpu_cores == 1.0
    assert job.told[1].endswith("; 20 steps a second, and 20 then")


def test_idle_cores_are_given_back_for_what_it_used_at_most() -> None:
    job = Watched()
    job.run(20, steady(0.3), steady(1.2 * GIB))
    assert job.plan.worker_cpu_cores == pytest.approx(0.4)
    assert job.told == ["worker-0 has used at most 0.30 of 1 cores for 55 s"]
    job.run(200, steady(0.3), steady(1.2 * GIB))
    assert len(job.told) == 1


def test_a_request_without_an_answer_is_repeated_and_not_each_time() -> None:
    state, asked = ProgramUse(), 0
    for number in range(24):
        event = window(PLAN, 1, 0.5, 1.9 * GIB, 0.0, "worker-0")
        asked += sized(state, event, LIMITS, 64.0, 1000.0 + WINDOW_S * number, RULES) is not None
    assert asked == 2


def test_the_planner_proposes_for_a_watched_job_alone() -> None:
    event = window(PLAN, 1, 0.5, 1.9 * GIB, 0.0, "worker-0")
    for watched in (True, False):
        machine = PlanMachine()
        profile = JobProfile(1, 1, LIMITS, initial=PLAN, watched=watched)
        machine.handle(JobOpened("a", profile), 0.0)
        assert machine.handle(replace(event, job="a"), 5.0) == [], "its plan is not in force yet"
        machine.handle(PlanApplied(job="a", version=1, plan=PLAN, took_s=1.0), 6.0)
        proposed = [each.fact for each in machine.handle(replace(event, job="a"), 7.0)]
        assert [type(each) for each in proposed] == ([PlanProposed] if watched else [])
        assert all(each.kind == "memory" and "uses 1.90 GiB of 2.00 GiB" in each.reasons[0] for each in proposed)
