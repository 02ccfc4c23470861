"""The actuator's handling of hot parameter servers, in a simulated cluster."""

from __future__ import annotations

import pytest
from actuator_builders import (
    hot_cleared,
    hot_detected,
    job_cancelled,
    job_completed,
    plan,
    plan_decided,
    replacement_decided,
    replacement_ended,
)
from actuator_cluster import SimulatedCluster, started
from stretto_messages.actuator import (
    JobFinished,
    MigrationFinished,
    MigrationStarted,
    PlanApplied,
    PodExited,
    ReplacementEnded,
    ServersChanged,
)
from stretto_messages.values import ParameterServer


def buckets(cluster: SimulatedCluster) -> dict[int, int]:
    return {server: len(own) for server, own in cluster.own.items()}


def test_hot_server_gives_away_what_was_measured_in_one_migration_and_not_again_at_once() -> None:
    cluster = started(plan(ps=2))
    cluster.tell(hot_detected("ps-1", 0.008, 0.002))
    cluster.tell(hot_detected("ps-1", 0.008, 0.002))
    cluster.run()
    assert cluster.told(MigrationStarted)[0].cause == "hot-ps"
    assert buckets(cluster) == {0: 51, 1: 13}  # a quarter as able as its peer
    cluster.tell(hot_detected("ps-1", 0.008, 0.002))
    cluster.run()
    assert len(cluster.told(MigrationFinished)) == 1


def test_server_that_is_only_busy_gives_some_buckets_away() -> None:
    cluster = started(plan(ps=2))
    cluster.tell(hot_detected("ps-1", 0.002, 0.002))
    cluster.run()
    assert buckets(cluster) == {0: 38, 1: 26}


def test_hot_server_with_little_capacity_left_is_replaced_without_a_restart() -> None:
    cluster = started(plan(workers=2, ps=2))
    cluster.facts.clear()
    cluster.tell(hot_detected("ps-1", 0.064, 0.0016))
    cluster.tell(plan_decided(2, plan(workers=2, ps=2)))  # a new plan does not take it back
    cluster.run()
    kinds = [type(fact).__name__ for fact in cluster.facts if not isinstance(fact, PlanApplied)]
    assert kinds == [
        "ReplacementAsked",
        "PodStarted",
        "ServersChanged",
        "MigrationStarted",
        "MigrationFinished",
        "ServersChanged",
        "PodExited",
        "ReplacementEnded",
    ]
    assert cluster.told(MigrationStarted)[0].cause == "hot-ps"
    assert cluster.told(PodExited)[0].pod == "ps-1"
    assert buckets(cluster) == {0: 32, 2: 32}
    assert cluster.running("worker") == ["worker-0", "worker-1"]
    # the next one waits twice as long
    cluster.now += 100
    cluster.tell(hot_detected("ps-2", 0.064, 0.0016))
    assert not any(pod.leaving for pod in cluster.state.pods.values())
    cluster.now += 30
    cluster.tell(hot_detected("ps-2", 0.064, 0.0016))
    assert [pod.name for pod in cluster.state.pods.values() if pod.leaving] == ["ps-2"]


def test_the_only_server_is_replaced_when_it_is_hot() -> None:
    cluster = started(plan(ps=1))
    cluster.tell(hot_detected("ps-0", 0.008, 0.002))
    cluster.run()
    assert cluster.running("ps") == ["ps-1"]
    assert buckets(cluster) == {1: 64}


@pytest.mark.parametrize("victim", ["ps-2", "ps-1", "ps-0"])
def test_a_server_that_dies_while_a_hot_one_is_replaced(victim: str) -> None:
    cluster = started(plan(ps=2))
    cluster.tell(hot_detected("ps-1", 0.064, 0.0016))
    if victim == "ps-2":
        cluster.launched.append("ps-2")
    cluster.kill(victim)
    cluster.run()
    servers = cluster.running("ps")
    assert len(servers) == 2
    assert "ps-1" not in servers
    assert sum(buckets(cluster)[int(name[3:])] for name in servers) == 64


def test_a_job_that_completes_while_a_hot_server_is_replaced_keeps_it_to_the_end() -> None:
    cluster = started(plan(ps=2))
    cluster.tell(hot_detected("ps-1", 0.064, 0.0016))
    cluster.tell(job_completed())
    cluster.run()
    assert cluster.told(JobFinished)
    assert not cluster.told(MigrationStarted)


def test_a_server_that_keeps_pace_again_gets_its_buckets_back_step_by_step() -> None:
    cluster = started(plan(ps=2))
    cluster.tell(hot_detected("ps-1", 0.008, 0.002))
    cluster.run()
    held: list[int] = []
    for _ in range(6):
        cluster.tell(hot_cleared("ps-1", 0.0016, 0.002))
        cluster.run()
        held.append(buckets(cluster)[1])
    assert held == [17, 23, 29, 32, 32, 32]
    assert len(cluster.told(MigrationFinished)) == 5
    assert cluster.state.weights == {}


def too_hot(cluster: SimulatedCluster, pod: str = "ps-1") -> None:
    cluster.tell(hot_detected(pod, 0.064, 0.0016))


def unanswered() -> SimulatedCluster:
    """A server of two is too hot, and the arbiter has not said yet if there is room for another one."""
    cluster = started(plan(ps=2))
    cluster.room = None
    too_hot(cluster)
    return cluster


def test_without_room_no_server_is_started_and_the_hot_one_keeps_the_least_share() -> None:
    """One beyond the plan was started unasked: what ran was more than the arbiter knew of."""
    cluster = started(plan(ps=2))
    cluster.room = False
    too_hot(cluster)
    cluster.run()
    assert cluster.running("ps") == ["ps-0", "ps-1"]
    assert buckets(cluster) == {0: 56, 1: 8}
    assert not cluster.told(ReplacementEnded), "nothing was given"


def test_the_only_server_stays_when_there_is_no_room() -> None:
    cluster = started(plan(ps=1))
    cluster.room = False
    too_hot(cluster, "ps-0")
    cluster.run()
    assert cluster.running("ps") == ["ps-0"]
    assert cluster.state.replacement is None


def test_an_arbiter_that_says_nothing_is_not_waited_for_and_what_it_gives_later_is_given_back() -> None:
    cluster = unanswered()
    assert cluster.machine.ticking
    cluster.after(61)
    assert cluster.tell(replacement_decided("ps-1", True)) == [replacement_ended("ps-1")]
    cluster.run()
    assert not cluster.machine.ticking
    assert buckets(cluster) == {0: 56, 1: 8}


def test_room_that_nobody_has_given_yet_is_not_given_back() -> None:
    """An arbiter that was away for long would hear: asked, ended, asked again. Its first yes then started a server
    whose room was gone, and may have been another job's, before its second answer, a no."""
    cluster = unanswered()
    cluster.after(61)
    assert not cluster.machine.ticking
    assert not cluster.told(ReplacementEnded)
    cluster.run()
    cluster.now += 1000
    too_hot(cluster, "ps-0")
    assert cluster.tell(replacement_decided("ps-1", True)) == [replacement_ended("ps-1")]
    assert cluster.machine.ticking


def test_a_server_that_never_becomes_ready_is_given_up_and_the_next_hot_one_is_handled() -> None:
    """All later words about hot servers of the job were ignored while it did not come."""
    cluster = started(plan(ps=2))
    too_hot(cluster)
    assert cluster.state.pods["ps-2"].phase == "starting"
    cluster.after(181)
    assert not cluster.told(ReplacementEnded), "it is not gone yet"
    cluster.run()
    assert cluster.told(ReplacementEnded) == [replacement_ended("ps-1")]
    assert cluster.running("ps") == ["ps-0", "ps-1"]
    assert buckets(cluster) == {0: 56, 1: 8}
    assert cluster.told(ServersChanged)[-1].servers == (
        ParameterServer(index=0, address="127.0.0.1:0"),
        ParameterServer(index=1, address="127.0.0.1:1"),
    )
    cluster.now += 1000
    cluster.tell(hot_detected("ps-0", 0.004, 0.002))
    cluster.run()
    assert buckets(cluster)[0] < 56


@pytest.mark.parametrize("what", ["completed", "cancelled", "lost"])
def test_the_room_of_a_replacement_is_given_back_whatever_becomes_of_the_job(what: str) -> None:
    cluster = started(plan(ps=2))
    too_hot(cluster)
    if what == "lost":
        cluster.kill("ps-0")
    else:
        cluster.tell(job_completed() if what == "completed" else job_cancelled())
    cluster.run()
    assert cluster.told(ReplacementEnded) == [replacement_ended("ps-1")]
    assert cluster.state.replacement is None


def test_room_for_a_server_that_is_on_its_way_out_already_is_given_back() -> None:
    cluster = unanswered()
    cluster.tell(plan_decided(2, plan(ps=1)))
    assert cluster.tell(replacement_decided("ps-1", True)) == [replacement_ended("ps-1")]
    cluster.run()
    assert cluster.running("ps") == ["ps-0"]


def test_a_job_that_ended_before_the_arbiter_answered_hears_no_more_ticks() -> None:
    """The arbiter says nothing of jobs that it does not know any more: the ended job was ticked for ever."""
    cluster = unanswered()
    cluster.tell(job_cancelled())
    cluster.run()
    assert not cluster.machine.ticking
    assert cluster.tell(replacement_decided("ps-1", True)) == [replacement_ended("ps-1")]


def test_a_server_that_a_newer_plan_takes_away_goes_though_the_arbiter_never_answered() -> None:
    """It was taken back, one server beyond the plan, which was then never reported as applied."""
    cluster = unanswered()
    cluster.tell(plan_decided(2, plan(ps=1)))
    cluster.after(61)
    cluster.run()
    assert cluster.running("ps") == ["ps-0"]
    assert cluster.told(PlanApplied)[-1].version == 2
