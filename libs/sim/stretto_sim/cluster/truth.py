"""True speeds and resource use of jobs, which only the simulation knows and no policy."""

from __future__ import annotations

from collections.abc import Sequence

from stretto_messages.base import InvalidValue
from stretto_messages.values import Plan

from stretto_sim.cluster.trace import TraceJob
from stretto_sim.measures import HORIZON_YEARS, YEAR_S


def step_time_s(job: TraceJob, plan: Plan) -> float:
    """Return the step time T under a plan in which every pod is as fast as its cores."""
    return worker_step_s(job, plan.workers, plan.worker_cpu_cores, plan.ps, 1.0 / (plan.ps * plan.ps_cpu_cores))


def worker_step_s(job: TraceJob, workers: int, cores: float, ps: int, slowest: float) -> float:
    """Return the step time T of one worker with ``cores``, among ``workers``.

    ``slowest``: the largest quotient of any server's share of an update and its cores; a push waits for that server.
    """
    m = job.batch_size
    return (
        job.alpha_grad * m / cores
        + job.alpha_upd * workers * slowest
        + job.alpha_sync * workers / ps
        + job.alpha_emb * m / ps
        + job.constant_s
        + job.per_worker_s * workers
    )


def samples_per_s(job: TraceJob, plan: Plan) -> float:
    """Return the throughput under a plan, Eq. 1."""
    return plan.workers * job.batch_size / step_time_s(job, plan)


def check_horizon(job: TraceJob) -> None:
    """Raise InvalidValue if the job would train for longer than ``HORIZON_YEARS`` with its user's request."""
    steps = job.samples / (job.request.workers * job.batch_size)
    if (years := steps * step_time_s(job, job.request) / YEAR_S) > HORIZON_YEARS:
        asked = f"{years:.3g} years with what its user asks for"
        raise InvalidValue(f"samples is {job.samples:g}, {asked}; give at most {HORIZON_YEARS} years")


def rate(job: TraceJob, worker_cores: Sequence[float], ps: int, slowest: float, dynamic: bool) -> float:
    """Return the samples per second of workers with these cores and ``ps`` servers.

    ``dynamic``: each worker takes shards at its own speed (DLRover-RM section 5.1); otherwise every worker has an equal
    part of the data, and all wait for the slowest.
    """
    workers = len(worker_cores)
    each = {c: worker_step_s(job, workers, c, ps, slowest) for c in set(worker_cores)}
    if not dynamic:
        return workers * job.batch_size / max(each.values())
    return sum(job.batch_size / each[cores] for cores in worker_cores)


def busy_cores(job: TraceJob, samples_per_s: float) -> tuple[float, float]:
    """Return the busy cores of workers and of servers: those of Eq. 2 and 3. All others wait for the rest of a step."""
    steps_per_s = samples_per_s / job.batch_size
    return steps_per_s * job.alpha_grad * job.batch_size, steps_per_s * job.alpha_upd


def embedding_bytes(job: TraceJob, samples: float) -> float:
    """Return the bytes of all embeddings after ``samples``, over all servers."""
    return job.embedding_bytes * (min(max(samples, 0.0), job.samples) / job.samples) ** job.growth


def server_bytes(job: TraceJob, samples: float, ps: int) -> float:
    """Return the bytes of one of ``ps`` servers."""
    return job.server_base_bytes + embedding_bytes(job, samples) / ps


def mean_embedding_bytes(job: TraceJob, before: float, after: float) -> float:
    """Return the mean bytes while the trained samples grow from one count to the other at a constant rate."""
    if after - before < 1e-6 * job.samples:
        return embedding_bytes(job, (before + after) / 2)
    low, high = (min(max(samples, 0.0), job.samples) / job.samples for samples in (before, after))
    power = job.growth + 1
    return job.embedding_bytes * (high**power - low**power) / power / (high - low)


def samples_that_fit(job: TraceJob, ps: int, limit_bytes: float) -> float:
    """Return the samples after which each of ``ps`` servers has filled its limit; infinite if they never do."""
    room = (limit_bytes - job.server_base_bytes) * ps
    if job.embedding_bytes <= room:
        return float("inf")
    if room <= 0:
        return 0.0
    return job.samples * (room / job.embedding_bytes) ** (1 / job.growth)
