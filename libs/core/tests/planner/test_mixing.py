"""Workers on types of devices, in the loop of the real machines: which are tried, which stay, at what price."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from closed_loop import LIMITS, Loop, plan, profile
from hypothesis import given, settings
from hypothesis import strategies as st
from job_builders import job_ended, pod_started
from stretto_core.arbiter.machine import ArbiterMachine
from stretto_core.arbiter.state import ArbiterSettings
from stretto_core.model.pareto import CandidateProblem, exact_front, grid_within
from stretto_core.model.throughput import Configuration, FittedModel
from stretto_core.model.types import GUESSED_SD, DeviceType, JobLimits, JobProfile, Prices
from stretto_core.planner.machine import PlanMachine
from stretto_core.planner.mixing import fronts
from stretto_core.planner.state import PlannerSettings
from stretto_messages.arbiter import PlanDecided
from stretto_messages.base import GIB
from stretto_messages.planner import CandidatesComputed, HistoryMatched, HistoryRecorded, PlanProposed
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import DeviceSpeed, Resources, extended_of

DCN = {"family": "dcn"}
FAST = DeviceType("fast", price_per_hour=0.05, count=4, cpu_cores=2.0, memory_bytes=4 * GIB)


def cluster(*devices: DeviceType, cores: float = 12.0) -> Resources:
    return Resources(cores, 64 * GIB, extended_of({each.resource: each.count for each in devices}))


def loop_with(*devices: DeviceType, compute_s: dict[str, float], cores: float = 12.0) -> Loop:
    room = cluster(*devices, cores=cores)
    return Loop(
        room,
        settings=ArbiterSettings(room, devices=devices),
        planner_settings=PlannerSettings(room=room, window_s=5.0, devices=devices),
        compute_s=compute_s,
    )


def long_job(**changes: object) -> JobProfile:
    return profile(10**12, devices_asked=("auto",), **changes)


def test_a_cheaper_type_is_tried_with_one_worker_and_then_preferred() -> None:
    loop = loop_with(FAST, compute_s={"fast": 0.002})
    loop.submit("a", long_job())
    loop.run(900)
    tried = [fact for fact in loop.facts(PlanProposed, "a") if fact.plan.groups and fact.kind == "measure"]
    assert [fact.plan.groups for fact in tried] == [(FAST.group(1),)], "once, with one worker"
    assert "fast at 0.05 an hour may train samples for" in tried[0].reasons[0]
    last = loop.facts(PlanDecided, "a")[-1]
    assert last.plan.groups == (FAST.group(4),), "all that there are: each trains far more for its price than cores do"
    assert "4 workers on fast" in last.plan.describe()
    mixed = [fact for fact in loop.facts(PlanDecided, "a") if fact.kind == "improve" and fact.plan.groups]
    assert any("x fast: " in reason and "times the speed of" in reason for reason in mixed[0].reasons)
    for fact in loop.facts(PlanDecided, "a"):
        assert long_job().resources(fact.plan).fits(loop.capacity)


def test_a_type_that_is_dear_even_by_the_optimistic_guess_is_never_tried() -> None:
    loop = loop_with(replace(FAST, price_per_hour=9.0), compute_s={"fast": 0.002})
    loop.submit("a", long_job())
    loop.run(600)
    assert not [fact for fact in loop.facts(PlanProposed, "a") if fact.plan.groups]


def test_a_type_that_turns_out_slow_is_given_back() -> None:
    loop = loop_with(FAST, compute_s={"fast": 0.5})
    loop.submit("a", long_job())
    loop.run(900)
    decided = [fact.plan for fact in loop.facts(PlanDecided, "a")]
    assert any(each.groups for each in decided), "it was tried"
    assert not decided[-1].groups


def measured_beforehand(compute_s: float, cancelled_at_s: float = 100.0) -> tuple[Loop, list[HistoryRecorded]]:
    """Return a loop in which a job that trained on a core and on a unit of FAST was cancelled, and its records."""
    loop = loop_with(FAST, compute_s={"fast": compute_s})
    loop.tells_parts = True
    both = replace(plan(), workers=2, groups=(FAST.group(1),))
    loop.submit("before", long_job(metadata=DCN, initial=both, fixed=True))
    loop.run(cancelled_at_s)
    loop.running.clear()
    loop.tell(job_ended("before", "cancelled"))
    loop.tell(job_ended("before", "gone"))
    return loop, loop.facts(HistoryRecorded, "before")


@pytest.mark.parametrize(("compute_s", "cores"), [(0.002, 10.0), (0.5, 0.04)])
def test_a_cancelled_job_leaves_what_it_measured_of_a_type(compute_s: float, cores: float) -> None:
    _, (recorded,) = measured_beforehand(compute_s)
    (speed,) = recorded.speeds
    assert (speed.device, speed.job, recorded.cancelled) == ("fast", "before", True)
    assert speed.measured_at_s > 0
    within = math.exp(2 * speed.log_sd)
    assert cores / within < speed.cores < cores * within
    assert speed.log_sd < GUESSED_SD, "more is known than of a stated speed"


def test_a_unit_whose_computing_is_below_the_noise_is_not_measured() -> None:
    loop, recorded = measured_beforehand(1e-7)
    fitted = loop.planners["before"].state.model
    assert fitted is not None
    assert fitted.coefficients["a1@fast"] > 0, "a figure there is, that nobody may trust"
    assert (FittedModel.of(fitted).speeds("before"), recorded) == ((), [])


def test_a_speed_that_no_message_may_carry_is_left_out() -> None:
    coefficients = {"a1": 1.0, "a1@x": 1.1e-9, "a1@y": 0.9e-9}
    covariance = tuple(
        tuple((1e-3 * one) ** 2 * (one == other) for other in coefficients.values()) for one in coefficients.values()
    )
    measured = tuple(Configuration(2, 1, 1.0, 1.0, 512, device=name) for name in ("", "x", "y"))
    model = FittedModel("default", coefficients, covariance, 0.05, 8.0, 0.02, (), measured)
    assert [each.device for each in model.speeds("a")] == ["x"]


@pytest.mark.parametrize("log_sd", [GUESSED_SD, 92.0, math.inf, math.nan])
def test_a_stated_speed_stays_where_a_past_job_knows_less(log_sd: float) -> None:
    known = DeviceSpeed(device="fast", cores=1949.8, log_sd=log_sd, job="before")
    assert FAST.as_known(known) == FAST


def test_a_type_that_a_similar_job_found_slow_is_not_tried() -> None:
    loop, _ = measured_beforehand(0.5)
    for job, metadata in (("like", DCN), ("unlike", {"family": "other"})):
        loop.submit(job, long_job(metadata=metadata))
    loop.run(900)
    tried = {fact.job for fact in loop.facts(PlanProposed) if fact.plan.groups and fact.kind == "measure"}
    assert tried == {"unlike"}
    (matched,) = loop.facts(HistoryMatched, "like")
    assert (matched.plan, matched.matches) == (None, ()), "no job starts from the plan of a measurement"


def test_a_trial_says_who_measured_the_type_before_and_predicts_by_that() -> None:
    loop, (recorded,) = measured_beforehand(0.002)
    loop.submit("like", long_job(metadata=DCN))
    loop.planners["like"] = PlanMachine(loop.planners["like"].state, loop.planner_settings)  # saved and started again
    loop.run(900)
    (tried,) = [fact for fact in loop.facts(PlanProposed, "like") if fact.plan.groups and fact.kind == "measure"]
    assert (
        f"(before found a unit as fast as {recorded.speeds[0].cores:.3g} cores, within a factor of"
        in (tried.reasons[0])
    )
    one = next(fact for fact in loop.facts(ProfileMeasured, "like") if fact.plan == tried.plan)
    assert tried.throughput == pytest.approx(one.throughput, rel=0.2)


def test_a_job_that_asks_for_none_gets_none() -> None:
    loop, plain = loop_with(FAST, compute_s={"fast": 0.002}), Loop(cluster())
    for each in (loop, plain):
        each.submit("a", profile(10**12))
        each.run(400)
    assert [fact.plan for fact in loop.facts(PlanDecided)] == [fact.plan for fact in plain.facts(PlanDecided)]


def test_another_price_moves_a_running_job_by_itself() -> None:
    other = replace(FAST, name="other", price_per_hour=0.10)
    loop = loop_with(FAST, other, compute_s={"fast": 0.002, "other": 0.002}, cores=6.0)
    loop.submit("a", long_job(limits=JobLimits(LIMITS.low, replace(LIMITS.high, workers=4))))
    loop.run(1200)
    assert [group.device for group in loop.facts(PlanDecided, "a")[-1].plan.groups] == ["fast"]
    dear = (replace(FAST, price_per_hour=2.0), other)
    # the services start again with another price, from the state that they saved
    loop.arbiter = ArbiterMachine(loop.arbiter.state, ArbiterSettings(loop.capacity, devices=dear))
    loop.planner_settings = PlannerSettings(room=loop.capacity, window_s=5.0, devices=dear)
    loop.planners["a"] = PlanMachine(loop.planners["a"].state, loop.planner_settings)
    loop.run(1200)
    assert [group.device for group in loop.facts(PlanDecided, "a")[-1].plan.groups] == ["other"]


@pytest.mark.parametrize(("is_started", "cost"), [(False, "1.0%"), (True, "4.0%")])
def test_a_spot_type_says_what_its_interruptions_cost(is_started: bool, cost: str) -> None:
    """The starts of the workers on devices say how long an interruption is, 5 s by default and 35 s measured once."""
    loop = loop_with(replace(FAST, interruptions_per_hour=7.2), compute_s={"fast": 0.002})
    loop.submit("a", long_job())
    for cause, device in (("plan", "fast"), ("adopted", "fast"), ("plan", "")) if is_started else ():
        loop.tell(replace(pod_started("a", "worker-0", 35.0, cause), device=device))
    loop.run(900)
    mixed = [fact for fact in loop.facts(PlanDecided, "a") if fact.kind == "improve" and fact.plan.groups]
    assert f"fast is taken away 7.2 times an hour, which costs {cost} of the time of its workers" in mixed[0].reasons


def test_a_measured_plan_loses_what_its_interruptions_cost_as_well() -> None:
    loop = loop_with(replace(FAST, interruptions_per_hour=72.0), compute_s={"fast": 0.002})
    loop.submit("a", long_job())
    loop.run(900)
    told = [fact for fact in loop.facts(CandidatesComputed, "a") if fact.plan.groups == (FAST.group(4),)]
    measured = loop.facts(ProfileMeasured, "a")[-1]
    assert told[-1].throughput == pytest.approx(0.9 * measured.throughput, rel=0.05)


def test_interruptions_cost_what_they_take_from_a_worker() -> None:
    spot = replace(FAST, interruptions_per_hour=36.0)
    assert spot.lost(10.0) == pytest.approx(0.1), "36 times 10 s of 3600 s"
    assert replace(FAST, interruptions_per_hour=3600).lost(10.0) == 0.99, (
        "a sample of one that never trains has no price"
    )
    assert FAST.lost(10.0) == 0.0


MODEL = FittedModel(
    form="default",
    coefficients={"a1": 0.02 / 512, "a1@x": 0.002 / 512, "a1@y": 0.006 / 512, "a3": 0.004, "a4": 0.0004, "a2": 0.003},
    covariance=tuple(tuple(1e-9 if i == j else 0.0 for j in range(6)) for i in range(6)),
    noise_sd=0.05,
    dof=8.0,
    rmsle=0.02,
    unidentified=(),
    measured=tuple(Configuration(2, 1, 1.0, 1.0, 512, device=name) for name in ("", "x", "y")),
)


@settings(max_examples=40, deadline=None)
@given(
    units=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    prices=st.tuples(st.floats(0.01, 1.0), st.floats(0.01, 1.0)),
    cores=st.sampled_from((2.0, 4.0, 8.0)),
    risk=st.floats(0.0, 100.0),
)
def test_the_front_over_mixes_is_that_of_every_plan(
    units: tuple[int, int], prices: tuple[float, float], cores: float, risk: float
) -> None:
    types = tuple(
        DeviceType(name, price, count, 1.0, GIB, 1.0, risk)
        for name, price, count in zip("xy", prices, units, strict=True)
    )
    limits = JobLimits(plan(1, 1, 1.0, 1.0), plan(4, 2, 2.0, 2.0, 4 * GIB))
    job = JobProfile(512, 10**9, limits, Prices(), devices_asked=("auto",)).among(types)
    room, current = cluster(*types, cores=cores), plan(1, 1, 1.0, 1.0)
    grid = grid_within(limits, room, current, cpu_step=1.0)
    problem = CandidateProblem(MODEL, 512, grid, job.prices, room=room, devices=types, back_s=5.0)
    found, considered = fronts(problem, exact_front, current, limits.high.workers)
    every = []
    for mix in itertools.product(range(5), range(units[0] + 1), range(units[1] + 1)):
        groups = [device.group(count) for device, count in zip(types, mix[1:], strict=True) if count]
        if not 1 <= sum(mix) <= 4 or (mix[0] > 0) + len(groups) > 2:
            continue
        for ps, lw, lp in itertools.product((1, 2), (1.0, 2.0), (1.0, 2.0)):
            each = replace(plan(1, ps, lw, lp), ps_memory_bytes=current.ps_memory_bytes).with_workers(mix[0], groups)
            if job.resources(each).fits(room):
                every.append((job.cost_per_hour(each), problem.workers.throughput(each)))
    best = [
        point
        for point in every
        if not any(o[0] <= point[0] + 1e-12 and o[1] >= point[1] - 1e-9 and o != point for o in every)
    ]
    assert considered >= len(found)
    there = {(round(each.cost_per_hour, 9), round(each.throughput, 6)) for each in found}
    assert there == {(round(cost, 9), round(speed, 6)) for cost, speed in best}
    assert all(job.resources(each.plan).fits(room) for each in found)
