"""Plans of two stages: which ones the planner finds, when they are proposed, and what measuring them changes."""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict, replace

import pytest
from closed_loop import LIMITS, Loop, plan, profile
from hypothesis import given, settings
from hypothesis import strategies as st
from stretto_core.arbiter.state import ArbiterSettings
from stretto_core.arbiter.worth import fit_into, give_back
from stretto_core.model.mixed import CUT_SD, StageRatio
from stretto_core.model.pareto import CandidateProblem, PricedPlan, grid_within
from stretto_core.model.throughput import Configuration, FittedModel
from stretto_core.model.types import DeviceType, JobLimits, JobProfile, Prices, Stages
from stretto_core.planner.machine import PlanMachine
from stretto_core.planner.staging import SLOWEST, measured_layers, sample_cost, staged_front, with_stages
from stretto_core.planner.state import PlannerSettings, PlanState
from stretto_messages.arbiter import PlanDecided
from stretto_messages.base import GIB, InvalidValue
from stretto_messages.planner import CandidatesComputed, PlanProposed
from stretto_messages.values import Plan, Resources, extended_of

MODEL = FittedModel(
    form="default",
    coefficients={"a1": 0.02 / 512, "a1@x": 0.002 / 512, "a1@y": 0.006 / 512, "a3": 0.0004, "a4": 0.0002, "a2": 0.01},
    covariance=tuple(tuple(1e-9 if i == j else 0.0 for j in range(6)) for i in range(6)),
    noise_sd=0.05,
    dof=8.0,
    rmsle=0.02,
    unidentified=(),
    measured=tuple(Configuration(2, 1, 1.0, 1.0, 512, device=name) for name in ("", "x", "y")),
)
MOST = 8


def problem_with(units: tuple[int, int], prices: tuple[float, float], cores: float = 64.0) -> CandidateProblem:
    types = tuple(
        DeviceType(name, price, count, 1.0, GIB) for name, price, count in zip("xy", prices, units, strict=True)
    )
    limits = JobLimits(plan(1, 1, 1.0, 1.0), plan(MOST, 2, 2.0, 2.0, 4 * GIB))
    room = Resources(cores, 640 * GIB, extended_of({each.resource: each.count for each in types}))
    job = JobProfile(512, 10**9, limits, Prices(), devices_asked=("auto",)).among(types)
    grid = grid_within(limits, room, plan(1, 1, 1.0, 1.0), cpu_step=1.0)
    return CandidateProblem(MODEL, 512, grid, job.prices, room=room, devices=types)


def of_stages(base: Plan, first: DeviceType | None, count: int, last: DeviceType, units: int) -> Plan:
    groups = [replace(last.group(units), stage=1, first_layer=1)]
    return base.with_workers(0 if first else count, [*groups, *([first.group(count)] if first else [])])


def every(problem: CandidateProblem, base: Plan) -> list[Plan]:
    counts = itertools.product(range(1, MOST), repeat=2)
    who = itertools.product((None, *problem.devices), problem.devices)
    plans = [
        of_stages(base, first, count, last, units)
        for (first, last), (count, units) in itertools.product(who, counts)
        if count + units <= MOST
    ]
    return [each for each in plans if problem.room is None or each.resources(problem.grid.extended).fits(problem.room)]


@settings(max_examples=25, deadline=None)
@given(
    prices=st.tuples(st.floats(0.01, 2.0), st.floats(0.01, 2.0)),
    servers=st.sampled_from((1, 2)),
    ratio=st.floats(0.2, 5.0),
)
def test_no_plan_of_stages_that_is_as_fast_costs_less_a_sample(
    prices: tuple[float, float], servers: int, ratio: float
) -> None:
    """HeterPS' objective is what the workers of all stages cost a sample; servers are the same in all plans."""
    problem = replace(problem_with((20, 20), prices), stage_ratios=(StageRatio(1, "x", ratio),))
    base = plan(1, servers, 1.0, 1.0)
    of_servers = problem.prices.cost_per_hour(base.with_workers(0, ()).resources(problem.grid.extended))

    def priced(each: Plan) -> tuple[float, float]:
        speed = problem.workers.throughput(each)
        return speed, (problem.prices.cost_per_hour(each.resources(problem.grid.extended)) - of_servers) / speed

    found = staged_front(problem, [base], MOST)
    others = [priced(each) for each in every(problem, base)]
    assert found
    for each in found:
        speed, cost = priced(each.plan)
        assert each.throughput == pytest.approx(speed)
        assert each.plan in every(problem, base)
        assert not [other for other in others if other[0] >= speed and other[1] < cost * (1 - 1e-6)]
    slowest = SLOWEST * max(speed for speed, _ in others)
    cheapest = min(cost for speed, cost in others if speed >= slowest)
    assert min(priced(each.plan)[1] for each in found) >= cheapest * (1 - 1e-6)


@pytest.mark.parametrize(("units", "cores"), [((1, 0), 64.0), ((2, 0), 1.5), ((1, 1), 1.5), ((3, 1), 2.5)])
def test_stages_share_the_units_and_cores_that_there_are(units: tuple[int, int], cores: float) -> None:
    problem = problem_with(units, (0.01, 0.02), cores)
    found = staged_front(problem, [plan(1, 1, 1.0, 1.0)], MOST)
    assert found
    for each in found:
        assert problem.room is not None
        assert each.plan.resources(problem.grid.extended).fits(problem.room)
        assert each.plan.stages == 2


def test_without_units_there_are_no_stages() -> None:
    assert staged_front(problem_with((0, 0), (0.1, 0.1)), [plan(1, 1)], MOST) == []


def test_the_layers_of_a_job_are_those_that_its_workers_were_measured_at() -> None:
    rows, dense = measured_layers(MODEL, 2, 1.0, ["", "x"])
    one_s, two_s = (0.0004 * count / 2 + 0.0002 * count + 0.01 for count in (1, 2))
    assert rows.compute_s == pytest.approx((one_s, one_s))
    assert dense.compute_s == pytest.approx((0.02, 0.002))
    for share in rows.parallel_fraction:
        assert one_s * (1 - share + share / 2) == pytest.approx(two_s / 2), "two workers are as fast as the model says"
    assert dense.parallel_fraction == pytest.approx((1.0, 1.0))
    with pytest.raises(InvalidValue, match="no worker of the job was measured on 'z'; measured are: cpu, x, y"):
        measured_layers(MODEL, 1, 1.0, ["", "z"])


def test_the_slowest_stage_bounds_a_plan_and_what_was_measured_scales_it() -> None:
    problem = problem_with((4, 4), (0.1, 0.1))
    x, _ = problem.devices
    staged = of_stages(plan(1, 1, 1.0, 1.0), None, 3, x, 1)
    rows_s = (0.0004 * 3 + 0.0002 * 3 + 0.01 + 0.002) / 3
    assert problem.workers.stage_times_s(staged) == pytest.approx((rows_s, 0.002))
    assert problem.workers.throughput(staged) == pytest.approx(512 / rows_s)
    slower = replace(problem, stage_ratios=(StageRatio(1, "x", 4.0),))
    assert slower.workers.throughput(staged) == pytest.approx(512 / 0.008)
    enough = of_stages(staged, None, 3, x, 2)
    assert slower.workers.throughput(enough) == pytest.approx(512 / (rows_s + 0.006 / 3)), "whoever asks waits longer"
    same = replace(problem, stage_ratios=(StageRatio(1, "x", 1.0),))
    surer = problem.workers.log_sd([staged])[0] - same.workers.log_sd([staged])[0]
    assert surer == pytest.approx(CUT_SD), "once a stage was measured"


def test_rows_cross_as_fast_as_one_server_sends_them_until_stages_were_measured() -> None:
    pulled = replace(MODEL, coefficients={**MODEL.coefficients, "a7": 0.006 / 512, "a2_emb": 0.001})
    pulled = replace(pulled, covariance=tuple(tuple(1e-9 if i == j else 0.0 for j in range(8)) for i in range(8)))
    problem = replace(problem_with((4, 4), (0.1, 0.1)), model=pulled)
    x, _ = problem.devices
    staged = of_stages(plan(1, 2, 1.0, 1.0), None, 1, x, 1)
    reading_s, crossing_s, computing_s = 0.0004 / 2 + 0.0002 + 0.01 + 0.006 / 2 + 0.001, 0.006 + 0.001, 0.002
    assert problem.workers.stage_times_s(staged)[0] == pytest.approx(reading_s + crossing_s + computing_s)
    rows, dense = measured_layers(pulled, 2, 1.0, ["", "x"])
    assert rows.transfer_s == pytest.approx((crossing_s, crossing_s))
    assert rows.transfer_parallel_fraction == (1.0, 1.0), "each worker sends its own"
    assert dense.transfer_s == (0.0, 0.0)


@given(st.floats(0.5, 1.2))
def test_stages_are_proposed_from_five_percent_less_a_sample_on(share: float) -> None:
    single, two = PricedPlan(plan(2), 1000.0, 1.0), replace(plan(2), worker_cpu_cores=1.5)
    staged = PricedPlan(of_stages(two, None, 1, DeviceType("x", 1.0, 1, 1.0, GIB), 1), 2000.0, 2.0 * share)
    assert (staged in with_stages([single], [staged], "auto")) == (sample_cost(staged) <= 0.95 * sample_cost(single))
    assert with_stages([single], [staged], 2) == [staged]


FAST = DeviceType("fast", price_per_hour=0.4, count=2, cpu_cores=2.0, memory_bytes=4 * GIB, speed=8.0)
"""A unit costs as much as eight workers on cores."""


def staged_loop(
    stages: Stages, compute_s: float, device: DeviceType = FAST, factor: float = 1.0, initial: Plan | None = None
) -> Loop:
    room = Resources(10.0, 64 * GIB, extended_of({device.resource: device.count}))
    loop = Loop(
        room,
        step_time=lambda p: 0.02 / p.worker_cpu_cores + 0.004 + 0.00005 * p.workers / (p.ps * p.ps_cpu_cores),
        settings=ArbiterSettings(room, devices=(device,)),
        planner_settings=PlannerSettings(room=room, window_s=5.0, devices=(device,)),
        compute_s={device.name: compute_s},
        stage_factor=factor,
        tells_parts=True,
    )
    limits = JobLimits(LIMITS.low, replace(LIMITS.high, workers=8, ps=2))
    loop.submit("a", profile(10**12, limits=limits, devices_asked=("auto",), stages=stages, initial=initial))
    loop.run(700)
    return loop


def decided(loop: Loop) -> list[PlanDecided]:
    return loop.facts(PlanDecided, "a")


def test_rows_on_cores_feed_a_dear_device_that_would_wait_for_them() -> None:
    """A worker on the device would wait for rows in most of its step; cores pull them for an eighth of its price."""
    loop = staged_loop("auto", 0.0005)
    staged = [fact for fact in decided(loop) if fact.plan.stages == 2]
    assert staged
    assert decided(loop)[-1].plan.stages == 2
    assert staged[0].kind == "measure", "what crosses a cut was never measured"
    assert "less a sample than the best plan without: they take" in " | ".join(staged[0].reasons)
    front = [each for fact in loop.facts(CandidatesComputed, "a") for each in fact.candidates]
    assert all(bool(each.stage_times_s) == (each.plan.stages > 1) for each in front)
    for fact in decided(loop):
        assert loop.profiles["a"].resources(fact.plan).fits(loop.capacity)


def test_a_job_that_does_not_ask_has_no_stage_in_any_fact() -> None:
    loop = staged_loop(1, 0.0005, replace(FAST, price_per_hour=0.05))
    assert any(fact.plan.groups for fact in decided(loop)), "it has devices"
    for kind in (PlanDecided, PlanProposed, CandidatesComputed):
        for fact in loop.facts(kind, "a"):
            told = asdict(fact)
            assert not any(group["stage"] or group["first_layer"] for group in told["plan"]["groups"])
            assert not any(each["stage_times_s"] for each in told.get("candidates", ()))


def test_auto_leaves_one_stage_where_two_cost_more() -> None:
    loop = staged_loop("auto", 0.2, replace(FAST, price_per_hour=4.0))
    assert {fact.plan.stages for fact in decided(loop)} == {1}


def test_a_job_that_asks_for_two_gets_two_and_keeps_them() -> None:
    loop = staged_loop(2, 0.05, replace(FAST, price_per_hour=4.0))
    stages = [fact.plan.stages for fact in decided(loop)]
    assert stages[0] == 1, "its first plan measures what a stage would take"
    assert stages[-1] == 2
    assert 1 not in stages[stages.index(2) :]
    (proposed,) = [fact for fact in loop.facts(PlanProposed, "a") if fact.plan.stages == 2]
    assert proposed.reasons[0].startswith("the job asks for two stages: they take")


def test_a_job_that_begins_in_stages_measures_one_and_leaves_them_where_they_are_dear() -> None:
    began = staged_loop("auto", 0.2, replace(FAST, price_per_hour=4.0), initial=of_stages(plan(2), None, 2, FAST, 1))
    kinds = [(fact.kind, fact.plan.stages) for fact in decided(began)]
    assert kinds[:2] == [("initial", 2), ("measure", 1)]
    assert kinds[-1][1] == 1
    assert decided(began)[1].reasons[0].startswith("the job began with 2 stages")
    kept = staged_loop(2, 0.2, FAST, initial=of_stages(plan(2), None, 2, FAST, 1))
    assert {fact.plan.stages for fact in decided(kept)} == {2}, "it asks for them"


def test_stages_that_turn_out_slow_are_left_again() -> None:
    loop = staged_loop("auto", 0.0005, factor=12.0)
    stages = [fact.plan.stages for fact in decided(loop)]
    assert 2 in stages
    assert stages[-1] == 1


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 7))
def test_what_a_job_gives_back_leaves_it_a_plan(reading: int, computing: int, units: int) -> None:
    staged = of_stages(plan(1), None, reading, FAST, computing)
    job = profile(devices_asked=("auto",)).among([FAST])
    smaller = give_back(staged, job, Resources(0.0, 0, extended_of({FAST.resource: units})))
    assert job.resources(staged).count_of(FAST.resource) - job.resources(smaller).count_of(FAST.resource) >= min(
        units, computing
    )
    fitting = fit_into(staged, job, Resources(2.0, 64 * GIB, extended_of({FAST.resource: 1})))
    assert fitting is not None
    assert math.isclose(fitting.ps_cpu_cores, 1.0)


def test_ratios_of_the_first_stage_to_predictions_without_crossing_rows_are_measured_anew() -> None:
    ratios = [StageRatio(0, "", 2.0), StageRatio(0, "x", 2.0), StageRatio(1, "x", 1.5)]
    saved = asdict(PlanState(stage_ratios=ratios))
    assert PlanMachine.migrate(saved, 4) == saved | {"stage_ratios": [asdict(ratios[-1])]}
    assert PlanMachine.migrate({}, 1)["stage_ratios"] == []
