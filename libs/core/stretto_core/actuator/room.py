"""What is done about pods that cannot run yet: they are told of, so that the arbiter may plan anew, and given up in the
end, so that nobody queues for ever. Room that is missing is nobody's fault: it is counted against nothing. A pod that
has no room to grow where it runs is replaced.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

from stretto_core.actuator.state import ActuatorState, Role, WaitReason

AGAIN_S = 60.0
"""after that another pod is tried, unless there is another plan by then"""


@dataclass(frozen=True, slots=True)
class PodPending:
    """A pod that was launched cannot run yet. Told once for each reason; the machine fills in the role."""

    pod: str
    reason: WaitReason
    detail: str = ""
    role: Role = "worker"


@dataclass(frozen=True, slots=True)
class PodGivenUp:
    """Observed: a pod has waited too long for room."""

    pod: str


@dataclass(frozen=True, slots=True)
class PodFixed:
    """A running pod cannot get other limits where it is."""

    pod: str


class Hands(Protocol):
    """What of the actuator's machine is needed here."""

    state: ActuatorState

    def fill(self, role: Role, now: float, cause: Any, wait_s: float = 0.0) -> None: ...
    def relayout(self, cause: Any) -> None: ...
    def tell(self, fact: Any) -> None: ...


def pending(machine: Hands, event: PodPending, now: float) -> None:
    """Tell the reason, unless it is the one that was told last."""
    pod = machine.state.pods.get(event.pod)
    if pod is not None and pod.phase == "starting" and pod.waiting != event.reason:
        pod.waiting, pod.waiting_since_s = event.reason, now
        machine.tell(replace(event, role=pod.role))


def given_up(machine: Hands, event: PodGivenUp, now: float) -> None:
    """End it; its place in the plan is for one that is tried later."""
    pod = machine.state.pods.get(event.pod)
    if pod is not None and pod.phase == "starting":
        pod.phase = "stopping"
        machine.fill(pod.role, now, pod.cause, AGAIN_S)


def fixed(machine: Hands, event: PodFixed, now: float) -> None:
    """Another one with the plan's limits comes in its place: a worker leaves at once, a server when its successor has
    taken its buckets. Nothing is lost, and no other worker stops."""
    state, pod = machine.state, machine.state.pods.get(event.pod)
    if state.phase != "active" or pod is None or pod.phase != "running" or pod.leaving:
        return
    if pod.role == "worker":
        pod.phase = "stopping"
    elif state.layout == "ready" and pod.listed:
        pod.leaving = pod.retired = True
        machine.relayout("plan")
    else:
        return
    machine.fill(pod.role, now, "relaunch")
