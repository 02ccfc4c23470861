"""Costs of a simulated trace, beside the same jobs with the plans that their users stated, and beside a lower bound.

A job costs what its pods reserve, from their placement to their end (DLRover-RM Eq. 7). The bound is what no sequence
of plans within the job's limits goes below. With C(x) the price of a plan x in a second, memory counted as needed, and
T(x)/(w m) the seconds of a sample (``truth``), a sample costs C(x) T(x)/(w m). That is a sum of products of powers of
the counts and cores, so its logarithm is convex in the logarithms of these (geometric programming; Boyd et al.,
Optimization and Engineering 2007). Its tangent at any point is a lower bound on it everywhere, and so is the least
value of the tangent within the limits: the solver's precision decides how near the bound is, not whether it holds.
Embeddings only grow, so each part of the samples is bounded with the embeddings of its begin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from stretto_core.model.types import HOUR_S, Prices
from stretto_messages.base import GIB
from stretto_messages.values import Resources

from stretto_sim.cluster import truth
from stretto_sim.cluster.outcome import COMPLETED, ClusterOutcome, Left
from stretto_sim.cluster.trace import TraceJob

Floats = NDArray[np.float64]
PARTS = 8
"""Parts of a job's samples, each with a bound of its own."""
PERCENTILE = 95
MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Costs:
    """The cost of all jobs under one policy, and the ``samples`` of the completed ones.

    ``p95_completion_s`` is over the jobs that complete under both policies that are compared.
    """

    cost: float
    samples: float
    completed: int
    p95_completion_s: float

    @property
    def per_million(self) -> float:
        """Return the cost of a million samples of completed jobs; infinite if no job completed."""
        return self.cost / self.samples * MILLION if self.samples else math.inf


@dataclass(frozen=True, slots=True)
class CostComparison:
    """A policy beside the plans that users stated; ``least_per_million``: no plans train the policy's samples for
    less."""

    policy: Costs
    stated: Costs
    least_per_million: float

    @property
    def saved(self) -> float:
        """Return the share of the stated plans' cost of a sample that the policy saves."""
        return 1 - self.policy.per_million / self.stated.per_million

    @property
    def gap(self) -> float:
        """Return the share of the policy's cost of a sample that may be missing to the least one."""
        return 1 - self.least_per_million / self.policy.per_million


def compared(
    trace: Sequence[TraceJob], found: ClusterOutcome, stated: ClusterOutcome, prices: Prices
) -> CostComparison:
    """Return the costs of two outcomes of one trace. The outcome has to have a completed job."""
    both = [
        number
        for number, (one, other) in enumerate(zip(found.jobs, stated.jobs, strict=True))
        if one.how == other.how == COMPLETED
    ]
    done = [job for job, left in zip(trace, found.jobs, strict=True) if left.how == COMPLETED]
    least = math.fsum(least_cost(job, prices) for job in done)
    policy = _costs(trace, found, both, prices)
    return CostComparison(policy, _costs(trace, stated, both, prices), least / policy.samples * MILLION)


def _costs(trace: Sequence[TraceJob], found: ClusterOutcome, both: Sequence[int], prices: Prices) -> Costs:
    took_s = [found.jobs[number].completion_s for number in both]
    done = [job.samples for job, left in zip(trace, found.jobs, strict=True) if left.how == COMPLETED]
    return Costs(
        cost=math.fsum(cost_of(job, prices) for job in found.jobs),
        samples=math.fsum(done),
        completed=len(done),
        p95_completion_s=float(np.percentile(took_s, PERCENTILE)) if took_s else 0.0,
    )


def cost_of(job: Left, prices: Prices) -> float:
    """Return what the job's pods cost (Eq. 7)."""
    used = job.usage
    # Eq. 7 is linear: amounts times the seconds that they were held have the price of an hour for each 3,600
    of_seconds = Resources(used.worker_core_s + used.ps_core_s, round(used.worker_byte_s + used.ps_byte_s))
    return prices.cost_per_hour(of_seconds) / HOUR_S


def least_cost(job: TraceJob, prices: Prices) -> float:
    """Return a lower bound on what the job costs under any sequence of plans up to its limits."""
    shares = np.arange(PARTS) / PARTS
    embeddings = [truth.embedding_bytes(job, share * job.samples) for share in shares]
    return job.samples / PARTS * math.fsum(_least_of_sample(job, prices, each) for each in embeddings)


def _least_of_sample(job: TraceJob, prices: Prices, embedding_bytes: float) -> float:
    """Return a lower bound on the cost of one sample while the embeddings have this size."""
    factors, powers = _terms(job, prices, embedding_bytes)
    low, high = job.limits.low, job.limits.high
    # fewer workers than the plan's least train while pods start or are lost
    box = np.log(
        [
            (1.0, high.workers),
            (1.0, high.ps),
            (low.worker_cpu_cores, high.worker_cpu_cores),
            (low.ps_cpu_cores, high.ps_cpu_cores),
        ]
    )

    def logarithm(at: Floats) -> tuple[float, Floats]:
        """Return the logarithm of the cost, and its gradient."""
        each = factors + powers @ at
        most = float(each.max())
        weights = np.exp(each - most)
        total = float(weights.sum())
        return most + math.log(total), weights @ powers / total

    found = minimize(logarithm, box.mean(axis=1), jac=True, bounds=box, method="L-BFGS-B")
    at = np.clip(found.x, box[:, 0], box[:, 1])
    value, slope = logarithm(at)
    descent = np.minimum(slope * (box[:, 0] - at), slope * (box[:, 1] - at)).sum()
    return math.exp(value + min(float(descent), 0.0))


def _terms(job: TraceJob, prices: Prices, embedding_bytes: float) -> tuple[Floats, Floats]:
    """Return the cost of a sample as terms: logarithms of factors, and powers by [term, (w, p, l_w, l_p)]."""
    core, byte, m = prices.cpu_core_hour / HOUR_S, prices.memory_gib_hour / GIB / HOUR_S, job.batch_size
    price = (  # of a second
        (core, (1, 0, 1, 0)),
        (core, (0, 1, 0, 1)),
        (byte * job.worker_bytes, (1, 0, 0, 0)),
        (byte * job.server_base_bytes, (0, 1, 0, 0)),
        (byte * embedding_bytes, (0, 0, 0, 0)),
    )
    seconds = (  # of a sample: the step time of Eq. 1-6, divided by w m
        (job.alpha_grad, (-1, 0, -1, 0)),
        (job.alpha_upd / m, (0, -1, 0, -1)),
        (job.alpha_sync / m, (0, -1, 0, 0)),
        (job.alpha_emb, (-1, -1, 0, 0)),
        (job.constant_s / m, (-1, 0, 0, 0)),
        (job.per_worker_s / m, (0, 0, 0, 0)),
    )
    pairs = [(a * b, np.add(x, y)) for a, x in price for b, y in seconds if a * b > 0]
    return np.log([factor for factor, _ in pairs]), np.array([power for _, power in pairs], dtype=np.float64)
