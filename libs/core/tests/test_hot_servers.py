"""What the actuator does about hot parameter servers, in a simulated world."""

from __future__ import annotations

import pytest
from actuation_world import World, plan, started
from stretto_core import actuation as a


def buckets(world: World) -> dict[int, int]:
    return {server: len(own) for server, own in world.own.items()}


def test_hot_server_gives_away_what_was_measured_in_one_migration_and_not_again_at_once() -> None:
    world = started(plan(ps=2))
    world.tell(a.HotPsDetected("ps-1", 0.008, 0.002))
    world.tell(a.HotPsDetected("ps-1", 0.008, 0.002))
    world.run()
    assert world.told(a.MigrationStarted)[0].cause == "hot-ps"
    assert buckets(world) == {0: 51, 1: 13}  # a quarter as able as its peer
    world.tell(a.HotPsDetected("ps-1", 0.008, 0.002))
    world.run()
    assert len(world.told(a.MigrationFinished)) == 1


def test_server_that_is_only_busy_gives_some_buckets_away() -> None:
    world = started(plan(ps=2))
    world.tell(a.HotPsDetected("ps-1", 0.002, 0.002))
    world.run()
    assert buckets(world) == {0: 38, 1: 26}


def test_hot_server_with_little_capacity_left_is_replaced_without_a_restart() -> None:
    world = started(plan(workers=2, ps=2))
    world.facts.clear()
    world.tell(a.HotPsDetected("ps-1", 0.064, 0.0016))
    world.tell(a.PlanDecided(2, plan(workers=2, ps=2)))  # a new plan does not take it back
    world.run()
    kinds = [type(fact).__name__ for fact in world.facts if not isinstance(fact, a.PlanApplied)]
    assert kinds == ["PodStarted", "ServersChanged", "MigrationStarted", "MigrationFinished", "ServersChanged",
                     "PodExited"]  # fmt: skip
    assert world.told(a.MigrationStarted)[0].cause == "hot-ps"
    assert world.told(a.PodExited)[0].pod == "ps-1"
    assert buckets(world) == {0: 32, 2: 32}
    assert world.running("worker") == ["worker-0", "worker-1"]
    # the next one waits twice as long
    world.now += 100
    world.tell(a.HotPsDetected("ps-2", 0.064, 0.0016))
    assert not any(pod.leaving for pod in world.state.pods.values())
    world.now += 30
    world.tell(a.HotPsDetected("ps-2", 0.064, 0.0016))
    assert [pod.name for pod in world.state.pods.values() if pod.leaving] == ["ps-2"]


def test_the_only_server_is_replaced_when_it_is_hot() -> None:
    world = started(plan(ps=1))
    world.tell(a.HotPsDetected("ps-0", 0.008, 0.002))
    world.run()
    assert world.running("ps") == ["ps-1"]
    assert buckets(world) == {1: 64}


@pytest.mark.parametrize("victim", ["ps-2", "ps-1", "ps-0"])
def test_a_server_that_dies_while_a_hot_one_is_replaced(victim: str) -> None:
    world = started(plan(ps=2))
    world.tell(a.HotPsDetected("ps-1", 0.064, 0.0016))
    if victim == "ps-2":
        world.launched.append("ps-2")
    world.kill(victim)
    world.run()
    servers = world.running("ps")
    assert len(servers) == 2
    assert "ps-1" not in servers
    assert sum(buckets(world)[int(name[3:])] for name in servers) == 64


def test_a_job_that_completes_while_a_hot_server_is_replaced_keeps_it_to_the_end() -> None:
    world = started(plan(ps=2))
    world.tell(a.HotPsDetected("ps-1", 0.064, 0.0016))
    world.tell(a.JobCompleted())
    world.run()
    assert world.told(a.JobFinished)
    assert not world.told(a.MigrationStarted)


def test_a_server_that_keeps_pace_again_gets_its_buckets_back_step_by_step() -> None:
    world = started(plan(ps=2))
    world.tell(a.HotPsDetected("ps-1", 0.008, 0.002))
    world.run()
    held: list[int] = []
    for _ in range(6):
        world.tell(a.HotPsCleared("ps-1", 0.0016, 0.002))
        world.run()
        held.append(buckets(world)[1])
    assert held == [17, 23, 29, 32, 32, 32]
    assert len(world.told(a.MigrationFinished)) == 5
    assert world.state.weights == {}
