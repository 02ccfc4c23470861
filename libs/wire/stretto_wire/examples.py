"""One realistic instance of every message: a click-through model on two workers, growing to four.

The documents in ``proto/`` show them, subscribers in other languages test against them.
"""

from __future__ import annotations

from . import events as e
from . import telemetry as t
from . import values as v
from .base import Message
from .example_values import CHECKPOINT, GIB, JOB, LARGEST, METADATA, PLAN, TIMES, WIDER
from .example_values import NOW_S as NOW_S
from .example_values import SPEC as SPEC
from .ledger_examples import LEDGER
from .request_examples import APPLIED, REQUESTS

GATEWAY: tuple[Message, ...] = (
    e.JobSubmitted(job=JOB, spec=SPEC, submitted_by="ada"),
    e.JobCancelled(job=JOB, by="ada", reason="the features of yesterday were wrong"),
    e.PlanRequested(job=JOB, plan=WIDER, by="ada"),
    e.ChangeAudited(
        job=JOB,
        actor="bob",
        role="submitter",
        action="cancel",
        outcome="refused",
        status=403,
        problem="not-yours",
        address="10.1.2.3",
    ),
)

PROFILER: tuple[Message, ...] = (
    e.ProfileMeasured(
        job=JOB,
        plan_version=1,
        plan=PLAN,
        batch_size=512,
        window_s=5.0,
        step_time_s=0.0285,
        times=TIMES,
        throughput=35_900.0,
        samples_total=10_190_848,
        categories=1_204_331,
        settled=True,
        workers=(
            v.WorkerProfile(
                pod="worker-0",
                step_time_s=0.0281,
                samples_per_s=18_200.0,
                cpu_used_cores=1.91,
                memory_used_bytes=1_610_612_736,
            ),
            v.WorkerProfile(
                pod="worker-1",
                step_time_s=0.0289,
                samples_per_s=17_700.0,
                cpu_used_cores=1.88,
                memory_used_bytes=1_598_029_824,
            ),
        ),
        ps=(
            v.PsProfile(
                pod="ps-0",
                cpu_used_cores=0.71,
                cpu_limit_cores=1.0,
                memory_used_bytes=734_003_200,
                memory_limit_bytes=2 * GIB,
                categories=602_004,
                buckets=32,
                update_time_s=0.0032,
            ),
        ),
    ),
    e.StragglerDetected(
        job=JOB, pod="worker-1", samples_per_s=6_100.0, peers_samples_per_s=18_200.0, slowdown=18_200.0 / 6_100.0
    ),
    e.StragglerCleared(job=JOB, pod="worker-1"),
    e.HotPsDetected(
        job=JOB,
        pod="ps-1",
        update_time_s=0.0128,
        peers_update_time_s=0.0032,
        cpu_used_cores=0.99,
        cpu_limit_cores=1.0,
    ),
    e.HotPsCleared(job=JOB, pod="ps-1", update_time_s=0.0031, peers_update_time_s=0.0032),
)

FITTER: tuple[Message, ...] = (
    e.ModelFitted(
        job=JOB,
        form="default",
        coefficients={"a1": 3.6e-05, "a3": 1.6e-03, "a4": 1.3e-03, "a5": 0.0, "a6": 0.0, "a7": 4.0e-06, "a2": 2.1e-03},
        log_sd=0.031,
        covariance=tuple(tuple(2.5e-07 if i == j else 0.0 for j in range(7)) for i in range(7)),
        degrees_of_freedom=7.8,
        measured=(
            v.MeasuredConfiguration(
                workers=2,
                ps=1,
                worker_cpu_cores=1.0,
                ps_cpu_cores=0.5,
                batch_size=512,
                step_time_s=0.0285,
                windows=12,
                log_sd=0.012,
            ),
        ),
        rmsle=0.018,
        points=24,
        configurations=3,
        unidentified=("a1", "a2"),
        plan_version=1,
        plan=PLAN,
        batch_size=512,
        measured_step_time_s=0.0285,
        predicted_step_time_s=0.0281,
        predicted_interval_s=v.Interval(low=0.0267, high=0.0296),
    ),
)

PLANNER: tuple[Message, ...] = (
    e.HistoryRecorded(
        job=JOB,
        metadata=METADATA,
        plan=WIDER,
        throughput=66_400.0,
        duration_s=1_402.0,
        ps_memory_peak_bytes=1_503_238_553,
        samples=91_681_234,
    ),
    e.HistoryMatched(
        job=JOB,
        metadata=METADATA,
        matches=(
            v.Match(
                job="ctr-ranking-41",
                similarity=0.93,
                weight=0.7,
                plan=PLAN,
                throughput=34_800.0,
                features={"family": 1.0, "rows": 0.86},
            ),
        ),
        smoothing=0.3,
        plan=PLAN,
    ),
    e.PlanProposed(
        job=JOB,
        kind="warm-start",
        plan=PLAN,
        throughput=34_800.0,
        throughput_interval=v.Interval(low=30_100.0, high=39_600.0),
        cost_per_hour=0.30,
        reasons=("3 past jobs resemble it; ctr-ranking-41 most (0.93)",),
    ),
    e.CandidatesComputed(
        job=JOB,
        plan_version=1,
        plan=PLAN,
        throughput=35_900.0,
        algorithm="exact-front",
        plans_considered=640,
        candidates=(
            v.Candidate(
                id="w4-p2",
                plan=WIDER,
                cost_per_hour=0.54,
                throughput=66_400.0,
                throughput_interval=v.Interval(low=61_000.0, high=71_900.0),
                gain=29_800.0,
                overhead_s=1.5,
            ),
        ),
    ),
)

ARBITER: tuple[Message, ...] = (
    e.PlanDecided(
        job=JOB,
        version=2,
        kind="improve",
        plan=WIDER,
        previous=PLAN,
        throughput=66_400.0,
        throughput_interval=v.Interval(low=61_000.0, high=71_900.0),
        throughput_before=35_900.0,
        cost_per_hour=0.54,
        reasons=("84 % more throughput for 80 % more cost", "the largest gain per cost of 5 candidates that fit"),
        alternatives=(
            v.Alternative(
                plan=LARGEST,
                throughput=88_000.0,
                cost_per_hour=1.80,
                efficiency=0.41,
                why_not="needs 40 cores, 12 are free",
            ),
        ),
        algorithm="exact",
        free_cpu_cores=7.0,
        free_memory_bytes=24 * GIB,
        round=v.Round(
            algorithm="exact",
            objective="efficiency",
            jobs=3,
            value=0.912,
            bound=0.915,
            gap=0.00328,
            term=0.83,
            study=v.Studied(
                algorithm="exact",
                outcome="adopted",
                reason="better by 1.56%",
                value=0.912,
                instead_of=0.898,
                gap=0.0,
                took_s=0.21,
            ),
        ),
    ),
    e.PlanRefused(job=JOB, kind="initial", wanted=PLAN, reasons=("needs 6 cores, 2 are free: waits for capacity",)),
    e.ReplacementDecided(job=JOB, pod="ps-1", granted=False, reasons=("it needs 1 cores beyond the plan, 0 are free",)),
)

ACTUATOR: tuple[Message, ...] = (
    e.PodStarted(
        job=JOB,
        pod="worker-2",
        role="worker",
        plan_version=2,
        address="10.4.0.17:41203",
        cpu_cores=2.0,
        memory_bytes=4 * GIB,
        took_s=6.4,
        cause="plan",
        limits=("cgroup-cpu", "cgroup-memory"),
    ),
    e.PodPending(
        job=JOB,
        pod="worker-3",
        role="worker",
        reason="no-room",
        detail="0/3 nodes are available: 3 Insufficient cpu.",
    ),
    e.PodExited(job=JOB, pod="worker-1", role="worker", reason="killed", exit_code=-9, detail="signal 9 from outside"),
    e.PodResized(job=JOB, pod="ps-0", cpu_cores=1.5, memory_bytes=2 * GIB),
    e.PlanApplied(job=JOB, version=2, plan=WIDER, took_s=7.9),
    e.ReplacementAsked(job=JOB, pod="ps-1"),
    e.ReplacementEnded(job=JOB, pod="ps-1"),
    e.ServersChanged(
        job=JOB,
        version=3,
        servers=(
            v.ParameterServer(index=0, address="10.4.0.11:40101"),
            v.ParameterServer(index=1, address="10.4.0.12:40102", leaving=True),
        ),
    ),
    e.MigrationStarted(
        job=JOB, plan_version=3, cause="plan", sources=("ps-0", "ps-1"), destinations=("ps-2",), buckets=25
    ),
    e.MigrationFinished(job=JOB, plan_version=3, buckets=25, moved_bytes=89_478_485, took_s=3.2, longest_freeze_s=0.09),
    e.JobFinished(
        job=JOB,
        samples_expected=91_681_234,
        samples_applied=91_681_234,
        samples_lost=0,
        samples_repeated=0,
        repeats_recognised=1_536,
        rows=2_811_902,
        checksum="9f1c2d",
        evaluation=v.Evaluation(samples=100_000, loss=0.4512, auc=0.7983),
        applied=APPLIED,
    ),
    e.JobFailed(job=JOB, reason="the model's code failed 10 times: ValueError: unknown column C27"),
)

CHECKPOINTS: tuple[Message, ...] = (
    e.CheckpointSaved(job=JOB, checkpoint=CHECKPOINT, pause_s=0.004, took_s=0.9, memory_bytes=CHECKPOINT.size_bytes),
    e.CheckpointFlushed(job=JOB, checkpoint=CHECKPOINT, took_s=4.7),
    e.CheckpointRestored(
        job=JOB,
        checkpoint=CHECKPOINT,
        ps=3,
        ledger='{"epoch":0,"next":311,"open":[[311,12288]]}',
        request_id="restore-ctr-ranking-42-000003",
    ),
    e.CheckpointFailed(job=JOB, id="ctr-ranking-42-000004", reason="the store is full: 0 bytes free"),
)

OOM: tuple[Message, ...] = (
    e.OomForecast(
        job=JOB,
        ps=(
            v.PsForecast(
                pod="ps-0",
                used_bytes=1_932_735_283,
                limit_bytes=2 * GIB,
                at_end_bytes=3 * GIB,
                at_end_interval_bytes=v.Interval(low=2.8 * GIB, high=3.3 * GIB),
                oom_in_s=410.0,
                oom_at_samples=24_900_000,
            ),
        ),
        samples_done=10_190_848,
        samples_total=91_681_234,
        horizon_s=2_270.0,
        recommended_ps_memory_bytes=4 * GIB,
        limit_ps_memory_bytes=2 * GIB,
        action="grow",
        reason="ps-0 would run out of memory in 410 s, 1,860 s before the job ends",
    ),
)

TELEMETRY: tuple[Message, ...] = (
    t.WorkerReported(
        job=JOB,
        pod="worker-0",
        plan_version=1,
        ended_at_s=NOW_S,
        window_s=1.0,
        steps=35,
        steps_total=9_952,
        samples_total=5_095_424,
        step_time_s=0.0281,
        longest_gap_s=0.041,
        times=TIMES,
        cpu_used_cores=1.91,
        cpu_limit_cores=2.0,
        memory_used_bytes=1_610_612_736,
        memory_limit_bytes=4 * GIB,
    ),
    t.PsReported(
        job=JOB,
        pod="ps-0",
        ended_at_s=NOW_S,
        window_s=1.0,
        updates=70,
        update_time_s=0.0032,
        applied_samples_total=10_190_848,
        categories=602_004,
        buckets=32,
        cpu_used_cores=0.71,
        cpu_limit_cores=1.0,
        memory_used_bytes=734_003_200,
        memory_limit_bytes=2 * GIB,
    ),
)

EXAMPLES: dict[type[Message], Message] = {
    type(message): message
    for message in (
        *GATEWAY,
        *PROFILER,
        *FITTER,
        *PLANNER,
        *ARBITER,
        *ACTUATOR,
        *LEDGER,
        *CHECKPOINTS,
        *OOM,
        *TELEMETRY,
        *REQUESTS,
    )
}
"""By message type; every message and reply of the registry has one."""

PODS = {"worker": "worker-0", "ps": "ps-0", "pod": "ps-0"}
"""The pod that an example request to a pod goes to, by the role that answers it."""
