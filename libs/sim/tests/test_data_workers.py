"""The simulation of data workers: against a naive one, against theory, and what it promises."""

from __future__ import annotations

import heapq
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_data_workers import tick_by_tick
from stretto_core.algorithms import SIMULATE_DATA_WORKERS
from stretto_messages.base import InvalidValue
from stretto_sim.data_workers import Cluster, Outcome, Policy, TraceJob, simulate

BY_QUEUE = "srtf-by-queue"
LIVE = "srtf-live"
NAMES = [name for name in SIMULATE_DATA_WORKERS.names() if name not in (BY_QUEUE, LIVE)]
"""which know what a job needs"""
SHARING = ("srtf", "maxtp", "fair")
RATIOS = (4.0, 6.0, 10.0, 16.0, 24.0, 27.0, 48.0, 64.0)


def policy(name: str) -> Policy:
    return SIMULATE_DATA_WORKERS.named(name)


def invented(
    seed: int, jobs: int, span_s: float, mean_s: float, gpus: tuple[int, ...] = (1, 1, 2, 4)
) -> list[TraceJob]:
    rng = np.random.default_rng(seed)
    long = np.maximum(rng.lognormal(0, 0.8, jobs) * mean_s / 1.38, 1)
    return [
        TraceJob(float(when), int(run_s), int(rng.choice(gpus)), 1.0, float(rng.choice(RATIOS)))
        for when, run_s in zip(np.sort(rng.integers(0, int(span_s) + 1, jobs)), long, strict=True)
    ]


class TestAgainstTheNaiveOne:
    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("seed", [1, 2, 3])
    def test_every_job_fares_the_same(self, name: str, seed: int) -> None:
        """Up to ticks, and where CPUs are shared up to what is less than the smallest worker on a node; under fair
        every job has one of these too much or too little, so only its mean is the same."""
        drawn = np.random.default_rng(seed).uniform(4, 64, 24)
        trace = [
            replace(job, cpus_per_gpu=float(ratio))
            for job, ratio in zip(invented(seed, 24, 1200, 200, (1, 1, 2)), drawn, strict=True)
        ]
        found = simulate(trace, policy(name), Cluster(2))
        naive = tick_by_tick(trace, name, Cluster(2), 1.0)
        within = 0.02 if name in SHARING else 0.0
        for one, other in zip(found.jobs, naive, strict=True) if name != "fair" else ():
            assert one.start_s == pytest.approx(other["start_s"], abs=8, rel=within)
            assert one.end_s == pytest.approx(other["end_s"], abs=8, rel=within)
        mean_s = np.mean([other["end_s"] - other["job"].submit_s for other in naive])
        assert found.completion.mean_s == pytest.approx(mean_s, rel=0.05 if name == "fair" else 0.01)


class TestAgainstTheory:
    @pytest.mark.proof
    def test_one_gpu_without_want_of_cpus_is_a_queue_with_one_server(self) -> None:
        """M/D/1: the mean wait is load / (1 - load) / 2 of the run time."""
        jobs, load, run_s = 20_000, 0.7, 100
        when = np.cumsum(np.random.default_rng(1).exponential(run_s / load, jobs))
        trace = [TraceJob(float(t), run_s, 1, 1.0, 4.0) for t in when]
        for name in ("fixed", "hardware"):
            found = simulate(trace, policy(name), Cluster(1, 1, 8.0))
            assert found.mean_queue_s == pytest.approx(load / (1 - load) / 2 * run_s, rel=0.05)

    @pytest.mark.proof
    def test_cpus_for_one_job_at_a_time_go_to_the_shortest(self) -> None:
        """One server, shortest remaining first, the best there is for the mean (Schrage, 1968): a GPU for everybody,
        and each could use all CPUs that there are."""
        jobs, load, lacks = 300, 0.8, 20_000.0
        rng = np.random.default_rng(2)
        when, sizes = np.cumsum(rng.exponential(100 / load, jobs)), rng.exponential(100.0, jobs)
        trace = [TraceJob(float(t), 1000, 1, float(s) / 1000, lacks + 3.0) for t, s in zip(when, sizes, strict=True)]
        found = simulate(trace, policy("srtf"), Cluster(1, 16, lacks + 3.0 * 2))
        ends = _shortest_remaining_first(when, sizes)
        # not to the second: training workers hold CPUs too, and ranks less than a hundredth apart change nothing
        assert [one.end_s for one in found.jobs] == pytest.approx(ends, abs=10.0)
        assert found.completion.mean_s == pytest.approx(np.mean(np.array(ends) - when), rel=0.005)


def _shortest_remaining_first(when: Any, sizes: Any) -> list[float]:
    """When each ends on a server of speed 1."""
    ends, waiting, now = [0.0] * len(when), list[tuple[float, int]](), 0.0
    for number in range(len(when) + 1):
        until = when[number] if number < len(when) else math.inf
        while waiting and now < until:
            left, first = heapq.heappop(waiting)
            if now + left > until:
                heapq.heappush(waiting, (left - (until - now), first))
                break
            now += left
            ends[first] = now
        now = until
        if number < len(when):
            heapq.heappush(waiting, (sizes[number], number))
    return ends


class TestPromises:
    @given(
        seed=st.integers(0, 10_000),
        jobs=st.integers(1, 14),
        nodes=st.integers(1, 4),
        span_s=st.sampled_from([0, 60, 2000]),
        name=st.sampled_from(NAMES),
    )
    @settings(max_examples=80)
    def test_whatever_the_trace(self, seed: int, jobs: int, nodes: int, span_s: int, name: str) -> None:
        """The simulator itself refuses to hand out more than a node has; nobody is faster than ideal, all end."""
        trace, cluster = invented(seed, jobs, span_s, 300, (1, 2, 8)), Cluster(nodes)
        found = simulate(trace, policy(name), cluster)
        assert len(found.jobs) == jobs
        for one, job in zip(found.jobs, trace, strict=True):
            assert one.submit_s == job.submit_s <= one.start_s
            assert one.end_s - one.start_s >= job.ideal_s * (1 - 1e-6)
        assert [one.start_s for one in found.jobs] == sorted(one.start_s for one in found.jobs)
        held = sum(job.gpus * (one.end_s - one.start_s) for one, job in zip(found.jobs, trace, strict=True))
        begin_s, end_s = found.span_s
        assert found.gpu_utilisation * cluster.all_gpus * (end_s - begin_s) == pytest.approx(held)
        assert 0 < found.cpu_utilisation <= 1 + 1e-9

    @given(seed=st.integers(0, 10_000), name=st.sampled_from(NAMES))
    @settings(max_examples=30)
    def test_no_cpu_second_is_lost(self, seed: int, name: str) -> None:
        """Trained steps are proportional to the CPU seconds of the data workers."""
        trace = [replace(job, cpus_per_gpu=16.0) for job in invented(seed, 10, 600, 300)]
        found = simulate(trace, policy(name), Cluster(2))
        begin_s, end_s = found.span_s
        used = found.cpu_utilisation * found.cluster.all_cpus * (end_s - begin_s)
        work = sum(job.data_cpus * job.ideal_s for job in trace)
        held = sum(job.gpus * (one.end_s - one.start_s) for one, job in zip(found.jobs, trace, strict=True))
        per_gpu = {"tuned": 16.0, "hardware": 8.0}.get(name)
        assert used == pytest.approx(held * per_gpu if per_gpu else work + 3.0 * held, rel=1e-6)

    @given(seed=st.integers(0, 10_000), name=st.sampled_from(NAMES), shuffle=st.randoms(use_true_random=False))
    @settings(max_examples=30)
    def test_the_order_of_the_file_is_nothing_to_jobs_that_need_not_queue(
        self, seed: int, name: str, shuffle: Any
    ) -> None:
        trace = [replace(job, submit_s=0.0, cpus_per_gpu=job.cpus_per_gpu / 4) for job in invented(seed, 8, 0, 300)]
        other = shuffle.sample(trace, len(trace))
        ends = [_ends(simulate(jobs, policy(name), Cluster(4)), jobs) for jobs in (trace, other)]
        for job, end_s in ends[0].items():
            assert end_s == pytest.approx(ends[1][job], rel=0.1 if name == "fair" else 0.03)

    @pytest.mark.parametrize("name", NAMES)
    def test_a_job_alone_takes_its_time(self, name: str) -> None:
        found = simulate([TraceJob(50.0, 1000, 2, 0.25, 20.0)], policy(name))
        slow = 20.0 / 8.0 if name == "hardware" else 1.0
        assert found.completion.mean_s == pytest.approx(250 * slow)
        assert found.mean_queue_s == 0
        assert found.gpu_utilisation == pytest.approx(2 / 64)
        assert found.cpu_utilisation == pytest.approx((16 if name == "hardware" else 40) / 512)

    def test_the_papers_example_of_fragments(self) -> None:
        """Fig. 2: a third job finds a GPU, but not two CPUs beside it; as data workers they may be anywhere."""
        cluster = Cluster(2, 2, 4.0)
        trace = [TraceJob(0.0, 100, 1, 1.0, 2.5), TraceJob(0.0, 100, 2, 1.0, 1.0), TraceJob(0.0, 100, 1, 1.0, 2.5)]
        assert simulate(trace, policy("tuned"), cluster).jobs[2].start_s == 100
        assert simulate(trace, policy("fixed"), cluster).jobs[2].start_s == 0

    def test_with_elastic_data_workers_nobody_waits_for_cpus(self) -> None:
        trace = [TraceJob(float(n), 1000, 8, 1.0, 64.0) for n in range(8)]
        for name in SHARING:
            assert simulate(trace, policy(name)).mean_queue_s == 0
        assert simulate(trace, policy("fixed")).mean_queue_s > 3000

    def test_more_than_the_cluster_can_hold_is_as_much_as_it_can(self) -> None:
        trace = [TraceJob(0.0, 100, 64, 1.0, 64.0)]
        assert simulate(trace, policy("tuned")).completion.mean_s == pytest.approx(800)
        assert simulate(trace, policy("fixed")).completion.mean_s == pytest.approx(
            100 * 61 * 64 / (8 * 5 * 8)
        )  # on each node 5 of 8 CPUs

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("ratio", [0.001, 0.01, 1e6])
    def test_hardly_any_cpus_or_ever_so_many_are_no_trouble(self, name: str, ratio: float) -> None:
        found = simulate([TraceJob(0.0, 100, 2, 1.0, ratio)], policy(name))
        share = min(found.completion.mean_s / 100, 1.0)
        assert share == pytest.approx(1.0)

    @pytest.mark.parametrize("name", SHARING)
    def test_the_same_again_is_the_same(self, name: str) -> None:
        trace = invented(5, 30, 1200, 400)
        assert simulate(trace, policy(name)) == simulate(trace, policy(name))

    def test_no_jobs_are_no_trouble(self) -> None:
        found = simulate([], policy("srtf"))
        assert (found.completion.mean_s, found.mean_queue_s, found.gpu_utilisation, found.cpu_utilisation) == (0,) * 4

    def test_bad_values_are_named(self) -> None:
        for field, value in (
            ("submit_s", math.nan),
            ("steps", 0),
            ("gpus", 0),
            ("step_s_ideal", 0.0),
            ("cpus_per_gpu", math.inf),
            ("cpus_per_gpu", 1e-9),
            ("submit_s", 1e15),
            ("steps", 10**12),
        ):
            with pytest.raises(InvalidValue, match=re.escape(f"{field} is {value}")):
                replace(TraceJob(0.0, 1, 1, 1.0, 1.0), **{field: value})
        with pytest.raises(InvalidValue, match="gpus is 65"):
            simulate([TraceJob(0.0, 1, 65, 1.0, 1.0)], policy("srtf"))


def _ends(found: Outcome, jobs: list[TraceJob]) -> dict[TraceJob, float]:
    return {job: one.end_s for job, one in zip(jobs, found.jobs, strict=True)}


class TestByQueue:
    """Nobody knows what a job needs: each tunes itself while it trains."""

    def test_a_job_alone_is_tuned_as_in_the_paper(self) -> None:
        """Fig. 13: nine intervals at the speed of ever larger processes, then three data workers of 8 CPUs."""
        found = simulate([TraceJob(0.0, 3600, 1, 1.0, 27.0)], policy(BY_QUEUE))
        assert max(found.workers[0].amounts) == 3
        known = simulate([TraceJob(0.0, 3600, 1, 1.0, 27.0)], policy("srtf"))
        late_s = found.jobs[0].end_s - known.jobs[0].end_s
        alone, sizing = 30 * (1 - 8 / 27), sum(30 * (1 - cpus / 24) for cpus in range(1, 9))
        assert late_s == pytest.approx(alone + sizing, abs=60)
        assert found.cpus.amounts[-2] == pytest.approx(27.0), "the training worker keeps 3"

    def test_one_of_modest_needs_gives_back_what_it_does_not_use(self) -> None:
        found = simulate([TraceJob(0.0, 7200, 1, 1.0, 5.0)], policy(BY_QUEUE))
        assert found.cpus.amounts[0] == 8.0
        assert found.cpus.amounts[-2] <= 6.0, "whole CPUs for the training worker"
        assert found.completion.mean_s <= 7200 * 1.05

    @pytest.mark.parametrize("cpus_per_gpu", [5.0, 27.0, 64.0])
    def test_live_jobs_are_tuned_by_division_and_so_no_later_than_by_climbing(self, cpus_per_gpu: float) -> None:
        jobs = [TraceJob(0.0, 3600, 1, 1.0, cpus_per_gpu)]
        known, climbed, live = (simulate(jobs, policy(name)).jobs[0].end_s for name in ("srtf", BY_QUEUE, LIVE))
        assert live <= climbed
        told_s = 3 * 30 * (1 - 3 / cpus_per_gpu)  # two windows tell, and the arbiter's answer stands in the third
        assert live == pytest.approx(known, abs=told_s)

    @pytest.mark.parametrize("name", [BY_QUEUE, LIVE])
    @given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 3), st.sampled_from([0, 300, 3000]))
    @settings(max_examples=25)
    def test_whatever_the_trace_all_jobs_end_and_no_node_gives_more_than_it_has(
        self, name: str, seed: int, jobs: int, nodes: int, span_s: int
    ) -> None:
        trace = invented(seed, jobs, span_s, 300)
        found = simulate(trace, policy(name), Cluster(nodes))
        assert len(found.jobs) == len(trace)
        assert all(job.end_s - job.start_s >= job.ideal_s * (1 - 1e-6) for job in found.jobs)
        assert max(found.cpus.amounts) <= 64.0 * nodes + 1e-6

    @pytest.mark.proof
    @pytest.mark.parametrize("nodes", [2, 4, 6])
    def test_it_is_worse_than_to_know_and_better_than_a_fixed_ratio(self, nodes: int) -> None:
        """Much worse where all GPUs are taken: the containers then hold all CPUs, and none is left to begin with."""
        trace = invented(4, 30, 3600, 3600)
        names = ("srtf", BY_QUEUE, "hardware")
        known, tuned, fixed = (simulate(trace, policy(name), Cluster(nodes)).completion.mean_s for name in names)
        assert known < tuned < fixed
