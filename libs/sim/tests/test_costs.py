"""Costs of a simulated trace, and the bound that no plan goes below."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stretto_core.model.types import Prices
from stretto_messages.base import GIB
from stretto_messages.values import Plan
from stretto_sim.cluster import Arrival, ClusterTraceSettings, TraceJob, jobs_of, simulate, truth
from stretto_sim.cluster.policies import STATIC, TUNED
from stretto_sim.costs import compared, cost_of, least_cost


def drawn(seed: int) -> TraceJob:
    (job,) = jobs_of([Arrival(0.0, 3600.0, 4)], seed)
    return job


def cost(job: TraceJob, plan: Plan, prices: Prices) -> float:
    """The cost of all samples under one plan, with the memory that is needed on the mean."""
    seconds = job.samples / truth.samples_per_s(job, plan)
    needed = plan.workers * job.worker_bytes + plan.ps * job.server_base_bytes
    needed += truth.mean_embedding_bytes(job, 0, job.samples)
    cores = plan.workers * plan.worker_cpu_cores + plan.ps * plan.ps_cpu_cores
    return seconds / 3600 * (cores * prices.cpu_core_hour + needed / GIB * prices.memory_gib_hour)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 20), st.data(), st.sampled_from([(0.04, 0.005), (0.04, 0.0), (0.0, 0.01)]))
def test_no_plan_within_the_limits_costs_less_than_the_bound(
    seed: int, data: st.DataObject, price: tuple[float, float]
) -> None:
    job, prices = drawn(seed), Prices(*price)
    low, high = job.limits.low, job.limits.high
    plan = replace(
        low,
        workers=data.draw(st.integers(1, high.workers)),
        ps=data.draw(st.integers(1, high.ps)),
        worker_cpu_cores=data.draw(st.floats(1, 16)),
        ps_cpu_cores=data.draw(st.floats(1, 16)),
    )
    assert cost(job, plan, prices) >= least_cost(job, prices) * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_the_bound_is_near_the_cheapest_plan(seed: int) -> None:
    """Counts are whole numbers and memory grows: that, and no more, is between the two."""
    job, prices = drawn(seed), Prices()
    cores = (1.0, 1.5, 2.0, 3.0, 4.0)
    plans = (
        Plan(w, p, a, b, GIB, GIB)
        for w in range(1, job.limits.high.workers + 1)
        for p in range(1, job.limits.high.ps + 1)
        for a in cores
        for b in cores
    )
    cheapest = min(cost(job, plan, prices) for plan in plans)
    assert 0.9 * cheapest <= least_cost(job, prices) <= cheapest


def test_a_trace_costs_what_its_pods_reserve_and_a_search_saves_what_users_state_too_much() -> None:
    jobs = jobs_of([Arrival(0.0, 3600.0, 2), Arrival(600.0, 7200.0, 4)], 3)
    cluster, prices = ClusterTraceSettings(20), Prices(0.05, 0.01)
    tuned, stated = simulate(jobs, TUNED, cluster), simulate(jobs, STATIC, cluster)
    found = compared(jobs, tuned, stated, prices)
    reserved = 0.0
    for job, left in zip(jobs, stated.jobs, strict=True):
        plan, hours = job.request, (left.completion_s - left.queued_s) / 3600
        gib = (plan.workers * plan.worker_memory_bytes + plan.ps * plan.ps_memory_bytes) / GIB
        cores = plan.workers * plan.worker_cpu_cores + plan.ps * plan.ps_cpu_cores
        reserved += hours * (0.05 * cores + 0.01 * gib)
    assert math.fsum(cost_of(left, prices) for left in stated.jobs) == pytest.approx(reserved)
    assert found.stated.cost == pytest.approx(reserved)
    assert found.policy.samples == sum(job.samples for job in jobs)
    assert found.policy.per_million == pytest.approx(found.policy.cost / found.policy.samples * 1e6)
    assert 0 < found.saved == pytest.approx(1 - found.policy.per_million / found.stated.per_million)
    assert 0 < found.gap < 1
    assert found.policy.per_million * (1 - found.gap) == pytest.approx(found.least_per_million)
