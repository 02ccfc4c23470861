"""The API server's treatment of pods: defaults, quota, immutable fields, graceful deletion."""

from __future__ import annotations

import copy
from typing import Any

from stretto_kube import parse_quantity

from .merging import Object
from .storage import Storage, now_text

MUTABLE = ("image",)


class Refused(Exception):
    """An answer other than success."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message

    def status_object(self) -> Object:
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": self.status,
                "reason": self.reason, "message": self.message}  # fmt: skip


def admit(pod: Object, known: Object | None, quota: dict[str, float], storage: Storage) -> Object:
    """Return the pod as it is stored. Raises Refused."""
    if known is None:
        _within(quota, pod, storage)
        return {**pod, "status": {"phase": "Pending", "conditions": []}}
    if _frozen(known) != _frozen(pod):
        raise Refused(422, "Invalid", f'Pod "{pod["metadata"]["name"]}" is invalid: pod updates may not change fields')
    return pod


def resize(known: Object, wanted: Object, quota: dict[str, float], storage: Storage) -> Object:
    """Return the pod with other resources; nothing else may change on this subresource. Raises Refused."""
    name = known["metadata"]["name"]
    if _but_resources(known) != _but_resources(wanted):
        raise Refused(422, "Invalid", f'Pod "{name}" is invalid: only cpu and memory resources are mutable')
    for container in wanted["spec"]["containers"]:
        if container["resources"]["requests"] != container["resources"]["limits"]:
            raise Refused(422, "Invalid", f'Pod "{name}" is invalid: Pod QOS Class may not change')
    _within(quota, wanted, storage)
    return wanted


def delete_pod(storage: Storage, pod: Object, grace_s: int | None) -> Object:
    """Delete at once if no kubelet has a process to end, else later; a shorter grace than before counts."""
    if grace_s is None:
        grace_s = pod["spec"].get("terminationGracePeriodSeconds", 30)
    told_s = pod["metadata"].get("deletionGracePeriodSeconds", grace_s)
    over = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    if over or grace_s == 0 or not pod["spec"].get("nodeName"):
        return storage.remove("pods", pod["metadata"]["name"]) or pod
    meta = pod["metadata"] | {
        "deletionTimestamp": now_text(grace_s),
        "deletionGracePeriodSeconds": min(grace_s, told_s),
    }
    return storage.put("pods", {**pod, "metadata": meta})


def requests(pod: Object) -> tuple[float, float]:
    """Sum up the CPU cores and bytes of all containers."""
    asked = [container.get("resources", {}).get("requests", {}) for container in pod["spec"]["containers"]]
    return (
        float(sum(parse_quantity(each.get("cpu", 0)) for each in asked)),
        float(sum(parse_quantity(each.get("memory", 0)) for each in asked)),
    )


def _within(quota: dict[str, float], pod: Object, storage: Storage) -> None:
    name = pod["metadata"]["name"]
    living = [
        each
        for each in storage.all("pods")
        if each["metadata"]["name"] != name and each["status"].get("phase") not in ("Succeeded", "Failed")
    ]
    totals = [requests(each) for each in [*living, pod]]
    used = {"pods": len(totals), "cpu": sum(cpu for cpu, _ in totals), "memory": sum(size for _, size in totals)}
    over = [f"{what}={used[what]:g}, limited: {most:g}" for what, most in quota.items() if used[what] > most]
    if over:
        raise Refused(
            403, "Forbidden", f'pods "{name}" is forbidden: exceeded quota: team, requested: {", ".join(over)}'
        )


def _frozen(pod: Object) -> Any:
    spec = copy.deepcopy(pod["spec"])
    spec.pop("nodeName", None)
    for container in spec["containers"]:
        for field in MUTABLE:
            container.pop(field, None)
    return spec


def _but_resources(pod: Object) -> Any:
    spec = copy.deepcopy(pod["spec"])
    for container in spec["containers"]:
        container.pop("resources", None)
    return spec, pod.get("status")
