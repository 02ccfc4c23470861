"""The pods of a job: how many are wanted, how large each is, and the observations of one pod.

Names are never used again: numbers only grow, also across recoveries.
"""

from __future__ import annotations

from stretto_messages.actuator import PodPending, PodResized, PodStarted
from stretto_messages.values import ON_CORES, WorkerPlace

from stretto_core.actuator import data_workers
from stretto_core.actuator.state import ActuatorState, Facts, Pod, PodCause, Role

BACKOFF_MAX_S = 60.0
AGAIN_S = 60.0
"""Pause before another pod is tried after one that found no room, unless there is another plan by then."""


def resize_to_plan(state: ActuatorState) -> None:
    """Want the size of the current plan for every pod."""
    for pod in state.pods.values():
        if pod.phase != "stopping":
            pod.cpu_cores, pod.memory_bytes = _size(state, pod.role, pod.place)


def backoff_s(state: ActuatorState, role: Role) -> float:
    """Return the pause before a failed pod is replaced: 2^(n-2) s after n failures of its role in a row."""
    in_row = state.failures_in_row[role]
    return min(2.0 ** (in_row - 2), BACKOFF_MAX_S) if in_row > 1 else 0.0


def fill(state: ActuatorState, role: Role, now: float, cause: PodCause, wait_s: float = 0.0) -> None:
    """Want as many pods of ``role`` as the plan says.

    Leaving pods are taken back first, then new ones are named. Of too many, the newest stop. Workers are counted by
    their places, since no worker can get another one.
    """
    if role != "worker" or state.plan is None:
        return _fill(state, role, ON_CORES, _wanted(state, role), now, cause, wait_s)
    wanted, there = state.plan.worker_places, {pod.place for pod in state.of_role(role)}
    if state.phase == "completing":  # whatever devices it has
        evaluates = any(not place.stage for place in there)
        wanted = {} if evaluates else dict.fromkeys([*wanted][:1], min(1, state.evaluate))
    for place in sorted({*wanted, *there}):
        _fill(state, role, place, wanted.get(place, 0), now, cause, wait_s)


def _fill(
    state: ActuatorState, role: Role, place: WorkerPlace, wanted: int, now: float, cause: PodCause, wait_s: float
) -> None:
    pods = [pod for pod in state.of_role(role) if pod.place == place]
    missing = wanted - len(pods)
    if missing > 0:
        kept = (pod for pod in state.pods.values() if (pod.role, pod.place) == (role, place) and not pod.retired)
        leaving = sorted((pod for pod in kept if pod.leaving or pod.relieved), key=lambda pod: -pod.number)
        for pod in leaving[:missing]:
            if pod.leaving:
                state.relayout("plan")
            pod.leaving = pod.relieved = False
            missing -= 1
        for _ in range(missing):
            name_pod(state, role, now, cause, wait_s, place)
    if state.phase == "completing":
        return
    for pod in pods[len(pods) + missing :] if missing < 0 else []:
        if pod.role == "ps" and pod.listed:
            pod.leaving = True
            state.relayout("plan")
        elif pod.stage and pod.phase == "running":
            pod.relieved = True
        else:
            pod.stop()


def let_go(state: ActuatorState) -> None:
    """Stop the relieved workers once those that replace them run, or wait for what the relieved ones may hold."""
    workers = [pod for pod in state.pods.values() if pod.role == "worker" and pod.stage]
    if any(pod.phase == "starting" and pod.waiting is None for pod in workers):
        return
    for pod in workers:
        if pod.relieved:
            pod.stop()


def name_pod(
    state: ActuatorState, role: Role, now: float, cause: PodCause, wait_s: float = 0.0, place: WorkerPlace = ON_CORES
) -> None:
    """Want another pod, in ``wait_s`` at the earliest; after repeated failures of its role, later."""
    number = state.next_number[role]
    state.next_number[role] = number + 1
    if cause == "relaunch":
        wait_s = max(wait_s, backoff_s(state, role))
    cpu_cores, memory_bytes = _size(state, role, place)
    pod = Pod(
        name=f"{role}-{number}",
        role=role,
        number=number,
        cpu_cores=cpu_cores,
        memory_bytes=memory_bytes,
        plan_version=state.plan_version,
        cause=cause,
        wanted_at_s=now,
        device=place.device,
        stage=place.stage,
        first_layer=place.first_layer,
        not_before_s=now + wait_s,
    )
    state.pods[pod.name] = pod


def _wanted(state: ActuatorState, role: Role) -> int:
    if state.plan is None:
        return 0
    if role == "data":
        return data_workers.wanted(state)
    if state.phase == "completing":  # only the pods that the conclusion needs
        return len(state.of_role("ps"))
    return state.plan.servers


def _size(state: ActuatorState, role: Role, place: WorkerPlace) -> tuple[float, int]:
    plan = state.plan
    assert plan is not None  # pods are named only after a plan
    for group in plan.groups:
        if place == group.place:
            return group.cpu_cores, group.memory_bytes
    if role == "data":
        return state.data.cpu_cores, state.data.memory_bytes
    if role == "worker":
        return plan.worker_cpu_cores, max(plan.worker_memory_bytes, state.worker_memory_least_bytes)
    return plan.ps_cpu_cores, plan.ps_memory_bytes


# observations of one pod -------------------------------------------------------------------------------------------


def started(state: ActuatorState, event: PodStarted, now: float) -> Facts:
    """Take note of a pod that is ready."""
    pod = state.pods.get(event.pod)
    if pod is None or pod.phase != "starting":
        return []
    pod.phase = "running"
    pod.address = event.address
    pod.started_at_s = now
    pod.cpu_cores_now = event.cpu_cores
    pod.memory_bytes_now = event.memory_bytes
    return [event]


def resized(state: ActuatorState, event: PodResized) -> Facts:
    """Take note of new limits of a running pod."""
    pod = state.pods.get(event.pod)
    if pod is None or pod.phase != "running":
        return []
    # memory in use cannot be taken away: the possible limit is the wanted one until the next plan
    pod.memory_bytes = max(pod.memory_bytes, event.memory_bytes)
    if (pod.cpu_cores_now, pod.memory_bytes_now) == (event.cpu_cores, event.memory_bytes):
        return []
    pod.cpu_cores_now = event.cpu_cores
    pod.memory_bytes_now = event.memory_bytes
    return [event]


def resize_refused(state: ActuatorState, name: str, now: float) -> None:
    """Replace a pod that cannot get the plan's limits in place.

    A worker leaves at once, a server once its successor has taken its buckets. Nothing is lost, and no other worker
    stops.
    """
    pod = state.pods.get(name)
    if state.phase != "active" or pod is None or pod.phase != "running" or pod.leaving:
        return
    if state.watched:  # its end would undo the whole run: the next worker has the plan's size
        pod.cpu_cores, pod.memory_bytes = pod.cpu_cores_now, pod.memory_bytes_now
        return
    if pod.role != "ps":
        pod.stop()
    elif state.layout == "ready" and pod.listed:
        pod.leaving = True
        pod.retired = True
        state.relayout("plan")
    else:
        return
    fill(state, pod.role, now, "relaunch")


def pending(state: ActuatorState, event: PodPending, now: float) -> Facts:
    """Publish why a pod cannot run yet, once for each reason, so that the arbiter may plan anew.

    Missing room is nobody's fault: it is counted against nothing.
    """
    pod = state.pods.get(event.pod)
    if pod is None or pod.phase != "starting" or pod.waiting == event.reason:
        return []
    pod.waiting = event.reason
    pod.waiting_since_s = now
    return [event]


def given_up(state: ActuatorState, name: str, now: float) -> None:
    """End a pod that has waited too long; another one is tried later in its place in the plan."""
    pod = state.pods.get(name)
    if pod is not None and pod.phase == "starting":
        pod.stop()
        fill(state, pod.role, now, pod.cause, AGAIN_S)
