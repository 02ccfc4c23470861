"""The profiler believes nothing that cannot be true, and compares pods with their peers."""

from __future__ import annotations

from dataclasses import asdict, replace
from statistics import median
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from stretto_core.algorithms import DETECT
from stretto_core.profiler.machine import ProfilerMachine
from stretto_core.profiler.pace import LONGEST_S, SHORTEST_S, report_interval_s
from stretto_core.profiler.peers import Detector, _median_of_others, cusum, threshold
from stretto_core.profiler.state import ImpossibleTelemetry, JobOpened, ProfilerState
from stretto_messages.actuator import (
    JobFailed,
    MigrationFinished,
    MigrationStarted,
    PlanApplied,
    PodExited,
    PodResized,
    PodStarted,
)
from stretto_messages.arbiter import PlanDecided
from stretto_messages.base import GIB, example_of
from stretto_messages.books import RowBooks
from stretto_messages.dispatcher import JobCompleted, JobProgressed
from stretto_messages.pods import PsReported, WorkerReported
from stretto_messages.profiler import HotPsCleared, HotPsDetected, ProfileMeasured, StragglerCleared, StragglerDetected
from stretto_messages.values import Plan, StepTimes, WorkerGroup

BATCH = 100
MIGRATION_STARTED, MIGRATION_FINISHED = example_of(MigrationStarted), example_of(MigrationFinished)


def plan_decided(version: int) -> PlanDecided:
    return replace(example_of(PlanDecided), version=version)


def plan_applied(version: int, plan: Plan) -> PlanApplied:
    return PlanApplied(job="j", version=version, plan=plan, took_s=1.0)


def pod_started(pod: str) -> PodStarted:
    """Without limits: those of its reports hold."""
    role = "ps" if pod.startswith("ps-") else "worker"
    return replace(example_of(PodStarted), pod=pod, role=role, cpu_cores=0.0, memory_bytes=0)


def pod_exited(pod: str) -> PodExited:
    return replace(example_of(PodExited), pod=pod)


def plan(workers: int, ps: int) -> Plan:
    return Plan(workers, ps, 1.0, 1.0, GIB, GIB)


class Job:
    """A machine fed once a second by workers and servers of given speeds."""

    def __init__(self, workers: int = 3, ps: int = 2, detector: Detector = cusum) -> None:
        self.machine = ProfilerMachine(detector=detector)
        self.now = 1000.0
        self.facts: list[Any] = []
        self.step_time_s = {f"worker-{i}": 0.05 for i in range(workers)}
        self.update_time_s = {f"ps-{i}": 0.002 for i in range(ps)}
        self.cpu = dict.fromkeys(self.update_time_s, 0.5)
        self.buckets = dict.fromkeys(self.update_time_s, 32)
        self.steps = dict.fromkeys(self.step_time_s, 0)
        self.stages: dict[str, int] = {}
        self.version = 1
        self.tell(JobOpened(BATCH))
        self.tell(plan_decided(1))
        for pod in self.update_time_s:
            self.tell(pod_started(pod))
        for pod in self.step_time_s:
            self.tell(pod_started(pod))
        self.tell(plan_applied(1, plan(workers, ps)))

    def tell(self, event: Any) -> list[Any]:
        facts = [action.fact for action in self.machine.handle(event, self.now)]  # type: ignore[union-attr]
        self.facts += facts
        return facts

    def told(self, kind: type) -> list[Any]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def worker(self, pod: str, **more: Any) -> WorkerReported:
        step_s = self.step_time_s[pod]
        steps = round(1 / step_s)
        times = StepTimes(emb_s=0.2 * step_s, grad_s=0.5 * step_s, upd_s=0.1 * step_s, sync_s=0.2 * step_s)
        report = WorkerReported(
            job="j",
            pod=pod,
            plan_version=self.version,
            ended_at_s=self.now,
            window_s=1.0,
            steps=steps,
            steps_total=self.steps[pod] + steps,
            samples_total=0 if self.stages.get(pod) else (self.steps[pod] + steps) * BATCH,
            step_time_s=step_s,
            longest_gap_s=2 * step_s,
            times=times,
            stage=self.stages.get(pod, 0),
            cpu_used_cores=0.9,
            cpu_limit_cores=1.0,
            memory_used_bytes=10**8,
            memory_limit_bytes=GIB,
        )
        return replace(report, **more)

    def server(self, pod: str, **more: Any) -> PsReported:
        report = PsReported(
            job="j",
            pod=pod,
            ended_at_s=self.now,
            window_s=1.0,
            updates=50,
            update_time_s=self.update_time_s[pod],
            applied_samples_total=10,
            categories=5000,
            row_bytes=152.6,
            table_bytes=5000 * 160,
            rows=RowBooks(gradients_left_out=20, keys_without_row=7),
            buckets=self.buckets[pod],
            cpu_used_cores=self.cpu[pod],
            cpu_limit_cores=1.0,
            memory_used_bytes=10**8,
            memory_limit_bytes=GIB,
        )
        return replace(report, **more)

    def seconds(self, count: int) -> None:
        for _ in range(count):
            self.now += 1
            for pod in self.step_time_s:
                report = self.worker(pod)
                self.tell(report)
                self.steps[pod] = report.steps_total
            for pod in self.update_time_s:
                self.tell(self.server(pod))


def test_windows_are_robust_profiles_of_one_plan() -> None:
    job = Job()
    job.step_time_s["worker-2"] = 0.08
    job.seconds(16)
    first, second, third = job.told(ProfileMeasured)
    assert [first.settled, second.settled, third.settled] == [False, True, True]
    assert second.step_time_s == pytest.approx(0.05)
    assert second.times.grad_s == pytest.approx(0.025)
    assert second.throughput == pytest.approx(BATCH * (20 + 20 + 12))
    assert second.categories == 10_000
    assert second.rows == RowBooks(gradients_left_out=40, keys_without_row=14)
    assert third.samples_total == BATCH * (14 * (20 + 20 + 12) + 20)
    assert [worker.pod for worker in second.workers] == ["worker-0", "worker-1", "worker-2"]
    assert second.ps[0].update_time_s == pytest.approx(0.002)


def test_nothing_counts_as_settled_while_something_changes() -> None:
    job = Job()
    job.seconds(11)
    assert job.told(ProfileMeasured)[-1].settled
    job.tell(MIGRATION_STARTED)
    job.seconds(5)
    assert not job.told(ProfileMeasured)[-1].settled
    job.tell(MIGRATION_FINISHED)
    job.seconds(11)
    assert job.told(ProfileMeasured)[-1].settled
    job.tell(plan_decided(2))
    job.seconds(5)
    assert not job.told(ProfileMeasured)[-1].settled


def test_a_mixed_plan_is_told_by_devices_whose_workers_are_compared_among_themselves() -> None:
    job = Job(workers=4)
    mixed = replace(plan(4, 2), groups=(WorkerGroup("gpu-a", 2, 8.0, 64 * GIB),))
    job.tell(plan_decided(2))
    for number in (2, 3):  # other pods than those on cores that they replace
        job.tell(pod_exited(f"worker-{number}"))
        del job.step_time_s[f"worker-{number}"]
        job.step_time_s[f"worker-{number + 2}"], job.steps[f"worker-{number + 2}"] = 0.2, 0
        job.tell(replace(pod_started(f"worker-{number + 2}"), device="gpu-a"))
    job.version = 2
    job.tell(plan_applied(2, mixed))
    job.seconds(25)
    assert job.told(StragglerDetected) == [], "four times slower is the device, not the worker"
    told = job.told(ProfileMeasured)[-1]
    assert told.settled
    assert [(each.device, each.workers, each.step_time_s) for each in told.groups] == [
        ("", 2, pytest.approx(0.05)),
        ("gpu-a", 2, pytest.approx(0.2)),
    ]
    job.tell(pod_exited("worker-5"))
    del job.step_time_s["worker-5"]
    job.seconds(12)
    assert not job.told(ProfileMeasured)[-1].settled, "as long as a type lacks one"


def test_samples_and_steps_of_a_job_in_stages_are_those_of_the_first() -> None:
    """Goal: a replica of a later stage has a figure of its own and adds to none of the job's."""
    job, alone = Job(workers=2), Job(workers=2)
    staged = replace(plan(3, 2), groups=(WorkerGroup("gpu-a", 1, 8.0, 64 * GIB, stage=1, first_layer=1),))
    job.step_time_s["worker-2"], job.steps["worker-2"] = 0.01, 0
    job.stages["worker-2"] = 1
    job.tell(replace(pod_started("worker-2"), device="gpu-a", stage=1))
    job.version = alone.version = 2
    for each, wanted in ((job, staged), (alone, plan(2, 2))):
        each.tell(plan_decided(2))
        each.tell(plan_applied(2, wanted))
        each.seconds(25)
    told, others = job.told(ProfileMeasured)[-1], alone.told(ProfileMeasured)[-1]
    assert told.settled
    assert (told.throughput, told.samples_total) == (others.throughput, others.samples_total)
    assert (told.step_time_s, told.times, told.feed) == (others.step_time_s, others.times, others.feed)
    assert [(each.stage, each.device, each.step_time_s) for each in told.groups] == [
        (0, "", pytest.approx(0.05)),
        (1, "gpu-a", pytest.approx(0.01)),
    ]
    assert {each.pod: each.samples_per_s for each in told.workers if each.stage} == {"worker-2": 0.0}
    assert job.told(StragglerDetected) == [], "a stage is compared with itself"


def test_reports_under_an_older_plan_do_not_enter_the_new_ones_window() -> None:
    job = Job()
    job.tell(plan_decided(2))
    job.tell(plan_applied(2, plan(3, 2)))
    job.seconds(6)
    assert job.told(ProfileMeasured) == []
    job.version = 2
    job.seconds(6)
    assert job.told(ProfileMeasured)[-1].plan_version == 2


def test_straggler_is_told_after_two_windows_and_cleared_with_hysteresis() -> None:
    job = Job()
    job.step_time_s["worker-1"] = 0.2
    job.seconds(6)
    assert job.told(StragglerDetected) == []
    job.seconds(5)
    (found,) = job.told(StragglerDetected)
    assert (found.pod, found.slowdown) == ("worker-1", pytest.approx(4.0))
    assert found.peers_samples_per_s == pytest.approx(2000)
    job.step_time_s["worker-1"] = 0.08
    job.seconds(20)
    assert job.told(StragglerCleared) == []
    # no straggler by itself, but its shards are cut by what was told last
    assert [fact.slowdown for fact in job.told(StragglerDetected)] == pytest.approx([4.0, 1.6])
    job.step_time_s["worker-1"] = 0.05
    job.seconds(15)
    assert [fact.pod for fact in job.told(StragglerCleared)] == ["worker-1"]
    assert len(job.told(StragglerDetected)) == 2


@pytest.mark.parametrize("how", ["slow", "busy"])
def test_hot_server_is_told_and_again_only_after_a_pause(how: str) -> None:
    job = Job()
    if how == "slow":
        job.update_time_s["ps-1"] = 0.01
    else:
        job.cpu["ps-1"] = 0.97
    job.seconds(30)
    (found,) = job.told(HotPsDetected)
    assert found.pod == "ps-1"
    job.seconds(60)
    assert len(job.told(HotPsDetected)) == 2


def test_windows_with_a_hot_server_say_nothing_about_the_plan() -> None:
    job = Job()
    job.seconds(11)
    assert job.told(ProfileMeasured)[-1].settled
    job.update_time_s["ps-1"] = 0.01
    job.seconds(60)
    assert not any(profile.settled for profile in job.told(ProfileMeasured)[3:])
    job.update_time_s["ps-1"] = 0.002
    job.seconds(12)
    assert job.told(ProfileMeasured)[-1].settled


def test_no_server_is_hot_while_parameters_move() -> None:
    moving = Job()
    moving.update_time_s["ps-1"] = 0.01
    moving.tell(MIGRATION_STARTED)
    moving.seconds(30)
    assert moving.told(HotPsDetected) == []


def test_a_server_without_peers_is_hot_beside_what_is_usual_for_it_under_the_plan() -> None:
    job = Job(ps=1)
    job.update_time_s["ps-0"] = 1.0  # from the beginning: who could tell
    job.seconds(30)
    job.tell(plan_decided(2))
    job.version = 2
    job.tell(plan_applied(2, plan(3, 1)))
    job.update_time_s["ps-0"] = 0.002
    job.seconds(30)
    assert job.told(HotPsDetected) == []
    job.update_time_s["ps-0"] = 0.012
    job.seconds(15)
    assert job.told(HotPsDetected) == [], "the machine is busy"
    job.update_time_s["ps-0"] = 0.1
    job.seconds(12)
    assert job.told(HotPsDetected) == []
    job.seconds(12)
    (found,) = job.told(HotPsDetected)
    assert (found.update_time_s, found.peers_update_time_s) == (pytest.approx(0.1), pytest.approx(0.007, rel=0.2))


def test_a_server_that_ends_no_update_while_its_peers_do_is_hot() -> None:
    job = Job()
    job.seconds(5)
    for _ in range(20):
        job.now += 1
        for pod in job.update_time_s:
            job.tell(job.server(pod, **({"updates": 0, "update_time_s": 0.0} if pod == "ps-1" else {})))
        job.tell(job.worker("worker-0"))
        job.steps["worker-0"] += 20
    assert [found.pod for found in job.told(HotPsDetected)] == ["ps-1"]


@pytest.mark.parametrize("updates", [3, 10, 30, 100])
def test_load_alone_makes_no_server_hot_but_a_slow_one_is_found_in_the_same_noise(updates: int) -> None:
    """All servers draw from one distribution: a tenth of the updates waits 50 ms for the processor."""
    rng = np.random.default_rng(updates)
    for slowed in (1.0, 30.0):
        for _ in range(10):
            job, since, last = Job(), 0.0, 10 * 60
            while not job.told(HotPsDetected) and since < last:
                job.now += 5
                since += 5
                times = 0.002 * rng.lognormal(0, 0.3, (2, updates))
                times += (rng.random((2, updates)) < 0.1) * rng.exponential(0.05, (2, updates))
                for pod, mean_s, factor in zip(job.update_time_s, times.mean(axis=1), (1.0, slowed), strict=True):
                    job.tell(job.server(pod, updates=updates, update_time_s=float(mean_s) * factor))
                job.tell(job.worker("worker-0"))
                job.steps["worker-0"] += 20
            assert [found.pod for found in job.told(HotPsDetected)] == (["ps-1"] if slowed > 1 else [])
            assert slowed == 1 or since <= 90


def test_a_threshold_alone_finds_the_slow_one_and_takes_load_for_heat() -> None:
    (slow := Job(detector=threshold)).update_time_s["ps-1"] = 0.03
    slow.seconds(20)
    assert [found.pod for found in slow.told(HotPsDetected)] == ["ps-1"]
    for name in ("threshold", "cusum"):
        loaded = Job(detector=DETECT.named(name))
        for late in (False, False, True, True, False, False):  # one of three updates waits for the processor
            loaded.now += 5
            for pod in loaded.update_time_s:
                waits = late and pod == "ps-1"
                loaded.tell(loaded.server(pod, updates=3, update_time_s=0.0187 if waits else 0.002))
            loaded.tell(loaded.worker("worker-0"))
            loaded.steps["worker-0"] += 20
        assert bool(loaded.told(HotPsDetected)) == (name == "threshold")


def test_a_relieved_server_is_cleared_and_the_longer_it_takes_the_more_often_it_was_hot() -> None:
    def until(count: int, kind: type) -> float:
        began = job.now
        while len(job.told(kind)) < count:
            job.seconds(1)
            assert job.now - began < 1000
        return job.now - began

    job = Job()
    job.update_time_s["ps-1"] = 0.01
    until(1, HotPsDetected)
    job.buckets["ps-0"], job.buckets["ps-1"], job.update_time_s["ps-1"] = 54, 10, 0.002
    assert 55 <= until(1, HotPsCleared) <= 70
    assert 55 <= until(2, HotPsCleared) <= 70, "it still has fewer than its peer: more may go back"
    job.update_time_s["ps-1"] = 0.01
    assert until(2, HotPsDetected) <= 70
    job.update_time_s["ps-1"] = 0.002
    assert 115 <= until(3, HotPsCleared) <= 130
    job.buckets["ps-0"] = job.buckets["ps-1"] = 32
    until(4, HotPsCleared)
    job.seconds(400)
    assert len(job.told(HotPsCleared)) == 4, "it has its share again"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"ended_at_s": 900.0}, "ended_at_s"),
        ({"ended_at_s": 1100.0}, "ended_at_s"),
        ({"window_s": 5000.0}, "window_s"),
        ({"steps_total": 1}, "steps_total"),
        ({"samples_total": 1}, "samples_total"),
        ({"samples_total": 10**9}, "samples_total"),
        ({"steps": 500}, "steps"),
        ({"step_time_s": 0.0}, "step_time_s"),
        ({"step_time_s": 50.0}, "step_time_s"),
        ({"pod": "worker-999"}, "pod"),
        ({"pod": "ps-0"}, "pod"),
        ({"pod": "worker-1"}, "pod"),
    ],
)
def test_impossible_reports_are_refused_by_field_and_change_nothing(change: dict[str, Any], field: str) -> None:
    job = Job()
    job.seconds(2)
    job.tell(pod_exited("worker-1"))
    before = asdict(job.machine.state)
    job.now += 1
    with pytest.raises(ImpossibleTelemetry) as refused:
        job.tell(replace(job.worker("worker-0"), **change))
    assert refused.value.field == field
    assert refused.value.remedy
    assert asdict(job.machine.state) == before


def test_unknown_job_is_refused_and_a_repeated_report_or_an_overtaken_one_is_harmless() -> None:
    job = Job()
    with pytest.raises(ImpossibleTelemetry, match="a job that was submitted"):
        ProfilerMachine().handle(job.worker("worker-0"), job.now)
    job.now += 1
    report = job.worker("worker-0")
    job.tell(report)
    before = asdict(job.machine.state)
    for late_s in (0.0, 0.5):
        job.tell(replace(report, ended_at_s=report.ended_at_s - late_s))
    assert asdict(job.machine.state) == before


def test_a_server_that_updates_in_no_time_is_refused_and_a_repeated_report_is_not_heard() -> None:
    job = Job()
    job.now += 1
    with pytest.raises(ImpossibleTelemetry, match="positive when updates were done"):
        job.tell(job.server("ps-0", update_time_s=0.0))
    job.tell(job.server("ps-0"))
    before = asdict(job.machine.state)
    job.tell(job.server("ps-0"))
    assert asdict(job.machine.state) == before


def test_what_servers_tell_of_their_disks_is_in_the_profile() -> None:
    """Counts of the window and the rest as it is at its end; one curve, in which a server counts by its pulls."""
    job = Job()
    job.seconds(1)
    for _ in range(6):
        job.now += 1
        job.tell(job.worker("worker-0", steps_total=20 + job.steps["worker-0"]))
        job.steps["worker-0"] += 20
        job.tell(
            job.server("ps-0", cold_rows=2000, log_bytes=4096, rows_pulled=300, rows_read=20, miss_ratios=(0.4,) * 16,
                       warm_rows=500, warm_bytes=9000)
        )  # fmt: skip
        job.tell(job.server("ps-1", rows_pulled=100, miss_ratios=(0.0,) * 16, spill_fault="No space left on device"))
    profile = job.told(ProfileMeasured)[0]
    first, second = profile.ps
    assert (first.cold_rows, first.log_bytes, second.cold_rows) == (2000, 4096, 0)
    assert (first.warm_rows, first.warm_bytes, second.warm_rows) == (500, 9000, 0)
    assert first.rows_pulled == 3 * second.rows_pulled == 15 * first.rows_read > 0
    assert profile.miss_ratios == (0.3,) * 16
    assert profile.spill_fault == "ps-1: No space left on device"


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"cold_rows": 5001}, "cold_rows"),
        ({"warm_rows": 5001}, "warm_rows"),
        ({"warm_rows": 5, "row_bytes": 0.0}, "row_bytes"),
        ({"cold_rows": 5, "row_bytes": 0.0}, "row_bytes"),
        ({"miss_ratios": (0.5,) * 15}, "miss_ratios"),
    ],
)
def test_what_no_server_can_have_on_its_disk_is_refused(more: dict[str, Any], field: str) -> None:
    job = Job()
    job.now += 1
    with pytest.raises(ImpossibleTelemetry, match=field):
        job.tell(job.server("ps-0", **more))


def test_a_resized_pod_has_its_new_limits_from_then_on() -> None:
    job = Job()
    job.tell(replace(example_of(PodResized), job="j", pod="ps-0", cpu_cores=3.0))
    assert job.machine.state.pods["ps-0"].cpu_limit_cores == 3.0


def test_pod_that_reports_before_it_was_announced_is_no_part_of_a_profile_yet() -> None:
    job = Job()
    job.step_time_s["worker-3"], job.steps["worker-3"] = 0.05, 0
    job.seconds(5)
    assert len(job.told(ProfileMeasured)[-1].workers) == 3
    job.tell(pod_started("worker-3"))
    job.seconds(5)
    assert len(job.told(ProfileMeasured)[-1].workers) == 4


numbers = st.floats(allow_nan=False, allow_infinity=False, min_value=0, max_value=10**9)
reports = st.builds(
    WorkerReported,
    job=st.just("j"),
    pod=st.sampled_from(["worker-0", "worker-1", "worker-7", "worker-900", "ps-0"]),
    plan_version=st.integers(0, 3),
    ended_at_s=st.floats(900, 1100),
    window_s=st.floats(0.001, 1000),
    steps=st.integers(0, 1000),
    steps_total=st.integers(0, 10**6),
    samples_total=st.integers(0, 10**9),
    step_time_s=numbers,
    longest_gap_s=numbers,
    times=st.builds(StepTimes, emb_s=numbers, grad_s=numbers, upd_s=numbers, sync_s=numbers),
    cpu_used_cores=numbers,
    cpu_limit_cores=numbers,
    memory_used_bytes=st.integers(0, 10**12),
    memory_limit_bytes=st.integers(0, 10**12),
)


STATE = TypeAdapter(ProfilerState)


@settings(max_examples=100)
@given(st.lists(st.tuples(st.floats(0, 3), reports), max_size=30))
def test_any_report_is_refused_with_a_reason_or_believed_and_the_state_stays_sound(
    script: list[tuple[float, WorkerReported]],
) -> None:
    job = Job()
    reasons: list[tuple[str, str]] = []
    for seconds, report in script:
        job.now += seconds
        try:
            job.tell(report)
        except ImpossibleTelemetry as refused:
            reasons.append((refused.field, refused.remedy))
        job.machine.state = STATE.validate_json(STATE.dump_json(job.machine.state))
    assert all(field and remedy for field, remedy in reasons)
    for profile in job.told(ProfileMeasured):
        assert profile.throughput >= 0
        assert profile.step_time_s > 0
        assert profile.window_s > 0


def test_a_completed_job_is_measured_again_once_its_ledger_goes_on() -> None:
    for completed in (True, False):
        job = Job()
        job.tell(example_of(JobCompleted) if completed else example_of(JobFailed))
        job.tell(example_of(JobProgressed))
        job.seconds(12)
        assert bool(job.told(ProfileMeasured)) is completed


def test_a_large_job_tells_some_workers_and_counts_all() -> None:
    job = Job(workers=801, ps=1)
    job.seconds(6)
    profile = job.told(ProfileMeasured)[-1]
    assert len(profile.workers) == 400
    assert (profile.workers[0].pod, profile.workers[-1].pod) == ("worker-0", "worker-798")
    assert profile.throughput == pytest.approx(801 * 2000, rel=0.01)


@given(st.lists(st.floats(0, 10), min_size=2, max_size=9), st.data())
def test_the_median_of_the_peers_leaves_out_one_value_of_its_own(values: list[float], data: Any) -> None:
    index = data.draw(st.integers(0, len(values) - 1))
    assert _median_of_others(sorted(values), values[index]) == median(values[:index] + values[index + 1 :])


def test_a_window_lasts_until_each_pod_has_reported_however_seldom_they_do() -> None:
    """Pods that report every 20 s, one after another: profiles are of all of them, and become settled."""
    job, pods, every_s = Job(workers=4, ps=1), [f"worker-{n}" for n in range(4)], 20.0
    for turn in range(60):
        pod = pods[turn % len(pods)]
        steps = job.steps[pod] + round(every_s / job.step_time_s[pod])
        done = {"steps": steps - job.steps[pod], "steps_total": steps, "samples_total": steps * BATCH}
        job.tell(job.worker(pod, window_s=every_s, **done))
        job.steps[pod] = steps
        if pod == pods[0]:
            job.tell(job.server("ps-0", window_s=every_s))
        job.now += every_s / len(pods)
    profiles = job.told(ProfileMeasured)
    assert len(profiles) >= 5
    assert all(len(profile.workers) == len(pods) for profile in profiles[1:])
    assert any(profile.settled for profile in profiles)


@given(st.integers(0, 10**6), st.floats(0.1, 10**5))
def test_all_pods_together_keep_the_pace_as_far_as_the_bounds_allow(pods: int, reports_per_s: float) -> None:
    interval_s = report_interval_s(pods, reports_per_s)
    assert SHORTEST_S <= interval_s <= LONGEST_S
    if interval_s < LONGEST_S:
        assert pods / interval_s <= reports_per_s * (1 + 1e-9)
    if interval_s > SHORTEST_S:
        assert pods / interval_s >= reports_per_s * (1 - 1e-9)
