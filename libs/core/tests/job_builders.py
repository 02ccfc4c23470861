"""Messages about jobs, with what a test of a plan's decisions does not care about filled in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast

from stretto_core.arbiter.observations import BackgroundSolved
from stretto_messages.actuator import (
    JobFailed,
    JobFinished,
    PlanApplied,
    PodExited,
    PodPending,
    ReplacementAsked,
    ReplacementEnded,
)
from stretto_messages.arbiter import PlanDecided, PlanRefused
from stretto_messages.base import Message
from stretto_messages.dispatcher import JobCompleted, JobProgressed
from stretto_messages.gateway import JobCancelled
from stretto_messages.oom import OomForecast
from stretto_messages.planner import CandidatesComputed, HistoryMatched, HistoryRecorded, PlanProposed
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import Candidate, Interval, Plan, PlanKind, PsProfile, Resources, Role, StepTimes, Value

REASONS = ("r",)


def job_progressed(job: str, samples_done: int, samples_total: int, samples_per_s: float) -> JobProgressed:
    return JobProgressed(
        job=job,
        samples_done=samples_done,
        samples_total=samples_total,
        epoch=0,
        samples_per_s=samples_per_s,
        shards_leased=0,
        shards_requeued_total=0,
    )


def job_ended(job: str, outcome: Literal["completed", "failed", "cancelled", "gone"]) -> Message:
    match outcome:
        case "completed":
            return JobCompleted(
                job=job, samples=1, samples_abandoned=0, epochs=1, shards=1, requeued=0, started_at_s=0.0
            )
        case "failed":
            return JobFailed(job=job, reason="r")
        case "cancelled":
            return JobCancelled(job=job)
        case "gone":
            return JobFinished(
                job=job,
                samples_expected=1,
                samples_applied=1,
                samples_lost=0,
                samples_repeated=0,
                repeats_recognised=0,
                rows=0,
            )


def profile_measured(
    job: str,
    plan_version: int,
    plan: Plan,
    step_time_s: float,
    throughput: float,
    batch_size: int = 512,
    window_s: float = 5.0,
    ps_memory_used_bytes: int = 1,
    settled: bool = True,
) -> ProfileMeasured:
    server = PsProfile(
        pod="ps-0",
        cpu_used_cores=0.0,
        cpu_limit_cores=1.0,
        memory_used_bytes=ps_memory_used_bytes,
        memory_limit_bytes=ps_memory_used_bytes,
        categories=0,
        row_bytes=152.6,
        table_bytes=0,
        buckets=1,
        update_time_s=0.0,
    )
    return ProfileMeasured(
        job=job,
        plan_version=plan_version,
        plan=plan,
        batch_size=batch_size,
        window_s=window_s,
        step_time_s=step_time_s,
        times=StepTimes(emb_s=0.0, grad_s=0.0, upd_s=0.0, sync_s=0.0),
        throughput=throughput,
        samples_total=0,
        categories=0,
        settled=settled,
        workers=(),
        ps=(server,),
    )


def plan_proposed(
    job: str, kind: PlanKind, plan: Plan, cost_per_hour: float = 0.1, reasons: tuple[str, ...] = REASONS
) -> PlanProposed:
    return PlanProposed(job=job, kind=kind, plan=plan, cost_per_hour=cost_per_hour, reasons=reasons)


def plan_decided(job: str, version: int, kind: PlanKind, plan: Plan, free: Resources) -> PlanDecided:
    return PlanDecided(
        job=job,
        version=version,
        kind=kind,
        plan=plan,
        previous=None,
        throughput=None,
        throughput_interval=None,
        throughput_before=None,
        cost_per_hour=0.1,
        reasons=(),
        alternatives=(),
        algorithm="x",
        free_cpu_cores=free.cpu_cores,
        free_memory_bytes=free.memory_bytes,
    )


def plan_refused(job: str, kind: PlanKind, wanted: Plan, reasons: tuple[str, ...] = REASONS) -> PlanRefused:
    return PlanRefused(job=job, kind=kind, wanted=wanted, reasons=reasons)


def plan_applied(job: str, version: int, plan: Plan, took_s: float = 2.0) -> PlanApplied:
    return PlanApplied(job=job, version=version, plan=plan, took_s=took_s)


def candidate(
    plan: Plan, throughput: float, low: float, high: float, cost_per_hour: float, overhead_s: float, gain: float
) -> Candidate:
    return Candidate(
        id="c",
        plan=plan,
        cost_per_hour=cost_per_hour,
        throughput=throughput,
        throughput_interval=Interval(low=low, high=high),
        gain=gain,
        overhead_s=overhead_s,
    )


def candidates_computed(
    job: str, plan_version: int, plan: Plan, throughput: float, candidates: tuple[Candidate, ...]
) -> CandidatesComputed:
    return CandidatesComputed(
        job=job,
        plan_version=plan_version,
        plan=plan,
        throughput=throughput,
        algorithm="x",
        plans_considered=9,
        candidates=candidates,
    )


def oom_forecast(
    job: str, action: Literal["none", "grow", "shrink"], recommended_ps_memory_bytes: int, reason: str = "r"
) -> OomForecast:
    return OomForecast(
        job=job,
        ps=(),
        samples_done=0,
        samples_total=0,
        horizon_s=0.0,
        recommended_ps_memory_bytes=recommended_ps_memory_bytes,
        limit_ps_memory_bytes=0,
        action=action,
        reason=reason,
    )


def pod_unplaced(job: str, pod: str, role: Role, detail: str) -> PodPending:
    return PodPending(job=job, pod=pod, role=role, reason="no-room", detail=detail)


def pod_settled(job: str, pod: str) -> PodExited:
    role = cast("Role", pod.partition("-")[0])
    return PodExited(job=job, pod=pod, role=role, reason="stopped", exit_code=None)


def replacement_asked(job: str, pod: str) -> ReplacementAsked:
    return ReplacementAsked(job=job, pod=pod)


def replacement_ended(job: str, pod: str) -> ReplacementEnded:
    return ReplacementEnded(job=job, pod=pod)


def no_history(job: str) -> HistoryMatched:
    return HistoryMatched(job=job, metadata={}, matches=(), smoothing=0.5, plan=None)


def past_job(
    job: str,
    metadata: Mapping[str, Value],
    plan: Plan,
    throughput: float,
    duration_s: float = 600.0,
    ps_memory_peak_bytes: int = 1,
    samples: int = 10**6,
) -> HistoryRecorded:
    return HistoryRecorded(
        job=job,
        metadata=dict(metadata),
        plan=plan,
        throughput=throughput,
        duration_s=duration_s,
        ps_memory_peak_bytes=ps_memory_peak_bytes,
        samples=samples,
    )


def background_solved(
    number: int, plans: Mapping[str, Plan], gap: float | None, took_s: float, fault: str = "", job: str = "job-0"
) -> BackgroundSolved:
    return BackgroundSolved(job=job, number=number, plans=dict(plans), gap=gap, took_s=took_s, fault=fault)
