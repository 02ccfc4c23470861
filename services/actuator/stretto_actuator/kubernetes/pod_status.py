"""The status of a Kubernetes pod in the terms of the backend: pure functions of the object."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Literal

from stretto_kube import KubeFault, Object, parse_quantity
from stretto_wire.jobspec.kubernetes import JOB, POD

from ..backend import ExitReason, PodStatus, Waiting, exit_reason
from .manifest import CONTAINER

LIMITS = ("kubelet",)

_DISRUPTED: dict[str, ExitReason] = {
    "PreemptionByScheduler": "preempted",
    "DeletionByTaintManager": "node-lost",
    "DeletionByPodGC": "node-lost",
    "EvictionByEvictionAPI": "evicted",
    "TerminationByKubelet": "evicted",
}
"""Exit reason by the reason of the condition DisruptionTarget."""
_REFUSED_BY_NODE = ("OutOf", "Unexpected", "NodeAffinity", "NodeName", "NodePorts", "Taint", "InvalidNodeInfo")
_DIED: dict[str, ExitReason] = {
    "Evicted": "evicted",
    "Preempting": "preempted",
    "NodeLost": "node-lost",
    "NodeShutdown": "node-lost",
    "Shutdown": "node-lost",
    "Terminated": "node-lost",
}
"""Exit reason by the pod's own reason."""
_NO_IMAGE = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "RegistryUnavailable",
    "ImageInspectError",
    "SignatureValidationFailed",
)


def status_of(pod: Object, adopted: bool = False, asked: bool = False) -> PodStatus:
    """The pod as the actuator knows pods; ``asked``: we wanted its end."""
    meta = pod["metadata"]
    container = _container(pod)
    cpu_cores, memory_bytes = in_force(pod)
    state = container.get("state") or {}
    base = PodStatus(
        job=meta["labels"][JOB],
        pod=meta["labels"][POD],
        state="running",
        cpu_cores=cpu_cores,
        memory_bytes=memory_bytes,
        limits=LIMITS,
        launched_at_s=_epoch_s((state.get("running") or {}).get("startedAt") or meta["creationTimestamp"]),
        adopted=adopted,
    )
    terminated = state.get("terminated")
    disrupted = disruption(pod)
    if terminated is not None or _status(pod).get("phase") in ("Succeeded", "Failed") or disrupted == "node-lost":
        ended = _exited(base, pod, terminated or {}, disrupted)
        # a kubelet may have lost the container before it reported its end
        return replace(ended, reason="killed") if asked and ended.reason == "vanished" else ended
    waiting = _waiting(pod, state.get("waiting") or {})
    return replace(base, state="pending", waiting=waiting) if waiting is not None else base


def vanished(pod: Object, asked: bool, adopted: bool = False) -> PodStatus:
    """A pod whose object is gone, as last seen; ``asked``: we wanted its end."""
    last = status_of(pod, adopted, asked)
    if last.state == "exited":
        return last
    reason: ExitReason = disruption(pod) or ("killed" if asked else "vanished")
    detail = "its object was deleted"
    if asked and last.waiting is not None and last.waiting.reason == "image-pull":
        reason = "image-pull"
        detail = last.waiting.detail
    return replace(last, state="exited", waiting=None, reason=reason, detail=detail)


def disruption(pod: Object) -> ExitReason | None:
    """Return the reason for which Kubernetes itself ends the pod, or None."""
    condition = _condition(pod, "DisruptionTarget")
    if condition is not None and condition.get("status") == "True":
        return _DISRUPTED.get(str(condition.get("reason")), "evicted")
    reason = str(_status(pod).get("reason") or "")
    if reason.startswith(_REFUSED_BY_NODE):  # the scheduler chose it, the node had changed its mind
        return "evicted"
    return _DIED.get(reason)


def wanted(pod: Object) -> tuple[float, int]:
    """CPU cores and bytes that the pod's specification names."""
    return _limits(_ours(pod["spec"]["containers"]))


def in_force(pod: Object) -> tuple[float, int]:
    """CPU cores and bytes that the node gives; where it does not tell, what was asked for."""
    return _limits(_ours(pod["spec"]["containers"]), _container(pod))


def waits_to_grow(pod: Object) -> tuple[Literal["", "deferred", "infeasible"], float]:
    """Return the state of a resize for which the node has no room now or ever, and since when (epoch, seconds)."""
    pending = _condition(pod, "PodResizePending")
    if pending is None or pending.get("status") != "True":
        return "", 0.0
    since_s = _epoch_s(pending["lastTransitionTime"]) if pending.get("lastTransitionTime") else 0.0
    return "infeasible" if pending.get("reason") == "Infeasible" else "deferred", since_s


def keeps_its_memory(pod: Object) -> bool:
    """Return True if the node has refused a resize because the memory is in use."""
    changing = _condition(pod, "PodResizeInProgress")
    if changing is None or changing.get("status") != "True" or changing.get("reason") != "Error":
        return False
    return wanted(pod)[1] < in_force(pod)[1]


def unplaced(fault: KubeFault) -> Waiting | None:
    """Why a pod could not be made now and may be later; None: it never will be, as it was asked for."""
    if fault.status == 403 and "exceeded quota" in fault.message:
        return Waiting("quota", fault.message)
    return Waiting("starting", str(fault)) if fault.passing else None


def _exited(base: PodStatus, pod: Object, terminated: Object, disrupted: ExitReason | None) -> PodStatus:
    unseen = terminated.get("reason") == "ContainerStatusUnknown"  # the kubelet found it gone
    code = None if unseen or "exitCode" not in terminated else int(terminated["exitCode"])
    oom_killed = terminated.get("reason") == "OOMKilled"
    reason = disrupted if disrupted is not None and not oom_killed else exit_reason(code, oom_killed)
    log, detail = (
        "" if reason == "completed" else str(found.get("message") or "").strip() for found in (terminated, _status(pod))
    )  # the manifest has the kubelet take the last lines of the log for the container's message
    return replace(base, state="exited", exit_code=code, reason=reason, detail=detail, log=log)


def _waiting(pod: Object, waiting: Object) -> Waiting | None:
    """Return the reason why the container does not run yet; None if it runs."""
    reason = str(waiting.get("reason") or "")
    message = str(waiting.get("message") or "")
    if reason in _NO_IMAGE:
        image = _ours(pod["spec"]["containers"]).get("image")  # which not every engine names
        return Waiting("image-pull", f"{image}: {reason}: {message}")
    scheduled = _condition(pod, "PodScheduled") or {}
    if scheduled.get("status") == "False":
        detail = str(scheduled.get("message") or scheduled.get("reason") or "")
        held = scheduled.get("reason") == "SchedulingGated"
        return Waiting("quota" if held else "no-room", detail, held)
    if _status(pod).get("phase", "Pending") == "Pending" or waiting:
        return Waiting("starting", ": ".join(part for part in (reason, message) if part))
    return None


def _status(pod: Object) -> Object:
    return pod.get("status") or {}


def _limits(*objects: Object) -> tuple[float, int]:
    """Return CPU and memory limits; later objects override earlier ones."""
    limits: Object = {}
    for each in objects:
        limits |= (each.get("resources") or {}).get("limits") or {}
    return float(parse_quantity(limits.get("cpu", 0))), int(parse_quantity(limits.get("memory", 0)))


def _container(pod: Object) -> Object:
    return _ours(_status(pod).get("containerStatuses") or [])


def _ours(containers: list[Object]) -> Object:
    """Clusters add containers of their own to pods."""
    return next((each for each in containers if each["name"] == CONTAINER), {})


def _condition(pod: Object, kind: str) -> Object | None:
    return next((each for each in _status(pod).get("conditions") or [] if each.get("type") == kind), None)


def _epoch_s(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
