"""Pods that cannot run yet, and ends that are nobody's fault."""

from __future__ import annotations

import pytest
from actuator_builders import job_progressed, plan, plan_decided, pod_exited, pod_given_up, pod_pending
from actuator_cluster import SimulatedCluster, started
from stretto_core.actuator import failures, pods
from stretto_core.actuator.state import JobOpened
from stretto_core.actuator.steps import next_steps
from stretto_messages.actuator import JobFailed, PlanApplied, PodExited, PodPending
from stretto_messages.dispatcher import LedgerReturn


@pytest.mark.parametrize("reason", ["evicted", "preempted", "node-lost"])
def test_ends_that_are_nobodys_fault_are_counted_against_nothing(reason: str) -> None:
    cluster = started(plan(workers=1, ps=2), JobOpened("job", worker_failures=0))
    for _ in range(2 * failures.CRASHES_MAX):
        cluster.kill(cluster.running("worker")[0], reason, 137)
        assert next_steps(cluster.state, cluster.now).launch, "it is replaced at once"
        cluster.run()
        cluster.kill(cluster.running("ps")[0], reason, None)
        cluster.run()
    assert cluster.told(JobFailed) == []
    assert cluster.state.recoveries == cluster.state.crashes_in_row == 0
    assert cluster.state.worker_memory_least_bytes == 0
    assert {fact.reason for fact in cluster.told(PodExited)} == {reason}, "the loss of one server stops no other pod"


def test_a_pod_that_waits_is_told_of_once_for_each_reason() -> None:
    cluster = SimulatedCluster()
    cluster.tell(plan_decided(1, plan()))
    for reason in ("no-room", "no-room", "image-pull", "no-room"):
        cluster.now += 10
        cluster.tell(pod_pending("ps-0", reason, "0/3 nodes are available"))
    cluster.tell(pod_pending("ps-7", "no-room"))
    assert [(fact.pod, fact.role, fact.reason) for fact in cluster.told(PodPending)] == [
        ("ps-0", "ps", "no-room"),
        ("ps-0", "ps", "image-pull"),
        ("ps-0", "ps", "no-room"),
    ]
    assert cluster.state.pods["ps-0"].waiting_since_s == cluster.now
    cluster.run()
    cluster.tell(pod_pending("worker-0", "no-room"))
    assert len(cluster.told(PodPending)) == 3, "a pod that runs does not wait, whoever says so too late"


def test_a_pod_that_found_no_room_is_given_up_and_another_one_tried_later() -> None:
    cluster = started(plan())
    cluster.tell(plan_decided(2, plan(workers=2)))
    cluster.tell(pod_pending("worker-1", "quota"))
    cluster.tell(pod_given_up("worker-1"))
    assert [pod.name for pod in next_steps(cluster.state, cluster.now).stop] == ["worker-1"]
    cluster.kill("worker-1", "completed", None)
    (exited,) = cluster.told(PodExited)
    assert (exited.pod, exited.reason) == ("worker-1", "stopped")
    steps = next_steps(cluster.state, cluster.now)
    assert steps.launch == ()
    assert steps.retry_at_s is not None
    assert steps.retry_at_s > cluster.now + pods.AGAIN_S - 1
    assert cluster.state.failures_in_row["worker"] == 0
    cluster.run()
    assert cluster.running("worker") == ["worker-0", "worker-2"]


def test_a_pod_that_found_no_room_is_not_tried_again_when_the_plan_does_without_it() -> None:
    cluster = started(plan())
    cluster.tell(plan_decided(2, plan(workers=2)))
    cluster.tell(pod_pending("worker-1", "no-room"))
    cluster.tell(pod_given_up("worker-1"))
    cluster.tell(plan_decided(3, plan()))
    cluster.run()
    assert cluster.launched == ["ps-0", "worker-0"]
    assert cluster.told(PlanApplied)[-1].version == 3


def test_an_image_that_nobody_has_ends_the_job_unless_its_pods_have_run_with_it() -> None:
    cluster = SimulatedCluster()
    cluster.tell(plan_decided(1, plan()))
    cluster.tell(pod_exited("ps-0", "image-pull", None, "shop/train:2: manifest unknown"))
    assert cluster.told(JobFailed)[0].reason == "the image of ps-0 cannot be had: shop/train:2: manifest unknown"
    cluster = started(plan(workers=2))
    cluster.kill("worker-1", "image-pull", None)
    cluster.run()
    assert cluster.told(JobFailed) == []
    assert cluster.running("worker") == ["worker-0", "worker-2"]


def user_failures(cluster: SimulatedCluster, times: int) -> list[str]:
    """End workers one after the other with the user's error; return the reasons for which the job failed."""
    for _ in range(times):
        cluster.kill(cluster.running("worker")[0], "failed", failures.USER_ERROR)
        cluster.run()
    return [fact.reason for fact in cluster.told(JobFailed)]


def test_a_job_that_never_trained_fails_with_the_second_error_of_the_user() -> None:
    """Code and data that have never worked would fail again; one failure may be an accident of one machine."""
    cluster = started(plan(workers=1), JobOpened("job", worker_failures=10))
    cluster.tell(job_progressed(samples_done=0))
    assert user_failures(cluster, 1) == []
    cluster.tell(pod_exited(cluster.running("worker")[0], "failed", 3, "noise\nx job exit 3: no module 'my_modell'"))
    assert [fact.reason for fact in cluster.told(JobFailed)] == [
        "worker-1 ended with exit code 3 (failed), an error of the user's code or data; workers ended so 2 times, "
        "and the job has not trained any sample: no module 'my_modell'"
    ]


def test_a_job_that_has_trained_survives_as_many_errors_as_it_states() -> None:
    cluster = started(plan(workers=1), JobOpened("job", worker_failures=3))
    cluster.tell(job_progressed(samples_done=1))
    assert user_failures(cluster, 3) == []
    assert user_failures(cluster, 1) != []


def test_samples_of_the_checkpoint_that_a_job_starts_from_were_not_trained_by_it() -> None:
    cluster = started(plan(workers=1), JobOpened("job", worker_failures=3))
    returned = LedgerReturn(checkpoint="other-1", samples_before=0, samples_gained=500, samples_undone=0)
    cluster.tell(job_progressed(samples_done=500, returned=returned))
    cluster.tell(job_progressed(samples_done=500))
    assert user_failures(cluster, 2) != []
