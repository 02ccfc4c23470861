"""True speeds and uses of jobs: known to the simulation only, never to a decision."""

from __future__ import annotations

from collections.abc import Sequence

from stretto_messages.base import InvalidValue
from stretto_messages.values import Plan

from stretto_sim.cluster.trace import TraceJob
from stretto_sim.measures import HORIZON_YEARS, YEAR_S


def step_time_s(job: TraceJob, plan: Plan) -> float:
    """T of a step under a plan, every pod as fast as its cores."""
    return worker_step_s(job, plan.workers, plan.worker_cpu_cores, plan.ps, 1.0 / (plan.ps * plan.ps_cpu_cores))


def worker_step_s(job: TraceJob, workers: int, cores: float, ps: int, slowest: float) -> float:
    """T of one worker that has ``cores``, beside ``workers`` in all.

    ``slowest``: the largest over the servers of their share of an update over their cores, which a push waits for.
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
    """Eq. 1."""
    return plan.workers * job.batch_size / step_time_s(job, plan)


def check_horizon(job: TraceJob) -> None:
    """Raise InvalidValue where the job would train for longer than ``HORIZON_YEARS`` with what its user asks for."""
    steps = job.samples / (job.request.workers * job.batch_size)
    if (years := steps * step_time_s(job, job.request) / YEAR_S) > HORIZON_YEARS:
        asked = f"{years:.3g} years with what its user asks for"
        raise InvalidValue(f"samples is {job.samples:g}, {asked}; give at most {HORIZON_YEARS} years")


def rate(job: TraceJob, worker_cores: Sequence[float], ps: int, slowest: float, dynamic: bool) -> float:
    """Samples per second of workers with these cores and ``ps`` servers.

    ``dynamic``: each takes shards as fast as it can (DLRover-RM section 5.1); otherwise every worker has an equal part
    of the data, and the slowest is waited for.
    """
    workers = len(worker_cores)
    each = {c: worker_step_s(job, workers, c, ps, slowest) for c in set(worker_cores)}
    if not dynamic:
        return workers * job.batch_size / max(each.values())
    return sum(job.batch_size / each[cores] for cores in worker_cores)


def busy_cores(job: TraceJob, samples_per_s: float) -> tuple[float, float]:
    """Cores at work on gradients, and on updates: what Eq. 2 and 3 leave idle, waits for the rest of the step."""
    steps_per_s = samples_per_s / job.batch_size
    return steps_per_s * job.alpha_grad * job.batch_size, steps_per_s * job.alpha_upd


def embedding_bytes(job: TraceJob, samples: float) -> float:
    """Return the bytes of all embeddings after ``samples``, over all servers."""
    return job.embedding_bytes * (min(max(samples, 0.0), job.samples) / job.samples) ** job.growth


def server_bytes(job: TraceJob, samples: float, ps: int) -> float:
    """Return the bytes of one of ``ps`` servers."""
    return job.server_base_bytes + embedding_bytes(job, samples) / ps


def mean_embedding_bytes(job: TraceJob, before: float, after: float) -> float:
    """While the samples trained go from one count to the other at a constant rate."""
    if after - before < 1e-6 * job.samples:
        return embedding_bytes(job, (before + after) / 2)
    low, high = (min(max(samples, 0.0), job.samples) / job.samples for samples in (before, after))
    power = job.growth + 1
    return job.embedding_bytes * (high**power - low**power) / power / (high - low)


def samples_that_fit(job: TraceJob, ps: int, limit_bytes: float) -> float:
    """Samples after which a server of ``ps`` has filled its limit; infinite if it never will."""
    room = (limit_bytes - job.server_base_bytes) * ps
    if job.embedding_bytes <= room:
        return float("inf")
    if room <= 0:
        return 0.0
    return job.samples * (room / job.embedding_bytes) ** (1 / job.growth)
