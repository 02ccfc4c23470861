"""Data workers: the policies as the paper has them, exact on small clusters, and what the scheduler promises."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stretto_core.machine import Emit, Tick
from stretto_core.model.sharing import Ranking, Sharer, Speed, fair, max_throughput, shortest_remaining
from stretto_core.offline.data_workers import DataWorkers, QueueState, SharingSettings
from stretto_core.offline.data_workers.facts import (
    JobConfigured,
    JobGone,
    JobObserved,
    JobStarted,
    NodesKnown,
    WorkerMoved,
    WorkerStarted,
    WorkerStopped,
)
from stretto_core.offline.data_workers.placing import Free, best_node, better_node, pack

RANKINGS = {"maxtp": max_throughput, "srtf": shortest_remaining, "fair": fair}


def started(job: str, node: str = "a", **changed: Any) -> JobStarted:
    """A job of one GPU that is at its ideal 10 steps/s with 10 CPUs for data workers."""
    usual = JobStarted(job, {node: 1}, 1.0, 4.0, steps_left=1000.0, per_cpu=1.0, ideal_per_s=10.0)
    return replace(usual, **changed)


def scheduler(nodes: dict[str, float], ranking: Ranking = shortest_remaining, gain_min: float = 0.0) -> DataWorkers:
    made = DataWorkers(settings=SharingSettings(ranking, gain_min))
    made.handle(NodesKnown(nodes), 0.0)
    return made


def told(machine: DataWorkers, *events: object) -> list[object]:
    """Return the actions for the events and for the tick after them."""
    actions = [action for event in (*events, Tick()) for action in machine.handle(event, 0.0)]
    return [action.fact for action in actions if isinstance(action, Emit)]


def shares(machine: DataWorkers) -> dict[str, float]:
    return {name: job.cpus for name, job in machine.state.jobs.items()}


class TestPolicies:
    JOB = Sharer(gpus=4, steps_left=600.0, ideal_per_s=20.0, speed=Speed(per_cpu=0.5, cpus=8.0, steps_per_s=4.0))

    def test_the_metrics_are_the_papers(self) -> None:
        assert max_throughput(self.JOB, 8.0, 10.0) == pytest.approx(-(1.0 / 20.0) / 2.0 * 4)
        assert shortest_remaining(self.JOB, 8.0, 10.0) == pytest.approx(600.0 * 10.0 / 5.0)
        assert fair(self.JOB, 8.0, 10.0) == pytest.approx(5.0 / 20.0)

    def test_steps_of_any_size_rank_alike_but_for_the_time_that_they_take(self) -> None:
        """The same job told in steps of a hundredth: throughput is relative to its own ideal."""
        finer = Sharer(4, 60_000.0, 2000.0, Speed(50.0, 8.0, 400.0))
        for ranking in RANKINGS.values():
            assert ranking(finer, 8.0, 10.0) == pytest.approx(ranking(self.JOB, 8.0, 10.0))

    def test_no_policy_sees_more_than_the_training_workers_take(self) -> None:
        assert self.JOB.steps_per_s(1000.0) == 20.0
        assert self.JOB.lacks(8.0) == pytest.approx(32.0)
        assert self.JOB.lacks(40.0) == 0.0

    def test_the_next_step_is_believed_to_bring_what_the_last_one_brought(self) -> None:
        speed = Speed(per_cpu=1.0).seen(4.0, 4.0).seen(6.0, 5.0)
        assert speed.at(8.0) == pytest.approx(6.0)
        assert speed.at(4.0) == pytest.approx(4.0)
        down = speed.seen(5.0, 4.9)
        assert down.at(4.0) == pytest.approx(4.8)
        assert down.seen(5.0, 4.5).at(6.0) == pytest.approx(4.6)


class TestPlacing:
    @given(
        free=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 20)), min_size=1, max_size=4),
        gpus=st.integers(1, 8),
        cpus=st.integers(1, 6),
    )
    @settings(max_examples=200)
    def test_a_job_is_packed_if_there_is_any_way_on_as_few_nodes_as_any(
        self, free: list[tuple[int, int]], gpus: int, cpus: int
    ) -> None:
        ways = [
            way
            for way in itertools.product(*(range(g + 1) for g, _ in free))
            if sum(way) == gpus and all(n * cpus <= c for n, (_, c) in zip(way, free, strict=True))
        ]
        found = pack([Free(g, float(c)) for g, c in free], gpus, cpus)
        assert (found is not None) == bool(ways)
        if found is not None:
            assert tuple(found.get(index, 0) for index in range(len(free))) in ways
            assert len(found) == min(sum(n > 0 for n in way) for way in ways)

    def test_of_the_nodes_that_have_room_the_fullest_takes_it(self) -> None:
        assert pack([Free(8, 64.0), Free(2, 16.0), Free(3, 12.0)], 2, 4.0) == {1: 2}

    def test_a_data_worker_goes_to_its_trainer_then_to_calm_then_to_full_nodes(self) -> None:
        free, calm = {"a": 8.0, "b": 8.0, "c": 5.0}, dict.fromkeys("abc", 0)
        assert best_node(free, {"b": 1}, calm, 4.0, 1.0) == "b"
        assert best_node(free, {"d": 1}, calm | {"c": 1}, 4.0, 1.0) == "a"
        assert best_node(free, {"d": 1}, calm, 4.0, 1.0) == "c"
        assert best_node(free, {"c": 1}, calm, 8.0, 1.0) == "a"  # whole elsewhere rather than in part at home
        assert best_node({"a": 0.5, "b": 3.0}, {"a": 1}, calm, 8.0, 1.0) == "b"
        assert best_node({"a": 0.5, "b": 0.9}, {"a": 1}, calm, 8.0, 1.0) == ""

    def test_it_moves_home_or_to_where_it_is_calmer_by_two(self) -> None:
        free = {"a": 4.0, "b": 4.0, "c": 4.0}
        neighbours = {"a": 3, "b": 2, "c": 1}
        assert better_node(free, {"b": 1}, neighbours, 4.0, "a") == "b"
        assert better_node(free, {"d": 1}, neighbours, 4.0, "a") == "c"
        assert better_node(free, {"d": 1}, neighbours, 4.0, "b") == ""
        assert better_node(free, {"a": 1}, neighbours, 4.0, "a") == ""
        assert better_node(free, {"d": 1}, neighbours, 5.0, "a") == ""


JOBS = st.lists(
    st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 500), st.sampled_from([0.5, 1.0, 3.0])),
    min_size=1,
    max_size=5,
)


def event(name: str, job: tuple[int, int, int, float], node: str, worker_cpus: float = 1.0) -> JobStarted:
    """A job of so many GPUs, which lacks so many CPUs, has so many steps left, and trains so many per CPU."""
    gpus, cpus, left, per_cpu = job
    return JobStarted(name, {node: gpus}, 0.0, worker_cpus, float(left), per_cpu, cpus * per_cpu)


class TestSharing:
    @given(jobs=JOBS, cpus=st.integers(0, 60), name=st.sampled_from(sorted(RANKINGS)))
    @settings(max_examples=150)
    def test_room_goes_to_the_smallest_ranks_whatever_came_before(
        self, jobs: list[tuple[int, int, int, float]], cpus: int, name: str
    ) -> None:
        """Against all workers of one CPU in the order of their ranks; jobs that lack few would get smaller ones."""
        ranking, jobs = RANKINGS[name], [(gpus, 8 * (lacks % 3 + 1), left, per) for gpus, lacks, left, per in jobs]
        ranked = sorted(
            (ranking(Sharer(gpus, float(left), lacks * per, Speed(per)), float(k), k + 1.0), order)
            for order, (gpus, lacks, left, per) in enumerate(jobs)
            for k in range(lacks)
        )
        expected = [sum(order == n for _, order in ranked[:cpus]) for n in range(len(jobs))]
        at_once = scheduler({"a": float(cpus)}, ranking)
        told(at_once, *(event(str(n), job, "a") for n, job in enumerate(jobs)))
        one_by_one = scheduler({"a": float(cpus)}, ranking)
        for n, job in enumerate(jobs):
            told(one_by_one, event(str(n), job, "a"))
        for machine in (at_once, one_by_one):
            got = sorted(
                ranking(Sharer(job[0], float(job[2]), job[1] * job[3], Speed(job[3])), k, k + 1.0)
                for (n, job) in enumerate(jobs)
                for k in map(float, range(round(shares(machine)[str(n)])))
            )
            # equal ranks may fall to either job
            assert got == pytest.approx([rank for rank, _ in ranked[: sum(expected)]])

    def test_a_shorter_job_takes_from_the_longer_one(self) -> None:
        machine = scheduler({"a": 9.0})
        told(machine, started("long"))
        assert shares(machine) == {"long": 8.0}
        told(machine, started("short", steps_left=10.0))
        assert shares(machine) == {"long": 0.0, "short": 7.0}

    def test_no_worker_is_replaced_by_smaller_ones_for_nobodys_gain(self) -> None:
        """A worker of one CPU was to make room for another job, and two smaller ones of its own job took it."""
        machine = scheduler({"a": 4.0, "b": 1.0}, fair, 0.01)
        told(machine, event("j", (4, 8, 400, 1.0), "a", 2.0))
        told(machine, event("k", (3, 3, 400, 1.0), "a", 8.0))
        assert shares(machine) == {"j": 3.0, "k": 2.0}
        assert told(machine) == []

    def test_what_brings_nothing_is_not_given_again(self) -> None:
        machine = scheduler({"a": 64.0})
        told(machine, started("j", worker_cpus=2.0, ideal_per_s=4.0))
        assert shares(machine) == {"j": 4.0}
        told(machine, JobObserved("j", QueueState(2.0, 4.0), 900.0))
        assert shares(machine)["j"] == 8.0  # half as fast as believed, so twice as many
        told(machine, JobObserved("j", QueueState(2.0, 4.0), 800.0))
        assert shares(machine)["j"] <= 8.0

    def test_what_is_too_much_goes_one_worker_at_a_time(self) -> None:
        machine = scheduler({"a": 64.0})
        told(machine, started("j"))
        before = shares(machine)["j"]
        said = told(machine, JobObserved("j", QueueState(30.0, 10.0), 900.0))
        assert [type(fact) for fact in said] == [WorkerStopped]
        assert 0 < shares(machine)["j"] < before
        assert told(machine) == [], "until the queue tells what that changed"

    def test_a_job_without_use_for_them_has_none(self) -> None:
        machine = scheduler({"a": 64.0})
        told(machine, started("j"))
        told(machine, JobConfigured("j", 8.0, 0.0))
        assert shares(machine) == {"j": 0.0}

    def test_trainers_drive_data_workers_out_which_go_where_there_is_room(self) -> None:
        machine = scheduler({"a": 13.0, "b": 6.0})
        told(machine, started("j"))
        said = told(machine, started("k", trainer_cpus=6.0, worker_cpus=0.0))
        assert [type(fact) for fact in said] == [WorkerMoved]
        assert shares(machine)["j"] == 10.0

    def test_a_data_worker_comes_home_when_there_is_room(self) -> None:
        machine = scheduler({"a": 5.0, "b": 9.0})
        told(machine, started("j", worker_cpus=4.0, ideal_per_s=4.0), started("k", ideal_per_s=4.0))
        assert {worker.node for worker in machine.state.jobs["k"].workers.values()} == {"b"}
        said = told(machine, JobGone("j"))
        assert WorkerMoved("k", "data-1", "a") in said


EVENTS = st.lists(
    st.one_of(
        st.builds(
            lambda n, job, node, cpus: event(f"j{n}", job, node, cpus),
            st.integers(0, 4), JOBS.map(lambda jobs: jobs[0]), st.sampled_from("ab"), st.sampled_from([0.5, 2.0, 8.0]),
        ),
        st.builds(lambda n: JobGone(f"j{n}"), st.integers(0, 5)),
        st.builds(
            lambda n, put, taken, left: JobObserved(f"j{n}", QueueState(put, taken), left),
            st.integers(0, 5), st.floats(0, 40), st.floats(0.1, 40), st.floats(0, 900),
        ),
        st.builds(lambda n, most: JobConfigured(f"j{n}", 0.0, most), st.integers(0, 5), st.sampled_from([0.0, 4.0])),
        st.just(Tick()),
    ),
    max_size=25,
)  # fmt: skip

NODES = st.fixed_dictionaries({"a": st.sampled_from([2.5, 4.0, 10.0]), "b": st.sampled_from([1.0, 3.25, 7.5])})


class TestPromises:
    @given(events=EVENTS, nodes=NODES, name=st.sampled_from(sorted(RANKINGS)), gain_min=st.sampled_from([0.0, 0.01]))
    @settings(max_examples=200)
    def test_whatever_happens(self, events: list[object], nodes: dict[str, float], name: str, gain_min: float) -> None:
        """No node is overcommitted, what is said is what is so, one tick settles all, to repeat it changes nothing."""
        machine, again = (scheduler(nodes, RANKINGS[name], gain_min) for _ in range(2))
        running: dict[tuple[str, str], tuple[str, float]] = {}
        for happened in events:
            for fact in told(machine, happened):
                match fact:
                    case WorkerStarted(job, worker, node, cpus):
                        running[job, worker] = node, cpus
                    case WorkerMoved(job, worker, node):
                        running[job, worker] = node, running[job, worker][1]
                    case WorkerStopped(job, worker):
                        del running[job, worker]
            for node, most in nodes.items():
                assert sum(cpus for where, cpus in running.values() if where == node) <= most + 1e-5
            known = {
                (name, key): (worker.node, worker.cpus)
                for name, job in machine.state.jobs.items()
                for key, worker in job.workers.items()
            }
            assert known == running
            assert told(machine) == []
            again.handle(happened, 0.0)
            told(again, happened)
            assert again.state == machine.state


def test_workers_of_a_node_that_is_gone_go_elsewhere() -> None:
    """Regression: with fewer nodes than before, the scheduler knew no room on the others and failed at every tick."""
    machine = scheduler({"a": 3.0, "b": 8.0, "c": 8.0})
    told(machine, started("j"))
    assert {worker.node for worker in machine.state.jobs["j"].workers.values()} >= {"b"}
    told(machine, NodesKnown({"c": 8.0}))
    assert {worker.node for worker in machine.state.jobs["j"].workers.values()} == {"c"}
