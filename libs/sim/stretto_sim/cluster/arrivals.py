"""Training jobs for real arrivals: time, size and duration come from a cluster's log, a recommender's needs are drawn.

Distributions and their sources (DLRover-RM, where a section is named):

- A job belongs to one of ``jobs / RUNS_OF_A_MODEL`` models, whose runs differ by a tenth (section 6.2: the jobs of one
  user resemble each other).
- Cores: ``CORES_PER_GPU`` for each GPU of the arrival, the median of Alibaba's 2023 trace (openb); at most
  ``GPUS_MOST`` GPUs. With three parts of ten on servers of four cores, the arrival's duration is what the job takes.
- Shares of the step time there: look-up of embeddings 30-48 % (Fig. 1a), the rest in proportion to the coefficients
  that section 6.2 reports (3.48, 2.36, 0.68, 2.45 for gradients, updates, exchange and the constant), each within a
  factor of two; of the exchange, half is shared by the servers and half is not, as on measured systems.
- Users' requests: cores 2.1 times as many for workers and 3.2 times for servers (Fig. 14: utilisation rose from 19
  to 40 % and from 13 to 41 %), lognormal, and too few for the servers of 6 % of the jobs (section 6.3).
- Memory: their servers use a lognormal share of what they asked for at the end, below one half for 80 % of the jobs
  (Fig. 3) and above one for 5 %, which run out (section 1, Table 4).
- Embeddings: ``GIB_PER_CORE`` of memory for each core, lognormal (section 6: 80-220 TB on 60-120 K cores); they grow as
  samples to the power of 0.5 to 1 (Heaps' law; Fig. 1b).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from stretto_core.model.pareto import MEMORY_STEP_BYTES
from stretto_core.model.types import JobLimits
from stretto_messages.base import GIB, InvalidValue
from stretto_messages.values import Plan

from stretto_sim.cluster import truth
from stretto_sim.cluster.trace import TraceJob
from stretto_sim.measures import HORIZON_YEARS, LATEST_S, YEAR_S

CORES_PER_GPU = 8.0
GPUS_MOST = 16
RUNS_OF_A_MODEL = 10
POD_CORES = 4.0
BATCH = 512
STEP_S = (0.03, 0.3)
"""Step time under the arrival's own configuration, log-uniform: 250 steps/s over all workers in Fig. 10."""
COEFFICIENTS = {"grad": 3.48, "upd": 2.36, "sync": 0.68, "constant": 2.45}
LOOK_UP = (0.30, 0.48)
OVER_WORKER, OVER_PS, OVER_SD = math.log(2.1), math.log(3.2), 0.748
MEMORY_MU, MEMORY_SD = -1.42, 0.863
GIB_PER_CORE, GIB_SD = 1.0, 0.8
GROWTH = (0.5, 1.0)
RUN_SD = 0.1
SERVER_GIB_MOST = 160
"""Largest server that a node of 192 GiB has room for."""
LEAST_S = 60.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job of a cluster's log: its submission, its duration, its GPUs."""

    submit_s: float
    duration_s: float
    gpus: int

    def __post_init__(self) -> None:
        if not 0 <= self.submit_s <= LATEST_S:
            raise InvalidValue(f"submit_s is {self.submit_s!r}; give a number of at least 0, at most {LATEST_S:g}")
        if not 0 < self.duration_s <= HORIZON_YEARS * YEAR_S:
            raise InvalidValue(
                f"duration_s is {self.duration_s!r}; give a number above 0, at most {HORIZON_YEARS} years"
            )
        if self.gpus < 1:
            raise InvalidValue(f"gpus is {self.gpus!r}; give at least 1")


@dataclass(frozen=True, slots=True)
class _Model:
    """The properties that all runs of one model share."""

    name: str
    shares: dict[str, float]
    step_s: float
    gib_per_core: float
    growth: float


def jobs_of(arrivals: Sequence[Arrival], seed: int = 0) -> list[TraceJob]:
    """Return a training job for each arrival, in their order. The same seed draws the same."""
    rng = np.random.default_rng(seed)
    models = [_model(f"model-{n}", rng) for n in range(max(1, len(arrivals) // RUNS_OF_A_MODEL))]
    return [_job(arrival, models[int(rng.integers(len(models)))], rng) for arrival in arrivals]


def _model(name: str, rng: np.random.Generator) -> _Model:
    look_up = float(rng.uniform(*LOOK_UP))
    parts = {key: value * 2 ** float(rng.uniform(-1, 1)) for key, value in COEFFICIENTS.items()}
    scale = (1 - look_up) / sum(parts.values())
    shares = {"emb": look_up, **{key: value * scale for key, value in parts.items()}}
    return _Model(
        name=name,
        shares=shares,
        step_s=float(np.exp(rng.uniform(*np.log(STEP_S)))),
        gib_per_core=GIB_PER_CORE * float(rng.lognormal(0, GIB_SD)),
        growth=float(rng.uniform(*GROWTH)),
    )


def _job(arrival: Arrival, model: _Model, rng: np.random.Generator) -> TraceJob:
    cores = CORES_PER_GPU * min(arrival.gpus, GPUS_MOST)
    ps = max(1, round(0.3 * cores / POD_CORES))
    workers = max(1, round(cores / POD_CORES) - ps)

    def about(value: float) -> float:
        return value * float(rng.lognormal(0, RUN_SD))

    step_s, shares = about(model.step_s), {name: about(share) for name, share in model.shares.items()}
    terms = {name: share * step_s / sum(shares.values()) for name, share in shares.items()}
    embedding = int(about(model.gib_per_core) * cores * GIB)
    here = Plan(workers, ps, POD_CORES, POD_CORES, 2 * GIB, embedding // ps + 2 * GIB)
    known = TraceJob(
        submit_s=arrival.submit_s,
        samples=1,
        batch_size=BATCH,
        alpha_grad=terms["grad"] * POD_CORES / BATCH,
        alpha_upd=terms["upd"] * ps * POD_CORES / workers,
        alpha_sync=terms["sync"] / 2 * ps / workers,
        alpha_emb=terms["emb"] * ps / BATCH,
        constant_s=terms["constant"],
        per_worker_s=terms["sync"] / 2 / workers,
        request=here,
        limits=_limits(here, embedding),
        embedding_bytes=embedding,
        growth=model.growth,
        metadata={"model": model.name, "gpus": arrival.gpus, "embedding_dim": 16, "batch_size": BATCH},
    )
    samples = max(1, round(max(arrival.duration_s, LEAST_S) * truth.samples_per_s(known, here)))
    metadata = {**known.metadata, "samples": samples}
    return replace(known, samples=samples, request=_request(known, here, rng), metadata=metadata)


def _limits(here: Plan, embedding: int) -> JobLimits:
    """Return limits from one small pod per role to four times the arrival's own configuration."""
    low = Plan(1, 1, 1.0, 1.0, GIB, GIB)
    high = Plan(
        max(4 * here.workers, 8),
        max(4 * here.ps, 4),
        16.0,
        16.0,
        16 * GIB,
        SERVER_GIB_MOST * GIB,
    )
    return JobLimits(low, high)


def _request(job: TraceJob, here: Plan, rng: np.random.Generator) -> Plan:
    """Draw the user's request: more or less than the job needs, in pods and in cores."""
    more_w, more_p = (float(rng.lognormal(mu, OVER_SD)) for mu in (OVER_WORKER, OVER_PS))
    in_pods = rng.random(2)
    workers = min(max(1, round(here.workers * more_w ** float(in_pods[0]))), job.limits.high.workers)
    ps = min(max(1, round(here.ps * more_p ** float(in_pods[1]))), job.limits.high.ps)

    def pod_cores(total: float, pods: int) -> float:
        return float(min(max(round(total / pods), 1), 16))

    share = float(rng.lognormal(MEMORY_MU, MEMORY_SD))
    worker_share = min(float(rng.lognormal(MEMORY_MU, MEMORY_SD)), 0.95)
    # the job's own samples are not known yet: the whole of its embeddings
    needed = job.server_base_bytes + job.embedding_bytes / ps
    asked = -(-min(needed / share, float(SERVER_GIB_MOST * GIB)) // MEMORY_STEP_BYTES) * MEMORY_STEP_BYTES
    return Plan(
        workers=workers,
        ps=ps,
        worker_cpu_cores=pod_cores(here.workers * POD_CORES * more_w, workers),
        ps_cpu_cores=pod_cores(here.ps * POD_CORES * more_p, ps),
        worker_memory_bytes=int(min(job.worker_bytes / worker_share, 64 * GIB)),
        ps_memory_bytes=int(asked),
    )
