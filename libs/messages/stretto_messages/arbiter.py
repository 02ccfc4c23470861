"""Facts of the arbiter: the plans that jobs must have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge, MaxLen

from stretto_messages.base import GIB, Bytes, Cores, Count, Message, Money, Name, PodId, Rate, example
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
