"""Workers of later stages: what they are told, who knows of them, and how another plan replaces them."""

from __future__ import annotations

from dataclasses import replace

from actuator_builders import get_servers, job_progressed, plan, plan_decided, pod_exited, pod_started
from actuator_cluster import SimulatedCluster, started
from stretto_core.actuator.failures import STABLE_S, USER_ERROR
from stretto_core.actuator.steps import next_steps
from stretto_messages.actuator import GroupChanged, JobFailed, PlanApplied
from stretto_messages.base import GIB
from stretto_messages.values import Plan, WorkerGroup

ON_A = WorkerGroup("a", 2, 8.0, 64 * GIB, stage=1, first_layer=1)


def staged(*groups: WorkerGroup, reading: int = 2) -> Plan:
    return plan().with_workers(reading, groups or (ON_A,))


def members(cluster: SimulatedCluster) -> list[tuple[int, str, int]]:
    return sorted((each.stage, each.device, each.first_layer) for each in cluster.told(GroupChanged)[-1].workers)


def test_everyone_is_told_who_computes_which_stage() -> None:
    cluster = started(staged())
    assert members(cluster) == [(0, "", 0), (0, "", 0), (1, "a", 1), (1, "a", 1)]
    assert {(pod.stage, pod.first_layer, pod.cpu_cores) for pod in cluster.state.of_role("worker") if pod.device} == {
        (1, 1, 8.0)
    }
    (reply,) = cluster.tell(get_servers("worker-0"))
    assert reply.group == cluster.told(GroupChanged)[-1].workers
    assert cluster.told(PlanApplied)[-1].plan == staged()


def test_a_replica_that_dies_is_replaced_at_its_place() -> None:
    cluster = started(staged())
    lost = next(pod.name for pod in cluster.state.of_role("worker") if pod.stage)
    cluster.kill(lost)
    assert members(cluster) == [(0, "", 0), (0, "", 0), (1, "a", 1)]
    cluster.run()
    assert members(cluster) == [(0, "", 0), (0, "", 0), (1, "a", 1), (1, "a", 1)]


def stage_fails(cluster: SimulatedCluster, stage: int = 1) -> list[str]:
    """End a worker of the stage with the user's error; return the reasons for which the job failed."""
    name = next(pod.name for pod in cluster.state.of_role("worker") if pod.stage == stage)
    cluster.tell(pod_exited(name, "failed", USER_ERROR, "noise\nx job exit 3: first_layer = 9: 'Net' has four"))
    return [fact.reason for fact in cluster.told(JobFailed)]


def training() -> SimulatedCluster:
    """A job that trains, and whose first plan is not applied yet."""
    cluster = SimulatedCluster()
    cluster.tell(plan_decided(1, staged()))
    cluster.tell(job_progressed(samples_done=1_000_000))
    return cluster


def test_a_stage_that_no_worker_can_begin_ends_a_job_that_trains_without_it() -> None:
    cluster = training()
    assert stage_fails(cluster, 0) == []
    assert stage_fails(cluster) == [], "the error of another stage is none of its own"
    (reason,) = stage_fails(cluster)
    assert reason.endswith(
        "workers of stage 1 ended so 2 times, and none of them ran 30 s: first_layer = 9: 'Net' has four"
    )


def test_a_stage_of_which_a_worker_ran_has_begun_though_the_plan_was_never_applied() -> None:
    cluster = training()
    name = next(pod.name for pod in cluster.state.of_role("worker") if pod.stage)
    cluster.tell(pod_started(name, 8.0, 64 * GIB))
    cluster.after(STABLE_S)
    cluster.tell(pod_exited(name, "evicted", None))
    assert [stage_fails(cluster) for _ in range(3)] == [[]] * 3


def test_a_stage_that_has_begun_survives_as_many_errors_as_the_job_states() -> None:
    cluster = started(staged())
    cluster.tell(job_progressed(samples_done=1000))
    assert [stage_fails(cluster) for _ in range(3)] == [[]] * 3


def test_the_replicas_of_an_earlier_plan_serve_until_those_of_the_next_run() -> None:
    cluster = started(staged())
    old = {pod.name for pod in cluster.state.of_role("worker") if pod.stage}
    cluster.tell(plan_decided(2, staged(replace(ON_A, device="b"))))
    assert old <= {*cluster.pods}
    assert not next_steps(cluster.state, cluster.now).stop
    assert {device for stage, device, _ in members(cluster) if stage} == {"a"}, "nobody else is there yet"
    cluster.run()
    assert {device for stage, device, _ in members(cluster) if stage} == {"b"}
    assert not old & {*cluster.pods}
    told = [{each.device for each in fact.workers if each.stage} for fact in cluster.told(GroupChanged)]
    assert all(told[told.index({"a"}) :]), "there was a replica at any time"
    assert cluster.told(PlanApplied)[-1].version == 2


def test_replicas_are_taken_back_by_a_plan_that_has_them_again() -> None:
    cluster = started(staged())
    old = {pod.name for pod in cluster.state.of_role("worker") if pod.stage}
    cluster.tell(plan_decided(2, staged(replace(ON_A, device="b"))))
    cluster.tell(plan_decided(3, staged()))
    cluster.run()
    assert {pod.name for pod in cluster.state.of_role("worker") if pod.stage} == old


def test_one_stage_again_needs_nobody_and_tells_so() -> None:
    cluster = started(staged())
    cluster.tell(plan_decided(2, plan(workers=2)))
    cluster.run()
    assert cluster.told(GroupChanged)[-1].workers == ()
    assert len(cluster.running("worker")) == 2


def test_a_replica_that_is_let_go_fails_nothing() -> None:
    cluster = started(staged())
    cluster.tell(plan_decided(2, staged(replace(ON_A, device="b"))))
    old = next(pod.name for pod in cluster.state.pods.values() if pod.relieved)
    cluster.pods.pop(old)
    (fact, *_) = cluster.tell(pod_exited(old, "failed", 1))
    assert fact.reason == "stopped"
    assert not cluster.state.failures_in_row["worker"]
