"""Pods that cannot run yet, and ends that are nobody's fault."""

from __future__ import annotations

import pytest
from actuation_world import World, started
from actuator_builders import plan, plan_decided, pod_exited, pod_given_up, pod_pending
from stretto_core import actuator as a
from stretto_core.actuator import failures, pods
from stretto_messages.actuator import JobFailed, PlanApplied, PodExited, PodPending


@pytest.mark.parametrize("reason", ["evicted", "preempted", "node-lost"])
def test_ends_that_are_nobodys_fault_are_counted_against_nothing(reason: str) -> None:
    world = started(plan(workers=1, ps=2), a.JobOpened("job", worker_failures=0))
    for _ in range(2 * failures.CRASHES_MAX):
        world.kill(world.running("worker")[0], reason, 137)
        assert a.next_steps(world.state, world.now).launch, "it is replaced at once"
        world.run()
        world.kill(world.running("ps")[0], reason, None)
        world.run()
    assert world.told(JobFailed) == []
    assert world.state.recoveries == world.state.crashes_in_row == 0
    assert world.state.worker_memory_least_bytes == 0
    assert {fact.reason for fact in world.told(PodExited)} == {reason, "stopped"}


def test_a_pod_that_waits_is_told_of_once_for_each_reason() -> None:
    world = World()
    world.tell(plan_decided(1, plan()))
    for reason in ("no-room", "no-room", "image-pull", "no-room"):
        world.now += 10
        world.tell(pod_pending("ps-0", reason, "0/3 nodes are available"))
    world.tell(pod_pending("ps-7", "no-room"))
    assert [(fact.pod, fact.role, fact.reason) for fact in world.told(PodPending)] == [
        ("ps-0", "ps", "no-room"),
        ("ps-0", "ps", "image-pull"),
        ("ps-0", "ps", "no-room"),
    ]
    assert world.state.pods["ps-0"].waiting_since_s == world.now
    world.run()
    world.tell(pod_pending("worker-0", "no-room"))
    assert len(world.told(PodPending)) == 3, "a pod that runs does not wait, whoever says so too late"


def test_a_pod_that_found_no_room_is_given_up_and_another_one_tried_later() -> None:
    world = started(plan())
    world.tell(plan_decided(2, plan(workers=2)))
    world.tell(pod_pending("worker-1", "quota"))
    world.tell(pod_given_up("worker-1"))
    assert [pod.name for pod in a.next_steps(world.state, world.now).stop] == ["worker-1"]
    world.kill("worker-1", "completed", None)
    (exited,) = world.told(PodExited)
    assert (exited.pod, exited.reason) == ("worker-1", "stopped")
    steps = a.next_steps(world.state, world.now)
    assert steps.launch == ()
    assert steps.retry_at_s is not None
    assert steps.retry_at_s > world.now + pods.AGAIN_S - 1
    assert world.state.failures_in_row["worker"] == 0
    world.run()
    assert world.running("worker") == ["worker-0", "worker-2"]


def test_a_pod_that_found_no_room_is_not_tried_again_when_the_plan_does_without_it() -> None:
    world = started(plan())
    world.tell(plan_decided(2, plan(workers=2)))
    world.tell(pod_pending("worker-1", "no-room"))
    world.tell(pod_given_up("worker-1"))
    world.tell(plan_decided(3, plan()))
    world.run()
    assert world.launched == ["ps-0", "worker-0"]
    assert world.told(PlanApplied)[-1].version == 3


def test_an_image_that_nobody_has_ends_the_job_unless_its_pods_have_run_with_it() -> None:
    world = World()
    world.tell(plan_decided(1, plan()))
    world.tell(pod_exited("ps-0", "image-pull", None, "shop/train:2: manifest unknown"))
    assert world.told(JobFailed)[0].reason == "the image of ps-0 cannot be had: shop/train:2: manifest unknown"
    world = started(plan(workers=2))
    world.kill("worker-1", "image-pull", None)
    world.run()
    assert world.told(JobFailed) == []
    assert world.running("worker") == ["worker-0", "worker-2"]
