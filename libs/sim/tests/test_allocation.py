"""The simulation of elastic jobs: against a naive one, against theory, and what it promises."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from second_by_second import second_by_second
from stretto_core.algorithms import SIMULATE_ALLOCATION
from stretto_core.arbiter.ahead import AllocationProblem
from stretto_messages.base import InvalidValue
from stretto_sim.allocation import Policy, PoolTraceSettings, TraceJob, simulate
from stretto_sim.allocation.policies import CERTIFIED, GREEDY, GREEDY_ONCE, MARGINAL_DOUBLING

POLICIES = {"greedy": GREEDY, "greedy-once": GREEDY_ONCE, "certified": CERTIFIED, "doubling": MARGINAL_DOUBLING}
HARSH = PoolTraceSettings(12, eta_noise=0.1, bug_rate=0.15, termination_rate=0.1, scaling_delay_s=15)


def invented(seed: int, jobs: int, span_s: float, mean_hours: float, most: int = 16) -> list[TraceJob]:
    rng = np.random.default_rng(seed)
    when, how_much = rng.random(jobs) * span_s, rng.lognormal(0, 1, jobs)
    sizes = 2 ** rng.integers(0, int(math.log2(most)) + 1, jobs)
    return [
        TraceJob(float(a), float(b) * mean_hours / 1.65, int(c)) for a, b, c in zip(when, how_much, sizes, strict=True)
    ]


@pytest.mark.proof
class TestAgainstTheNaiveOne:
    @pytest.mark.parametrize("name", POLICIES)
    @pytest.mark.parametrize("disturbed", [False, True], ids=["calm", "harsh"])
    def test_every_job_fares_the_same_to_the_second(self, name: str, disturbed: bool) -> None:
        pool = HARSH if disturbed else PoolTraceSettings(12)
        trace = invented(3, 20, 3600, 2.0)
        found = simulate(trace, POLICIES[name], pool)
        expected = second_by_second(trace, POLICIES[name], pool)
        for one, other in zip(found.jobs, expected, strict=True):
            assert (one.end_s, one.changes, one.how) == (other["end_s"], other["changes"], other["how"])
            assert one.queued_s == pytest.approx(other["queued_s"])

    @given(
        seed=st.integers(0, 10_000),
        nodes=st.integers(1, 9),
        jobs=st.integers(1, 12),
        delay_s=st.sampled_from([0.0, 0.5, 15.0, 400.0]),
        name=st.sampled_from(["greedy", "greedy-once", "doubling"]),
    )
    @settings(max_examples=20)
    def test_whatever_the_trace(self, seed: int, nodes: int, jobs: int, delay_s: float, name: str) -> None:
        pool = replace(HARSH, nodes=nodes, scaling_delay_s=delay_s, seed=seed)
        trace = invented(seed, jobs, 1200, 0.15)
        found = simulate(trace, POLICIES[name], pool)
        expected = second_by_second(trace, POLICIES[name], pool)
        assert [one.end_s for one in found.jobs] == [other["end_s"] for other in expected]
        assert max(found.in_use.amounts) <= nodes


class TestAgainstTheory:
    @pytest.mark.proof
    def test_jobs_of_one_node_are_a_queue_with_as_many_servers(self) -> None:
        """M/M/c: the mean wait is Erlang's C over (c mu - lambda)."""
        servers, load, mean_s, jobs = 5, 0.7, 3600.0, 20_000
        rng = np.random.default_rng(1)
        when = np.cumsum(rng.exponential(mean_s / (servers * load), jobs))
        trace = [TraceJob(float(t), float(d), 1) for t, d in zip(when, rng.exponential(1.0, jobs), strict=True)]
        never = Policy(lambda problem: [], periodic=False)
        found = simulate(trace, never, PoolTraceSettings(servers))
        offered = servers * load
        waits = offered**servers / math.factorial(servers) / (1 - load)
        waits /= sum(offered**k / math.factorial(k) for k in range(servers)) + waits
        expected_s = waits * mean_s / (servers - offered)
        assert found.mean_queue_s == pytest.approx(expected_s, rel=0.08)
        assert found.utilisation == pytest.approx(load, rel=0.03)

    def test_a_pool_in_equal_shares_is_processor_sharing(self) -> None:
        """M/G/1-PS: the mean time in the system is E[S] / (1 - load), however sizes are distributed."""
        nodes, load, jobs = 64, 0.5, 6_000
        rng = np.random.default_rng(2)
        alone_s = 3600.0  # on the whole pool
        demands = rng.choice([0.2, 2.6], jobs, p=[2 / 3, 1 / 3]) * nodes
        when = np.cumsum(rng.exponential(alone_s / load, jobs))
        trace = [TraceJob(float(t), float(d), nodes) for t, d in zip(when, demands, strict=True)]

        def shared(problem: AllocationProblem) -> list[int]:
            count = len(problem.jobs)
            return [nodes // count + (index < nodes % count) for index in range(count)]

        sizes = tuple(range(1, nodes + 1))
        pool = PoolTraceSettings(nodes, sizes=sizes, doubling_efficiency=1.0)
        found = simulate(trace, Policy(shared, periodic=False, on_change=True), pool)
        drawn = float(demands.sum()) / nodes * 3600 / (when[-1] + alone_s)
        assert found.utilisation == pytest.approx(drawn, rel=0.01)
        assert found.completion.mean_s == pytest.approx(demands.mean() / nodes * 3600 / (1 - drawn), rel=0.05)

    def test_a_job_alone_takes_what_its_speed_says(self) -> None:
        found = simulate([TraceJob(10.0, 4.0, 4)], GREEDY, PoolTraceSettings(8))
        assert found.completion.mean_s == pytest.approx(math.ceil(4 * 3600 / (4 * 0.8**2)), abs=1)
        assert found.utilisation == pytest.approx(0.5, rel=0.001)


class TestPromises:
    def test_the_papers_example_of_a_regular_time(self) -> None:
        """Fig. 8: what a job leaves at 9:02:09 goes to the one that queues since 9:01:02, all of it."""
        begun = 9 * 3600
        hour = 3600 / (8 * 0.8**3)
        trace = [TraceJob(begun, 129 / hour, 8), TraceJob(begun + 62.0, 1.0, 16)]
        found = simulate(trace, GREEDY, PoolTraceSettings(8))
        assert found.jobs[0].end_s == begun + 129
        assert found.of_job[1].times_s[0] == begun + 129
        assert found.of_job[1].amounts[0] == 8
        assert found.jobs[1].queued_s == 67

    @pytest.mark.parametrize("name", SIMULATE_ALLOCATION.names())
    def test_every_policy_brings_every_job_to_its_end(self, name: str) -> None:
        trace = invented(4, 8, 1800, 0.5)
        found = simulate(trace, SIMULATE_ALLOCATION.named(name), PoolTraceSettings(6))
        assert [job.how for job in found.jobs] == ["finished"] * 8
        assert 0 < found.utilisation <= 1

    def test_nobody_queues_under_marginal_doubling_while_there_are_nodes_for_all(self) -> None:
        trace = invented(5, 60, 20_000, 2.0)
        crowd = max(sum(t.submit_s <= job.submit_s for t in trace) for job in trace)
        found = simulate(trace, MARGINAL_DOUBLING, PoolTraceSettings(crowd))
        assert found.mean_queue_s == 0
        assert simulate(trace, GREEDY, PoolTraceSettings(20)).mean_queue_s > 10

    def test_a_fate_is_the_same_for_every_policy_and_pool(self) -> None:
        trace = invented(6, 40, 7200, 0.5)
        ends = [
            [job.how for job in simulate(trace, policy, replace(HARSH, nodes=nodes)).jobs]
            for policy, nodes in ((GREEDY, 30), (MARGINAL_DOUBLING, 90))
        ]
        assert ends[0] == ends[1]
        assert {"finished", "hung", "terminated"} == set(ends[0])

    def test_a_delay_keeps_a_job_where_it_is(self) -> None:
        found = simulate([TraceJob(0.0, 0.01, 1)], GREEDY, PoolTraceSettings(1, scaling_delay_s=15))
        assert found.jobs[0].end_s == 15 + 36
        assert found.jobs[0].queued_s == 0

    def test_an_eta_that_was_too_low_leaves_a_floor(self) -> None:
        seen = list[float]()

        def watching(problem: AllocationProblem) -> list[int]:
            seen.extend(job.demand_node_hours for job in problem.jobs)
            return [1 for _ in problem.jobs]

        pool = PoolTraceSettings(
            1, eta_noise=0.5, seed=next(s for s in range(99) if np.random.default_rng(s).random() < 0.1)
        )
        simulate([TraceJob(0.0, 10.0, 1)], Policy(watching), pool)
        believed = seen[0]
        assert believed < 6
        assert min(seen) == pytest.approx(0.05 * believed)

    def test_no_jobs_are_no_trouble(self) -> None:
        found = simulate([], GREEDY, PoolTraceSettings(4))
        assert (found.completion.mean_s, found.mean_queue_s, found.utilisation, found.changes_per_job) == (0, 0, 0, 0)

    def test_what_would_take_for_ever_is_refused_where_it_is_decided_on_all_the_time(self) -> None:
        absurd = [TraceJob(0.0, 1.0, 16), TraceJob(5.0, 1e12, 16)]
        with pytest.raises(InvalidValue, match=r"demand_node_hours is 1e\+12, 1\.74e\+07 years at its fastest; give"):
            simulate(absurd, GREEDY, PoolTraceSettings(110))
        [_, last] = simulate(absurd, MARGINAL_DOUBLING, PoolTraceSettings(110)).jobs  # from event to event
        assert last.completion_s == pytest.approx(1e12 * 3600 / (16 * 0.8**4), rel=1e-6)
        many = [TraceJob(0.0, 80_000.0, 1) for _ in range(50)]  # nine years each
        with pytest.raises(InvalidValue, match="add up to 114 years on 4 nodes"):
            simulate(many, GREEDY, PoolTraceSettings(4))
        assert {job.how for job in simulate(absurd, GREEDY, PoolTraceSettings(110, bug_rate=1.0)).jobs} == {"hung"}

    def test_bad_values_are_named(self) -> None:
        with pytest.raises(InvalidValue, match="bug_rate"):
            PoolTraceSettings(4, bug_rate=0.7, termination_rate=0.4)
        with pytest.raises(InvalidValue, match="demand_node_hours"):
            TraceJob(0.0, math.nan, 1)
        with pytest.raises(InvalidValue, match="eta_noise"):
            PoolTraceSettings(4, eta_noise=1.0)
