"""JobSets and RayClusters as the API server shows them: their sized part, its pods, and the fields that are written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from stretto_core.decider import fields, objects
from stretto_core.decider.fields import UnfitObject
from stretto_core.decider.kueue import SeenObjects
from stretto_core.decider.machine import DeciderMachine
from stretto_core.decider.quota import UNBOUNDED
from stretto_core.decider.state import DeciderRules, DeciderState, SizeWrite
from stretto_core.decider.targets import TARGETS
from stretto_core.decider.targets.jobsets import REPLICATED
from stretto_core.decider.transition import at_rest
from stretto_messages.values import Plan

TEMPLATE = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}]}}
WRITE = SizeWrite(1, "grow", 2, 5, "r", 0.0)


def meta(name: str, **annotations: str) -> dict[str, Any]:
    asked = {fields.SIZE: "auto", fields.MOST: "8"}
    named = {"name": name, "namespace": "n", "uid": f"{name}-uid-0", "resourceVersion": "7"}
    return {**named, "annotations": {**asked, **annotations}}


def job_set(count: int, *others: str, **spec: Any) -> Any:
    """Return a JobSet whose part ``node`` has ``count`` pods."""
    sized = {"parallelism": count, "completions": count, "template": TEMPLATE, **spec}
    jobs = [{"name": name, "template": {"spec": sized}} for name in ("node", *others)]
    return {"metadata": meta("a"), "spec": {"replicatedJobs": jobs}}


def child(count: int, ready: int, part: str = "node", **status: int) -> Any:
    owner = {"ownerReferences": [{"uid": "a-uid-0"}], "labels": {REPLICATED: part}}
    told = {"active": ready, "ready": ready, **status}
    return {"metadata": {"name": f"a-{part}-0", **owner}, "spec": {"parallelism": count}, "status": told}


def ray_cluster(count: int, *, desired: int, ready: int, other: int = 0, **group: Any) -> Any:
    """Return a RayCluster whose group ``cpus`` has ``count`` workers, and ``gpus`` the others."""
    groups = [
        {"groupName": "cpus", "replicas": count, "minReplicas": 0, "maxReplicas": 6, "template": TEMPLATE, **group}
    ]
    if other:
        groups.append({"groupName": "gpus", "replicas": other, "minReplicas": 0, "template": TEMPLATE})
    status = {"desiredWorkerReplicas": desired, "availableWorkerReplicas": ready, "readyWorkerReplicas": ready}
    return {
        "metadata": {**meta("a", **{fields.GROUP: "cpus"} if other else {}), "generation": 3},
        "spec": {"workerGroupSpecs": groups},
        "status": {**status, "observedGeneration": 3},
    }


def sight(kind: str, one: Any, *jobs: Any) -> Any:
    named = {each["metadata"]["name"]: each for each in jobs}
    return objects.observed(TARGETS[kind], one, SeenObjects({"Job": named, kind: {"a": one}}))


def wanted(kind: str, one: Any, *jobs: Any) -> SizeWrite | None:
    """Return what a machine whose plan allows six pods decides at once."""
    seen = sight(kind, one, *jobs)
    state = DeciderState(job=seen.job, version=1, size=seen.count, plan=Plan(6, 1, 1.0, 0.001, 2**30, 2**20))
    machine = DeciderMachine(state, DeciderRules())
    machine.handle(seen, 0.0)
    return machine.state.write


def test_a_job_set_is_at_rest_once_its_child_has_the_size_and_the_pods() -> None:
    assert at_rest(sight("JobSet", job_set(2), child(2, 2)))
    assert not at_rest(sight("JobSet", job_set(5), child(2, 2)))
    assert not at_rest(sight("JobSet", job_set(5), child(5, 2)))
    assert not at_rest(sight("JobSet", job_set(5), child(5, 5, terminating=1)))
    assert at_rest(sight("JobSet", job_set(5), child(5, 3, succeeded=2)))


def test_pods_of_other_parts_are_not_counted() -> None:
    one = job_set(2, "driver")
    with pytest.raises(UnfitObject, match=r"group is not stated; name the replicatedJob to size: node, driver"):
        objects.limits_of(TARGETS["JobSet"], one)
    one["metadata"]["annotations"][fields.GROUP] = "node"
    assert at_rest(sight("JobSet", one, child(2, 2), child(1, 1, "driver")))
    assert wanted("JobSet", one, child(2, 2), child(1, 1, "driver"))


def test_an_object_without_a_queue_gets_what_its_plan_allows() -> None:
    seen = sight("JobSet", job_set(2), child(2, 2))
    assert (seen.room, seen.others_wait, seen.fixed, seen.gated) == (UNBOUNDED, False, False, False)
    write = wanted("JobSet", job_set(2), child(2, 2))
    assert write is not None
    assert (write.purpose, write.count, write.reason) == ("grow", 6, "no quota bounds the object; the plan allows 6")


def test_parallelism_and_completions_of_a_job_set_change_together() -> None:
    patch = objects.sized(TARGETS["JobSet"], job_set(2), WRITE)
    spec = {"parallelism": 5, "completions": 5}
    assert patch["spec"] == {"replicatedJobs": [{"name": "node", "template": {"spec": spec}}]}
    assert patch["metadata"]["resourceVersion"] == "7"


@pytest.mark.parametrize(
    ("one", "told"),
    [
        (job_set(2, completions=9), "completions of node is 9; state as many as parallelism, which is 2"),
        (job_set(2, completionMode="NonIndexed"), "completionMode of node is 'NonIndexed'; state Indexed"),
        (ray_cluster(2, desired=2, ready=2, numOfHosts=4), "numOfHosts of cpus is 4; state 1"),
        (ray_cluster(2, desired=2, ready=2, minReplicas=7), "give at most stretto.dev/max, which is 6"),
    ],
)
def test_what_cannot_be_sized_is_told_with_the_remedy(one: Any, told: str) -> None:
    kind = "JobSet" if "replicatedJobs" in one["spec"] else "RayCluster"
    with pytest.raises(UnfitObject, match=told):
        objects.limits_of(TARGETS[kind], one)


def test_what_others_size_is_left_to_them() -> None:
    scaled = ray_cluster(2, desired=2, ready=2)
    scaled["spec"]["enableInTreeAutoscaling"] = True
    several = job_set(2)
    several["spec"]["replicatedJobs"][0]["replicas"] = 3
    admitted = job_set(2, template={**TEMPLATE, "metadata": {"labels": {objects.POD_SET: "node"}}})
    elastic = job_set(2)
    elastic["metadata"] |= {"labels": {fields.QUEUE: "training"}}
    elastic["metadata"]["annotations"][fields.ELASTIC] = "true"
    owned = ray_cluster(2, desired=2, ready=2)
    owned["metadata"] |= {"ownerReferences": [{"kind": "RayJob", "controller": True}]}
    assert objects.limits_of(TARGETS["RayCluster"], owned)
    queued = {**owned, "metadata": {**owned["metadata"], "labels": {fields.QUEUE: "training"}}}
    for kind, one, told in (
        ("RayCluster", scaled, "Ray's autoscaler would write other sizes"),
        ("RayCluster", queued, "its owner is 'RayJob'; take the label kueue.x-k8s.io/queue-name off"),
        ("JobSet", several, "replicas of node is 3; state 1"),
        ("JobSet", admitted, "keep its owner out of Kueue"),
        ("JobSet", elastic, "Kueue does not follow the size of a JobSet that runs"),
    ):
        with pytest.raises(UnfitObject, match=told):
            objects.limits_of(TARGETS[kind], one)


def test_limits_of_a_worker_group_bound_its_size() -> None:
    assert objects.limits_of(TARGETS["RayCluster"], ray_cluster(2, desired=2, ready=2)) == (1, 6)
    stated = ray_cluster(2, desired=2, ready=2, minReplicas=2)
    del stated["metadata"]["annotations"][fields.MOST]
    assert objects.limits_of(TARGETS["RayCluster"], stated) == (2, 6)


def test_workers_beyond_those_of_other_groups_are_the_sized_groups() -> None:
    rest = ray_cluster(2, desired=5, ready=5, other=3)
    assert at_rest(sight("RayCluster", rest))
    assert not at_rest(sight("RayCluster", ray_cluster(4, desired=5, ready=5, other=3))), "the operator has not seen it"
    assert not at_rest(sight("RayCluster", ray_cluster(2, desired=5, ready=4, other=3)))
    assert sight("RayCluster", ray_cluster(2, desired=5, ready=7, other=3)).terminating == 2
    old = ray_cluster(2, desired=2, ready=2)
    old["metadata"]["generation"] = 4
    assert not at_rest(sight("RayCluster", old))


def test_a_patch_of_a_worker_group_leaves_the_others_as_they_were_read() -> None:
    one = ray_cluster(2, desired=5, ready=5, other=3)
    groups = objects.sized(TARGETS["RayCluster"], one, WRITE)["spec"]["workerGroupSpecs"]
    assert [each["replicas"] for each in groups] == [5, 3]
    assert {**groups[0], "replicas": 2} == one["spec"]["workerGroupSpecs"][0]


def test_under_kueue_the_pods_of_the_sized_group_are_what_is_admitted() -> None:
    one = ray_cluster(2, desired=5, ready=5, other=3)
    one["metadata"]["labels"] = {fields.QUEUE: "training"}
    one["metadata"]["annotations"][fields.ELASTIC] = "true"
    counts = {"head": 1, "cpus": 2, "gpus": 3}
    workload = {
        "metadata": {"name": "w", "ownerReferences": [{"uid": "a-uid-0"}]},
        "spec": {"podSets": [{"name": name, "count": count} for name, count in counts.items()]},
        "status": {
            "conditions": [{"type": "Admitted", "status": "True"}],
            "admission": {"podSetAssignments": [{"name": name, "count": count} for name, count in counts.items()]},
        },
    }
    groups = [{"flavors": [{"name": "f", "resources": [{"name": "cpu", "nominalQuota": "20"}]}]}]
    usage = [{"name": "f", "resources": [{"name": "cpu", "total": "12"}]}]
    cluster = SeenObjects(
        {"RayCluster": {"a": one}},
        {"w": workload},
        {"training": {"spec": {"clusterQueue": "shared"}}},
        {"shared": {"spec": {"resourceGroups": groups}, "status": {"flavorsUsage": usage}}},
    )
    seen = objects.observed(TARGETS["RayCluster"], one, cluster)
    assert at_rest(seen)
    assert (seen.workloads[0].count, seen.room, seen.fixed) == (2, 4, False)
    assert at_rest(replace(seen, room=0))


def test_planner_and_arbiter_see_an_object_without_a_queue_as_it_is() -> None:
    one = job_set(2)
    spec = objects.specification(TARGETS["JobSet"], one, SeenObjects({"JobSet": {"a": one}}))
    assert spec["program"]["object"] == "JobSet/n/a"
    assert spec["resources"]["initial"] == {"workers": 2, "worker_cpu_cores": 2.0, "worker_memory_bytes": 2**30}


def test_a_job_set_under_kueue_gets_a_size_to_begin_with() -> None:
    one = job_set(2, template={**TEMPLATE, "metadata": {"labels": {objects.POD_SET: "node"}}})
    one["metadata"]["labels"] = {fields.QUEUE: "training"}
    one["metadata"]["annotations"][fields.GATES] = fields.SIZE
    assert objects.limits_of(TARGETS["JobSet"], one) == (1, 8)
    seen = sight("JobSet", one)
    assert (seen.gated, seen.fixed, seen.room) == (True, True, 0)
