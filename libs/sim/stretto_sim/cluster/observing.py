"""Facts about one job that the simulation reports: a window of its training, its reserved resources, its end."""

from __future__ import annotations

from stretto_sim.cluster import truth
from stretto_sim.cluster.live import Live, shape
from stretto_sim.cluster.nodes import NOWHERE
from stretto_sim.cluster.outcome import Left
from stretto_sim.cluster.policies import MeasuredWindow, Server


def window_of(live: Live, seconds: float, done: float, settled: bool, now: float) -> MeasuredWindow:
    """Return the measurements of ``seconds`` in which ``done`` samples were trained, with the noise of the settings."""
    job, ps, plan = live.job, len(live.holders), live.plan
    assert plan is not None
    cores = sorted(pod.size.cpu_cores * pod.speed for pod in live.ready_workers(now))
    usual = cores[len(cores) // 2]
    step_s = truth.worker_step_s(job, len(cores), usual, ps, live.slowest())
    used = int(truth.server_bytes(job, live.samples, ps))
    updates_s = live.rate / job.batch_size
    servers = tuple(
        Server(
            number=pod.number,
            updates=round(done / job.batch_size),
            update_s=live.noisy(job.alpha_upd / (ps * pod.size.cpu_cores * pod.speed)),
            busy_cores=min(updates_s * job.alpha_upd / ps, pod.size.cpu_cores),
            cores=pod.size.cpu_cores,
            used_bytes=used,
            limit_bytes=pod.size.memory_bytes,
        )
        for pod in live.holders
    )
    return MeasuredWindow(
        live.number, live.in_force, plan, live.noisy(step_s), live.noisy(done / seconds), int(live.samples),
        seconds, settled, servers,
    )  # fmt: skip


def reserved_by(live: Live) -> tuple[float, float, float, float]:
    """Return cores and bytes of the workers on nodes, then those of the servers."""
    workers = [pod for pod in live.workers if pod.node != NOWHERE]
    servers = [pod for pod in live.pods if pod.role == "ps" and pod.node != NOWHERE]
    return (
        sum(pod.size.cpu_cores for pod in workers), float(sum(pod.size.memory_bytes for pod in workers)),
        sum(pod.size.cpu_cores for pod in servers), float(sum(pod.size.memory_bytes for pod in servers)),
    )  # fmt: skip


def left_of(live: Live, how: str, now: float) -> Left:
    """Return the record of a job that ends now."""
    return Left(
        submit_s=live.job.submit_s, end_s=now, how=how, slow=live.fate.slow if live.slowed else "",
        samples=live.samples, queued_s=(live.started_s if live.started_s is not None else now) - live.job.submit_s,
        stood_s=live.stood_s, changes=live.changes, restarts=live.restarts, scaling_s=live.scaled_s,
        first=live.first, last=shape(live.plan) if live.plan and live.started_s is not None else None,
        usage=live.usage,
    )  # fmt: skip
