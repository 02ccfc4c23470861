"""Changes of size as the API server shows them, from which their ends are derived: Kueue answers nobody."""

from __future__ import annotations

from stretto_messages.base import counted
from stretto_messages.objects.decider import Outcome

from stretto_core.decider.observations import ObjectObserved
from stretto_core.decider.state import SizeWrite


def at_rest(seen: ObjectObserved) -> bool:
    """Return True if no transition is open: one workload, admitted with the size that the object asks for, whose pods
    are all ready, and no pod that still ends."""
    if seen.suspended or seen.terminating or len(seen.workloads) != 1:
        return False
    workload = seen.workloads[0]
    return workload.state == "admitted" and workload.count == seen.count and seen.ready == seen.active == due(seen)


def due(seen: ObjectObserved) -> int:
    """Return how many pods run once all do: as many as asked for, unless completions have work for fewer."""
    return seen.count if seen.due is None else min(seen.count, seen.due)


def waits_for_admission(seen: ObjectObserved) -> bool:
    """Return True if none of the object's workloads is admitted: it has no pods, and a patch disturbs nothing."""
    return all(workload.state != "admitted" for workload in seen.workloads) and len(seen.workloads) < 2


def begins_with(seen: ObjectObserved, least: int, most: int) -> int:
    """Return the size with which an object whose gate is closed is to wait for admission: as many pods as there is room
    for, or its owner's size where there is none, or where others wait for the room."""
    has_room = seen.room >= least and not seen.others_wait
    count = min(seen.room if has_room else seen.count, most if seen.most is None else seen.most)
    return min(max(count, least), most)


def outcome_of(write: SizeWrite, seen: ObjectObserved) -> tuple[Outcome, str] | None:
    """Return the end of a decision that was written, and the reason in words. None: its transition is under way."""
    if seen.count != write.count:
        return "taken", f"the object's controller wrote {seen.count}: an order, and no conflict with {write.count}"
    if write.opens:
        return None if seen.gated else ("accepted", "the gate is open: Kueue may admit the object")
    newest = seen.workloads[-1] if seen.workloads else None
    sole = newest if len(seen.workloads) == 1 else None
    is_met = sole is not None and sole.state == "admitted" and sole.count == write.count and seen.ready == due(seen)
    if is_met and not seen.suspended:
        return "accepted", f"{counted(seen.ready, 'pod')} admitted and ready"
    if write.purpose != "fit" and (seen.suspended or (newest is not None and newest.state == "evicted")):
        if write.purpose == "grow":  # as pods that did not get ready in time: the same size would end so again
            return "refused", "the object was suspended before all its pods were ready"
        return "taken", "the object was suspended, and its quota taken back"
    return None


def what_lacks(write: SizeWrite, seen: ObjectObserved) -> str:
    """Return what a change of size waits for."""
    newest = seen.workloads[-1] if seen.workloads else None
    if newest is None:
        return "nothing shows that the object's controller has taken that size over"
    if newest.state != "admitted":
        return f"Kueue has reserved no quota for {newest.name}"
    if len(seen.workloads) > 1:
        return f"{newest.name} has not replaced the workload before it"
    if newest.count != write.count:
        return f"{newest.name} still has {counted(newest.count, 'pod')}"
    return f"{seen.ready} of {counted(due(seen), 'pod')} are ready"
