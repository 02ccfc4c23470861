"""Facts of the profiler: windows of telemetry, stragglers and hot parameter servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Gt, Le, MaxLen

from stretto_messages.base import GIB, Cores, Count, Fraction, Message, PodId, Rate, Seconds, Text, example
from stretto_messages.books import ALL_ROWS, RowBooks
from stretto_messages.scenario import JOB, MISS_RATIOS, PLAN, TIMES
from stretto_messages.values import (
    GROUPS_MAX,
    FeedProfile,
    GroupProfile,
    MissRatios,
    Plan,
    PsProfile,
    StepTimes,
    WorkerProfile,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileMeasured(Message):
    """One window of one job under one plan: medians over all pods, and the figures of at most 400 pods of each role."""

    plan_version: Count
    plan: Plan
    batch_size: Annotated[int, Ge(1)]
    window_s: Annotated[Seconds, Gt(0)]
    step_time_s: Seconds
    """Median over workers."""
    times: StepTimes
    throughput: Rate
    samples_total: Count
    """Samples trained so far in the whole job, by the workers' count."""
    categories: Count
    rows: RowBooks = ALL_ROWS
    settled: bool
    """False while pods are starting, leaving or being migrated."""
    prepared_elsewhere: Fraction = 0.0
    """Share of all workers' batches that data workers prepared."""
    feed: FeedProfile | None = None
    """None: no worker has told how long it prepares a batch."""
    miss_ratios: MissRatios = ()
    """Mean over the parameter servers, each by the rows that training pulled from it."""
    spill_fault: Text = ""
    """Name of a parameter server whose rows find no room, and why; empty: none has said so."""
    workers: Annotated[tuple[WorkerProfile, ...], MaxLen(400)]
    ps: Annotated[tuple[PsProfile, ...], MaxLen(400)]
    groups: Annotated[tuple[GroupProfile, ...], MaxLen(GROUPS_MAX + 1)] = ()
    """Workers by stage and type of their devices, where the plan has groups; empty: all have cores."""

    SELDOM: ClassVar[frozenset[str]] = frozenset({"groups"})


example(
    ProfileMeasured(
        job=JOB,
        plan_version=1,
        plan=PLAN,
        batch_size=512,
        window_s=5.0,
        step_time_s=0.0285,
        times=TIMES,
        throughput=35900.0,
        samples_total=10_190_848,
        categories=1_204_331,
        settled=True,
        feed=FeedProfile(
            dequeued_per_s=92.0,
            enqueued_per_s=0.0,
            read_share=0.22,
            prepare_s=0.028,
            prepare_cpu_s=0.009,
            cpu_share=0.95,
            lanes=0,
        ),
        workers=(
            WorkerProfile(
                pod="worker-0",
                step_time_s=0.0281,
                samples_per_s=18200.0,
                cpu_used_cores=1.91,
                memory_used_bytes=1_610_612_736,
            ),
            WorkerProfile(
                pod="worker-1",
                step_time_s=0.0289,
                samples_per_s=17700.0,
                cpu_used_cores=1.88,
                memory_used_bytes=1_598_029_824,
            ),
        ),
        ps=(
            PsProfile(
                pod="ps-0",
                cpu_used_cores=0.71,
                cpu_limit_cores=1.0,
                memory_used_bytes=162_529_280,
                memory_limit_bytes=2 * GIB,
                categories=602_004,
                row_bytes=152.6,
                table_bytes=97_517_568,
                buckets=32,
                update_time_s=0.0032,
                disk_free_bytes=48 * GIB,
                rows_pulled=482_000,
                disk_reads_per_s=41_000.0,
            ),
        ),
        miss_ratios=MISS_RATIOS,
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerDetected(Message):
    """A worker is much slower than its peers."""

    pod: PodId
    samples_per_s: Rate
    peers_samples_per_s: Rate
    slowdown: Annotated[float, Ge(1), Le(10**6)]
    """Median rate of the peers over the worker's own."""


example(
    StragglerDetected(
        job=JOB, pod="worker-1", samples_per_s=6100.0, peers_samples_per_s=18200.0, slowdown=18200.0 / 6100.0
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerCleared(Message):
    """A worker keeps pace with its peers again."""

    pod: PodId


example(StragglerCleared(job=JOB, pod="worker-1"))


@dataclass(frozen=True, slots=True, kw_only=True)
class HotPsDetected(Message):
    """A parameter server is much slower or busier than its peers, or than before if it has no peers."""

    pod: PodId
    update_time_s: Seconds
    peers_update_time_s: Seconds
    cpu_used_cores: Cores
    cpu_limit_cores: Cores


example(
    HotPsDetected(
        job=JOB, pod="ps-1", update_time_s=0.0128, peers_update_time_s=0.0032, cpu_used_cores=0.99, cpu_limit_cores=1.0
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HotPsCleared(Message):
    """A parameter server that was hot has kept pace with its peers for a while."""

    pod: PodId
    update_time_s: Seconds
    peers_update_time_s: Seconds


example(HotPsCleared(job=JOB, pod="ps-1", update_time_s=0.0031, peers_update_time_s=0.0032))


@dataclass(frozen=True, slots=True, kw_only=True)
class GetReportInterval(Message):
    """A pod asks how often it is to report."""

    pod: PodId


example(GetReportInterval(job=JOB, pod="worker-1"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GetReportIntervalReply(Message):
    """The interval grows with the number of pods in the installation."""

    interval_s: Annotated[Seconds, Ge(1), Le(60)]


example(GetReportIntervalReply(job=JOB, interval_s=1.0))
