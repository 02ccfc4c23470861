"""The plan of a patient user who tries all plans; DLRover-RM calls it well tuned (section 6.1)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from stretto_core.model.pareto import MEMORY_STEP_BYTES
from stretto_messages.values import NO_EXTENDED, Plan

from stretto_sim.cluster import truth
from stretto_sim.cluster.trace import ClusterTraceSettings, TraceJob

NEARLY_BEST = 0.95
"""Share of the best throughput that the cheapest plan must reach (the paper: "until they almost reached" it)."""
CORES = (1.0, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0)
ROOM = 0.25
"""Largest share of the cluster's cores for one job's plan."""
MEMORY_MARGIN = 1.05
NUMBERS_MOST = 128
"""Most pod counts per role that the search tries."""


def tuned_plan(job: TraceJob, settings: ClusterTraceSettings) -> Plan:
    """Return the plan with the fewest cores whose throughput is at least ``NEARLY_BEST`` of the best."""
    low, high = job.limits.low, job.limits.high
    most = max(ROOM * settings.capacity.cpu_cores, low.resources(NO_EXTENDED).cpu_cores)
    cores = [c for c in CORES if low.worker_cpu_cores <= c <= min(high.worker_cpu_cores, settings.node_cpu_cores)]
    workers, ps = _tried(low.workers, high.workers), _tried(low.ps, high.ps)
    grid = [axis.ravel() for axis in np.meshgrid(workers, ps, cores, cores, indexing="ij")]
    w, p, lw, lp = (axis.astype(np.float64) for axis in grid)
    used = w * lw + p * lp
    m = job.batch_size
    step_s = (
        job.alpha_grad * m / lw
        + job.alpha_upd * w / (p * lp)
        + job.alpha_sync * w / p
        + job.alpha_emb * m / p
        + job.constant_s
        + job.per_worker_s * w
    )
    speed = np.where(used <= most, w * m / step_s, 0.0)
    enough = speed >= NEARLY_BEST * speed.max()
    at = int(np.where(enough, used, np.inf).argmin())
    plan = replace(low, workers=int(w[at]), ps=int(p[at]), worker_cpu_cores=float(lw[at]), ps_cpu_cores=float(lp[at]))
    return with_memory(job, plan)


def _tried(low: int, high: int) -> NDArray[np.int64]:
    """Return every number of the range; of more than ``NUMBERS_MOST``, that many in equal ratios."""
    if high - low < NUMBERS_MOST:
        return np.arange(low, high + 1)
    return np.unique(np.geomspace(low, high, NUMBERS_MOST).round().astype(np.int64))


def with_memory(job: TraceJob, plan: Plan) -> Plan:
    """Return the plan with the memory that its pods use at the end, times ``MEMORY_MARGIN``."""

    def rounded(needed: float) -> int:
        return -int(-needed * MEMORY_MARGIN // MEMORY_STEP_BYTES) * MEMORY_STEP_BYTES

    server = rounded(truth.server_bytes(job, job.samples, plan.ps))
    return replace(plan, worker_memory_bytes=rounded(job.worker_bytes), ps_memory_bytes=server)
