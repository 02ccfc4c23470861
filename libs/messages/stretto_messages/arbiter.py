"""Facts of the arbiter: the plans that jobs must have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge, MaxLen

from stretto_messages.base import (
    CLUSTER,
    GIB,
    Bytes,
    ClusterKey,
    Cores,
    Count,
    EpochSeconds,
    JobId,
    Message,
    Money,
    Name,
    PodId,
    Rate,
    Record,
    Team,
    Text,
    example,
)
from stretto_messages.scenario import JOB, LARGEST, PLAN, WIDER
from stretto_messages.values import (
    EXTENDED_MAX,
    Alternative,
    BackgroundReport,
    ExtendedName,
    Interval,
    Plan,
    PlanKind,
    Reasons,
    Round,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDecided(Message):
    """The plan that the job must have. ``version`` grows by one with each decision of a job."""

    version: Annotated[int, Ge(1)]
    kind: PlanKind
    plan: Plan
    previous: Plan | None
    throughput: Rate | None
    throughput_interval: Interval | None
    throughput_before: Rate | None
    cost_per_hour: Money
    reasons: Reasons
    alternatives: Annotated[tuple[Alternative, ...], MaxLen(16)]
    algorithm: Name
    free_cpu_cores: Cores
    """Free cores of the cluster after this decision."""
    free_memory_bytes: Bytes
    free_extended: Annotated[dict[ExtendedName, Count], MaxLen(EXTENDED_MAX)] = field(default_factory=dict[str, int])
    """Free units of the cluster's extended resources after this decision."""
    round: Round | None = None
    """The round that chose the plan, if it was chosen over all jobs."""
    reads_per_step: Annotated[float, Ge(0)] | None = None
    """Rows that a step is expected to read from the disk of the fullest server, if they go there, not to memory."""


example(
    PlanDecided(
        job=JOB,
        version=2,
        kind="improve",
        plan=WIDER,
        previous=PLAN,
        throughput=66400.0,
        throughput_interval=Interval(low=61000.0, high=71900.0),
        throughput_before=35900.0,
        cost_per_hour=0.54,
        reasons=("84 % more throughput for 80 % more cost", "the largest gain per cost of 5 candidates that fit"),
        alternatives=(
            Alternative(
                plan=LARGEST,
                throughput=88000.0,
                cost_per_hour=1.8,
                efficiency=0.41,
                why_not="needs 40 cores, 12 are free",
            ),
        ),
        algorithm="exact",
        free_cpu_cores=7.0,
        free_memory_bytes=24 * GIB,
        free_extended={"nvidia.com/gpu": 2},
        round=Round(
            algorithm="exact",
            objective="efficiency",
            jobs=3,
            value=0.912,
            bound=0.915,
            gap=0.00328,
            term=0.83,
            background=BackgroundReport(
                algorithm="exact",
                outcome="adopted",
                reason="better by 1.56%",
                value=0.912,
                instead_of=0.898,
                gap=0.0,
                took_s=0.21,
            ),
        ),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRefused(Message):
    """Nothing can be given now; the job waits and is considered again when capacity comes free."""

    kind: PlanKind
    wanted: Plan
    reasons: Reasons


example(PlanRefused(job=JOB, kind="initial", wanted=PLAN, reasons=("needs 6 cores, 2 are free: waits for capacity",)))


@dataclass(frozen=True, slots=True, kw_only=True)
class DataWorkersDecided(Message):
    """The data workers that the job must have, of what plans leave of the cluster (GoldMiner, 3.4.2)."""

    version: Annotated[int, Ge(1)]
    """Grows by one with each decision of a job."""
    count: Count
    cpu_cores: Cores
    """Cores of one data worker."""
    memory_bytes: Bytes
    """Memory of one data worker."""
    wanted: Count
    """The number that the job has use for."""
    policy: Name
    reasons: Reasons


example(
    DataWorkersDecided(
        job=JOB,
        version=1,
        count=2,
        cpu_cores=1.0,
        memory_bytes=2 * GIB,
        wanted=3,
        policy="srtf",
        reasons=("workers wait 22 % of their time for batches", "2 of 3: plans leave 2.5 cores, 2 GiB more are free"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacementDecided(Message):
    """Answer to ReplacementAsked: one server beyond the plan may or may not run, until ReplacementEnded."""

    pod: PodId
    granted: bool
    reasons: Reasons


example(
    ReplacementDecided(job=JOB, pod="ps-1", granted=False, reasons=("it needs 1 cores beyond the plan, 0 are free",))
)


HOLDERS_MAX = 200
"""Jobs that one answer about the cluster lists."""
WAITING_MAX = 50
"""Jobs at the head of the queue that an answer about the cluster lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount(Record):
    """An amount of every resource."""

    cpu_cores: Cores
    memory_bytes: Bytes
    extended: Annotated[dict[ExtendedName, Count], MaxLen(EXTENDED_MAX)] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder(Record):
    """A job that holds resources. During a change it holds the larger of both plans in each resource."""

    job: JobId
    team: Team
    plan_version: Count
    plan: Plan
    held: Amount
    data_workers: Count
    """Data workers beyond the plan, which ``data_held`` is for."""
    data_held: Amount
    changing: bool
    """Its pods change, or a hot server is being replaced."""
    leaving: bool
    """It has ended, and holds resources until its pods are gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(Record):
    """A job that waits to start, in the order in which jobs are tried."""

    job: JobId
    team: Team
    submitted_at_s: EpochSeconds
    priority: Annotated[float, Ge(0)]
    wanted: Plan
    least: Amount
    """The least that it can start with."""
    lacking: Amount
    """The part of the least that is not free now."""
    reason: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplaceable(Record):
    """Room that is not believed in: a pod found none for it, until it is tried again."""

    job: JobId
    team: Team
    pod: PodId
    amount: Amount
    until_s: EpochSeconds
    detail: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class GetCluster(Message):
    """Ask who holds the cluster, and who waits for it. ``after``: the last job of the answer before; empty: begin."""

    job: ClusterKey = CLUSTER
    after: Annotated[str, MaxLen(63)] = ""


example(GetCluster())


@dataclass(frozen=True, slots=True, kw_only=True)
class GetClusterReply(Message):
    """The cluster as the arbiter sees it: what there is, who holds it, by the jobs' names, and who waits for it."""

    job: ClusterKey = CLUSTER
    capacity: Amount
    held: Amount
    free: Amount
    unplaceable: Annotated[tuple[Unplaceable, ...], MaxLen(WAITING_MAX)]
    holders: Annotated[tuple[Holder, ...], MaxLen(HOLDERS_MAX)]
    more: bool
    """More jobs hold resources: ask again after the last one here."""
    waiting: Annotated[tuple[Waiting, ...], MaxLen(WAITING_MAX)]
    waiting_count: Count


example(
    GetClusterReply(
        capacity=Amount(cpu_cores=64.0, memory_bytes=256 * GIB),
        held=Amount(cpu_cores=36.0, memory_bytes=120 * GIB),
        free=Amount(cpu_cores=26.0, memory_bytes=134 * GIB),
        unplaceable=(
            Unplaceable(
                job=JOB,
                team="ads",
                pod="worker-4",
                amount=Amount(cpu_cores=2.0, memory_bytes=2 * GIB),
                until_s=1_780_000_300.0,
                detail="0/3 nodes are available: 3 Insufficient cpu.",
            ),
        ),
        holders=(
            Holder(
                job=JOB,
                team="ads",
                plan_version=2,
                plan=WIDER,
                held=Amount(cpu_cores=36.0, memory_bytes=120 * GIB),
                data_workers=0,
                data_held=Amount(cpu_cores=0.0, memory_bytes=0),
                changing=False,
                leaving=False,
            ),
        ),
        more=False,
        waiting=(
            Waiting(
                job="video-ctr",
                team="feed",
                submitted_at_s=1_780_000_000.0,
                priority=1.0,
                wanted=LARGEST,
                least=Amount(cpu_cores=30.0, memory_bytes=16 * GIB),
                lacking=Amount(cpu_cores=4.0, memory_bytes=0),
                reason="the least that the job can start with is 30 cores and 16.00 GiB: it waits",
            ),
        ),
        waiting_count=1,
    )
)
