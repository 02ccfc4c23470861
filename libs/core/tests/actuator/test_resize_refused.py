"""Pods that cannot get other limits where they are: the job gets others in their place, and loses nothing."""

from __future__ import annotations

from actuator_builders import job_cancelled, plan, plan_decided, pod_resize_refused
from actuator_cluster import SimulatedCluster, started
from hypothesis import given
from hypothesis import strategies as st
from stretto_messages.actuator import PlanApplied, PodExited


def grown(workers: int, ps: int) -> SimulatedCluster:
    """A job whose plan has just been given more cores, where nothing grows in place."""
    cluster = started(plan(workers=workers, ps=ps))
    cluster.in_place = False
    cluster.tell(plan_decided(2, plan(workers=workers, ps=ps, cpu=3.0)))
    return cluster


@given(st.integers(1, 4), st.integers(1, 3))
def test_every_pod_is_replaced_and_nothing_goes_back_to_a_checkpoint(workers: int, ps: int) -> None:
    cluster = grown(workers, ps)
    cluster.run(200)
    assert {pod.cpu_cores_now for pod in cluster.state.pods.values()} == {3.0}
    assert (len(cluster.running("worker")), len(cluster.running("ps"))) == (workers, ps)
    assert sorted(column for columns in cluster.own.values() for column in columns) == list(range(64))
    assert cluster.told(PlanApplied)[-1].version == 2
    assert cluster.state.recoveries == 0
    assert {fact.reason for fact in cluster.told(PodExited)} == {"stopped"}


def test_one_of_a_role_is_replaced_at_a_time() -> None:
    cluster = grown(workers=3, ps=2)
    least = 3
    for _ in range(200):
        if not cluster.step():
            break
        least = min(least, sum(pod.phase == "running" for pod in cluster.state.of_role("worker")))
    assert least == 2


def test_who_leaves_already_or_is_not_there_is_left_alone() -> None:
    cluster = grown(workers=1, ps=1)
    cluster.tell(pod_resize_refused("worker-9"))
    cluster.tell(pod_resize_refused("ps-0"))
    numbers = cluster.state.rebalance_number, dict(cluster.state.next_number)
    cluster.tell(pod_resize_refused("ps-0"))
    assert (cluster.state.rebalance_number, cluster.state.next_number) == numbers
    cluster.tell(job_cancelled())
    cluster.tell(pod_resize_refused("worker-0"))
    assert all(pod.phase == "stopping" for pod in cluster.state.pods.values())
