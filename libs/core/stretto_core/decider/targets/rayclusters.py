"""A RayCluster (``ray.io/v1``, KubeRay 1.7): the ``replicas`` of one of its worker groups are its size.

The operator's status counts the workers of all groups together: what is not due to the others is taken for the sized
group's. With ``enableInTreeAutoscaling`` Ray's own autoscaler writes the sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

from stretto_core.decider.fields import Object, UnfitObject
from stretto_core.decider.observations import WorkloadSeen
from stretto_core.decider.targets.target import Ending, Part, Pods, Target, chosen

UNSTATED = 2**31 - 1
"""``maxReplicas`` that nobody stated."""


class RayClusterTarget(Target):
    kind, group, version, plural = "RayCluster", "ray.io", "v1", "rayclusters"

    def part(self, one: Object) -> Part:
        if one["spec"].get("enableInTreeAutoscaling"):
            raise UnfitObject("enableInTreeAutoscaling", True, "leave it out: Ray's autoscaler would write other sizes")
        sized = chosen(one, one["spec"].get("workerGroupSpecs") or [], "groupName", "worker group")
        name, most = sized["groupName"], int(sized.get("maxReplicas", UNSTATED))
        if sized.get("numOfHosts", 1) > 1:
            raise UnfitObject(f"numOfHosts of {name}", sized["numOfHosts"], "state 1: a replica is one pod")
        least = max(int(sized.get("minReplicas") or 0), 1)
        return Part(name, _workers(sized), sized["template"], least, None if most == UNSTATED else most)

    def pods(self, one: Object, part: Part, children: Sequence[Object]) -> Pods:
        status, others = one.get("status") or {}, _of_others(one, part)
        running = max(int(status.get("availableWorkerReplicas") or 0) - others, 0)
        ready = max(int(status.get("readyWorkerReplicas") or 0) - others, 0)
        return Pods(min(running, part.count), min(ready, part.count), max(running - part.count, 0))

    def ending(self, one: Object) -> Ending:
        return "", ""

    def held(self, one: Object, part: Part, children: Sequence[Object]) -> tuple[WorkloadSeen, ...]:
        meta, status = one["metadata"], one.get("status") or {}
        if status.get("observedGeneration") != meta.get("generation"):
            return ()
        count = max(int(status.get("desiredWorkerReplicas") or 0) - _of_others(one, part), 0)
        return (
            WorkloadSeen(name=meta["name"], count=count, state="pending" if one["spec"].get("suspend") else "admitted"),
        )

    def resized(self, one: Object, part: Part, count: int) -> Object:
        """Return all groups, since the list is one value to the API server: as they were read, but for one number."""
        groups = one["spec"]["workerGroupSpecs"]
        return {"workerGroupSpecs": [{**each, "replicas": count} if _is(each, part) else each for each in groups]}


def _is(group: Object, part: Part) -> bool:
    return bool(group["groupName"] == part.name)


def _workers(group: Object) -> int:
    """Return the pods of a worker group: ``GetWorkerGroupDesiredReplicas`` of KubeRay."""
    if group.get("suspend"):
        return 0
    within = max(int(group.get("replicas") or 0), int(group.get("minReplicas") or 0))
    return min(within, int(group.get("maxReplicas", UNSTATED))) * int(group.get("numOfHosts") or 1)


def _of_others(one: Object, part: Part) -> int:
    return sum(_workers(each) for each in one["spec"]["workerGroupSpecs"] if not _is(each, part))
