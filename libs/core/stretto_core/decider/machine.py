"""The machine that decides the size of one object: grow into free quota, give back, and obey the object's controller.

The arbiter's plan is what the object may have at most; quota and Kueue's orders decide how much of it there is.

- **One patch for each decision, and none while a transition is open.** A decision ends accepted, refused or taken
  (``transition``). A growth that is refused is taken back by the next decision, which is the only patch into an open
  transition.
- **Quota is free only when the pods that held it are gone** (``quota``), and belongs to those who wait in the queue.
- **A size that another one writes is an order**, as Kueue's at preemption, or the owner's. Nothing is written against
  that size: the object grows again once there is more room by the two rules above, or another plan.
- **No flapping.** After a refusal or an order nothing is tried again before there is more room than the least seen
  since, or another plan; an object that waits for admission is only ever made smaller.
"""

from __future__ import annotations

from stretto_messages.arbiter import PlanDecided
from stretto_messages.base import Message, bounded, counted
from stretto_messages.gateway import JobCancelled
from stretto_messages.objects.decider import ObjectReleased, Outcome, Purpose, SizeDecided, SizeSettled

from stretto_core.decider.observations import ObjectFound, ObjectObserved, PatchRefused
from stretto_core.decider.quota import UNBOUNDED
from stretto_core.decider.state import (
    DeciderRules,
    DeciderState,
    RefusedGrowth,
    RejectedSize,
    SizeOrder,
    SizeWrite,
    SpecificationFound,
)
from stretto_core.decider.transition import at_rest, begins_with, outcome_of, waits_for_admission, what_lacks
from stretto_core.machine import Action, Emit, Tick

DeciderEvent = ObjectFound | ObjectObserved | PatchRefused | PlanDecided | JobCancelled | Tick
Facts = list[Message | SpecificationFound]
NUMBERS_END = 10**12
"""A number in an annotation that is this large was not written by Stretto."""


class DeciderMachine:
    """Decides the size of one object. ``state.write`` is the patch to write, until the object names its decision."""

    version = 1

    def __init__(self, state: DeciderState | None = None, rules: DeciderRules | None = None) -> None:
        self.state = state or DeciderState()
        self.rules = rules or DeciderRules()

    @property
    def ended(self) -> bool:
        """True if the job is no object's, or its object is Stretto's no more."""
        return not self.state.job or self.state.released

    def handle(self, event: DeciderEvent, now: float) -> list[Action]:
        """Advance by one event of this object."""
        return [Emit(fact) for fact in self._facts(event, now)]

    def _facts(self, event: DeciderEvent, now: float) -> Facts:
        state = self.state
        if isinstance(event, ObjectFound):
            return self._found(event)
        if self.ended:
            return []
        match event:
            case PlanDecided(version=version) if version > state.version:
                if state.plan is None:  # the size to begin with is the owner's order
                    state.order = SizeOrder(version, state.size)
                state.plan, state.version, state.decided_s = event.plan, version, now
            case ObjectObserved():
                state.seen = event
            case JobCancelled():
                state.released, state.write = True, None
                return []
            case PatchRefused() if state.write is not None and state.write.number == event.number:
                return self._reject(state.write, event.reason, now)
            case _:
                pass
        return self._advance(now, looks=isinstance(event, ObjectObserved))

    def _found(self, event: ObjectFound) -> Facts:
        if self.state.job:
            return []
        self.state.job, self.state.least = event.job, event.least
        return [SpecificationFound(event.job, event.spec)]

    @property
    def unwritten(self) -> SizeWrite | None:
        """The open decision, as long as its object does not name it; None: nothing is to be written."""
        write = self.state.write
        return None if write is None or write.written else write

    def is_overdue(self, now: float) -> bool:
        """Return whether the open decision is to end at the next look: an observation is then shown though it is
        the same as before, since only what is seen after the deadline tells that a size was refused."""
        write = self.state.write
        return write is not None and now - write.decided_s >= self.rules.refused_after_s

    def _advance(self, now: float, looks: bool) -> Facts:
        state, seen = self.state, self.state.seen
        if seen is None:
            return []
        if seen.ending:
            state.released, state.write = True, None
            return [ObjectReleased(job=state.job, ending=seen.ending, reason=seen.ending_reason)]
        if seen.gated or not waits_for_admission(seen):
            state.waits_since_s = None
        elif state.waits_since_s is None:
            state.waits_since_s = now
        facts = self._judge(state.write, seen, now, looks) if state.write is not None else []
        return facts if state.write is not None else [*facts, *self._decide(seen, now)]

    # ---- the open decision ------------------------------------------------------------------------------------

    def _judge(self, write: SizeWrite, seen: ObjectObserved, now: float, looks: bool) -> Facts:
        """End the open decision if what is seen ends it, or if a look shows that it has lasted too long."""
        write.written = write.written or seen.decision == write.number
        late = looks and self.is_overdue(now)
        if not write.written:
            if not self._is_still_wanted(write, seen, now):
                return self._end(write, "taken", "the object or its queue changed before the patch was written", now)
            return self._end(write, "refused", "the API server took no patch", now) if late else []
        found = outcome_of(write, seen)
        if found is None and late:
            waited = f"after {now - write.decided_s:.0f} s {what_lacks(write, seen)}"
            found = "refused", waited
        return [] if found is None else self._end(write, *found, now)

    def _is_still_wanted(self, write: SizeWrite, seen: ObjectObserved, now: float) -> bool:
        """Return whether the same decision would be made again, as long as its patch is not written."""
        if write.purpose == "back":
            return seen.count == write.before and not at_rest(seen)
        wanted = self._wanted(seen, now)
        return wanted is not None and (seen.count, wanted[1]) == (write.before, write.count)

    def _reject(self, write: SizeWrite, reason: str, now: float) -> Facts:
        self.state.rejected = RejectedSize(write.purpose, write.count, self.state.version, write.before)
        if write.purpose == "grow":
            self.state.refused = RefusedGrowth(self.state.version)
        return self._end(write, "refused", reason, now)

    def _end(self, write: SizeWrite, outcome: Outcome, reason: str, now: float) -> Facts:
        state, seen = self.state, self.state.seen
        assert seen is not None
        state.write, state.size = None, seen.count
        if seen.count != (write.count if write.written else write.before):
            self._obey(seen)
        facts: Facts = [self._settled(write.number, outcome, seen.count, reason, now)]
        if outcome == "refused" and write.purpose == "grow" and write.written:
            state.refused = RefusedGrowth(state.version)
            if seen.count == write.count:
                facts.append(self._write("back", seen, write.before, f"refused: {reason}", now))
        return facts

    def _obey(self, seen: ObjectObserved) -> None:
        """Remember an order. What others wait for at that moment, as at preemption, is no room of the object."""
        state = self.state
        state.order = SizeOrder(state.version, seen.count)
        state.refused = RefusedGrowth(state.version, 0 if seen.others_wait else None)

    # ---- the next decision ------------------------------------------------------------------------------------

    def _decide(self, seen: ObjectObserved, now: float) -> Facts:
        state, facts = self.state, Facts()
        if state.size and seen.count != state.size and state.plan is not None:
            order = f"the object's controller wrote {seen.count} in place of {state.size}: an order"
            facts.append(self._settled(0, "taken", seen.count, order, now))
            self._obey(seen)
        elif not state.size:
            state.order = SizeOrder(state.version, seen.count)
        state.size = seen.count
        if state.refused is not None and at_rest(seen):
            least = state.refused.least_room
            state.refused.least_room = seen.vacant if least is None else min(least, seen.vacant)
        wanted = self._wanted(seen, now)
        if wanted is not None and not self._is_rejected(seen, *wanted[:2]):
            purpose, count, reason = wanted
            return [*facts, self._write(purpose, seen, count, reason, now)]
        if state.plan is not None and state.told_version < state.version and at_rest(seen):
            facts.append(self._settled(0, "accepted", seen.count, self._why_no_other(seen), now))
        return facts

    def _wanted(self, seen: ObjectObserved, now: float) -> tuple[Purpose, int, str] | None:
        """Return the size that the object should have next, and why. None: the object keeps its size."""
        state = self.state
        if state.plan is None:
            return None
        most = max(state.plan.workers, state.least)
        if seen.gated:
            return self._opening(seen, most)
        order = state.order
        if order is not None and order.version == state.version and seen.count <= order.count:
            most = max(most, seen.count)
        if not at_rest(seen):
            return self._fitting(seen, most, now)
        if seen.fixed:
            return None
        if most < seen.count:
            return "shrink", most, f"the plan of version {state.version} leaves the object {counted(most, 'pod')}"
        if most == seen.count or not seen.room or seen.others_wait or not self._may_try_again(seen):
            return None
        count = min(most, seen.count + seen.room, most if seen.most is None else seen.most)
        if count <= seen.count:
            return None
        if seen.room >= UNBOUNDED:
            return "grow", count, f"no quota bounds the object; the plan allows {most}"
        return "grow", count, f"the queue's quota has room for {counted(seen.room, 'more pod')}; the plan allows {most}"

    def _opening(self, seen: ObjectObserved, most: int) -> tuple[Purpose, int, str]:
        """Return the size to begin with, which is written though it may be the same: the patch opens the gate."""
        count = begins_with(seen, self.state.least, most)
        if seen.others_wait:
            return "fit", count, f"others wait in its queue; the plan allows {most}"
        return "fit", count, f"its queue has room for {counted(seen.room, 'pod')}; the plan allows {most}"

    def _is_rejected(self, seen: ObjectObserved, purpose: Purpose, count: int) -> bool:
        return self.state.rejected == RejectedSize(purpose, count, self.state.version, seen.count)

    def _may_try_again(self, seen: ObjectObserved) -> bool:
        refused = self.state.refused
        if refused is None or self.state.version > refused.version:
            return True
        return refused.least_room is not None and seen.vacant > refused.least_room

    def _fitting(self, seen: ObjectObserved, most: int, now: float) -> tuple[Purpose, int, str] | None:
        """Return the smaller size that an object can be admitted with, if it has waited for long enough."""
        since_s = self.state.waits_since_s
        count = min(most, seen.room)
        if since_s is None or now - since_s < self.rules.refused_after_s or not self.state.least <= count < seen.count:
            return None
        waited = f"the object has waited {now - since_s:.0f} s for quota for {counted(seen.count, 'pod')}"
        return "fit", count, f"{waited}; there is room for {min(seen.room, most)}"

    def _write(self, purpose: Purpose, seen: ObjectObserved, count: int, reason: str, now: float) -> SizeDecided:
        state = self.state
        known = seen.decision if seen.decision < NUMBERS_END else 0  # else nobody's but a forger's
        state.number = max(state.number, known) + 1
        state.write = SizeWrite(state.number, purpose, seen.count, count, bounded(reason), now, opens=seen.gated)
        if purpose == "grow":
            state.refused = None
        return SizeDecided(
            job=state.job,
            number=state.number,
            purpose=purpose,
            before=seen.count,
            count=count,
            reason=state.write.reason,
        )

    def _settled(self, number: int, outcome: Outcome, count: int, reason: str, now: float) -> SizeSettled:
        state = self.state
        assert state.plan is not None
        state.told_version = state.version
        state.ends, state.outcome, state.outcome_reason = state.ends + 1, outcome, bounded(reason)
        return SizeSettled(
            job=state.job,
            version=state.version,
            plan=state.plan,
            took_s=max(now - state.decided_s, 0.0),
            number=number,
            outcome=outcome,
            count=count,
            reason=state.outcome_reason,
        )

    def _why_no_other(self, seen: ObjectObserved) -> str:
        assert self.state.plan is not None
        if seen.fixed and seen.count != self.state.plan.workers:
            return f"the object stays at {counted(seen.count, 'pod')}: Kueue would stop them all at a change"
        if seen.count >= self.state.plan.workers:
            return f"the object has {counted(seen.count, 'pod')}, as the plan says"
        if seen.most is not None and seen.count >= seen.most:
            return f"the object stays at {counted(seen.count, 'pod')}: its completions have work for {seen.most}"
        if seen.others_wait:
            return f"the object stays at {counted(seen.count, 'pod')}: others wait in its queue"
        if seen.room >= UNBOUNDED:
            return f"the object stays at {counted(seen.count, 'pod')} until there is another plan"
        return f"the object stays at {counted(seen.count, 'pod')}: its queue has quota for {seen.room} more"
