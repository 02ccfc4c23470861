"""The simulation of training jobs: against a naive one, against theory, and what it promises."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_cluster import tick_by_tick
from stretto_core.algorithms import SIMULATE_CLUSTER
from stretto_core.model.types import JobLimits
from stretto_messages.base import GIB, InvalidValue
from stretto_messages.values import Plan
from stretto_sim.cluster import (
    COMPLETED,
    Arrival,
    ClusterOutcome,
    ClusterTraceSettings,
    Policy,
    TraceJob,
    jobs_of,
    policies,
    simulate,
)
from stretto_sim.cluster.nodes import Nodes, SimulatedPod
from stretto_sim.cluster.policies import STATIC
from stretto_sim.cluster.search import tuned_plan

POLICIES = SIMULATE_CLUSTER.names()
HARSH = {"pod_failures_per_day": 1.0, "straggler_rate": 0.3, "hot_rate": 0.3, "bug_rate": 0.1}
LIMITS = JobLimits(Plan(1, 1, 1.0, 1.0, GIB, GIB), Plan(16, 8, 16.0, 16.0, 64 * GIB, 64 * GIB))


def job(submit_s: float = 0.0, samples: int = 1_000_000, plan: Plan | None = None, **changes: float) -> TraceJob:
    """0.1 s a step with 4 workers and 2 servers of 4 cores."""
    return TraceJob(
        submit_s=submit_s, samples=samples, batch_size=500, alpha_grad=0.04 * 4 / 500, alpha_upd=0.02 * 8 / 4,
        alpha_sync=0.01 * 2 / 4, alpha_emb=0.02 * 2 / 500, constant_s=0.01,
        request=plan or Plan(4, 2, 4.0, 4.0, 4 * GIB, 8 * GIB), limits=LIMITS, **changes,
    )  # fmt: skip


def arrivals(seed: int, count: int, span_s: float, mean_s: float) -> list[TraceJob]:
    rng = np.random.default_rng(seed)
    when, took = rng.random(count) * span_s, rng.lognormal(0, 1, count) * mean_s / 1.65
    gpus = rng.choice([1, 1, 2, 4], count)
    return jobs_of([Arrival(float(a), float(b), int(c)) for a, b, c in zip(when, took, gpus, strict=True)], seed)


def scripted(plans: Sequence[tuple[float, Plan]]) -> Policy:
    """Gives a single job, submitted at 0, its plans at these times."""

    class Script:
        def __init__(self) -> None:
            self.left = list(plans)

        def handle(self, event: policies.Event, now: float) -> list[policies.Command]:
            due = [plan for at_s, plan in self.left if at_s <= now]
            del self.left[: len(due)]
            return [policies.Want(0, plan) for plan in due]

    return Policy(lambda trace, pool: Script(), dynamic=True, when_pods_die="the pod is replaced", period_s=1.0)


class TestAgainstTheNaiveOne:
    @given(seed=st.integers(0, 10_000), nodes=st.integers(1, 3), count=st.integers(1, 5))
    @settings(max_examples=10)
    def test_jobs_that_keep_their_plans(self, seed: int, nodes: int, count: int) -> None:
        rng = np.random.default_rng(seed)
        pool = ClusterTraceSettings(nodes, pod_start_s=float(rng.integers(0, 40)))
        trace = [
            job(
                float(rng.integers(0, 200)),
                int(rng.integers(100_000, 2_000_000)),
                Plan(int(rng.integers(1, 4)), int(rng.integers(1, 3)), float(rng.integers(1, 5)), 4.0, GIB, 4 * GIB),
                embedding_bytes=int(rng.integers(1, 12)) * GIB, growth=float(rng.uniform(0.5, 1)),
            )
            for _ in range(count)
        ]  # fmt: skip
        trace = [replace(each, submit_s=each.submit_s + 0.25 * n) for n, each in enumerate(trace)]
        found = simulate(trace, STATIC, pool)
        expected = tick_by_tick([(each, [(0.0, each.request)]) for each in trace], pool, dynamic=False)
        assert [one.how for one in found.jobs] == [other["how"] for other in expected]
        assert [one.end_s for one in found.jobs] == pytest.approx([other["end_s"] for other in expected], abs=count)

    @given(
        shapes=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 4)), min_size=1, max_size=4),
        every_s=st.integers(20, 120),
        pause_s=st.sampled_from([1.0, 7.0]),
    )
    @settings(max_examples=12)
    def test_a_job_that_is_changed_while_it_trains(
        self, shapes: list[tuple[int, int]], every_s: int, pause_s: float
    ) -> None:
        pool = ClusterTraceSettings(4, pod_start_s=30.0, move_pause_s=pause_s, move_s_per_gib=2.0)
        one = job(0.0, 3_000_000, embedding_bytes=4 * GIB)
        plans = [
            (float(every_s * n), replace(one.request, workers=workers, ps=ps)) for n, (workers, ps) in enumerate(shapes)
        ]
        found = simulate([one], scripted(plans), pool)
        expected = tick_by_tick([(one, plans)], pool, dynamic=True)
        assert found.jobs[0].end_s == pytest.approx(expected[0]["end_s"], abs=0.25 * (len(plans) + 2) * 2)


class TestAgainstTheory:
    def test_a_job_alone_takes_exactly_what_its_model_says(self) -> None:
        found = simulate([job(50.0)], STATIC, ClusterTraceSettings(2, pod_start_s=300.0))
        assert found.jobs[0].end_s == pytest.approx(50 + 300 + 1_000_000 / (4 * 500 / 0.1), abs=1e-6)
        usage = found.jobs[0].usage
        assert usage.worker_core_s == pytest.approx(16 * (300 + 50))
        assert usage.worker_busy_core_s == pytest.approx(16 * 50 * 0.4), "0.04 of 0.1 s are gradients"
        assert usage.ps_busy_core_s == pytest.approx(8 * 50 * 0.2)

    @pytest.mark.proof
    def test_jobs_of_one_node_are_a_queue_with_as_many_servers(self) -> None:
        """M/M/c: the mean wait is Erlang's C over (c mu - lambda)."""
        nodes, load, mean_s, count = 4, 0.7, 1000.0, 3_000
        rng = np.random.default_rng(1)
        when = np.cumsum(rng.exponential(mean_s / (nodes * load), count))
        plan = Plan(1, 1, 24.0, 8.0, GIB, GIB)
        steps_s = simulate([job(0.0, 500, plan)], STATIC, ClusterTraceSettings(1, pod_start_s=0.0)).completion.mean_s
        took_s = np.maximum(rng.exponential(mean_s, count), steps_s)
        trace = [job(float(t), max(1, round(500 * d / steps_s)), plan) for t, d in zip(when, took_s, strict=True)]
        found = simulate(trace, STATIC, ClusterTraceSettings(nodes, pod_start_s=0.0, patience_s=1e9))
        offered = nodes * load
        waits = offered**nodes / math.factorial(nodes) / (1 - load)
        waits /= sum(offered**k / math.factorial(k) for k in range(nodes)) + waits
        assert found.mean_queue_s == pytest.approx(waits * mean_s / (nodes - offered), rel=0.15)
        assert found.allocated[0] == pytest.approx(load, rel=0.05)

    def test_memory_runs_out_when_the_growth_says_so(self) -> None:
        """8 GiB a server, 64 MiB of it taken: 15.875 of 20 GiB at samples (15.875/20)^(1/growth)."""
        one = job(embedding_bytes=20 * GIB, growth=0.5)
        found = simulate([one], STATIC, ClusterTraceSettings(2, pod_start_s=0.0))
        assert (found.jobs[0].how, found.failures["out of memory"]) == ("out of memory", 1)
        assert found.jobs[0].samples == pytest.approx(1_000_000 * (15.875 / 20) ** 2, rel=1e-6)

    def test_what_a_straggler_costs_with_and_without_dynamic_shards(self) -> None:
        pool = ClusterTraceSettings(2, pod_start_s=0.0, straggler_rate=1.0, slow_cpu=0.25, noise=0.0)
        share = simulate([job()], STATIC, pool).jobs[0]
        whole, slow = 0.1, 0.1 + 3 * 0.04
        until = 50 * (1 - (share.completion_s - 50) / (50 * slow / whole - 50))
        dynamic = simulate([job()], replace(STATIC, dynamic=True), pool).jobs[0]
        rest = (50 - until) * 4 / (3 + whole / slow)
        assert (share.slow, dynamic.slow) == ("straggler", "straggler")
        assert dynamic.completion_s == pytest.approx(until + rest, abs=1e-6)


class TestPromises:
    @given(
        seed=st.integers(0, 1000), nodes=st.integers(2, 6), policy=st.sampled_from(["static", "tuned", "es", "optimus"])
    )
    @settings(max_examples=8)
    def test_nodes_never_hold_more_than_they_have(self, seed: int, nodes: int, policy: str) -> None:
        self._checked(arrivals(seed, 12, 4000, 900), policy, ClusterTraceSettings(nodes, seed=seed, **HARSH))

    @pytest.mark.parametrize("policy", ["es", "optimus"])
    def test_a_job_that_restarts_and_finds_no_room_waits_with_its_window_open(self, policy: str) -> None:
        seed = {"es": 8, "optimus": 926}[policy]
        self._checked(arrivals(seed, 12, 4000, 900), policy, ClusterTraceSettings(4, seed=seed, **HARSH))

    @pytest.mark.proof
    def test_nor_under_the_services(self) -> None:
        found = self._checked(arrivals(3, 14, 4000, 1800), "stretto", ClusterTraceSettings(4, seed=3, **HARSH))
        assert found.changes_per_job > 0

    @staticmethod
    def _checked(trace: list[TraceJob], policy: str, pool: ClusterTraceSettings) -> ClusterOutcome:
        lowest = [math.inf, math.inf]
        place = Nodes.place

        def watched(self: Nodes, pod: SimulatedPod) -> bool:
            found = place(self, pod)
            lowest[0] = min(lowest[0], float(self.cores.min()))
            lowest[1] = min(lowest[1], float(self.memory.min()))
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Nodes, "place", watched)
            found = simulate(trace, SIMULATE_CLUSTER.named(policy), pool)
        assert lowest[0] >= -1e-6
        assert lowest[1] >= 0
        assert max(found.reserved_cores.amounts, default=0.0) <= pool.capacity.cpu_cores + 1e-6
        assert found.reserved_cores.amounts[-1] == pytest.approx(0.0, abs=1e-6)
        assert found.busy_cores.amounts[-1] == pytest.approx(0.0, abs=1e-6)
        for one, given_ in zip(found.jobs, trace, strict=True):
            assert (one.how == COMPLETED) == (one.samples == pytest.approx(given_.samples, rel=1e-9))
            assert one.end_s >= one.submit_s
            assert one.usage.worker_busy_core_s <= one.usage.worker_core_s + 1e-6
            assert one.usage.ps_used_byte_s <= one.usage.ps_byte_s * (1 + 1e-9) + 1e-6
        return found

    @pytest.mark.parametrize("policy", POLICIES)
    def test_the_same_seed_is_the_same_course_however_the_trace_is_ordered(self, policy: str) -> None:
        trace = [replace(each, submit_s=1000.0 * (n // 3)) for n, each in enumerate(arrivals(5, 9, 1, 900))]
        pool = ClusterTraceSettings(3, seed=7, **HARSH)
        first = simulate(trace, SIMULATE_CLUSTER.named(policy), pool)
        order = [2, 0, 1, 5, 4, 3, 7, 8, 6]
        again = simulate([trace[n] for n in order], SIMULATE_CLUSTER.named(policy), pool)
        assert [again.jobs[order.index(n)] for n in range(9)] == first.jobs

    @pytest.mark.proof
    def test_stretto_outlives_what_ends_a_static_job(self) -> None:
        trace = [replace(each, embedding_bytes=40 * GIB) for each in arrivals(8, 8, 2000, 7200)]
        pool = ClusterTraceSettings(12, pod_failures_per_day=2.0, seed=1)
        static, stretto = (simulate(trace, SIMULATE_CLUSTER.named(name), pool) for name in ("static", "stretto"))
        assert static.failures["out of memory"] + static.failures["pod failure"] > 3
        assert stretto.completion_rate == 1

    def test_a_job_that_nobody_has_room_for_is_given_up(self) -> None:
        found = simulate(
            [job(5.0, plan=Plan(4, 2, 30.0, 30.0, GIB, GIB))], STATIC, ClusterTraceSettings(2, patience_s=600.0)
        )
        assert (found.jobs[0].how, found.jobs[0].end_s, found.jobs[0].queued_s) == ("scheduling", 605.0, 600.0)
        assert found.jobs[0].last is None

    @pytest.mark.parametrize("policy", POLICIES)
    def test_what_never_trains_is_given_up(self, policy: str) -> None:
        """Nodes without room for what a job grows to, and pods that die before they are ready."""
        for pool in (
            ClusterTraceSettings(20, 4.0, 16 * GIB),
            ClusterTraceSettings(4, pod_failures_per_day=100.0, patience_s=6 * 3600.0),
        ):
            found = simulate(arrivals(3, 3, 300, 1800), SIMULATE_CLUSTER.named(policy), pool)
            assert {one.how for one in found.jobs} <= {COMPLETED, "scheduling", "pod failure", "out of memory"}
            assert max(one.end_s for one in found.jobs) < 30 * 86_400

    def test_a_job_that_trains_is_never_given_up(self) -> None:
        one = job(samples=200_000_000)
        found = simulate([one], STATIC, ClusterTraceSettings(2, patience_s=600.0)).jobs[0]
        assert (found.how, found.completion_s) == (COMPLETED, pytest.approx(300 + 10_000))

    def test_a_search_over_many_pods_ends(self) -> None:
        wide = job(plan=Plan(10_000, 10_000, 1.0, 1.0, GIB, GIB))
        wide = replace(wide, limits=JobLimits(LIMITS.low, replace(LIMITS.high, workers=40_000, ps=40_000)))
        found = tuned_plan(wide, ClusterTraceSettings(20))
        assert found.workers * found.worker_cpu_cores + found.ps * found.ps_cpu_cores <= 0.25 * 640

    @pytest.mark.parametrize("policy", POLICIES)
    def test_no_jobs_are_no_trouble(self, policy: str) -> None:
        found = simulate([], SIMULATE_CLUSTER.named(policy), ClusterTraceSettings())
        assert (found.completion.mean_s, found.completion_rate, found.utilisation("ps_core")) == (0, 1, 0)

    def test_drawn_jobs_take_on_their_own_plan_what_their_arrivals_took(self) -> None:
        drawn = jobs_of([Arrival(0.0, 3600.0, gpus) for gpus in (1, 2, 4, 16)], 3)
        for one, cores in zip(drawn, (8, 16, 32, 128), strict=True):
            ps = max(1, round(0.3 * cores / 4))
            own = replace(one.request, workers=cores // 4 - ps, ps=ps, worker_cpu_cores=4.0, ps_cpu_cores=4.0)
            roomy = replace(own, ps_memory_bytes=180 * GIB, worker_memory_bytes=GIB)
            took = simulate(
                [replace(one, request=roomy)], STATIC, ClusterTraceSettings(40, pod_start_s=0.0)
            ).completion.mean_s
            assert took == pytest.approx(3600, rel=1e-3)

    def test_users_ask_for_what_the_paper_saw(self) -> None:
        drawn = jobs_of([Arrival(0.0, 3600.0, 8) for _ in range(2000)], 4)
        used = [(j.server_base_bytes + j.embedding_bytes / j.request.ps) / j.request.ps_memory_bytes for j in drawn]
        assert np.mean(np.array(used) < 0.5) == pytest.approx(0.8, abs=0.03)
        assert np.mean(np.array(used) > 1) == pytest.approx(0.05, abs=0.02)

    def test_bad_values_are_named(self) -> None:
        with pytest.raises(InvalidValue, match="hot_rate"):
            ClusterTraceSettings(hot_rate=1.5)
        with pytest.raises(InvalidValue, match="patience_s is 0"):
            ClusterTraceSettings(patience_s=0)
        with pytest.raises(InvalidValue, match="alpha_grad is 0"):
            replace(job(), alpha_grad=0, alpha_upd=0, alpha_sync=0, alpha_emb=0, constant_s=0)
        with pytest.raises(InvalidValue, match="gpus is 0"):
            Arrival(0.0, 1.0, 0)
        with pytest.raises(InvalidValue, match=r"duration_s is 1000000000000\.0"):
            Arrival(0.0, 1e12, 1)
        with pytest.raises(InvalidValue, match=r"submit_s is 1000000000000\.0"):
            job(1e12)
        with pytest.raises(InvalidValue, match="nodes is 1"):
            ClusterTraceSettings(10**10)
        with pytest.raises(InvalidValue, match="workers is 1"):
            job(plan=Plan(10**12, 1, 1.0, 1.0, GIB, GIB))
        with pytest.raises(InvalidValue, match=r"samples is 1e\+15, .* years"):
            simulate([job(samples=10**15)], STATIC, ClusterTraceSettings())
