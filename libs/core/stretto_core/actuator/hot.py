"""Measures against a parameter server that is slower or busier than its peers (DLRover-RM section 5, hot PS).

Every push goes to all servers, and the slowest one makes the step wait. Let a server have the share w of the buckets,
where each of its peers has 1. An update takes it T(w) = k w; its peers take T_p, whatever w. Both are equal at

    w' = w T_p / T(w),

so one migration moves as much as was measured. A server that would keep little is replaced: a fresh one starts, takes
over all its buckets, and it is retired. Buckets that were moved away come back step by step once it keeps pace.

For a while there is one server more than the plan says, so the arbiter is asked for the room. Without room, or when
the fresh server does not come, the hot one keeps the least share instead.
"""

from __future__ import annotations

from typing import Literal

from stretto_messages.actuator import ReplacementAsked, ReplacementEnded
from stretto_messages.arbiter import ReplacementDecided
from stretto_messages.profiler import HotPsCleared, HotPsDetected

from stretto_core.actuator import pods, servers
from stretto_core.actuator.state import ActuatorState, Facts, Pod, Replacement

PAUSE_S = 60.0
"""Pause between two measures; twice as long after every server that was replaced."""
DOUBLINGS_MAX = 6
BUSY_FACTOR = 0.7
"""Largest share that a hot server keeps; also the share of one whose CPU is full though its updates are no slower."""
SHARE_LEAST = 0.15
"""A server that would keep less is replaced."""
BACK_LEAST = 1.5
BACK_MOST = 4.0
"""Bounds of the factor by which the share of a server grows that keeps pace."""
WHOLE = 0.95
"""A share of at least this counts as 1."""
ANSWER_S = 60.0
"""Time that the arbiter has to answer whether there is room."""
READY_S = 180.0
"""Time that a fresh server has to run."""

Remedy = Literal["share", "replace"]


def detected(state: ActuatorState, event: HotPsDetected, now: float) -> Facts:
    """Give the server another share, or ask for room for its successor."""
    pod = _movable(state, event.pod)
    remedy = _remedy(state, pod, event, now) if pod else None
    if remedy == "share":
        state.relayout("hot-ps")
    elif remedy == "replace":
        state.replacement = Replacement(event.pod, now)
        return [ReplacementAsked(job=state.job, pod=event.pod)]
    return []


def cleared(state: ActuatorState, event: HotPsCleared) -> None:
    """Give a server that keeps pace some of its buckets back."""
    pod = _movable(state, event.pod)
    if pod is not None and _give_back(state, pod, event):
        state.relayout("hot-ps")


def decided(state: ActuatorState, event: ReplacementDecided, now: float) -> Facts:
    """Follow the arbiter's answer. Room that is not wanted any more is given back."""
    pod = _movable(state, event.pod)
    asked = state.replacement
    give_back: Facts = [ReplacementEnded(job=event.job, pod=event.pod)] if event.granted else []
    if asked is None or asked.pod != event.pod:
        return give_back
    if asked.granted:
        return []
    if event.granted and pod is not None:
        asked.granted = True
        asked.since_s = now
        pod.leaving = True
        pod.retired = True
        state.replaced += 1
        state.relayout("hot-ps")
        pods.name_pod(state, "ps", now, "relaunch")
        return []
    state.replacement = None
    if not event.granted and pod is not None and _keep(state, pod):
        state.relayout("hot-ps")
    return give_back


def time_passed(state: ActuatorState, now: float) -> Facts:
    """Give up a replacement that takes too long, so that it does not hold up the next measure for ever."""
    replacement = state.replacement
    if replacement is None or not _overdue(state, replacement, now):
        return []
    facts: Facts = []
    pod = state.pods.get(replacement.pod)
    gives = pod is not None and pod.phase == "running" and _keep(state, pod)
    if not replacement.granted:
        state.replacement = None  # a late yes is given back when it comes: now, it would end the next one's room
    else:  # the room is free once the superfluous server is gone (``settle``)
        pods.fill(state, "ps", now, "plan")
        state.rebalance = None
        facts.append(servers.changed(state))
        gives = gives or not all(each.listed for each in state.of_role("ps"))
    if gives:
        state.relayout("hot-ps")
    return facts


def settle(state: ActuatorState) -> Facts:
    """Give the room beyond the plan back when the job has no more servers than the plan says."""
    replacement = state.replacement
    if replacement is None:
        return []
    if not replacement.granted:
        if state.ended:  # the arbiter may never answer; a late yes is given back (``decided``)
            state.replacement = None
        return []
    if sum(pod.role == "ps" for pod in state.pods.values()) > (state.plan.ps if state.plan else 0):
        return []
    state.replacement = None
    return [ReplacementEnded(job=state.job, pod=replacement.pod)]


def _movable(state: ActuatorState, name: str) -> Pod | None:
    """Return the parameter server ``name``, or None while parameters are moving or about to."""
    pod = state.pods.get(name)
    ready = state.phase == "active" and state.layout == "ready" and state.rebalance is None
    return pod if pod and ready and pod.listed and not pod.leaving else None


def _remedy(state: ActuatorState, pod: Pod, event: HotPsDetected, now: float) -> Remedy | None:
    """Choose a measure against the hot server; another share is stored in ``state.weights``.

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
    """Store a larger share for a server that keeps pace now; return True if there is anything to give back."""
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
    """Keep ``pod``, which no other replaces, at the least share; return True if it has to give anything away."""
    if pod.leaving and not pod.retired:
        return False  # a newer plan takes it away
    pod.leaving = False
    pod.retired = False
    if state.plan is None or state.plan.ps < 2 or state.weights.get(pod.name, 1.0) <= SHARE_LEAST:
        return False
    state.weights[pod.name] = SHARE_LEAST
    return True


def _overdue(state: ActuatorState, replacement: Replacement, now: float) -> bool:
    """Return True once neither the arbiter nor the fresh server is waited for any longer."""
    if state.phase != "active" or state.migration is not None:
        return False
    if not replacement.granted:
        return now - replacement.since_s > ANSWER_S
    hot = state.pods.get(replacement.pod)
    late = now - replacement.since_s > READY_S
    waits = hot is not None and hot.leaving and state.layout == "ready"
    return late and waits and any(pod.phase == "starting" for pod in state.of_role("ps"))
