"""Jobs under Kueue as the API server shows them, in JSON: what asks for a size, what is seen of it, what is written.

The API of Kueue is ``kueue.x-k8s.io/v1beta2``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cached_property
from typing import Any, Literal

from stretto_messages.base import bounded

from stretto_core.decider.observations import ObjectObserved, WorkloadSeen
from stretto_core.decider.quota import PodsInQueue, free_pods, held_by
from stretto_core.decider.state import SizeWrite
from stretto_core.decider.transition import begins_with
from stretto_core.machine import CoreError

Object = dict[str, Any]
SIZE, LEAST, MOST, DECISION = (f"stretto.dev/{name}" for name in ("size", "min", "max", "decision"))
QUEUE, ELASTIC = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/elastic-job"
MIN_PARALLELISM = "kueue.x-k8s.io/job-min-parallelism"
COMPLETIONS = "kueue.x-k8s.io/job-completions-equal-parallelism"
REPLACES = "kueue.x-k8s.io/workload-slice-replacement-for"
GATES = "kueue.x-k8s.io/admission-gated-by"
"""Names, split by commas, of those who have to decide before Kueue (0.19 or later) admits. Stretto's is ``SIZE``."""
TOPOLOGY = tuple(f"kueue.x-k8s.io/podset-{kind}-topology" for kind in ("required", "preferred"))
TRUE = ("1", "t", "T", "true", "TRUE", "True")
"""Values of ``COMPLETIONS`` that are true to Kueue: strconv.ParseBool of Go. Of ``ELASTIC`` only "true" is."""
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


@dataclass(frozen=True)
class SeenObjects:
    """The objects of a namespace by name, as they were last seen: a snapshot that serves all objects of a look."""

    jobs: Mapping[str, Object]
    workloads: Mapping[str, Object]
    local_queues: Mapping[str, Object]
    cluster_queues: Mapping[str, Object]

    @cached_property
    def workloads_of(self) -> Mapping[str, Sequence[Object]]:
        """Unfinished workloads by the uid of their owner; a workload that replaces another one follows it."""
        found: dict[str, list[Object]] = defaultdict(list)
        for each in self.workloads.values():
            if not _is(each, "Finished"):
                for owner in each["metadata"].get("ownerReferences") or ():
                    found[owner.get("uid", "")].append(each)
        for own in found.values():
            own.sort(key=lambda each: (each["metadata"].get("creationTimestamp", ""), REPLACES in _annotations(each)))
        return found

    @cached_property
    def held_in(self) -> Mapping[str, tuple[Mapping[str, int], Mapping[str, int]]]:
        """Quota that uncounted pods hold, by cluster queue: with pods that are only asked for, and without these."""
        pods: dict[str, list[PodsInQueue]] = defaultdict(list)
        for one in self.jobs.values():
            pods[self.queue_of((one["metadata"].get("labels") or {}).get(QUEUE, ""))].append(_pods_in_queue(one, self))
        return {name: (held_by(jobs, asked=True), held_by(jobs, asked=False)) for name, jobs in pods.items() if name}

    @cached_property
    def hopeless_in(self) -> Mapping[str, set[str]]:
        """Names of waiting workloads that request more than all nominal quota, by cluster queue."""
        found: dict[str, set[str]] = defaultdict(set)
        for each in self.workloads.values():
            if _is_queued(each) and each["spec"].get("active", True):
                queue = self.cluster_queues.get(name := self.queue_of(each["spec"].get("queueName", "")))
                if queue is not None and _exceeds(each, queue):
                    found[name].add(each["metadata"]["name"])
        return found

    def queue_of(self, local: str) -> str:
        """Return the name of the cluster queue of a local queue; empty: no such queue is seen."""
        name = self.local_queues.get(local, {}).get("spec", {}).get("clusterQueue", "")
        return name if name in self.cluster_queues else ""


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


def specification(one: Object, cluster: SeenObjects) -> dict[str, Any]:
    """Return the job file that planner and arbiter shall see of an object. Raises UnfitObject.

    The object begins with the pods that are admitted: those that wait for quota hold nothing of the capacity. One whose
    gate is closed begins with those that it is to be admitted with.
    """
    least, most = limits_of(one)
    seen, each = observed(one, cluster), requests_of(one)
    count = begins_with(seen, least, most) if seen.gated else _pods_in_queue(one, cluster).admitted
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
    is_elastic, is_gated = annotations.get(ELASTIC) == "true", SIZE in _gates(one)
    if is_elastic and is_gated:  # kubernetes-sigs/kueue#13836: the gate would stay closed for good
        remedy = f"leave {SIZE} out: Kueue never opens the gate of an elastic Job, which grows without one"
        raise UnfitObject(GATES, annotations[GATES], remedy)
    if not (is_elastic or is_gated or _decision_in(one, job_of(one))):
        remedy = f'state "true", else Kueue stops all pods at a resize; or, for a size to begin with, {GATES}: {SIZE}'
        raise UnfitObject(ELASTIC, annotations.get(ELASTIC), remedy)
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
    due, most = _work_left(one)
    seen = [_seen(each) for each in own]
    name = cluster.queue_of((one["metadata"].get("labels") or {}).get(QUEUE, ""))
    queue = cluster.cluster_queues.get(name)
    pending = int(((queue or {}).get("status") or {}).get("pendingWorkloads") or 0)
    rooms = (
        [min(_room(one, queue, own, held), PODS_MAX) for held in cluster.held_in.get(name, ({}, {}))]
        if queue
        else [0, 0]
    )
    hopeless = cluster.hopeless_in.get(name, set())
    waiting = hopeless | {each["metadata"]["name"] for each in own if _is_queued(each)}
    return ObjectObserved(
        job=job,
        decision=_decision_in(one, job),
        count=int(spec.get("parallelism") or 0),
        active=int(status.get("active") or 0),
        ready=int(status.get("ready") or 0),
        terminating=int(status.get("terminating") or 0),
        due=due,
        most=most,
        suspended=bool(spec.get("suspend")),
        gated=SIZE in _gates(one),
        fixed=_annotations(one).get(ELASTIC) != "true",
        ending=ending,
        ending_reason=reason,
        workloads=tuple(seen[-10:]),
        room=rooms[0],
        vacant=rooms[1],
        others_wait=pending > len(waiting),
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
    found = re.match(rf"{re.escape(job)}/(\d{{1,15}})\b", _annotations(one).get(DECISION, ""))
    return int(found[1]) if found else 0


def _work_left(one: Object) -> tuple[int, int | None]:
    """Return how many pods the Job controller lets run of those asked for, and for how many there is work; None: any.

    Completions that follow the size bound no size. Without completions no pod starts once one has succeeded.
    """
    spec, status = one["spec"], one.get("status") or {}
    count, completions = int(spec.get("parallelism") or 0), spec.get("completions")
    done = int(status.get("succeeded") or 0)
    if completions is None:
        left = int(status.get("active") or 0) if done else None
    else:
        left = max(int(completions) - done, 0)
    bounds = left is not None and _annotations(one).get(COMPLETIONS) not in TRUE
    return (count if left is None else min(count, left)), (left if bounds else None)


def _workloads_of(one: Object, cluster: SeenObjects) -> Sequence[Object]:
    return cluster.workloads_of.get(one["metadata"]["uid"], ())


def _is_queued(workload: Object) -> bool:
    """Return True for a workload that waits for admission in its queue, which one with a closed gate does not."""
    return not (_is(workload, "Finished") or _is(workload, "Admitted") or _gates(workload))


def _gates(one: Object) -> list[str]:
    return [name for each in _annotations(one).get(GATES, "").split(",") if (name := each.strip())]


def _seen(workload: Object) -> WorkloadSeen:
    count = sum(_counts(workload).values())
    state: Literal["pending", "admitted", "evicted"] = "pending"
    if _is(workload, "Evicted") and not _is(workload, "Admitted"):
        state = "evicted"
    elif _is(workload, "Admitted"):
        state, count = "admitted", _admitted_pods(workload)
    return WorkloadSeen(name=workload["metadata"]["name"], count=count, state=state)


def _assignments(workload: Object) -> Sequence[Object]:
    return ((workload.get("status") or {}).get("admission") or {}).get("podSetAssignments") or ()


def _counts(workload: Object) -> dict[str, int]:
    return {each.get("name", "main"): int(each.get("count") or 0) for each in workload["spec"].get("podSets") or ()}


def _admitted_pods(workload: Object) -> int:
    """Return the pods that are admitted, of each set as many as are both assigned and asked for.

    A size that gets smaller changes the specification only: an assignment cannot change, and may lack its count
    (``totalRequestsFromAdmission`` in pkg/workload of Kueue).
    """
    asked, assigned = _counts(workload), _assignments(workload)
    counts = [(asked.get(each.get("name", "main"), 0), each.get("count")) for each in assigned]
    return sum(count if given is None else min(count, int(given)) for count, given in counts)


def _is(one: Object, condition: str) -> bool:
    found = (one.get("status") or {}).get("conditions") or ()
    return any(each["type"] == condition and each["status"] == "True" for each in found)


# ---- quota --------------------------------------------------------------------------------------------------------


def _room(one: Object, queue: Object, own: Sequence[Object], held: Mapping[str, int]) -> int:
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
    return free_pods(nominal, used, held, requests_of(one))


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


def _pods_in_queue(one: Object, cluster: SeenObjects) -> PodsInQueue:
    """Return the pods of a Job. Those that it asks for count from then on, else two Jobs would grow into one room."""
    spec, status = one["spec"], one.get("status") or {}
    pods = int(status.get("active") or 0) + int(status.get("terminating") or 0)
    asked = 0 if spec.get("suspend") or ended(one) else _work_left(one)[0]
    admitted = [_admitted_pods(each) for each in _workloads_of(one, cluster) if _is(each, "Admitted")]
    return PodsInQueue(pods, asked, max(admitted, default=0), requests_of(one))


def _exceeds(workload: Object, queue: Object) -> bool:
    """Return True if a workload requests more than the queue's nominal quota, and the queue cannot borrow."""
    if queue["spec"].get("cohortName"):
        return False
    most: dict[str, int] = {}
    for group in queue["spec"].get("resourceGroups") or ():
        for flavor in group["flavors"]:
            for resource in flavor["resources"]:
                quota = thousandths(resource["nominalQuota"])
                most[resource["name"]] = max(most.get(resource["name"], 0), quota)
    wanted: dict[str, int] = {}
    for each in workload["spec"].get("podSets") or ():
        for name, amount in requests_of({"spec": each}).items():
            wanted[name] = wanted.get(name, 0) + amount * int(each.get("count") or 0)
    return any(wanted.get(name, 0) > quota for name, quota in most.items())


def requests_of(one: Object) -> dict[str, int]:
    """Return what one pod of the Job requests, in thousandths of each unit; a limit stands for a request left out.

    A pod requests its overhead, and the most of what runs at a time: an init container after the sidecars before it, or
    containers and sidecars, which are init containers that restart always.
    """
    spec = one["spec"].get("template", {}).get("spec", {})
    sidecars: dict[str, int] = {}
    starting: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        now = _sum(sidecars, _requests(container.get("resources") or {}))
        starting = {name: max(starting.get(name, 0), now.get(name, 0)) for name in starting | now}
        if container.get("restartPolicy") == "Always":
            sidecars = now
    running = sidecars
    for container in spec.get("containers") or ():
        running = _sum(running, _requests(container.get("resources") or {}))
    most = {name: max(starting.get(name, 0), running.get(name, 0)) for name in starting | running}
    return _sum(most, _requests({"requests": spec.get("overhead")})) | {"pods": 1000}


def _requests(resources: Object) -> dict[str, int]:
    given = (resources.get("limits") or {}) | (resources.get("requests") or {})
    return {name: thousandths(amount) for name, amount in given.items()}


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


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
    if _annotations(one).get(COMPLETIONS) in TRUE:
        spec["completions"] = write.count
    meta = {"name": one["metadata"]["name"], "resourceVersion": one["metadata"]["resourceVersion"]}
    annotations = {DECISION: told}
    if GATES in _annotations(one):  # with the gates of others; to Kueue an empty list is none
        annotations[GATES] = ",".join(name for name in _gates(one) if name != SIZE)
    return {"metadata": {**meta, "annotations": annotations}, "spec": spec}


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
