"""Messages about jobs, with what a test of a plan's decisions does not care about filled in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from facts import maker
from stretto_core.arbiter.observations import BackgroundSolved
from stretto_messages.actuator import (
    JobFailed,
    JobFinished,
    PlanApplied,
    PodExited,
    PodPending,
    PodStarted,
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
from stretto_messages.values import Candidate, Interval, Plan, PlanKind, PsProfile, Resources, StepTimes

ENDS = {"completed": JobCompleted, "failed": JobFailed, "cancelled": JobCancelled, "gone": JobFinished}
SERVER = PsProfile(
    pod="ps-0",
    cpu_used_cores=0.0,
    cpu_limit_cores=1.0,
    memory_used_bytes=1,
    memory_limit_bytes=1,
    categories=0,
    row_bytes=152.6,
    table_bytes=0,
    buckets=1,
    update_time_s=0.0,
)
job_progressed = maker(
    JobProgressed, "job", "samples_done", "samples_total", "samples_per_s", shards_leased=0, shards_requeued_total=0
)
profile_measured = maker(
    ProfileMeasured, "job", "plan_version", "plan", "step_time_s", "throughput",
    times=StepTimes(emb_s=0.0, grad_s=0.0, upd_s=0.0, sync_s=0.0), samples_total=0, categories=0, feed=None,
    workers=(), ps=(SERVER,),
)  # fmt: skip
plan_proposed = maker(
    PlanProposed, "job", "kind", "plan", "cost_per_hour", "reasons",
    throughput=None, throughput_interval=None, cost_per_hour=0.1, reasons=("r",),
)  # fmt: skip
plan_refused = maker(PlanRefused, "job", "kind", "wanted", "reasons", reasons=("r",))
plan_applied = maker(PlanApplied, "job", "version", "plan", "took_s", took_s=2.0)
candidates_computed = maker(CandidatesComputed, "job", "plan_version", "plan", "throughput", "candidates")
oom_forecast = maker(
    OomForecast, "job", "action", "recommended_ps_memory_bytes", "reason", ps=(), reason="r", remedies=(), base_bytes=0
)
pod_unplaced = maker(PodPending, "job", "pod", "role", "detail", reason="no-room")
pod_started = maker(PodStarted, "job", "pod", "took_s", "cause")
pod_settled = maker(PodExited, "job", "pod", reason="stopped", exit_code=None)
replacement_asked, replacement_ended = maker(ReplacementAsked, "job", "pod"), maker(ReplacementEnded, "job", "pod")
no_history = maker(HistoryMatched, "job", metadata={}, matches=(), smoothing=0.5, plan=None)
past_job = maker(
    HistoryRecorded, "job", "metadata", "plan", "throughput", "duration_s", "ps_memory_peak_bytes", "samples",
    duration_s=600.0, ps_memory_peak_bytes=1, samples=10**6,
)  # fmt: skip


def job_ended(job: str, outcome: Literal["completed", "failed", "cancelled", "gone"]) -> Message:
    return maker(ENDS[outcome], "job")(job)


def plan_decided(job: str, version: int, kind: PlanKind, plan: Plan, free: Resources) -> PlanDecided:
    room = {"free_cpu_cores": free.cpu_cores, "free_memory_bytes": free.memory_bytes}
    return maker(PlanDecided, "job", "version", "kind", "plan", previous=None, **room)(job, version, kind, plan)


def candidate(
    plan: Plan, throughput: float, low: float, high: float, cost_per_hour: float, overhead_s: float, gain: float
) -> Candidate:
    interval = Interval(low=low, high=high)
    return Candidate(
        id="c", plan=plan, cost_per_hour=cost_per_hour, throughput=throughput, throughput_interval=interval,
        gain=gain, overhead_s=overhead_s,
    )  # fmt: skip


def background_solved(
    number: int, plans: Mapping[str, Plan], gap: float | None, took_s: float, fault: str = "", job: str = "job-0"
) -> BackgroundSolved:
    return BackgroundSolved(job=job, number=number, plans=dict(plans), gap=gap, took_s=took_s, fault=fault)
