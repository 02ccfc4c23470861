"""Objects of Kueue as the API server shows them, and the numbers that the decider reads in them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from stretto_core.decider import fields, objects
from stretto_core.decider.fields import UnfitObject, requests_of
from stretto_core.decider.kueue import SeenObjects
from stretto_core.decider.state import SizeWrite
from stretto_core.decider.targets import TARGETS
from stretto_core.decider.targets.jobs import COMPLETIONS
from stretto_core.decider.transition import at_rest

JOB = TARGETS["Job"]
observed, sized, specification, limits_of = (
    partial(each, JOB) for each in (objects.observed, objects.sized, objects.specification, objects.limits_of)
)
ELASTIC = {fields.SIZE: "auto", fields.MOST: "8", fields.ELASTIC: "true"}


def job(name: str, parallelism: int, pods: int, *, ending: int = 0, **spec: Any) -> Any:
    """Return a Job of one core a pod, whose pods are ready but for those that end."""
    template = {"spec": {"containers": [{"resources": {"requests": {"cpu": "1"}}}]}}
    meta = {"name": name, "namespace": "n", "uid": f"{name}-uid", "annotations": ELASTIC, "resourceVersion": "1"}
    return {
        "metadata": {**meta, "labels": {fields.QUEUE: "training"}},
        "spec": {"parallelism": parallelism, "template": template, **spec},
        "status": {"active": pods, "ready": pods, "terminating": ending},
    }


def workload(of: str, count: int, assigned: int | None = None, admitted: bool = True) -> Any:
    assignment: dict[str, Any] = {"name": "main"} if assigned is None else {"name": "main", "count": assigned}
    template = {"spec": {"containers": [{"resources": {"requests": {"cpu": "1"}}}]}}
    return {
        "metadata": {"name": f"{of}-w", "ownerReferences": [{"uid": f"{of}-uid"}]},
        "spec": {"queueName": "training", "podSets": [{"name": "main", "count": count, "template": template}]},
        "status": {
            "conditions": [{"type": "Admitted", "status": str(admitted)}],
            "admission": {"podSetAssignments": [assignment]} if admitted else None,
        },
    }


def cluster(*objects: Any, used: int = 0, pending: int = 0, **spec: Any) -> SeenObjects:
    """Return Jobs and their workloads in a queue of eight cores."""
    groups = [{"flavors": [{"name": "f", "resources": [{"name": "cpu", "nominalQuota": "8"}]}]}]
    usage = [{"name": "f", "resources": [{"name": "cpu", "total": str(used)}]}]
    queue = {"spec": {"resourceGroups": groups, **spec}, "status": {"flavorsUsage": usage, "pendingWorkloads": pending}}
    named = {each["metadata"]["name"]: each for each in objects}
    return SeenObjects(
        {"Job": {name: each for name, each in named.items() if "podSets" not in each["spec"]}},
        {name: each for name, each in named.items() if "podSets" in each["spec"]},
        {"training": {"spec": {"clusterQueue": "shared"}}},
        {"shared": queue},
    )


@pytest.mark.parametrize("assigned", [6, 2, None])
def test_a_size_that_got_smaller_counts_whatever_the_admission_still_says(assigned: int | None) -> None:
    one = job("a", 2, 2)
    seen = observed(one, cluster(one, workload("a", 2, assigned), used=2))
    assert at_rest(seen)
    assert seen.room == 6
    ends = job("b", 2, 2, ending=4)
    assert observed(one, cluster(one, workload("a", 2), ends, workload("b", 2, 6), used=4)).room == 0


def test_a_pod_requests_what_kueue_counted_at_its_admission() -> None:
    """An overhead, or the default of a LimitRange, is in no template."""
    one, own = job("a", 2, 2), workload("a", 2, 4)
    own["status"]["admission"]["podSetAssignments"][0]["resourceUsage"] = {"cpu": "6", "memory": "4Gi"}
    shown = cluster(one, own, used=2)
    assert observed(one, shown).room == 4
    workers = specification(one, shown)["resources"]["workers"]
    assert (workers["cpu_cores"]["min"], workers["memory"]["min"]) == (1.5, 2**30)


def test_pods_that_another_job_asks_for_are_not_free_before_they_are_admitted() -> None:
    one, other = job("a", 2, 2), job("b", 5, 2)
    own = workload("a", 2), workload("b", 2)
    assert observed(one, cluster(one, other, *own, used=4)).room == 1
    assert observed(one, cluster(one, job("b", 5, 2, suspend=True), *own, used=4)).room == 4


@pytest.mark.parametrize(
    ("noted", "condition", "room"),
    [
        ({fields.DECISION: "b/1: fit", fields.GATES: ""}, "", 1),
        ({fields.DECISION: "b/1: fit", fields.GATES: "other"}, "", 1),
        ({fields.DECISION: "b/1: fit", fields.GATES: fields.SIZE}, "", 6),
        ({fields.DECISION: "b/1: fit"}, "", 6),
        ({fields.GATES: ""}, "", 6),
        ({fields.DECISION: "b/1: fit", fields.GATES: ""}, "Evicted", 6),
    ],
)
def test_what_another_object_was_given_to_begin_with_is_not_free(
    noted: dict[str, str], condition: str, room: int
) -> None:
    one, other, own = job("a", 2, 2), job("b", 5, 0, suspend=True), workload("b", 5, admitted=False)
    other["metadata"]["annotations"] = {**ELASTIC, **noted}
    own["status"]["conditions"].append({"type": condition, "status": "True"})
    assert observed(one, cluster(one, workload("a", 2), other, own, used=2)).room == room


def test_a_workload_that_no_quota_could_hold_is_not_waited_for() -> None:
    one, own = job("a", 2, 2), workload("a", 2)
    large, small = workload("b", 9, admitted=False), workload("b", 8, admitted=False)
    assert not observed(one, cluster(one, own, large, pending=1)).others_wait
    assert observed(one, cluster(one, own, large, pending=2)).others_wait
    assert observed(one, cluster(one, own, small, pending=1)).others_wait
    assert observed(one, cluster(one, own, large, pending=1, cohortName="all")).others_wait


def container(cores: str, **more: str) -> Any:
    return {"resources": {"requests": {"cpu": cores}}, **more}


@pytest.mark.parametrize(
    ("pod", "thousandths"),
    [
        ({"containers": [container("1"), container("500m")]}, 1500),
        ({"containers": [container("1")], "overhead": {"cpu": "250m"}}, 1250),
        ({"containers": [container("1")], "initContainers": [container("3"), container("2")]}, 3000),
        ({"containers": [container("1")], "initContainers": [container("1", restartPolicy="Always")]}, 2000),
        (
            {
                "containers": [container("1")],
                "initContainers": [container("2", restartPolicy="Always"), container("2")],
            },
            4000,
        ),
    ],
)
def test_a_pod_requests_the_most_that_runs_at_a_time(pod: Any, thousandths: int) -> None:
    assert requests_of({"spec": pod}) == {"cpu": thousandths, "pods": 1000}


@pytest.mark.parametrize(
    ("spec", "done", "due", "most"),
    [
        ({}, 0, 4, None),
        ({"completions": 9}, 6, 3, 3),
        ({"completions": 9}, 0, 4, 9),
        ({}, 1, 2, 2),
    ],
)
def test_pods_that_completions_leave_no_work_for_are_not_due(spec: Any, done: int, due: int, most: int | None) -> None:
    one = job("a", 4, 2, **spec)
    one["status"]["succeeded"] = done
    seen = observed(one, cluster(one))
    assert (seen.due, seen.most) == (due, most)


def test_completions_that_follow_the_size_bound_none() -> None:
    one = job("a", 4, 3, completions=4)
    one["metadata"]["annotations"] = {**ELASTIC, COMPLETIONS: "1"}
    one["status"]["succeeded"] = 1
    seen = observed(one, cluster(one, workload("a", 4)))
    assert (seen.due, seen.most) == (3, None)
    assert at_rest(seen)


def test_planner_and_arbiter_see_the_pods_that_are_admitted() -> None:
    one = job("a", 4, 0)
    workers = [
        specification(one, cluster(one, workload("a", 4, admitted=is_admitted)))["resources"]["initial"]["workers"]
        for is_admitted in (True, False)
    ]
    assert workers == [4, 1]
    assert specification(one, cluster(one))["resources"]["initial"]["workers"] == 1


@pytest.mark.parametrize(("value", "follows"), [("true", True), ("1", True), ("T", True), ("yes", False), ("0", False)])
def test_completions_follow_where_kueue_says_so(value: str, follows: bool) -> None:
    one = job("a", 2, 2)
    one["metadata"]["annotations"] = {**ELASTIC, COMPLETIONS: value}
    patch = sized(one, SizeWrite(1, "grow", 2, 4, "r", 0.0))
    assert patch["spec"] == {"parallelism": 4, **({"completions": 4} if follows else {})}


def gated(gates: str, **annotations: str) -> Any:
    """Return a Job that is not elastic, behind these gates."""
    one = job("a", 4, 0, suspend=True)
    one["metadata"]["annotations"] = {fields.SIZE: "auto", fields.MOST: "8", fields.GATES: gates, **annotations}
    return one


@pytest.mark.parametrize(
    ("gates", "left"), [("stretto.dev/size", ""), ("example.com/b,stretto.dev/size", "example.com/b"), ("x", "x")]
)
def test_a_patch_takes_stretto_out_of_the_gates_and_nobody_else(gates: str, left: str) -> None:
    patch = sized(gated(gates), SizeWrite(1, "fit", 4, 6, "r", 0.0))
    assert patch["metadata"]["annotations"][fields.GATES] == left
    assert patch["spec"] == {"parallelism": 6}
    assert fields.GATES not in sized(job("a", 2, 2), SizeWrite(1, "grow", 2, 4, "r", 0.0))["metadata"]["annotations"]


def test_a_job_behind_its_gate_waits_in_no_queue() -> None:
    one, own = gated("stretto.dev/size"), workload("a", 4, admitted=False)
    own["metadata"]["annotations"] = {fields.GATES: "stretto.dev/size"}
    shown = cluster(one, own, used=3)
    assert specification(one, shown)["resources"]["initial"]["workers"] == 8, "the most: room decides as the gate opens"
    seen = observed(one, shown)
    assert (seen.gated, seen.fixed, seen.room, seen.others_wait) == (True, True, 5, False)
    assert observed(one, cluster(one, own, pending=1)).others_wait, "the queue counts none that is gated"


@pytest.mark.parametrize(
    ("gates", "annotations", "told"),
    [
        ("stretto.dev/size", {fields.ELASTIC: "true"}, "never opens the gate of an elastic Job"),
        ("example.com/b", {}, "for a size to begin with"),
    ],
)
def test_a_gate_that_would_not_open_is_told(gates: str, annotations: dict[str, str], told: str) -> None:
    with pytest.raises(UnfitObject, match=told):
        limits_of(gated(gates, **annotations))


def test_a_job_whose_gate_is_open_stays_one_that_can_be_sized() -> None:
    one = gated("")
    one["metadata"]["annotations"][fields.DECISION] = f"{objects.job_of(one)}/1: fit from 4 to 6 pods"
    assert limits_of(one) == (1, 8)
