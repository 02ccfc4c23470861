"""Objects that ask for a size: what is asked for, what the machine is shown of them, and what is written into them."""

from __future__ import annotations

import re
from typing import Any

from stretto_messages.base import bounded

from stretto_core.decider.fields import (
    DECISION,
    ELASTIC,
    GATES,
    LEAST,
    MOST,
    OWN,
    QUEUE,
    SIZE,
    Object,
    UnfitObject,
    annotations_of,
    gates,
    labels_of,
)
from stretto_core.decider.kueue import (
    SeenObjects,
    is_queued,
    pods_in_queue,
    requests_in,
    room,
    seen_workload,
    workloads_of,
)
from stretto_core.decider.observations import ObjectObserved
from stretto_core.decider.quota import UNBOUNDED
from stretto_core.decider.state import SizeWrite
from stretto_core.decider.targets import Part, Target

MIN_PARALLELISM, POD_SET = "kueue.x-k8s.io/job-min-parallelism", "kueue.x-k8s.io/podset"
TOPOLOGY = tuple(f"kueue.x-k8s.io/podset-{kind}-topology" for kind in ("required", "preferred"))
PODS_MAX = 1000
LEAST_CORES, LEAST_BYTES = 0.001, 2**20
"""Size of a pod that requests nothing, for planner and arbiter."""


def asks(one: Object) -> bool:
    """Return True for an object that asks for a size."""
    return annotations_of(one).get(SIZE) == "auto"


def job_of(one: Object) -> str:
    """Return the name of the object's job. An object that is made again under its name is another job."""
    meta = one["metadata"]
    return f"{meta['name'][:54].rstrip('-.').replace('.', '-')}-{meta['uid'][:8]}"


def reference(target: Target, one: Object) -> str:
    """Return the object in words that no other object has."""
    return f"{target.kind}/{one['metadata']['namespace']}/{one['metadata']['name']}"


def limits_of(target: Target, one: Object) -> tuple[int, int]:
    """Return the fewest and the most pods that an object may have. Raises UnfitObject if it cannot be sized."""
    part = target.part(one)
    for name, value in annotations_of(one).items():
        if name.startswith("stretto.dev/") and name not in OWN:
            raise UnfitObject(name, value, f"leave it out; known are {', '.join(OWN[:-1])}")
    _check(target, one, part)
    own = PODS_MAX if part.most is None else min(part.most, PODS_MAX)
    least = max(_count(one, LEAST, part.least), part.least)
    most = min(_count(one, MOST, None if part.most is None else own), own)
    if least > most:
        raise UnfitObject(LEAST, least, f"give at most {MOST}, which is {most}")
    return least, most


def specification(target: Target, one: Object, cluster: SeenObjects) -> dict[str, Any]:
    """Return the job file that planner and arbiter shall see of an object. Raises UnfitObject.

    The object begins with the pods that are admitted: those that wait for quota hold nothing of the capacity. One whose
    gate is closed asks for the most: the room that there is then decides, and it is asked once.
    """
    least, most = limits_of(target, one)
    seen, each = observed(target, one, cluster), requests_in(one, target.part(one), cluster)
    admitted = pods_in_queue(target, one, cluster).admitted if labels_of(one).get(QUEUE) else seen.count
    count = most if seen.gated else admitted
    cores, memory = max(each.get("cpu", 0) / 1000, LEAST_CORES), max(each.get("memory", 0) // 1000, LEAST_BYTES)
    named = reference(target, one)
    return {
        "name": job_of(one),
        "program": {"command": [named], "level": 0, "object": named},
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


def _check(target: Target, one: Object, part: Part) -> None:
    """Raise UnfitObject for an object that Kueue runs, or is to run, in a way in which its size cannot change."""
    given, of_pods = annotations_of(one), part.template.get("metadata") or {}
    if not labels_of(one).get(QUEUE):
        if target.needs_queue:
            raise UnfitObject(
                f"label {QUEUE}", labels_of(one).get(QUEUE), f"name the queue that the {target.kind} waits in"
            )
        if POD_SET in (of_pods.get("labels") or {}):
            name = of_pods["labels"][POD_SET]
            raise UnfitObject(f"label {POD_SET}", name, "keep its owner out of Kueue, which would not count other pods")
        return
    for owner in one["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):  # as a RayJob of its RayCluster: the workload is the owner's
            raise UnfitObject("its owner", owner.get("kind"), f"take the label {QUEUE} off: Kueue admits the owner")
    is_elastic, is_gated = given.get(ELASTIC) == "true", SIZE in gates(one)
    if is_elastic and not target.is_elastic:
        remedy = f"leave it out: Kueue does not follow the size of a {target.kind} that runs"
        raise UnfitObject(ELASTIC, given[ELASTIC], remedy)
    if is_elastic and is_gated:  # kubernetes-sigs/kueue#13836: the gate would stay closed for good
        remedy = f"leave {SIZE} out: Kueue never opens the gate of an elastic {target.kind}, which grows without one"
        raise UnfitObject(GATES, given[GATES], remedy)
    if not (is_elastic or is_gated or _decision_in(one, job_of(one))):
        elastic = 'state "true", else Kueue stops all pods at a resize; or, ' if target.is_elastic else "leave it out; "
        raise UnfitObject(ELASTIC, given.get(ELASTIC), f"{elastic}for a size to begin with, {GATES}: {SIZE}")
    if MIN_PARALLELISM in given:
        raise UnfitObject(MIN_PARALLELISM, given[MIN_PARALLELISM], f"leave it out, and state {LEAST}")
    for name in TOPOLOGY if is_elastic else ():
        if name in (of_pods.get("annotations") or {}):
            raise UnfitObject(name, of_pods["annotations"][name], "leave it out: slices have no required topology")


def _count(one: Object, name: str, default: int | None) -> int:
    given = annotations_of(one).get(name, default)
    try:
        value = int(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise UnfitObject(name, given, f'state a number of pods from 1 to {PODS_MAX}, as in "8"') from None
    if not 1 <= value <= PODS_MAX:
        raise UnfitObject(name, given, f"state a number of pods from 1 to {PODS_MAX}")
    return value


# ---- what is seen -------------------------------------------------------------------------------------------------


def observed(target: Target, one: Object, cluster: SeenObjects) -> ObjectObserved:
    """Return what the machine is shown of an object. Raises UnfitObject."""
    job, part, (ending, reason) = job_of(one), target.part(one), target.ending(one)
    children, is_queued_object = cluster.jobs_of.get(one["metadata"]["uid"], ()), bool(labels_of(one).get(QUEUE))
    pods = target.pods(one, part, children)
    if is_queued_object:
        workloads = tuple(seen_workload(each, part) for each in workloads_of(one, cluster))
    else:
        workloads = target.held(one, part, children)
    rooms, others_wait = _rooms(one, part, cluster) if is_queued_object else ((UNBOUNDED, UNBOUNDED), False)
    return ObjectObserved(
        job=job,
        decision=_decision_in(one, job),
        count=part.count,
        active=pods.active,
        ready=pods.ready,
        terminating=pods.terminating,
        due=pods.due,
        most=pods.most,
        suspended=bool(one["spec"].get("suspend")),
        gated=is_queued_object and SIZE in gates(one),
        fixed=is_queued_object and annotations_of(one).get(ELASTIC) != "true",
        ending=ending,
        ending_reason=bounded(reason),
        workloads=workloads[-10:],
        room=rooms[0],
        vacant=rooms[1],
        others_wait=others_wait,
    )


def _rooms(one: Object, part: Part, cluster: SeenObjects) -> tuple[tuple[int, int], bool]:
    """Return the room in the object's queue, with and without what others ask for, and whether others wait."""
    name = cluster.queue_of(one)
    queue = cluster.cluster_queues.get(name)
    if queue is None:
        return (0, 0), False
    counted, vacant = cluster.held_in.get(name, ({}, {}))
    found = room(one, part, queue, cluster, counted), room(one, part, queue, cluster, vacant)
    own = {each["metadata"]["name"] for each in workloads_of(one, cluster) if is_queued(each)}
    pending = int((queue.get("status") or {}).get("pendingWorkloads") or 0)
    waiting = cluster.hopeless_in.get(name, set()) | own
    return (min(found[0], PODS_MAX), min(found[1], PODS_MAX)), pending > len(waiting)


def gone(job: str, reason: str) -> ObjectObserved:
    """Return what is seen of an object that is Stretto's no more."""
    return ObjectObserved(
        job=job, decision=0, count=0, active=0, ready=0, terminating=0, room=0, ending="gone", ending_reason=reason
    )


def _decision_in(one: Object, job: str) -> int:
    found = re.match(rf"{re.escape(job)}/(\d{{1,15}})\b", annotations_of(one).get(DECISION, ""))
    return int(found[1]) if found else 0


# ---- what is written ----------------------------------------------------------------------------------------------


def sized(target: Target, one: Object, write: SizeWrite) -> Object:
    """Return the fields to apply: the size, the decision's name and reason, and the version that it was decided for."""
    meta = {"name": one["metadata"]["name"], "resourceVersion": one["metadata"]["resourceVersion"]}
    noted = {DECISION: f"{job_of(one)}/{write.number}: {in_words(write)}"}
    if GATES in annotations_of(one):  # with the gates of others; to Kueue an empty list is none
        noted[GATES] = ",".join(name for name in gates(one) if name != SIZE)
    return {"metadata": {**meta, "annotations": noted}, "spec": target.resized(one, target.part(one), write.count)}


def in_words(write: SizeWrite) -> str:
    """Return a decision with its reason."""
    return f"{write.purpose} from {write.before} to {write.count} pods: {write.reason}"


def event_about(target: Target, one: Object, name: str, reason: str, message: str, warns: bool, now: str) -> Object:
    """Return an Event about the object. The same name is the same event: a second one is refused."""
    meta = one["metadata"]
    return {
        "metadata": {"name": f"{meta['name'][:200]}.{name}", "namespace": meta["namespace"]},
        "involvedObject": {
            "apiVersion": f"{target.group}/{target.version}",
            "kind": target.kind,
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
