"""What is done about a parameter server that is slower or busier than its peers (DLRover-RM section 5, hot PS).

Every push goes to all servers, and the slowest one makes the step wait. With a share w of the buckets beside its
peers', each of which has 1, an update takes a server T(w) = k w; its peers take T_p, whatever w. Both are equal at

    w' = w T_p / T(w),

so one migration moves as much as was measured. A server for which little would be left is replaced: a fresh one
starts, takes all that it has, and it is retired. What was moved away comes back step by step once it keeps pace.
"""

from __future__ import annotations

from typing import Literal

from stretto_core.actuation.state import ActuatorState, HotPsCleared, HotPsDetected, Pod

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

Remedy = Literal["share", "replace"]


def relieve(state: ActuatorState, pod: Pod, event: HotPsDetected, now: float) -> Remedy | None:
    """Decide on the hot server ``pod``: another share in ``state.weights``, or retired for another one to start.

    None: too soon after the last measure.
    """
    if now - state.last_hot_at_s < PAUSE_S * 2.0 ** min(state.replaced, DOUBLINGS_MAX):
        return None
    state.last_hot_at_s = now
    slowness = event.update_time_s / event.peers_update_time_s if event.peers_update_time_s > 0 else 1.0
    share = state.weights.get(pod.name, 1.0) * min(BUSY_FACTOR, 1 / max(slowness, 1e-9))
    if len(state.of_role("ps")) > 1 and share >= SHARE_LEAST:
        state.weights[pod.name] = share
        return "share"
    pod.leaving = pod.retired = True
    state.replaced += 1
    return "replace"


def give_back(state: ActuatorState, pod: Pod, event: HotPsCleared) -> bool:
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
