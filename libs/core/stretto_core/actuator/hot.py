"""What is done about a parameter server that is slower or busier than its peers (DLRover-RM section 5, hot PS).

Every push goes to all servers, and the slowest one makes the step wait. With a share w of the buckets beside its
peers', each of which has 1, an update takes a server T(w) = k w; its peers take T_p, whatever w. Both are equal at

    w' = w T_p / T(w),

so one migration moves as much as was measured. A server for which little would be left is replaced: a fresh one
starts, takes all that it has, and it is retired. What was moved away comes back step by step once it keeps pace.

For a while there is one server more than the plan says, so the arbiter is asked for the room. Where there is none, or
where the fresh one does not come, the hot one keeps the least share instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from stretto_core.actuator.state import (
    ActuatorState,
    HotPsCleared,
    HotPsDetected,
    MigrationCause,
    Pod,
    Replacement,
    Role,
)
from stretto_core.machine import Tick

PAUSE_S = 60.0
"""between two measures; twice as long after every server that was replaced"""
DOUBLINGS_MAX = 6
BUSY_FACTOR = 0.7
"""share that is left to a server whose CPU is full though its updates are no slower, and the most that is left"""
SHARE_LEAST = 0.15
"""a server for which less would be left is replaced"""
BACK_LEAST, BACK_MOST = 1.5, 4.0
"""a server that keeps pace gets so much more: what it showed it can take, within these bounds"""
WHOLE = 0.95
ANSWER_S = 60.0
"""an arbiter that says nothing about the room is not waited for any longer"""
READY_S = 180.0
"""nor is a fresh server that does not run by then"""

Remedy = Literal["share", "replace"]


@dataclass(frozen=True, slots=True)
class ReplacementDecided:
    """Whether there is room for one server more than the plan says, to take the place of ``pod``."""

    pod: str
    granted: bool


@dataclass(frozen=True, slots=True)
class ReplacementAsked:
    """Another server would take the place of the hot one, if there is room for both."""

    pod: str


@dataclass(frozen=True, slots=True)
class ReplacementEnded:
    """The job needs no room beyond its plan any more."""

    pod: str


class Hands(Protocol):
    """What of the actuator's machine is needed here."""

    state: ActuatorState

    def relayout(self, cause: MigrationCause) -> None: ...
    def name_pod(self, role: Role, now: float, cause: Any) -> None: ...
    def fill(self, role: Role, now: float, cause: Any) -> None: ...
    def tell_servers(self) -> None: ...
    def tell(self, fact: Any) -> None: ...


# what happens ----------------------------------------------------------------------------------------------------


def detected(machine: Hands, event: HotPsDetected, now: float) -> None:
    """Give the server another share, or ask for room for its successor."""
    pod = _movable(machine.state, event.pod)
    remedy = _remedy(machine.state, pod, event, now) if pod else None
    if remedy == "share":
        machine.relayout("hot-ps")
    elif remedy == "replace":
        machine.state.replacement = Replacement(event.pod, now)
        machine.tell(ReplacementAsked(event.pod))


def cleared(machine: Hands, event: HotPsCleared, now: float) -> None:
    """Give a server that keeps pace some of its buckets back."""
    pod = _movable(machine.state, event.pod)
    if pod is not None and _give_back(machine.state, pod, event):
        machine.relayout("hot-ps")


def decided(machine: Hands, event: ReplacementDecided, now: float) -> None:
    """The arbiter's answer; room that nobody wants any more is given back."""
    state, pod, asked = machine.state, _movable(machine.state, event.pod), machine.state.replacement
    if asked is None or asked.pod != event.pod:
        if event.granted:
            machine.tell(ReplacementEnded(event.pod))
    elif asked.granted:
        return
    elif event.granted and pod is not None:
        asked.granted, asked.since_s = True, now
        pod.leaving = pod.retired = True
        state.replaced += 1
        machine.relayout("hot-ps")
        machine.name_pod("ps", now, "relaunch")
    else:
        state.replacement = None
        if event.granted:
            machine.tell(ReplacementEnded(event.pod))
        elif pod is not None and _keep(state, pod):
            machine.relayout("hot-ps")


def time_passed(machine: Hands, event: Tick, now: float) -> None:
    """A replacement that comes to nothing does not hold up the next measure for ever."""
    state, replacement = machine.state, machine.state.replacement
    if replacement is None or not _overdue(state, replacement, now):
        return
    pod = state.pods.get(replacement.pod)
    gives = pod is not None and pod.phase == "running" and _keep(state, pod)
    if not replacement.granted:
        state.replacement = None  # a late yes is given back when it comes: said now, it would end the next one's room
    else:  # the room is free once the superfluous server is gone (``settle``)
        machine.fill("ps", now, "plan")
        state.rebalance = None
        machine.tell_servers()
        gives = gives or not all(each.listed for each in state.of_role("ps"))
    if gives:
        machine.relayout("hot-ps")


def settle(machine: Hands) -> None:
    """The room beyond the plan is given back when the job has no more servers than that."""
    state, replacement = machine.state, machine.state.replacement
    if replacement is None:
        return
    if not replacement.granted:
        if state.ended:  # nobody may answer any more; a late yes is given back (``decided``)
            state.replacement = None
    elif sum(pod.role == "ps" for pod in state.pods.values()) <= (state.plan.ps if state.plan else 0):
        state.replacement = None
        machine.tell(ReplacementEnded(replacement.pod))


# what is done about it -------------------------------------------------------------------------------------------


def _movable(state: ActuatorState, name: str) -> Pod | None:
    """The parameter server ``name``, unless parameters are moving or about to."""
    pod = state.pods.get(name)
    ready = state.phase == "active" and state.layout == "ready" and state.rebalance is None
    return pod if pod and ready and pod.listed and not pod.leaving else None


def _remedy(state: ActuatorState, pod: Pod, event: HotPsDetected, now: float) -> Remedy | None:
    """What to do about the hot server; another share is in ``state.weights`` then.

    None: too soon after the last measure, or in the middle of one.
    """
    if state.replacement is not None or now - state.last_hot_at_s < PAUSE_S * 2.0 ** min(state.replaced, DOUBLINGS_MAX):
        return None
    state.last_hot_at_s = now
    slowness = event.update_time_s / event.peers_update_time_s if event.peers_update_time_s > 0 else 1.0
    share = state.weights.get(pod.name, 1.0) * min(BUSY_FACTOR, 1 / max(slowness, 1e-9))
    if len(state.of_role("ps")) > 1 and share >= SHARE_LEAST:
        state.weights[pod.name] = share
        return "share"
    return "replace"


def _give_back(state: ActuatorState, pod: Pod, event: HotPsCleared) -> bool:
    """A larger share for a server that was hot and keeps pace now; whether there is anything to give back."""
    share = state.weights.get(pod.name)
    if share is None:
        return False
    room = event.peers_update_time_s / event.update_time_s if event.update_time_s > 0 else BACK_LEAST
    share *= min(max(room, BACK_LEAST), BACK_MOST)
    if share < WHOLE:
        state.weights[pod.name] = share
    else:
        del state.weights[pod.name]
    return True


def _keep(state: ActuatorState, pod: Pod) -> bool:
    """No server takes the place of ``pod``: it keeps the least share; whether it has to give anything away."""
    if pod.leaving and not pod.retired:
        return False  # a newer plan takes it away
    pod.leaving = pod.retired = False
    if state.plan is None or state.plan.ps < 2 or state.weights.get(pod.name, 1.0) <= SHARE_LEAST:
        return False
    state.weights[pod.name] = SHARE_LEAST
    return True


def _overdue(state: ActuatorState, replacement: Replacement, now: float) -> bool:
    """Whether neither the arbiter nor the fresh server is waited for any longer."""
    if state.phase != "active" or state.migration is not None:
        return False
    if not replacement.granted:
        return now - replacement.since_s > ANSWER_S
    hot, late = state.pods.get(replacement.pod), now - replacement.since_s > READY_S
    waits = hot is not None and hot.leaving and state.layout == "ready"
    return late and waits and any(pod.phase == "starting" for pod in state.of_role("ps"))
