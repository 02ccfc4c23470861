"""Training jobs on shared nodes, tick by tick and as naively as can be: no event, no formula but the step time's.

Knows plans that are given at fixed times: a job starts with its first one as a whole, in the order of submission, and
changes to the others while it trains on. Nobody dies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stretto_messages.base import GIB
from stretto_messages.values import Plan
from stretto_sim.cluster import ClusterTraceSettings, TraceJob

TICKS = 4
"""of a second"""


@dataclass
class _Pod:
    node: int
    cores: float
    memory: int
    ready_s: float


@dataclass
class _Job:
    job: TraceJob
    plans: list[tuple[float, Plan]]
    workers: list[_Pod] = field(default_factory=list[_Pod])
    servers: list[_Pod] = field(default_factory=list[_Pod])
    holders: list[_Pod] = field(default_factory=list[_Pod])
    samples: float = 0.0
    paused_until_s: float = -1.0
    moving: bool = False
    end_s: float | None = None
    how: str = ""


class _Free:
    """Cores and bytes of every node."""

    def __init__(self, settings: ClusterTraceSettings) -> None:
        self.cores = [settings.node_cpu_cores] * settings.nodes
        self.memory = [settings.node_memory_bytes] * settings.nodes

    def give(self, cores: float, memory: int, ready_s: float) -> _Pod | None:
        fitting = [n for n in range(len(self.cores)) if self.cores[n] >= cores - 1e-9 and self.memory[n] >= memory]
        if not fitting:
            return None
        node = min(fitting, key=lambda n: (self.cores[n], n))
        self.cores[node] -= cores
        self.memory[node] -= memory
        return _Pod(node, cores, memory, ready_s)

    def back(self, pods: Sequence[_Pod]) -> None:
        for pod in pods:
            self.cores[pod.node] += pod.cores
            self.memory[pod.node] += pod.memory


def tick_by_tick(
    plans: Sequence[tuple[TraceJob, list[tuple[float, Plan]]]], settings: ClusterTraceSettings, dynamic: bool
) -> list[dict[str, Any]]:
    """End and outcome of each job; ``plans`` are (seconds after its submission, plan), the first at 0."""
    free, jobs, tick = _Free(settings), [_Job(job, list(steps)) for job, steps in plans], 0
    ordered = sorted(jobs, key=lambda one: one.job.submit_s)
    while any(job.end_s is None for job in jobs):
        now = tick / TICKS
        for each in ordered:
            if each.end_s is None and each.servers:
                _ends(each, now, free)
        for each in ordered:
            if each.end_s is None and now >= each.job.submit_s:
                _planned(each, now, free, settings)
                _move(each, now, free, settings)
                each.samples += _rate(each, now, dynamic) / TICKS
        tick += 1
    return [{"end_s": job.end_s, "how": job.how} for job in jobs]


def _ends(each: _Job, now: float, free: _Free) -> None:
    job, trained = each.job, min(each.samples / each.job.samples, 1.0)
    filled = job.server_base_bytes + job.embedding_bytes * trained**job.growth / len(each.holders)
    over = filled > min(pod.memory for pod in each.holders) and each.samples > 0
    if each.samples >= job.samples or over:
        each.end_s, each.how = now, "out of memory" if over else "completed"
        free.back([*each.workers, *each.servers, *_others(each.holders, each.servers)])


def _others(pods: Sequence[_Pod], wanted: Sequence[_Pod]) -> list[_Pod]:
    return [pod for pod in pods if all(pod is not other for other in wanted)]


def _planned(each: _Job, now: float, free: _Free, s: ClusterTraceSettings) -> None:
    """Changes are of counts alone, and the test gives room for them."""
    after_s, plan = each.plans[0]
    if now < each.job.submit_s + after_s:
        return

    def pods(count: int, cores: float, memory: int) -> list[_Pod]:
        given = [free.give(cores, memory, now + s.pod_start_s) for _ in range(count)]
        return [pod for pod in given if pod is not None]

    first = not each.servers
    surplus = _others(each.servers[plan.ps :], each.holders)
    free.back([*each.workers[plan.workers :], *surplus])
    each.workers, each.servers = each.workers[: plan.workers], each.servers[: plan.ps]
    each.servers += pods(plan.ps - len(each.servers), plan.ps_cpu_cores, plan.ps_memory_bytes)
    each.workers += pods(plan.workers - len(each.workers), plan.worker_cpu_cores, plan.worker_memory_bytes)
    if first and len(each.servers) + len(each.workers) < plan.ps + plan.workers:
        free.back([*each.servers, *each.workers])
        each.servers, each.workers = [], []
        return
    if first:
        each.holders = list(each.servers)
    each.plans = each.plans[1:] or [(float("inf"), plan)]


def _move(each: _Job, now: float, free: _Free, s: ClusterTraceSettings) -> None:
    if each.moving and now >= each.paused_until_s:
        each.moving = False
        free.back(_others(each.holders, each.servers))
        each.holders = list(each.servers)
    elsewhere = [id(pod) for pod in each.holders] != [id(pod) for pod in each.servers]
    if not each.moving and elsewhere and all(pod.ready_s <= now for pod in each.servers):
        stay = len(each.holders) - len(_others(each.holders, each.servers))
        part = 1 - stay / max(len(each.holders), len(each.servers))
        gib = part * each.job.embedding_bytes * (each.samples / each.job.samples) ** each.job.growth / GIB
        each.moving, each.paused_until_s = True, now + max(s.move_pause_s, gib * s.move_s_per_gib)


def _rate(each: _Job, now: float, dynamic: bool) -> float:
    ready = [pod for pod in each.workers if pod.ready_s <= now]
    if not ready or now < each.paused_until_s or any(pod.ready_s > now for pod in each.holders):
        return 0.0
    j, w, p = each.job, len(ready), len(each.holders)
    slowest = min(pod.cores for pod in each.holders)
    times = [
        j.alpha_grad * j.batch_size / pod.cores + j.alpha_upd * w / (p * slowest) + j.alpha_sync * w / p
        + j.alpha_emb * j.batch_size / p + j.constant_s + j.per_worker_s * w
        for pod in ready
    ]  # fmt: skip
    return sum(j.batch_size / t for t in times) if dynamic else w * j.batch_size / max(times)
