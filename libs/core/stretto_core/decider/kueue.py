"""Workloads and queues of Kueue as the API server shows them (``v1beta2``), and the room that they leave."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from stretto_core.decider.fields import (
    DECISION,
    GATES,
    QUEUE,
    SIZE,
    Object,
    UnfitObject,
    annotations_of,
    gates,
    is_true,
    labels_of,
    requests_of,
    thousandths,
)
from stretto_core.decider.observations import WorkloadSeen
from stretto_core.decider.quota import PodsInQueue, free_pods, held_by
from stretto_core.decider.targets import TARGETS, Part, Target

REPLACES = "kueue.x-k8s.io/workload-slice-replacement-for"


@dataclass(frozen=True)
class SeenObjects:
    """The objects of a namespace by name, as they were last seen: a snapshot that serves all objects of a look.

    ``objects``: by kind, those whose size can be decided, and all Jobs.
    """

    objects: Mapping[str, Mapping[str, Object]]
    workloads: Mapping[str, Object] = field(default_factory=dict)
    local_queues: Mapping[str, Object] = field(default_factory=dict)
    cluster_queues: Mapping[str, Object] = field(default_factory=dict)

    @cached_property
    def jobs_of(self) -> Mapping[str, Sequence[Object]]:
        """Jobs by the uid of their owner."""
        found: dict[str, list[Object]] = defaultdict(list)
        for each in self.objects.get("Job", {}).values():
            for owner in each["metadata"].get("ownerReferences") or ():
                found[owner.get("uid", "")].append(each)
        return found

    @cached_property
    def workloads_of(self) -> Mapping[str, Sequence[Object]]:
        """Unfinished workloads by the uid of their owner; a workload that replaces another one follows it."""
        found: dict[str, list[Object]] = defaultdict(list)
        for each in self.workloads.values():
            if not is_true(each, "Finished"):
                for owner in each["metadata"].get("ownerReferences") or ():
                    found[owner.get("uid", "")].append(each)
        for own in found.values():
            own.sort(key=lambda each: (each["metadata"].get("creationTimestamp", ""), REPLACES in annotations_of(each)))
        return found

    @cached_property
    def held_in(self) -> Mapping[str, tuple[Mapping[str, int], Mapping[str, int]]]:
        """Quota that uncounted pods hold, by cluster queue: with pods that are only asked for, and without these."""
        pods: dict[str, list[PodsInQueue]] = defaultdict(list)
        for kind, objects in self.objects.items():
            for one in objects.values():
                if name := self.queue_of(one):
                    try:
                        pods[name].append(pods_in_queue(TARGETS[kind], one, self))
                    except UnfitObject:  # nothing tells which of its pods would be sized
                        continue
        return {name: (held_by(found, asked=True), held_by(found, asked=False)) for name, found in pods.items()}

    @cached_property
    def hopeless_in(self) -> Mapping[str, set[str]]:
        """Names of waiting workloads that request more than all nominal quota, by cluster queue."""
        found: dict[str, set[str]] = defaultdict(set)
        for each in self.workloads.values():
            if is_queued(each) and each["spec"].get("active", True):
                queue = self.cluster_queues.get(name := self._cluster_queue(each["spec"].get("queueName", "")))
                if queue is not None and _exceeds(each, queue):
                    found[name].add(each["metadata"]["name"])
        return found

    def queue_of(self, one: Object) -> str:
        """Return the name of an object's cluster queue; empty: no such queue is seen."""
        return self._cluster_queue(labels_of(one).get(QUEUE, ""))

    def _cluster_queue(self, local: str) -> str:
        name: str = self.local_queues.get(local, {}).get("spec", {}).get("clusterQueue", "")
        return name if name in self.cluster_queues else ""


# ---- workloads ----------------------------------------------------------------------------------------------------


def workloads_of(one: Object, cluster: SeenObjects) -> Sequence[Object]:
    return cluster.workloads_of.get(one["metadata"]["uid"], ())


def is_queued(workload: Object) -> bool:
    """Return True for a workload that waits for admission in its queue, which one with a closed gate does not."""
    return not (is_true(workload, "Finished") or is_true(workload, "Admitted") or gates(workload))


def seen_workload(workload: Object, part: Part) -> WorkloadSeen:
    """Return a workload's pods of one part, and whether they are admitted."""
    count = _counts(workload).get(part.name.lower(), 0)
    state: Literal["pending", "admitted", "evicted"] = "pending"
    if is_true(workload, "Evicted") and not is_true(workload, "Admitted"):
        state = "evicted"
    elif is_true(workload, "Admitted"):
        state, count = "admitted", admitted_pods(workload, part)
    return WorkloadSeen(name=workload["metadata"]["name"], count=count, state=state)


def admitted_pods(workload: Object, part: Part) -> int:
    """Return the pods of a part that are admitted: as many as are both assigned and asked for.

    A size that gets smaller changes the specification only: an assignment cannot change, and may lack its count
    (``totalRequestsFromAdmission`` in pkg/workload of Kueue).
    """
    assignment = _assignment(workload, part)
    if assignment is None:
        return 0
    asked, given = _counts(workload).get(part.name.lower(), 0), assignment.get("count")
    return asked if given is None else min(asked, int(given))


def _assignment(workload: Object, part: Part) -> Object | None:
    found = ((workload.get("status") or {}).get("admission") or {}).get("podSetAssignments") or ()
    return next((each for each in found if each.get("name", "main") == part.name.lower()), None)


def _counts(workload: Object) -> dict[str, int]:
    return {each.get("name", "main"): int(each.get("count") or 0) for each in workload["spec"].get("podSets") or ()}


# ---- quota --------------------------------------------------------------------------------------------------------


def requests_in(one: Object, part: Part, cluster: SeenObjects) -> dict[str, int]:
    """Return what one pod of a part requests: as Kueue counted at the admission, or by its template before one.

    ``resourceUsage`` is of all pods of the admission, with the overhead of a RuntimeClass and a LimitRange's defaults.
    """
    assignments = [_assignment(each, part) for each in workloads_of(one, cluster) if is_true(each, "Admitted")]
    counted = assignments[-1] if assignments and assignments[-1] else {}
    count = int(counted.get("count") or 0)
    usage: Object = (counted.get("resourceUsage") or {}) if count else {}
    return requests_of(part.template) | {name: -(-thousandths(amount) // count) for name, amount in usage.items()}


def room(one: Object, part: Part, queue: Object, cluster: SeenObjects, held: Mapping[str, int]) -> int:
    """Return the room in the queue for more pods of a part, in the flavours of its newest admitted workload."""
    admitted = [each for each in workloads_of(one, cluster) if is_true(each, "Admitted")]
    assignment = _assignment(admitted[-1], part) if admitted else None
    chosen = (assignment or {}).get("flavors") or {}
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
    return free_pods(nominal, used, held, requests_in(one, part, cluster))


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


def pods_in_queue(target: Target, one: Object, cluster: SeenObjects) -> PodsInQueue:
    """Return the pods of an object. Those asked for count from then on, else two objects would grow into one room, or
    begin with the same."""
    part = target.part(one)
    pods = target.pods(one, part, cluster.jobs_of.get(one["metadata"]["uid"], ()))
    is_stopped = one["spec"].get("suspend") and not is_to_begin(one, cluster)
    asks_for_none = is_stopped or target.ending(one)[0]
    asked = 0 if asks_for_none else part.count if pods.due is None else pods.due
    admitted = [admitted_pods(each, part) for each in workloads_of(one, cluster) if is_true(each, "Admitted")]
    requests = requests_in(one, part, cluster)
    return PodsInQueue(pods.active + pods.terminating, asked, max(admitted, default=0), requests)


def is_to_begin(one: Object, cluster: SeenObjects) -> bool:
    """Return True for an object that Stretto has given its first size, and that Kueue has not looked at since.

    Until Kueue counts its workload among those that wait, nothing else tells of the room that the object was given.
    """
    noted = annotations_of(one)
    if DECISION not in noted or GATES not in noted or SIZE in gates(one):
        return False
    looked_at = (is_true(each, "Admitted") or is_true(each, "Evicted") for each in workloads_of(one, cluster))
    return not any(looked_at)


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
        for name, amount in requests_of(each.get("template") or {}).items():
            wanted[name] = wanted.get(name, 0) + amount * int(each.get("count") or 0)
    return any(wanted.get(name, 0) > quota for name, quota in most.items())
