"""Events of one job, as its services would publish them."""

from __future__ import annotations

import stretto_wire as wire
from stretto_messages.actuator import PodStarted
from stretto_messages.arbiter import PlanDecided
from stretto_messages.pods import WorkerReported
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import Plan, StepTimes

from tests.live_bus import decision, plan_of

MIB = 2**20
TIMES = StepTimes(emb_s=0.01, grad_s=0.02, upd_s=0.001, sync_s=0.002)


def plan(workers: int = 1, ps: int = 1, ps_memory_bytes: int = 900 * MIB) -> Plan:
    return plan_of(workers, ps, memory=900 * MIB, ps_memory=ps_memory_bytes)


def submitted(job: str = "a") -> wire.JobSubmitted:
    document = {"name": job, "model": {"entry": "m:M"}, "dataset": {"samples": 1000, "epochs": 2}}
    return wire.JobSubmitted(job=job, spec=wire.JobSpec.parse(document))


def decided(version: int, kind: str, new: Plan, previous: Plan | None, **more: object) -> PlanDecided:
    given = {
        "cost_per_hour": 0.1,
        "reasons": ("because",),
        "algorithm": "weighted-greedy",
        "free_cpu_cores": 1.0,
        **more,
    }
    return decision("a", new, version, kind=kind, previous=previous, **given)


def profile(version: int, of: Plan, rate: float, settled: bool = True) -> ProfileMeasured:
    return ProfileMeasured(
        job="a", plan_version=version, plan=of, batch_size=512, window_s=3.0, step_time_s=0.05, times=TIMES,
        throughput=rate, samples_total=1, categories=10, settled=settled, workers=(), ps=(),
    )  # fmt: skip


def started(pod: str, cause: str = "plan") -> PodStarted:
    role = pod.partition("-")[0]
    return PodStarted(
        job="a", pod=pod, role=role, plan_version=1, address="x:1", cpu_cores=0.5, memory_bytes=900 * MIB,
        took_s=5.0, cause=cause,
    )  # type: ignore[arg-type]  # fmt: skip


def worker_report(pod: str, ended_at_s: float, gap_s: float) -> WorkerReported:
    return WorkerReported(
        job="a", pod=pod, plan_version=1, ended_at_s=ended_at_s, window_s=1.0, steps=10, steps_total=10,
        samples_total=5120, step_time_s=0.1, longest_gap_s=gap_s, times=TIMES, cpu_used_cores=0.4, cpu_limit_cores=0.5,
        memory_used_bytes=600 * MIB, memory_limit_bytes=900 * MIB,
    )  # fmt: skip
