"""Algorithm 1: who is similar, and what their smoothed configuration is. Each team has a history of its own."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from closed_loop import profile
from hypothesis import given
from hypothesis import strategies as st
from job_builders import no_history, past_job
from stretto_core.machine import Emit
from stretto_core.model.types import GUESSED_SD, JobLimits, JobOpened, JobProfile
from stretto_core.planner.history import HistoryMachine
from stretto_core.planner.machine import PlanMachine
from stretto_core.planner.state import HistorySettings
from stretto_core.planner.warmstart import (
    SimilarJob,
    feature_similarity,
    known_speeds,
    most_similar,
    similarity,
    smoothed_plan,
    smoothing_weights,
)
from stretto_messages.base import GIB, InvalidValue
from stretto_messages.planner import HistoryMatched, HistoryRecorded, PlanProposed
from stretto_messages.values import ANY_DEVICE, TYPES_MAX, DeviceSpeed, Plan

LIMITS = JobLimits(Plan(1, 1, 0.25, 0.25, GIB // 2, GIB // 2), Plan(64, 16, 32.0, 32.0, 64 * GIB, 64 * GIB))


def past(job: str, workers: int, metadata: dict, peak_bytes: int = 0) -> HistoryRecorded:
    plan = Plan(workers, 2, 1.0, 0.5, 2 * GIB, 3 * GIB)
    return past_job(job, metadata, plan, 1000.0 * workers, 600.0, peak_bytes, 10**6)


@given(st.integers(0, 30), st.floats(0.01, 0.99))
def test_weights_sum_to_one_and_grow_with_similarity_after_the_first(count: int, smoothing: float) -> None:
    weights = smoothing_weights(count, smoothing)
    assert len(weights) == count
    assert count == 0 or sum(weights) == pytest.approx(1.0)
    assert weights[1:] == sorted(weights[1:])


@given(st.lists(st.integers(1, 64), min_size=1, max_size=8), st.floats(0.05, 0.95))
def test_weights_are_what_equation_10_iterates_to(workers: list[int], smoothing: float) -> None:
    smoothed = float(workers[0])
    for value in workers[1:]:
        smoothed = smoothing * value + (1 - smoothing) * smoothed
    weights = smoothing_weights(len(workers), smoothing)
    assert sum(w * v for w, v in zip(weights, workers, strict=True)) == pytest.approx(smoothed)


@pytest.mark.parametrize("smoothing", [0.0, 1.0, -1.0, 2.0])
def test_smoothing_outside_its_domain_is_refused(smoothing: float) -> None:
    with pytest.raises(InvalidValue, match="smoothing"):
        smoothing_weights(3, smoothing)


def test_features_compare_by_ratio_or_equality() -> None:
    assert feature_similarity(100, 50) == 0.5
    assert feature_similarity(0, 0) == 1.0
    assert feature_similarity("dcn", "dcn") == 1.0
    assert feature_similarity("dcn", 3) == 0.0
    assert feature_similarity(True, 1) == 0.0
    assert similarity({"a": 1, "b": 2}, {"a": 1})[0] == 0.5, "a missing feature counts as unlike"


def test_the_most_similar_come_last_and_weigh_most() -> None:
    history = [
        past("far", 40, {"model": "xdeepfm", "rows": 10**9}),
        past("near", 4, {"model": "wide-deep", "rows": 10**6}),
        past("nearest", 3, {"model": "wide-deep", "rows": 2 * 10**6}),
    ]
    similar = most_similar({"model": "wide-deep", "rows": 2 * 10**6}, history, count=2)
    assert [row.past.job for row in similar] == ["near", "nearest"]
    assert similar[-1].similarity == 1.0
    assert similar[0].features == {"model": 1.0, "rows": 0.5}
    plan = smoothed_plan(similar, LIMITS)
    assert plan.workers == 4  # 0.5 x 3 + 0.5 x 4 = 3.5
    assert plan.ps_memory_bytes == 3 * GIB


def test_memory_covers_the_peak_of_the_most_similar_job_and_limits_hold() -> None:
    similar = most_similar({"m": "x"}, [past("one", 100, {"m": "x"}, peak_bytes=5 * GIB)])
    plan = smoothed_plan(similar, LIMITS)
    assert plan.ps_memory_bytes == 5 * GIB
    assert plan.workers == 64


def test_nothing_similar_gives_no_plan() -> None:
    assert most_similar({"m": "x"}, [past("one", 4, {"m": "y"})]) == []
    assert most_similar({}, [past("one", 4, {})]) == []
    assert smoothed_plan([], LIMITS) is None


METADATA = {"model": "wide-deep"}
PLAN = Plan(4, 2, 2.0, 2.0, 2 << 30, 2 << 30)


def matched(machine: HistoryMachine, team: str) -> HistoryMatched:
    opened = JobProfile(512, 1000, JobLimits(PLAN, PLAN), metadata={**METADATA})
    (action,) = machine.handle(JobOpened("new", opened, team), 0.0)
    assert isinstance(action, Emit)
    assert isinstance(action.fact, HistoryMatched)
    return action.fact


def test_a_job_starts_from_past_jobs_of_its_own_team_and_of_everybody() -> None:
    """Another team's pods may have reported what they liked, and its jobs are not this team's to read."""
    machine = HistoryMachine()
    for job, team in (("hostile", "red"), ("own", "blue"), ("shared", None)):
        machine.handle(replace(past_job(job, METADATA, PLAN, 1e9), team=team), 0.0)
    assert {match.job for match in matched(machine, "blue").matches} == {"own", "shared"}
    assert {match.job for match in matched(machine, "green").matches} == {"shared"}


def test_a_speed_is_of_the_most_similar_job_and_less_sure_the_less_alike_that_is() -> None:
    rows = {"far": 125, "near": 500, "none": 1000}
    machine = HistoryMachine(settings=HistorySettings(similar_jobs=1))
    for job, count in rows.items():
        speeds = [(device, cores) for device, cores in (("x", count), ("y", 1.0)) if (job, device) != ("near", "y")]
        measured = tuple(DeviceSpeed(device=name, cores=cores, log_sd=0.1, job=job) for name, cores in speeds)
        known = replace(past_job(job, {"rows": count}, PLAN, 1e9), speeds=() if job == "none" else measured)
        machine.handle(known, 0.0)
    opened = JobProfile(512, 1000, JobLimits(PLAN, PLAN), metadata={"rows": 1000}, devices_asked=(ANY_DEVICE,))
    (action,) = machine.handle(JobOpened("new", opened), 0.0)
    assert isinstance(action, Emit)
    assert isinstance(action.fact, HistoryMatched)
    assert [(each.device, each.job, each.cores) for each in action.fact.speeds] == [("x", "near", 500)], (
        "one that is only an eighth alike tells nothing"
    )
    assert action.fact.speeds[0].log_sd == pytest.approx(math.hypot(0.1, 0.5 * GUESSED_SD))
    assert [match.job for match in action.fact.matches] == ["none"]
    (of_cores,) = machine.handle(JobOpened("cores", replace(opened, devices_asked=())), 0.0)
    assert isinstance(of_cores, Emit)
    assert of_cores.fact.speeds == ()


@pytest.mark.parametrize("log_sd", [92.0, math.inf, math.nan])
def test_a_measurement_that_knows_nothing_hides_no_other_jobs(log_sd: float) -> None:
    similar = list[SimilarJob]()
    for job, alike, cores, sd in (("far", 0.6, 3.0, 0.1), ("near", 1.0, 1949.8, log_sd)):
        speed = DeviceSpeed(device="x", cores=cores, log_sd=sd, job=job)
        similar.append(SimilarJob(replace(past_job(job, METADATA, PLAN, 1e9), speeds=(speed,)), alike, {}, 0.5))
    assert [each.job for each in known_speeds(similar)] == ["far"]
    assert known_speeds(similar[1:]) == ()


@pytest.mark.parametrize("order", [1, -1])
def test_of_jobs_that_are_as_much_alike_the_one_that_measured_best_tells(order: int) -> None:
    similar = list[SimilarJob]()
    for job, sd in (("once", 0.3), ("often", 0.1)):
        speed = DeviceSpeed(device="x", cores=2.0, log_sd=sd, job=job)
        similar.append(SimilarJob(replace(past_job(job, METADATA, PLAN, 1e9), speeds=(speed,)), 1.0, {}, 0.5))
    assert [each.job for each in known_speeds(similar[::order])] == ["often"]


def test_measurements_push_out_few_completed_jobs() -> None:
    """The history keeps a cancelled job for its speeds of types; an installation has few types."""
    machine = HistoryMachine(settings=HistorySettings(jobs_kept=30))
    for number in range(30):
        machine.handle(past_job(f"done-{number}", METADATA, PLAN, 1e9), 0.0)
    for number in range(50):
        machine.handle(replace(past_job(f"profiled-{number}", METADATA, PLAN, 1e9), cancelled=True), 0.0)
    assert [*machine.state.past] == [
        *(f"done-{number}" for number in range(TYPES_MAX, 30)),
        *(f"profiled-{number}" for number in range(50 - TYPES_MAX, 50)),
    ]


def test_a_team_of_many_jobs_pushes_out_its_own() -> None:
    machine = HistoryMachine(settings=HistorySettings(jobs_kept=10))
    machine.handle(replace(past_job("few", METADATA, PLAN, 100.0), team="blue"), 0.0)
    for number in range(50):
        machine.handle(replace(past_job(f"many-{number}", METADATA, PLAN, 1e9), team="red"), 0.0)
    assert [*machine.state.past] == ["few", *(f"many-{number}" for number in range(41, 50))]
    assert [match.job for match in matched(machine, "blue").matches] == ["few"]


@pytest.mark.parametrize(("metadata", "why"), [({}, "without model.metadata"), (METADATA, "no past job is similar")])
def test_a_small_first_plan_says_what_a_larger_one_would_need(metadata: dict[str, str], why: str) -> None:
    planner = PlanMachine()
    planner.handle(JobOpened("a", profile(metadata=metadata)), 0.0)
    (action,) = planner.handle(no_history("a"), 0.1)
    assert isinstance(action, Emit)
    assert isinstance(action.fact, PlanProposed)
    assert action.fact.reasons[0].startswith(why)
