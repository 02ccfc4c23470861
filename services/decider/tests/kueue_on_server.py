"""The model of Kueue behind the API server of the tests: it reads Jobs there, and writes what Kueue and the Job
controller would write."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from random import Random
from typing import Any

from fake_kubernetes import Cluster, Object, Resource
from kueue_model import ElasticJob, Kueue, Slice
from stretto_core.decider.fields import ELASTIC, GATES

API = "kueue.x-k8s.io/v1beta2"
ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
STEP_S = 0.02


def install(cluster: Cluster, nominal: int) -> None:
    """Define the kinds, and one queue of ``nominal`` cores."""
    cluster.server.resources |= {
        "jobs": Resource("Job", "batch/v1"),
        "events": Resource("Event", "v1"),
        **{f"{kind.lower()}s": Resource(kind, API, ANY) for kind in ("Workload", "LocalQueue", "ClusterQueue")},
    }
    meta = {"namespace": cluster.server.namespace}
    cluster.storage.put("localqueues", _made("LocalQueue", "training", {"clusterQueue": "shared"}, **meta))
    flavor = {"name": "cpus", "resources": [{"name": "cpu", "nominalQuota": str(nominal)}]}
    spec = {"resourceGroups": [{"coveredResources": ["cpu"], "flavors": [flavor]}]}
    cluster.storage.put("clusterqueues", _made("ClusterQueue", "shared", spec))


def _made(kind: str, name: str, spec: Object, **meta: Any) -> Object:
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name, **meta}, "spec": spec, "status": {}}


class Slowest(Random):
    """Chance that lets each pod take the longest: all that end together are gone together."""

    def randint(self, a: int, b: int) -> int:
        return b


class KueueOnServer:
    """Moves the model on, step by step, and keeps it and the server's objects equal."""

    def __init__(self, cluster: Cluster, nominal: int) -> None:
        install(cluster, nominal)
        self.storage, self.namespace = cluster.storage, cluster.server.namespace
        self.model = Kueue(nominal, Slowest(), start_steps=2, end_steps=25)
        self.most_alive = 0
        self.sizes: dict[str, list[int]] = defaultdict(list)
        """The sizes that each Job had, one after the other."""
        self._shown: dict[str, int] = {}

    async def run(self) -> None:
        while True:
            self.step()
            await asyncio.sleep(STEP_S)

    def step(self) -> None:
        for one in self.storage.all("jobs"):
            self._read(one)
        for name in [
            name for name, job in self.model.jobs.items() if not job.done and not self.storage.get("jobs", name)
        ]:
            self.model.finish(name)
        self.model.step()
        self.most_alive = max(self.most_alive, self.model.alive)
        for one in self.storage.all("jobs"):
            self._write(one, self.model.jobs[one["metadata"]["name"]])
        self._write_queue()

    def _read(self, one: Object) -> None:
        name, count = one["metadata"]["name"], one["spec"]["parallelism"]
        if name not in self.model.jobs:
            priority = int((one["metadata"].get("labels") or {}).get("priority", "0"))
            self.model.submit(name, count, ELASTIC in _annotations(one), priority=priority)
        elif count != self._shown.get(name, count):
            self.model.jobs[name].parallelism = count
        self._shown[name] = count
        self.model.jobs[name].gated = bool(_annotations(one).get(GATES))

    def _write(self, one: Object, job: ElasticJob) -> None:
        ready = sum(pod.ready_at <= self.model.now for pod in job.running)
        counts = {"active": len(job.running), "ready": ready, "terminating": len(job.pods) - len(job.running)}
        spec = {**one["spec"], "parallelism": job.parallelism, "suspend": job.suspended}
        self._shown[job.name] = job.parallelism
        if self.sizes[job.name][-1:] != [job.parallelism]:
            self.sizes[job.name].append(job.parallelism)
        self.storage.put("jobs", {**one, "spec": spec, "status": counts})
        for workload in self.storage.all("workloads"):
            of, name = workload["metadata"]["ownerReferences"][0]["name"], workload["metadata"]["name"]
            if of == job.name and name not in {each.name for each in job.slices}:
                self._put_workload(one, Slice(name, 0), finished=True)
        for each in job.slices:
            self._put_workload(one, each)

    def _put_workload(self, one: Object, each: Slice, finished: bool = False) -> None:
        name = each.name
        known = self.storage.get("workloads", name)
        is_admitted = each.state == "admitted"
        flags = {"QuotaReserved": is_admitted, "Admitted": is_admitted, "Evicted": each.state == "evicted"}
        conditions = [{"type": kind, "status": str(is_so)} for kind, is_so in flags.items()]
        if finished:
            conditions = [{"type": "Finished", "status": "True", "reason": "WorkloadSliceReplaced"}]
        assigned = [{"name": "main", "count": each.assigned, "flavors": {"cpu": "cpus"}}] if is_admitted else []
        owner = {"apiVersion": "batch/v1", "kind": "Job", "controller": True}
        owner |= {key: one["metadata"][key] for key in ("name", "uid")}
        gates = {key: value for key, value in _annotations(one).items() if key == GATES and value}
        meta = {"ownerReferences": [owner], "annotations": gates}
        made = _made("Workload", name, {"podSets": [{"name": "main", "count": each.count}]}, **meta)
        made["status"] = {"conditions": conditions, "admission": {"podSetAssignments": assigned}}
        made["metadata"] = {**(known["metadata"] if known else {"namespace": self.namespace}), **made["metadata"]}
        self.storage.put("workloads", made)

    def _write_queue(self) -> None:
        queue = self.storage.get("clusterqueues", "shared")
        assert queue is not None
        usage = [{"name": "cpus", "resources": [{"name": "cpu", "total": str(self.model.used)}]}]
        pending = sum(self.model.waits(job) for job in self.model.jobs.values())
        self.storage.put("clusterqueues", {**queue, "status": {"flavorsUsage": usage, "pendingWorkloads": pending}})


def _annotations(one: Object) -> Object:
    return one["metadata"].get("annotations") or {}


def elastic_job(name: str, count: int, most: int, **annotations: str) -> Object:
    """Return a Job that asks for a size."""
    given = {"stretto.dev/size": "auto", "stretto.dev/max": str(most), "kueue.x-k8s.io/elastic-job": "true"}
    return rigid_job(name, count, 0, {**given, **annotations})


def rigid_job(name: str, count: int, priority: int, annotations: dict[str, str] | None = None) -> Object:
    """Return a Job of the queue that asks for none."""
    labels = {"kueue.x-k8s.io/queue-name": "training", "priority": str(priority)}
    container = {"name": "main", "image": "train", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    spec = {"parallelism": count, "suspend": True, "template": template}
    return {"metadata": {"name": name, "labels": labels, "annotations": annotations or {}}, "spec": spec}
