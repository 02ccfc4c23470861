"""Plans and data workers of one job, decided together: neither chases the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from closed_loop import LIMITS, Loop, plan, profile
from stretto_core.arbiter.state import ArbiterSettings
from stretto_core.model.throughput import Configuration, Inputs, Supply
from stretto_core.model.types import DataWorkerLimits
from stretto_messages.arbiter import DataWorkersDecided, PlanDecided
from stretto_messages.base import GIB
from stretto_messages.planner import CandidatesComputed
from stretto_messages.values import Resources

CAPACITY = Resources(24, 256 * GIB)
AUTO = DataWorkerLimits(Resources(1.0, GIB), most=16)
FEW = replace(LIMITS, high=plan(8, 4, 1.0, 1.0, 16 * GIB), low=plan(1, 1, 1.0, 1.0, GIB // 2))


def loop(prepare_s: float, data: DataWorkerLimits, **spec: Any) -> Loop:
    made = Loop(CAPACITY, settings=ArbiterSettings(CAPACITY, settle_s=10.0), prepare_s=prepare_s)
    made.submit("a", profile(3_000_000_000, initial=plan(), data=data, limits=FEW, **spec))
    return made


def rate(made: Loop) -> float:
    """Return the samples per second that the job trains now, without noise."""
    _, now_plan = made.running["a"]
    step_s = max(made.step_time(now_plan), made._supply_s("a", now_plan))
    return now_plan.workers * 512 / step_s


def best_rate(made: Loop, data_max: int) -> float:
    """Return the best of all plans within the limits, and all data workers that the cluster has room for beside it."""
    best = 0.0
    for workers in range(1, FEW.high.workers + 1):
        for ps in range(1, FEW.high.ps + 1):
            chosen = plan(workers, ps)
            room = int((CAPACITY - chosen.resources(profile(1).extended)).cpu_cores)
            made.data_workers["other"] = min(room, data_max)
            step_s = max(made.step_time(chosen), made._supply_s("other", chosen))
            best = max(best, workers * 512 / step_s)
    return best


@pytest.mark.proof
@pytest.mark.parametrize("prepare_s", [0.02, 0.06, 0.12])
def test_a_data_bound_job_ends_near_its_best_and_rests(prepare_s: float) -> None:
    made = loop(prepare_s, AUTO)
    made.run(900)
    begun = len(made.facts(PlanDecided)), len(made.facts(DataWorkersDecided))
    had = rate(made)
    made.run(300)
    ended = len(made.facts(PlanDecided)), len(made.facts(DataWorkersDecided))
    assert ended[0] == begun[0]
    assert ended[1] - begun[1] <= 1
    assert had == pytest.approx(rate(made), rel=0.1)
    unbound = loop(0.0, AUTO)
    unbound.run(900)
    assert rate(made) >= 0.95 * min(best_rate(made, AUTO.most), rate(unbound))


def test_a_job_that_nobody_waits_in_is_planned_as_ever() -> None:
    fed, plain = loop(0.001, AUTO), loop(0.0, AUTO)
    fed.run(300)
    plain.run(300)
    assert not fed.facts(DataWorkersDecided)
    assert [fact.plan for fact in fed.facts(PlanDecided)] == [fact.plan for fact in plain.facts(PlanDecided)]


def test_without_data_workers_no_plan_is_believed_faster_than_its_reader() -> None:
    made = loop(0.06, DataWorkerLimits())
    made.run(300)
    for fact in made.facts(CandidatesComputed)[1:]:
        for each in fact.candidates:
            assert each.throughput <= each.plan.workers * 512 / 0.06 * 1.001


@pytest.mark.parametrize(
    ("supply", "step_s"),
    [
        (Supply(0.05), 0.1),
        (Supply(0.3), 0.3),
        (Supply(0.05, home_ahead=False), 0.15),
        (Supply(0.05, 5.0, 4, home_ahead=False), 0.1),
        (Supply(0.05, 2.0, 4, home_ahead=False), 0.125),
        (Supply(0.01, 2.0, 4, home_ahead=False), 0.11),
    ],
)
def test_a_worker_waits_for_what_it_does_not_read_ahead_unless_data_workers_are_faster(
    supply: Supply, step_s: float
) -> None:
    one = Inputs.of([Configuration.of(plan(), 512)])
    assert supply.slowed_s(np.array([0.1]), one) == pytest.approx(step_s)
