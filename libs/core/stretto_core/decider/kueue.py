"""Jobs under Kueue as the API server shows them, in JSON: what asks for a size, what is seen of it, what is written.

The API of Kueue is ``kueue.x-k8s.io/v1beta2``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from stretto_messages.base import bounded

from stretto_core.decider.observations import ObjectObserved, WorkloadSeen
from stretto_core.decider.quota import PodsInQueue, free_pods
from stretto_core.decider.state import SizeWrite
from stretto_core.machine import CoreError

Object = dict[str, Any]
SIZE, LEAST, MOST, DECISION = (f"stretto.dev/{name}" for name in ("size", "min", "max", "decision"))
QUEUE, ELASTIC = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/elastic-job"
MIN_PARALLELISM = "kueue.x-k8s.io/job-min-parallelism"
COMPLETIONS = "kueue.x-k8s.io/job-completions-equal-parallelism"
REPLACES = "kueue.x-k8s.io/workload-slice-replacement-for"
TOPOLOGY = tuple(f"kueue.x-k8s.io/podset-{kind}-topology" for kind in ("required", "preferred"))
PODS_MAX = 1000
LEAST_CORES, LEAST_BYTES = 0.001, 2**20
"""Size of a pod that requests nothing, for planner and arbiter."""
SUFFIXES = {
    **{
        name: Decimal(1000) ** power for power, name in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), -3)
    },
    **{f"{name}i": Decimal(1024) ** power for power, name in enumerate("KMGTPE", 1)},
}


class UnfitObject(CoreError):
    """An object that asks for a size and cannot get one: the field, what it says, and the remedy."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{field} is {value!r}; {remedy}")


@dataclass(frozen=True, slots=True)
class SeenObjects:
    """The objects of a namespace by name, as they were last seen."""

    jobs: Mapping[str, Object]
    workloads: Mapping[str, Object]
    local_queues: Mapping[str, Object]
    cluster_queues: Mapping[str, Object]


def asks(one: Object) -> bool:
    """Return True for a Job that asks for a size."""
    return _annotations(one).get(SIZE) == "auto"


def ended(one: Object) -> bool:
    """Return True for a Job that is complete, or has failed."""
    return _ending(one)[0] != ""


def job_of(one: Object) -> str:
    """Return the name of the object's job. An object that is made again under its name is another job."""
    meta = one["metadata"]
    return f"{meta['name'][:54].rstrip('-.').replace('.', '-')}-{meta['uid'][:8]}"


def reference(one: Object) -> str:
    """Return the object in words that no other object has."""
    return f"Job/{one['metadata']['namespace']}/{one['metadata']['name']}"


def limits_of(one: Object) -> tuple[int, int]:
    """Return the fewest and the most pods that an object may have. Raises UnfitObject if it cannot be sized."""
    _check_elastic(one)
    least, most = _count(one, LEAST, 1), _count(one, MOST, None)
    if least > most:
        raise UnfitObject(LEAST, least, f"give at most {MOST}, which is {most}")
    return least, most


def specification(one: Object) -> dict[str, Any]:
    """Return the job file that planner and arbiter shall see of an object. Raises UnfitObject."""
    least, most = limits_of(one)
    count, each = int(one["spec"].get("parallelism") or 1), requests_of(one)
    cores, memory = max(each.get("cpu", 0) / 1000, LEAST_CORES), max(each.get("memory", 0) // 1000, LEAST_BYTES)
    return {
        "name": job_of(one),
        "program": {"command": [reference(one)], "level": 0, "object": reference(one)},
        "resources": {
            "workers": {
                "count": {"min": least, "max": most},
                "cpu_cores": {"min": cores, "max": cores},
                "memory": {"min": memory, "max": memory},
            },
            "initial": {
                "workers": min(max(count, least), most),
                "worker_cpu_cores": cores,
                "worker_memory_bytes": memory,
            },
        },
    }


def _check_elastic(one: Object) -> None:
    annotations, labels = _annotations(one), one["metadata"].get("labels") or {}
    template = one["spec"].get("template", {}).get("metadata") or {}
    if not labels.get(QUEUE):
        raise UnfitObject(f"label {QUEUE}", labels.get(QUEUE), "name the queue that the Job waits in")
    if annotations.get(ELASTIC) != "true":
        raise UnfitObject(ELASTIC, annotations.get(ELASTIC), 'state "true": else Kueue stops all pods at a resize')
    if MIN_PARALLELISM in annotations:
        raise UnfitObject(MIN_PARALLELISM, annotations[MIN_PARALLELISM], f"leave it out, and state {LEAST}")
    for name in TOPOLOGY:
        if name in (template.get("annotations") or {}):
            raise UnfitObject(name, template["annotations"][name], "leave it out: slices have no required topology")


def _count(one: Object, name: str, default: int | None) -> int:
    given = _annotations(one).get(name, default)
    try:
        value = int(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise UnfitObject(name, given, f'state a number of pods from 1 to {PODS_MAX}, as in "8"') from None
    if not 1 <= value <= PODS_MAX:
        raise UnfitObject(name, given, f"state a number of pods from 1 to {PODS_MAX}")
    return value


# ---- what is seen -------------------------------------------------------------------------------------------------


def observed(one: Object, cluster: SeenObjects) -> ObjectObserved:
    """Return what the machine is shown of a Job."""
    spec, status = one["spec"], one.get("status") or {}
    job, own = job_of(one), _workloads_of(one, cluster)
    ending, reason = _ending(one)
    seen = [_seen(each) for each in own]
    waiting = sum(each.state != "admitted" for each in seen)
    queue = _cluster_queue(one, cluster)
    pending = int(((queue or {}).get("status") or {}).get("pendingWorkloads") or 0)
    return ObjectObserved(
        job=job,
        decision=_decision_in(one, job),
        count=int(spec.get("parallelism") or 0),
        active=int(status.get("active") or 0),
        ready=int(status.get("ready") or 0),
        terminating=int(status.get("terminating") or 0),
        suspended=bool(spec.get("suspend")),
        ending=ending,
        ending_reason=reason,
        workloads=tuple(seen[-10:]),
        room=min(_room(one, queue, own, cluster), PODS_MAX) if queue is not None else 0,
        others_wait=pending > waiting,
    )


def gone(job: str, reason: str) -> ObjectObserved:
    """Return what is seen of an object that is Stretto's no more."""
    return ObjectObserved(
        job=job, decision=0, count=0, active=0, ready=0, terminating=0, room=0, ending="gone", ending_reason=reason
    )


def _ending(one: Object) -> tuple[Literal["", "complete", "failed", "gone"], str]:
    for condition in (one.get("status") or {}).get("conditions") or ():
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            told = condition.get("message") or condition.get("reason") or "the Job's controller says so"
            return ("complete" if condition["type"] == "Complete" else "failed"), bounded(told)
    return "", ""


def _decision_in(one: Object, job: str) -> int:
    found = re.match(rf"{re.escape(job)}/(\d{{1,12}})\b", _annotations(one).get(DECISION, ""))
    return int(found[1]) if found else 0


def _workloads_of(one: Object, cluster: SeenObjects) -> list[Object]:
    """Return the Job's unfinished workloads, the one that replaces another after that one."""
    uid = one["metadata"]["uid"]
    own = [
        each
        for each in cluster.workloads.values()
        if any(owner.get("uid") == uid for owner in each["metadata"].get("ownerReferences") or ())
        and not _is(each, "Finished")
    ]
    return sorted(own, key=lambda each: (each["metadata"].get("creationTimestamp", ""), REPLACES in _annotations(each)))


def _seen(workload: Object) -> WorkloadSeen:
    count = sum(int(each.get("count") or 0) for each in workload["spec"].get("podSets") or ())
    state: Literal["pending", "admitted", "evicted"] = "pending"
    if _is(workload, "Evicted") and not _is(workload, "Admitted"):
        state = "evicted"
    elif _is(workload, "Admitted"):
        state, count = "admitted", _admitted_pods(workload)
    return WorkloadSeen(name=workload["metadata"]["name"], count=count, state=state)


def _assignments(workload: Object) -> Sequence[Object]:
    return ((workload.get("status") or {}).get("admission") or {}).get("podSetAssignments") or ()


def _admitted_pods(workload: Object) -> int:
    return sum(int(each.get("count") or 0) for each in _assignments(workload))


def _is(one: Object, condition: str) -> bool:
    found = (one.get("status") or {}).get("conditions") or ()
    return any(each["type"] == condition and each["status"] == "True" for each in found)


# ---- quota --------------------------------------------------------------------------------------------------------


def _room(one: Object, queue: Object, own: Sequence[Object], cluster: SeenObjects) -> int:
    """Return the room in the queue for more pods of the Job, in the flavours of its newest admitted workload."""
    admitted = [each for each in own if _is(each, "Admitted")]
    chosen = dict(
        (_assignments(admitted[-1])[0].get("flavors") or {}) if admitted and _assignments(admitted[-1]) else {}
    )
    nominal: dict[str, int] = {}
    used: dict[str, int] = {}
    usage = _usage(queue)
    for group in queue["spec"].get("resourceGroups") or ():
        for flavor in group["flavors"]:
            for resource in flavor["resources"]:
                name = resource["name"]
                if name in nominal or chosen.get(name, flavor["name"]) != flavor["name"]:
                    continue
                nominal[name] = thousandths(resource["nominalQuota"])
                used[name] = usage.get((flavor["name"], name), 0)
    jobs = [_pods_in_queue(each, cluster) for each in _jobs_in(queue, cluster)]
    return free_pods(nominal, used, jobs, requests_of(one))


def _usage(queue: Object) -> dict[tuple[str, str], int]:
    """Return what Kueue counts, reserved or used, whichever is more."""
    found: dict[tuple[str, str], int] = {}
    status = queue.get("status") or {}
    for kind in ("flavorsReservation", "flavorsUsage"):
        for flavor in status.get(kind) or ():
            for resource in flavor["resources"]:
                key = flavor["name"], resource["name"]
                found[key] = max(found.get(key, 0), thousandths(resource.get("total", "0")))
    return found


def _jobs_in(queue: Object, cluster: SeenObjects) -> Iterable[Object]:
    name = queue["metadata"]["name"]
    for one in cluster.jobs.values():
        found = _cluster_queue(one, cluster)
        if found is not None and found["metadata"]["name"] == name:
            yield one


def _pods_in_queue(one: Object, cluster: SeenObjects) -> PodsInQueue:
    status = one.get("status") or {}
    pods = int(status.get("active") or 0) + int(status.get("terminating") or 0)
    admitted = [_admitted_pods(each) for each in _workloads_of(one, cluster) if _is(each, "Admitted")]
    return PodsInQueue(pods, max(admitted, default=0), requests_of(one))


def _cluster_queue(one: Object, cluster: SeenObjects) -> Object | None:
    local = cluster.local_queues.get((one["metadata"].get("labels") or {}).get(QUEUE, ""))
    return cluster.cluster_queues.get(local["spec"].get("clusterQueue", "")) if local is not None else None


def requests_of(one: Object) -> dict[str, int]:
    """Return what one pod of the Job requests, in thousandths of each unit; a limit stands for a request left out."""
    found: dict[str, int] = {}
    for container in one["spec"].get("template", {}).get("spec", {}).get("containers") or ():
        resources = container.get("resources") or {}
        for name, amount in ((resources.get("limits") or {}) | (resources.get("requests") or {})).items():
            found[name] = found.get(name, 0) + thousandths(amount)
    return found


def thousandths(quantity: object) -> int:
    """Return a quantity of Kubernetes, as in 500m or 2Gi, in whole thousandths of its unit. Raises UnfitObject."""
    found = re.fullmatch(r"([+-]?[\d.]+(?:[eE][+-]?\d{1,3})?)([A-Za-z]{0,2})", str(quantity))
    try:
        return int(Decimal(found[1]) * SUFFIXES[found[2]] * 1000)  # type: ignore[index]
    except (TypeError, KeyError, InvalidOperation):
        raise UnfitObject("a quantity", quantity, "state a number, as in 500m or 2Gi") from None


# ---- what is written ----------------------------------------------------------------------------------------------


def sized(one: Object, write: SizeWrite) -> Object:
    """Return the fields to apply: the size, the decision's name and reason, and the version that it was decided for."""
    told = f"{job_of(one)}/{write.number}: {in_words(write)}"
    spec: Object = {"parallelism": write.count}
    if _annotations(one).get(COMPLETIONS) == "true":
        spec["completions"] = write.count
    meta = {"name": one["metadata"]["name"], "resourceVersion": one["metadata"]["resourceVersion"]}
    return {"metadata": {**meta, "annotations": {DECISION: told}}, "spec": spec}


def in_words(write: SizeWrite) -> str:
    """Return a decision with its reason."""
    return f"{write.purpose} from {write.before} to {write.count} pods: {write.reason}"


def event_about(one: Object, name: str, reason: str, message: str, warns: bool, now: str) -> Object:
    """Return an Event about the object. The same name is the same event: a second one is refused."""
    meta = one["metadata"]
    return {
        "metadata": {"name": f"{meta['name'][:200]}.{name}", "namespace": meta["namespace"]},
        "involvedObject": {
            "apiVersion": "batch/v1",
            "kind": "Job",
            **{key: meta[key] for key in ("name", "namespace", "uid")},
        },
        "reason": reason,
        "message": message[:1024],
        "type": "Warning" if warns else "Normal",
        "source": {"component": "stretto-decider"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def _annotations(one: Object) -> Mapping[str, str]:
    return one["metadata"].get("annotations") or {}
