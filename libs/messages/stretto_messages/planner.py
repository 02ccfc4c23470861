"""Facts of the planner: the history of jobs, proposals and candidates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import MaxLen

from stretto_messages.base import (
    CLUSTER,
    Bytes,
    ClusterKey,
    Count,
    Fraction,
    Message,
    Money,
    Name,
    Rate,
    Record,
    Seconds,
    Team,
    example,
)
from stretto_messages.scenario import JOB, METADATA, PLAN, WIDER
from stretto_messages.values import (
    TYPES_MAX,
    Candidate,
    DeviceSpeed,
    Interval,
    KnownModel,
    Match,
    Metadata,
    Plan,
    PlanKind,
    Reasons,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRecorded(Message):
    """A past job and the configuration that served it: what warm start reads."""

    metadata: Metadata
    plan: Plan
    throughput: Rate
    duration_s: Seconds
    ps_memory_peak_bytes: Bytes
    samples: Count
    model: KnownModel | None = None
    team: Team | None = None
    """Team whose later jobs may start from this one; None: everybody's, as history from before Stretto."""
    speeds: Annotated[tuple[DeviceSpeed, ...], MaxLen(TYPES_MAX)] = ()
    """Types of devices that it measured beside cores."""
    cancelled: bool = False
    """True if the job was ended by hand: later jobs take its speeds, and do not start from its plan."""

    SELDOM: ClassVar[frozenset[str]] = frozenset({"speeds", "cancelled"})


example(
    HistoryRecorded(
        job=JOB,
        team="default",
        metadata=METADATA,
        plan=WIDER,
        throughput=66400.0,
        duration_s=1402.0,
        ps_memory_peak_bytes=1_503_238_553,
        samples=91_681_234,
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryMatched(Message):
    """The past jobs most similar to a new one, and their smoothed configuration (Alg. 1)."""

    metadata: Metadata
    matches: Annotated[tuple[Match, ...], MaxLen(20)]
    smoothing: Fraction
    plan: Plan | None
    model: KnownModel | None = None
    """Model of the most similar past job that has one."""
    speeds: Annotated[tuple[DeviceSpeed, ...], MaxLen(TYPES_MAX)] = ()
    """For each type of devices, what the most similar past job measured that had workers on it."""

    SELDOM: ClassVar[frozenset[str]] = frozenset({"speeds"})


example(
    HistoryMatched(
        job=JOB,
        metadata=METADATA,
        matches=(
            Match(
                job="ctr-ranking-41",
                similarity=0.93,
                weight=0.7,
                plan=PLAN,
                throughput=34800.0,
                features={"family": 1.0, "rows": 0.86},
            ),
        ),
        smoothing=0.3,
        plan=PLAN,
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanProposed(Message):
    """One plan that the job should have next, for a reason that is not throughput alone."""

    kind: PlanKind
    plan: Plan
    throughput: Rate | None = None
    throughput_interval: Interval | None = None
    cost_per_hour: Money
    reasons: Reasons


example(
    PlanProposed(
        job=JOB,
        kind="warm-start",
        plan=PLAN,
        throughput=34800.0,
        throughput_interval=Interval(low=30100.0, high=39600.0),
        cost_per_hour=0.3,
        reasons=("3 past jobs resemble it; ctr-ranking-41 most (0.93)",),
    )
)


TuningPhase = Literal["alone", "scaling", "settled", "fallen-back"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataWorkersProposed(Message):
    """The number of data workers that the job has use for, by its data queue (GoldMiner, 3.4.1)."""

    count: Count
    phase: TuningPhase
    """``alone``: workers read for themselves. ``scaling``: the queue has yet to tell. ``fallen-back``: data workers
    brought nothing."""
    worker_per_s: Rate
    """Batches per second that one of them prepares."""
    dequeued_per_s: Rate
    """Batches per second that the job's workers take at most."""
    reasons: Reasons


example(
    DataWorkersProposed(
        job=JOB,
        count=3,
        phase="scaling",
        worker_per_s=35.7,
        dequeued_per_s=92.0,
        reasons=("workers wait 22 % of their time for batches", "3 data workers of 35.7 batches/s cover 92 batches/s"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatesComputed(Message):
    """The Pareto front of cost and throughput gain around the current plan (Eq. 9), cheapest first."""

    plan_version: Count
    plan: Plan
    throughput: Rate
    """Throughput of the current plan."""
    algorithm: Name
    plans_considered: Count
    candidates: Annotated[tuple[Candidate, ...], MaxLen(64)]
    back_s: Seconds = 0.0
    """Time until another worker trains after one was taken away, where a type of the job's devices is taken away."""

    SELDOM: ClassVar[frozenset[str]] = frozenset({"back_s"})


example(
    CandidatesComputed(
        job=JOB,
        plan_version=1,
        plan=PLAN,
        throughput=35900.0,
        algorithm="exact-front",
        plans_considered=640,
        candidates=(
            Candidate(
                id="w4-p2",
                plan=WIDER,
                cost_per_hour=0.54,
                throughput=66400.0,
                throughput_interval=Interval(low=61000.0, high=71900.0),
                gain=29800.0,
                overhead_s=1.5,
            ),
        ),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewPlanReply(Message):
    """The plan that the planner would propose first, and the past jobs from which it would derive that plan."""

    job: ClusterKey = CLUSTER
    kind: PlanKind
    plan: Plan
    cost_per_hour: Money
    reasons: Reasons
    matches: Annotated[tuple[Match, ...], MaxLen(20)] = ()
    throughput: Rate | None = None
    """Throughput by the model of the most similar past job that has one."""


example(
    PreviewPlanReply(
        kind="warm-start",
        plan=PLAN,
        cost_per_hour=0.31,
        reasons=("smoothed over 1 similar past job with mu = 0.5 (Eq. 10)",),
        matches=(
            Match(
                job="ctr-ranking-41", similarity=0.97, weight=1.0, plan=PLAN, throughput=35900.0, features={"a": 1.0}
            ),
        ),
        throughput=35900.0,
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictPlan(Message):
    """Ask how fast a live job would train under another plan, by its own fitted model."""

    plan: Plan


example(PredictPlan(job=JOB, plan=WIDER))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPrediction(Record):
    """A prediction; intervals are those of a new measurement, at 90 %."""

    plan: Plan
    """The plan that was asked for, within the job's limits."""
    step_time_s: Seconds
    step_time_interval_s: Interval
    throughput: Rate
    throughput_interval: Interval
    cost_per_hour: Money
    plan_version: Count
    """Version of the plan in whose windows the model was fitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictPlanReply(Message):
    """The prediction, unless the job is unknown or has no model yet."""

    answer: Literal["ok", "unknown", "no-model"]
    prediction: PlanPrediction | None = None


example(
    PredictPlanReply(
        job=JOB,
        answer="ok",
        prediction=PlanPrediction(
            plan=WIDER,
            step_time_s=0.031,
            step_time_interval_s=Interval(low=0.028, high=0.034),
            throughput=66400.0,
            throughput_interval=Interval(low=61000.0, high=71900.0),
            cost_per_hour=0.54,
            plan_version=2,
        ),
    )
)
