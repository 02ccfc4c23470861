"""Pods that cannot get other limits where they are: the job gets others in their place, and loses nothing."""

from __future__ import annotations

from actuation_world import World, started
from actuator_builders import job_cancelled, plan, plan_decided, pod_resize_refused
from hypothesis import given
from hypothesis import strategies as st
from stretto_messages.actuator import PlanApplied, PodExited


def grown(workers: int, ps: int) -> World:
    """A job whose plan has just been given more cores, where nothing grows in place."""
    world = started(plan(workers=workers, ps=ps))
    world.in_place = False
    world.tell(plan_decided(2, plan(workers=workers, ps=ps, cpu=3.0)))
    return world


@given(st.integers(1, 4), st.integers(1, 3))
def test_every_pod_is_replaced_and_nothing_goes_back_to_a_checkpoint(workers: int, ps: int) -> None:
    world = grown(workers, ps)
    world.run(200)
    assert {pod.cpu_cores_now for pod in world.state.pods.values()} == {3.0}
    assert (len(world.running("worker")), len(world.running("ps"))) == (workers, ps)
    assert sorted(column for columns in world.own.values() for column in columns) == list(range(64))
    assert world.told(PlanApplied)[-1].version == 2
    assert world.state.recoveries == 0
    assert {fact.reason for fact in world.told(PodExited)} == {"stopped"}


def test_one_of_a_role_is_replaced_at_a_time() -> None:
    world = grown(workers=3, ps=2)
    least = 3
    for _ in range(200):
        if not world.step():
            break
        least = min(least, sum(pod.phase == "running" for pod in world.state.of_role("worker")))
    assert least == 2


def test_who_leaves_already_or_is_not_there_is_left_alone() -> None:
    world = grown(workers=1, ps=1)
    world.tell(pod_resize_refused("worker-9"))
    world.tell(pod_resize_refused("ps-0"))
    numbers = world.state.rebalance_number, dict(world.state.next_number)
    world.tell(pod_resize_refused("ps-0"))
    assert (world.state.rebalance_number, world.state.next_number) == numbers
    world.tell(job_cancelled())
    world.tell(pod_resize_refused("worker-0"))
    assert all(pod.phase == "stopping" for pod in world.state.pods.values())
