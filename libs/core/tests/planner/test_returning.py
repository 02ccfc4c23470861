"""A job that measured a worse plan returns to its best plan, once, when that pays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from closed_loop import LIMITS, MIB, Loop, plan, profile
from job_builders import oom_forecast
from stretto_core.arbiter.state import ArbiterSettings
from stretto_core.model.pareto import Overheads
from stretto_core.model.types import DataWorkerLimits, JobLimits
from stretto_core.planner.state import PlannerSettings
from stretto_messages.arbiter import PlanDecided, PlanRefused
from stretto_messages.base import GIB
from stretto_messages.planner import PlanProposed
from stretto_messages.values import NO_EXTENDED, Plan, Resources

ROOM = Resources(2, 24 * GIB)
SMALL = replace(plan(1, 1, 0.5, 0.5), worker_memory_bytes=2 * GIB, ps_memory_bytes=960 * MIB)
DEMO_PLANNER = PlannerSettings(room=ROOM, window_s=3.0, payback_factor=1.5, overheads=Overheads(4.0, 6.0))
DEMO_ARBITER = ArbiterSettings(ROOM, settle_s=10.0)

# samples per second by (workers, PSes): what a demonstration on two cores measured
MEASURED = {(1, 1): 25_200.0, (2, 1): 46_600.0, (2, 2): 34_000.0, (3, 1): 37_700.0, (1, 2): 21_000.0}


def demo(rates: dict[tuple[int, int], float], samples: int, noise: float = 0.04, **spec: Any) -> Loop:
    def step_time_s(p: Plan) -> float:
        return p.workers * 512 / rates[p.workers, p.ps]

    loop = Loop(ROOM, step_time_s, noise, 3.0, 12.0, DEMO_ARBITER, DEMO_PLANNER)
    loop.submit("a", profile(samples, initial=SMALL, **{"limits": LIMITS, **spec}))
    return loop


def decided(loop: Loop) -> list[PlanDecided]:
    return loop.facts(PlanDecided, "a")


def counts(fact: PlanDecided) -> tuple[int, int]:
    return (fact.plan.workers, fact.plan.ps)


def test_a_worse_measurement_is_followed_by_a_return_to_the_best_measured_plan() -> None:
    loop = demo(MEASURED, 4_000_000)
    loop.run(50)
    loop.tell(oom_forecast("a", "grow", 1152 * MIB, "grows"))  # one PS's memory then differs from two PSes'
    loop.run(200)
    made = decided(loop)
    assert (2, 2) in [counts(fact) for fact in made if fact.kind == "measure"]
    (back,) = [fact for fact in made if fact.kind == "improve"]
    assert counts(back) == (2, 1)
    assert made[-1] is back
    assert back.throughput == pytest.approx(46_600, rel=0.1)
    assert back.throughput_interval.low is not None
    assert back.throughput_interval.high is not None
    assert back.throughput_interval.high / back.throughput_interval.low < 1.35, (
        "the measured plan's own spread, not the model's"
    )
    assert back.alternatives
    assert all(row.why_not for row in back.alternatives)
    assert any("measured" in reason for reason in back.reasons)


@pytest.mark.proof
@pytest.mark.parametrize("noise", [0.02, 0.06, 0.12])
@pytest.mark.parametrize("samples", [3_000_000, 4_000_000, 20_000_000])
def test_whatever_the_noise_there_is_at_most_one_return(noise: float, samples: int) -> None:
    loop = demo(MEASURED, samples, noise)
    loop.run(samples / 20_000)
    seen: list[tuple[int, int]] = []
    returns = 0
    for fact in decided(loop):
        returns += counts(fact) in seen and counts(fact) != seen[-1]
        seen.append(counts(fact))
    assert returns <= 1


@pytest.mark.proof
def test_a_machine_that_slows_down_and_up_does_not_swing_the_job() -> None:
    """Another load on the machine makes whatever is measured now worse than what was measured before."""
    rates = dict(MEASURED)
    loop = demo(rates, 30_000_000)
    for i in range(40):
        factor = 0.6 if i % 2 else 1.0
        rates.update({shape: rate * factor for shape, rate in MEASURED.items()})
        loop.run(20)
    returns = [fact for fact in decided(loop) if fact.kind == "improve"]
    assert len(returns) <= 1


def test_no_return_when_too_little_is_left() -> None:
    loop = demo(MEASURED, 8_000_000)
    while counts(decided(loop)[-1]) != (2, 2):
        loop.run(3)
    loop.done["a"] = 7_600_000.0  # 12 s are left
    loop.run(60)
    assert "improve" not in [fact.kind for fact in decided(loop)]


def test_a_plan_that_costs_clearly_less_at_equal_throughput_is_taken() -> None:
    loop = demo({**MEASURED, (2, 2): 46_600.0, (3, 1): 46_600.0}, 20_000_000, 0.02)
    loop.run(400)
    last = decided(loop)[-1]
    assert counts(last) == (2, 1)
    assert last.kind == "improve"
    cheaper = last.previous
    assert last.plan.resources(NO_EXTENDED).cpu_cores < cheaper.resources(NO_EXTENDED).cpu_cores


def test_what_forbids_the_return_is_said() -> None:
    limits = JobLimits(LIMITS.low, replace(LIMITS.high, ps_memory_bytes=2 * GIB))
    loop = demo(MEASURED, 8_000_000, limits=limits)
    loop.run(50)
    while counts(decided(loop)[-1]) != (2, 2):
        loop.run(3)
    loop.tell(oom_forecast("a", "grow", 1536 * MIB, "grows"))
    loop.run(100)
    refused = [fact for fact in loop.facts(PlanRefused, "a") if fact.kind == "improve"]
    assert len(refused) == 1, "it is said once"
    assert (refused[0].wanted.workers, refused[0].wanted.ps) == (2, 1)
    assert any("3.00 GiB" in reason and "2.00 GiB" in reason for reason in refused[0].reasons)


def test_no_plan_is_proposed_for_which_the_jobs_data_workers_leave_no_room() -> None:
    data = Resources(0.5, GIB)
    loop = demo(MEASURED, 4_000_000, data=DataWorkerLimits(data, always=1))
    loop.run(200)
    proposed = [fact.plan.resources(NO_EXTENDED) for fact in loop.facts(PlanProposed, "a")]
    assert len(proposed) > 1
    assert all((amount + data).fits(ROOM) for amount in proposed)
    assert any(not (amount + data).fits(ROOM) for amount in proposals_without_data())


def proposals_without_data() -> list[Resources]:
    loop = demo(MEASURED, 4_000_000)
    loop.run(200)
    return [fact.plan.resources(NO_EXTENDED) for fact in loop.facts(PlanProposed, "a")]
