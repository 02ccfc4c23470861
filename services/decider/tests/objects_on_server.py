"""JobSets and RayClusters behind the API server of the tests: the parts of their schemas that sizes touch, what their
webhooks refuse, and controllers that make the pods and write the status.

JobSet 0.12 (``ValidateUpdate`` in pkg/webhooks/jobset_webhook.go, gate ElasticJobSet on), KubeRay 1.7.
"""

from __future__ import annotations

import asyncio
import copy
from typing import Any

from fake_kubernetes import Cluster, Object, Resource
from stretto_core.decider.targets.jobsets import REPLICATED

STEP_S = 0.02
ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
COUNT = {"type": "integer", "format": "int32"}
TEMPLATE = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]}}


def structural(properties: Object, required: list[str]) -> Object:
    return {"type": "object", "properties": properties, "required": required}


JOB = structural(
    {"parallelism": COUNT, "completions": COUNT, "completionMode": {"type": "string"}, "template": ANY}, []
)
REPLICATED_JOB = structural(
    {"name": {"type": "string"}, "replicas": COUNT, "template": structural({"spec": JOB}, ["spec"])},
    ["name", "template"],
)
JOB_SET = {"suspend": {"type": "boolean"}, "replicatedJobs": {"type": "array", "items": REPLICATED_JOB}}
WORKER_GROUP = structural(
    {
        "groupName": {"type": "string"},
        "replicas": COUNT,
        "minReplicas": COUNT,
        "maxReplicas": COUNT,
        "rayStartParams": ANY,
        "template": ANY,
    },
    ["groupName", "maxReplicas", "minReplicas", "template"],
)
RAY_CLUSTER = {"suspend": {"type": "boolean"}, "workerGroupSpecs": {"type": "array", "items": WORKER_GROUP}}


def install(cluster: Cluster) -> None:
    """Define the kinds."""
    for plural, kind, version, spec in (
        ("jobsets", "JobSet", "jobset.x-k8s.io/v1alpha2", JOB_SET),
        ("rayclusters", "RayCluster", "ray.io/v1", RAY_CLUSTER),
    ):
        text = {"type": "string"}
        of_all = {"apiVersion": text, "kind": text, "metadata": ANY, "status": ANY}
        schema = structural({**of_all, "spec": structural(spec, [])}, ["spec"])
        webhook = refuses if kind == "JobSet" else unlisted
        cluster.server.resources[plural] = Resource(kind, version, schema, webhook)
    cluster.server.resources |= {"jobs": Resource("Job", "batch/v1"), "events": Resource("Event", "v1")}


def refuses(known: Object, one: Object) -> str:
    """Return why the webhook of JobSets refuses a change: all is immutable but a size, of both numbers alike."""
    before, after = (copy.deepcopy(each["spec"].get("replicatedJobs", [])) for each in (known, one))
    for each in after:
        spec = each["template"]["spec"]
        if spec["parallelism"] != spec["completions"] or spec["parallelism"] < 1:
            return "completions must be equal to parallelism for Elastic Indexed Jobs"
    for each in (*before, *after):
        for name in ("parallelism", "completions"):
            each["template"]["spec"].pop(name, None)
    return "" if before == after else "spec.replicatedJobs: field is immutable"


def unlisted(known: Object, one: Object) -> str:
    """Return why an object would lose groups: the list is one value, of which a patch may leave out nothing."""
    names = [[each["groupName"] for each in it["spec"].get("workerGroupSpecs", [])] for it in (known, one)]
    return "" if names[0] == names[1] else "a worker group is gone"


async def run_controllers(cluster: Cluster) -> None:
    """Give each object the pods that it asks for."""
    storage = cluster.storage
    while True:
        for one in storage.all("jobsets"):
            for each in one["spec"]["replicatedJobs"]:
                _make_child(cluster, one, each)
        for one in storage.all("rayclusters"):
            workers = sum(each["replicas"] for each in one["spec"]["workerGroupSpecs"])
            counts = {f"{name}WorkerReplicas": workers for name in ("desired", "available", "ready")}
            told = {**counts, "observedGeneration": one["metadata"]["generation"]}
            storage.put("rayclusters", {**one, "status": told})
        await asyncio.sleep(STEP_S)


def _make_child(cluster: Cluster, one: Object, part: Object) -> None:
    name, count = f"{one['metadata']['name']}-{part['name']}-0", part["template"]["spec"]["parallelism"]
    owner = {
        "apiVersion": one["apiVersion"],
        "kind": "JobSet",
        **{key: one["metadata"][key] for key in ("name", "uid")},
    }
    known: Any = cluster.storage.get("jobs", name) or {
        "metadata": {"name": name, "namespace": cluster.server.namespace}
    }
    meta = {**known["metadata"], "labels": {REPLICATED: part["name"]}, "ownerReferences": [owner]}
    made = {"metadata": meta, "spec": part["template"]["spec"], "status": {"active": count, "ready": count}}
    cluster.storage.put("jobs", {"apiVersion": "batch/v1", "kind": "Job", **made})


def asking(name: str, most: int, spec: Object, **annotations: str) -> Object:
    given = {"stretto.dev/size": "auto", "stretto.dev/max": str(most), **annotations}
    return {"metadata": {"name": name, "annotations": given}, "spec": spec}


def job_set(name: str, count: int, most: int) -> Object:
    job = {"parallelism": count, "completions": count, "completionMode": "Indexed", "template": TEMPLATE}
    return asking(name, most, {"replicatedJobs": [{"name": "node", "template": {"spec": job}}]})


def ray_cluster(name: str, count: int, most: int) -> Object:
    """Return a RayCluster of a sized group and of another one with two workers."""
    group = {"minReplicas": 0, "maxReplicas": 100, "rayStartParams": {}, "template": TEMPLATE}
    groups = [{"groupName": "cpus", "replicas": count, **group}, {"groupName": "gpus", "replicas": 2, **group}]
    return asking(name, most, {"workerGroupSpecs": groups}, **{"stretto.dev/group": "cpus"})
