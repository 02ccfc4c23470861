"""Facts, past tense: what happened to a job. Anybody may subscribe."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .actuator_events import *  # noqa: F403
from .base import (
    Bytes,
    Cores,
    Count,
    Fraction,
    Message,
    Money,
    Name,
    PodId,
    Rate,
    RequestId,
    Seconds,
    Text,
)
from .ledger_events import *  # noqa: F403
from .spec import JobSpec
from .values import (
    Alternative,
    Candidate,
    CheckpointRef,
    Interval,
    KnownModel,
    Match,
    MeasuredConfiguration,
    Metadata,
    Plan,
    PlanKind,
    PsForecast,
    PsProfile,
    Reasons,
    Round,
    StepTimes,
    WorkerProfile,
)

# gateway ---------------------------------------------------------------------------------------------------------


class JobSubmitted(Message):
    """A valid specification was accepted; from here on the job exists."""

    spec: JobSpec
    submitted_by: Name = "anonymous"


class JobCancelled(Message):
    """A user ended the job."""

    by: Name = "anonymous"
    reason: Text = ""


class PlanRequested(Message):
    """A user wants the job to have this plan, within the limits that its specification sets. No gain is asked of it."""

    plan: Plan
    by: Name = "anonymous"


NO_JOB = "unknown"
"""the job of a refused change that named none, or none that could be understood"""


class ChangeAudited(Message):
    """Somebody asked the gateway for a change: who, what, and what came of it, also when it was refused."""

    actor: Annotated[Name, Field(description="name of the token, or oidc: and the subject; anonymous: not let in")]
    role: Annotated[Text, Field(description="of the actor: viewer, submitter or admin; empty: not let in")] = ""
    action: Annotated[Name, Field(description="submit, cancel, scale, data or checkpoint")]
    outcome: Literal["done", "refused", "failed"]
    status: Annotated[int, Field(ge=100, le=599, description="of the HTTP answer")]
    problem: Annotated[Text, Field(description="what kind of problem it was answered with")] = ""
    address: Annotated[Text, Field(description="of the client")] = ""
    untold: Annotated[Count, Field(description="refusals before this one that were too many to be told")] = 0


# profiler --------------------------------------------------------------------------------------------------------


class ProfileMeasured(Message):
    """One window of one job under one plan: medians over all pods, and the figures of at most 400 pods of each role."""

    plan_version: Count
    plan: Plan
    batch_size: Annotated[int, Field(ge=1)]
    window_s: Annotated[Seconds, Field(gt=0)]
    step_time_s: Annotated[Seconds, Field(description="median over workers")]
    times: StepTimes
    throughput: Rate
    samples_total: Annotated[Count, Field(description="trained so far in the whole job, as the workers count")]
    categories: Count
    settled: Annotated[bool, Field(description="false while pods are starting, leaving or being migrated")]
    workers: Annotated[tuple[WorkerProfile, ...], Field(max_length=400)]
    ps: Annotated[tuple[PsProfile, ...], Field(max_length=400)]


class StragglerDetected(Message):
    """A worker is much slower than its peers."""

    pod: PodId
    samples_per_s: Rate
    peers_samples_per_s: Rate
    slowdown: Annotated[float, Field(ge=1, le=10**6, description="peers' median rate over its own")]


class StragglerCleared(Message):
    """A worker keeps pace with its peers again."""

    pod: PodId


class HotPsDetected(Message):
    """A parameter server is much slower or busier than its peers; than itself before, where it has none."""

    pod: PodId
    update_time_s: Seconds
    peers_update_time_s: Seconds
    cpu_used_cores: Cores
    cpu_limit_cores: Cores


class HotPsCleared(Message):
    """A parameter server that was hot has kept pace with its peers for a while."""

    pod: PodId
    update_time_s: Seconds
    peers_update_time_s: Seconds


# fitter ----------------------------------------------------------------------------------------------------------


class ModelFitted(Message):
    """The throughput model of the job (DLRover-RM Eq. 1-6, or the form that measured data support)."""

    form: Literal["default", "paper"]
    coefficients: Annotated[dict[Name, Annotated[float, Field(ge=0)]], Field(max_length=20)]
    overlap: Annotated[float, Field(ge=1, description="of the paths of a step; 1: their times add up")] = 1.0
    log_sd: Annotated[float, Field(ge=0, description="posterior standard deviation of the noise of log step time")]
    covariance: Annotated[tuple[tuple[float, ...], ...], Field(max_length=20)] = ()
    """of the coefficients in the order in which they are listed, per unit of log_sd squared"""
    degrees_of_freedom: Annotated[float, Field(gt=0, le=10**6, description="of the t quantile of intervals")] = 4.0
    measured: Annotated[tuple[MeasuredConfiguration, ...], Field(max_length=64)] = ()
    rmsle: Annotated[float, Field(ge=0, description="over the points used")]
    points: Annotated[Count, Field(description="windows used")]
    configurations: Annotated[Count, Field(description="distinct plans measured")]
    unidentified: Annotated[tuple[Name, ...], Field(max_length=20)]
    plan_version: Count
    plan: Plan
    batch_size: Annotated[int, Field(ge=1)]
    measured_step_time_s: Seconds
    predicted_step_time_s: Seconds
    predicted_interval_s: Interval


# planner ---------------------------------------------------------------------------------------------------------


class HistoryRecorded(Message):
    """A past job and the configuration that served it: what warm start reads."""

    metadata: Metadata
    plan: Plan
    throughput: Rate
    duration_s: Seconds
    ps_memory_peak_bytes: Bytes
    samples: Count
    model: KnownModel | None = None


class HistoryMatched(Message):
    """The past jobs most similar to a new one, and their smoothed configuration (Alg. 1)."""

    metadata: Metadata
    matches: Annotated[tuple[Match, ...], Field(max_length=20)]
    smoothing: Fraction
    plan: Plan | None
    model: Annotated[KnownModel | None, Field(description="of the most similar one that left any")] = None


class PlanProposed(Message):
    """One plan that the job should have next, for a reason that is not throughput alone."""

    kind: PlanKind
    plan: Plan
    throughput: Rate | None = None
    throughput_interval: Interval | None = None
    cost_per_hour: Money
    reasons: Reasons


class CandidatesComputed(Message):
    """The Pareto front of cost and throughput gain around the current plan (Eq. 9), cheapest first."""

    plan_version: Count
    plan: Plan
    throughput: Annotated[Rate, Field(description="of the current plan")]
    algorithm: Name
    plans_considered: Count
    candidates: Annotated[tuple[Candidate, ...], Field(max_length=64)]


# arbiter ---------------------------------------------------------------------------------------------------------


class PlanDecided(Message):
    """The plan that the job has to have. ``version`` grows by one with each decision of a job."""

    version: Annotated[int, Field(ge=1)]
    kind: PlanKind
    plan: Plan
    previous: Plan | None
    throughput: Rate | None
    throughput_interval: Interval | None
    throughput_before: Rate | None
    cost_per_hour: Money
    reasons: Reasons
    alternatives: Annotated[tuple[Alternative, ...], Field(max_length=16)]
    algorithm: Name
    free_cpu_cores: Annotated[Cores, Field(description="left in the cluster after it")]
    free_memory_bytes: Bytes
    round: Annotated[Round | None, Field(description="where the plan was chosen over all jobs")] = None


class PlanRefused(Message):
    """Nothing can be given now; the job waits and is considered again when capacity comes free."""

    kind: PlanKind
    wanted: Plan
    reasons: Reasons


class ReplacementDecided(Message):
    """Whether there is room for one server beyond the plan, which takes the place of ``pod``; until it has ended."""

    pod: PodId
    granted: bool
    reasons: Reasons


# checkpoints -----------------------------------------------------------------------------------------------------


class CheckpointSaved(Message):
    """A checkpoint was copied while training went on; no push waited longer than ``pause_s`` for it.

    ``memory_bytes`` of it are in shared memory, for a fast return; what had no room there went by way of disks.
    """

    checkpoint: CheckpointRef
    pause_s: Seconds
    took_s: Seconds
    memory_bytes: Bytes = 0


class CheckpointFlushed(Message):
    """A checkpoint is complete in the persistent store."""

    checkpoint: CheckpointRef
    took_s: Seconds


class CheckpointRestored(Message):
    """Parameters and ledger of the job are those of the checkpoint. ``ledger`` is the document ``MarkLedger`` gave."""

    checkpoint: CheckpointRef
    ps: Count
    ledger: Annotated[str, Field(max_length=200_000)]
    request_id: RequestId


class CheckpointFailed(Message):
    """A checkpoint could not be taken, flushed or read; the previous one stands."""

    id: Name
    reason: Text


# oom -------------------------------------------------------------------------------------------------------------


class OomForecast(Message):
    """Where the memory of a job's parameter servers is going, and what they need."""

    ps: Annotated[tuple[PsForecast, ...], Field(max_length=400)]
    samples_done: Count
    samples_total: Count
    horizon_s: Seconds
    recommended_ps_memory_bytes: Bytes
    limit_ps_memory_bytes: Bytes
    action: Literal["none", "grow", "shrink"]
    reason: Text
