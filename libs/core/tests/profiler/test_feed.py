"""The data queue of a job, measured by its workers and its data workers."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, get_type_hints

import pytest
from annotated_types import Ge, Le
from hypothesis import given
from hypothesis import strategies as st
from stretto_core.machine import Emit
from stretto_core.profiler.machine import LANES_MAX, ProfilerMachine
from stretto_core.profiler.state import ImpossibleTelemetry, JobOpened
from stretto_messages.actuator import PlanApplied, PodExited, PodStarted
from stretto_messages.arbiter import PlanDecided
from stretto_messages.base import GIB, example_of
from stretto_messages.pods import DataWorkerReported, PsReported, WorkerReported
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import FeedProfile, Plan, StepTimes

PLAN = Plan(2, 1, 2.0, 1.0, GIB, GIB)


class Job:
    """Two workers that train a batch in ``train_s`` and wait ``read_s`` for it, and data workers of two lanes."""

    def __init__(self, train_s: float = 0.01, read_s: float = 0.03, prepare_s: float = 0.04) -> None:
        self.machine = ProfilerMachine()
        self.train_s, self.read_s, self.prepare_s = train_s, read_s, prepare_s
        self.now, self.steps = 1000.0, 0
        self.profiles: list[ProfileMeasured] = []
        self.lane_s = 0.02
        self.data: list[str] = []
        self.tell(JobOpened(100))
        self.tell(replace(example_of(PlanDecided), version=1))
        for pod in ("ps-0", "worker-0", "worker-1"):
            self.start(pod)
        self.tell(PlanApplied(job="j", version=1, plan=PLAN, took_s=1.0))

    def start(self, pod: str) -> None:
        role: Any = pod.partition("-")[0]
        self.tell(replace(example_of(PodStarted), job="j", pod=pod, role=role, cpu_cores=2.0, memory_bytes=GIB))
        if role == "data":
            self.data.append(pod)

    def tell(self, event: object) -> None:
        for action in self.machine.handle(event, self.now):  # type: ignore[arg-type]
            if isinstance(action, Emit) and isinstance(action.fact, ProfileMeasured):
                self.profiles.append(action.fact)

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1.0
            steps = int(1.0 / (self.train_s + self.read_s))
            self.steps += steps
            self.tell(replace(example_of(PsReported), job="j", pod="ps-0", ended_at_s=self.now))
            for pod in self.data:
                self.tell(self.of_data_worker(pod))
            for pod in ("worker-0", "worker-1"):
                self.tell(self.of_worker(pod, steps))

    def of_worker(self, pod: str, steps: int) -> WorkerReported:
        return replace(
            example_of(WorkerReported),
            job="j",
            pod=pod,
            ended_at_s=self.now,
            steps=steps,
            steps_total=self.steps,
            samples_total=100 * self.steps,
            step_time_s=self.train_s + self.read_s,
            longest_gap_s=0.05,
            times=StepTimes(emb_s=0.0, grad_s=self.train_s, upd_s=0.0, sync_s=0.0, read_s=self.read_s),
            prepare_s=self.prepare_s,
            prepare_cpu_s=self.prepare_s / 2,
            cpu_used_cores=1.0,
        )

    def of_data_worker(self, of: str, **changes: Any) -> DataWorkerReported:
        report = replace(
            example_of(DataWorkerReported),
            job="j",
            pod=of,
            ended_at_s=self.now,
            lanes=2,
            batches=20,
            busy_s=20 * self.lane_s,
            cpu_used_cores=0.5,
        )
        return replace(report, **changes)


def test_a_job_that_reads_for_itself_tells_what_it_takes_and_what_it_waits() -> None:
    job = Job(train_s=0.01, read_s=0.03, prepare_s=0.04)
    job.run(12)
    feed = job.profiles[-1].feed
    assert feed.dequeued_per_s == pytest.approx(2 / 0.01)
    assert feed.read_share == pytest.approx(0.75)
    assert (feed.prepare_s, feed.prepare_cpu_s) == (0.04, 0.02)
    assert feed.cpu_share == pytest.approx(0.5)
    assert (feed.lanes, feed.enqueued_per_s) == (0, 0.0)


def test_lanes_prepare_in_their_busy_time_whatever_part_of_it_they_wait() -> None:
    job = Job(read_s=0.0)
    job.run(6)
    job.start("data-0")
    job.start("data-1")
    job.run(12)
    feed = job.profiles[-1].feed
    assert feed.lanes == 4
    assert feed.enqueued_per_s == pytest.approx(4 / 0.02)
    assert job.profiles[-1].settled


def test_a_data_worker_that_comes_or_goes_ends_the_window_so_that_none_mixes_two_numbers() -> None:
    job = Job()
    job.run(30)
    settled = len([profile for profile in job.profiles if profile.settled])
    job.start("data-0")
    job.run(5)
    assert len([profile for profile in job.profiles if profile.settled]) <= settled + 1
    job.run(10)
    assert job.profiles[-1].settled
    assert {p.feed.lanes for p in job.profiles if p.settled and p.feed is not None} == {0, 2}
    job.data.clear()
    job.tell(replace(example_of(PodExited), job="j", pod="data-0", role="data"))
    job.run(15)
    assert job.profiles[-1].feed.lanes == 0


def test_a_worker_that_does_not_tell_how_long_it_prepares_leaves_the_queue_unknown() -> None:
    job = Job(prepare_s=0.0)
    job.run(12)
    assert job.profiles
    assert all(profile.feed is None for profile in job.profiles)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"pod": "worker-0"}, "pod"),
        ({"pod": "data-99"}, "pod"),
        ({"busy_s": 0.0}, "busy_s"),
        ({"lanes": 10**15}, "lanes"),
        ({"ended_at_s": 5000.0}, "ended_at_s"),
        ({"window_s": 10_000.0}, "window_s"),
    ],
)
def test_impossible_reports_of_data_workers_are_refused_by_field(changes: dict[str, Any], field: str) -> None:
    job = Job()
    job.start("data-0")
    job.run(3)
    job.now += 1.0
    with pytest.raises(ImpossibleTelemetry) as refused:
        job.tell(job.of_data_worker("data-0", **changes))
    assert refused.value.field == field


HINTS = get_type_hints(FeedProfile, include_extras=True)
BOUNDS = {each.name: HINTS[each.name].__metadata__ for each in fields(FeedProfile)}
TIMES = st.one_of(st.floats(0.001, 0.3), st.floats(0.0, 1e9))


@given(
    train_s=st.floats(5e-324, 0.2),
    read_s=TIMES,
    prepare_s=TIMES.filter(bool),
    lanes=st.integers(0, LANES_MAX),
    batches=st.integers(0, 10**15),
    lane_s=TIMES.filter(bool),
)
def test_any_times_make_a_queue_within_the_bounds_of_its_message(
    train_s: float, read_s: float, prepare_s: float, lanes: int, batches: int, lane_s: float
) -> None:
    job = Job()
    job.start("data-0")
    job.run(4)
    job.train_s, job.read_s, job.prepare_s = train_s, 0.0, prepare_s
    for _ in range(8):
        job.now += 1.0
        job.steps += 10
        busy_s = min(batches * lane_s, 1e9) or 1.0
        job.tell(job.of_data_worker("data-0", lanes=lanes, batches=batches, busy_s=busy_s))
        for pod in ("worker-0", "worker-1"):
            report = job.of_worker(pod, 10)
            job.tell(replace(report, times=replace(report.times, read_s=read_s)))
    assert job.profiles
    for profile in job.profiles:
        assert profile.feed is not None
        for each in fields(FeedProfile):
            value = getattr(profile.feed, each.name)
            assert all(value >= bound.ge for bound in BOUNDS[each.name] if isinstance(bound, Ge)), each.name
            assert all(value <= bound.le for bound in BOUNDS[each.name] if isinstance(bound, Le)), each.name
