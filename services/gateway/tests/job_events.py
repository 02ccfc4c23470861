"""Events of one job, as its services would publish them."""

from __future__ import annotations

from dataclasses import replace

import stretto_wire as wire
from stretto_messages.actuator import PodStarted
from stretto_messages.arbiter import PlanDecided
from stretto_messages.base import example_of
from stretto_messages.pods import WorkerReported
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import Plan, StepTimes

from tests.live_bus import decision, plan_of, submission

MIB = 2**20
TIMES = StepTimes(emb_s=0.01, grad_s=0.02, upd_s=0.001, sync_s=0.002)


def plan(workers: int = 1, ps: int = 1, ps_memory_bytes: int = 900 * MIB) -> Plan:
    return plan_of(workers, ps, memory=900 * MIB, ps_memory=ps_memory_bytes)


def submitted(job: str = "a") -> wire.JobSubmitted:
    return submission(job, dataset={"samples": 1000, "epochs": 2})


def decided(version: int, kind: str, new: Plan, previous: Plan | None, **more: object) -> PlanDecided:
    given = {"cost_per_hour": 0.1, "reasons": ("because",), "algorithm": "weighted-greedy", "free_cpu_cores": 1.0}
    return decision("a", new, version, kind=kind, previous=previous, **(given | more))


def profile(version: int, of: Plan, rate: float, settled: bool = True) -> ProfileMeasured:
    told = {"plan_version": version, "plan": of, "throughput": rate, "settled": settled, "times": TIMES}
    of_nobody = {"workers": (), "ps": (), "feed": None, "window_s": 3.0, "step_time_s": 0.05}
    return replace(example_of(ProfileMeasured), job="a", **told, **of_nobody)


def started(pod: str, cause: str = "plan") -> PodStarted:
    given = {"role": pod.partition("-")[0], "plan_version": 1, "cpu_cores": 0.5, "memory_bytes": 900 * MIB}
    return replace(example_of(PodStarted), job="a", pod=pod, cause=cause, **given)  # type: ignore[arg-type]


def worker_report(pod: str, ended_at_s: float, gap_s: float) -> WorkerReported:
    window = {"ended_at_s": ended_at_s, "window_s": 1.0, "steps": 10, "longest_gap_s": gap_s, "times": TIMES}
    memory = {"memory_used_bytes": 600 * MIB, "memory_limit_bytes": 900 * MIB}
    return replace(example_of(WorkerReported), job="a", pod=pod, **window, **memory)
