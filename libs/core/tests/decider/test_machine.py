"""Decisions that the machine of the decider makes, does not make twice, and ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from job_builders import plan_decided
from stretto_core.decider.machine import NUMBERS_END, DeciderMachine
from stretto_core.decider.observations import ObjectFound, ObjectObserved, PatchRefused, WorkloadSeen
from stretto_core.decider.state import SizeWrite
from stretto_core.decider.transition import at_rest
from stretto_core.machine import Tick
from stretto_messages.values import NOTHING, Plan

LATE = 300.0


def seen(count: int, room: int = 0, decision: int = 0) -> ObjectObserved:
    """Return an object at rest."""
    workloads = (WorkloadSeen(name="w", count=count, state="admitted"),)
    size = {"count": count, "active": count, "ready": count, "terminating": 0}
    return ObjectObserved(job="a", decision=decision, room=room, vacant=room, workloads=workloads, **size)  # type: ignore[arg-type]


class Shown:
    """A machine of an object at rest with ``count`` pods, whose first plan allows ``most``."""

    def __init__(self, count: int, room: int = 0, most: int = 6) -> None:
        self.machine, self.version, self.now = DeciderMachine(), 0, 0.0
        self.machine.handle(ObjectFound(job="a", spec="{}", least=1), 0.0)
        self.show(seen(count, room))
        self.plan(most)

    def plan(self, most: int) -> None:
        self.version += 1
        plan = Plan(most, 1, 1.0, 0.001, 2**30, 2**20)
        self.machine.handle(plan_decided("a", self.version, "improve", plan, NOTHING), self.now)

    def show(self, one: ObjectObserved) -> None:
        self.machine.handle(one, self.now)

    def reject(self) -> None:
        assert self.write is not None
        self.machine.handle(PatchRefused(job="a", number=self.write.number, reason="no"), self.now)

    @property
    def write(self) -> SizeWrite | None:
        return self.machine.state.write

    @property
    def wanted(self) -> tuple[str, int] | None:
        return (self.write.purpose, self.write.count) if self.write else None


def grown() -> tuple[Shown, ObjectObserved]:
    """Return an object whose growth from 2 to 6 is written, and waits for quota."""
    one = Shown(2, room=4)
    assert one.wanted == ("grow", 6)
    more = WorkloadSeen(name="more", count=6, state="pending")
    waits = replace(seen(2, decision=1), count=6, workloads=(*seen(2).workloads, more))
    one.show(waits)
    return one, waits


def test_a_shrink_that_the_api_server_rejects_is_not_repeated_before_another_plan() -> None:
    one = Shown(6)
    one.plan(3)
    assert one.wanted == ("shrink", 3)
    one.reject()
    one.machine.handle(Tick(), 5.0)
    assert one.wanted is None
    one.plan(3)
    assert one.wanted == ("shrink", 3)


def test_only_a_look_after_the_deadline_tells_that_a_size_was_refused() -> None:
    one, waits = grown()
    one.machine.handle(Tick(), LATE)
    assert one.wanted == ("grow", 6)
    assert one.machine.is_overdue(LATE)
    one.now = LATE
    one.show(seen(6, decision=1))
    assert (one.wanted, one.machine.state.outcome) == (None, "accepted")
    one, waits = grown()
    one.now = LATE
    one.show(waits)
    assert one.wanted == ("back", 2)


def test_a_growth_that_the_api_server_did_not_take_in_time_was_not_refused_by_kueue() -> None:
    one = Shown(2, room=4)
    one.now = LATE
    one.show(seen(2, room=4))
    assert one.machine.state.outcome == "refused"
    assert one.machine.state.refused is None


def test_a_growth_that_is_suspended_before_its_pods_were_ready_is_taken_back() -> None:
    one, waits = grown()
    evicted = (WorkloadSeen(name="more", count=6, state="evicted"),)
    one.show(replace(waits, active=0, ready=0, suspended=True, workloads=evicted))
    assert one.machine.state.outcome == "refused"
    assert one.wanted == ("back", 2)


def test_an_order_stands_until_there_is_more_room_or_another_plan() -> None:
    one = Shown(6, room=1)
    one.show(seen(2, room=5))
    assert one.wanted is None
    one.show(seen(2, room=6))
    assert one.wanted == ("grow", 6)
    one = Shown(6)
    one.show(seen(8))
    assert one.wanted is None
    one.plan(6)
    assert one.wanted == ("shrink", 6)


def test_room_that_others_waited_for_at_an_order_is_used_once_they_do_not() -> None:
    one = Shown(6)
    one.show(replace(seen(2, room=4), others_wait=True))
    one.show(seen(2, room=4))
    assert one.wanted == ("grow", 6)


def test_a_smaller_size_to_be_admitted_with_is_not_written_once_the_object_is_admitted() -> None:
    waits = replace(seen(4, room=2), active=0, ready=0, suspended=True, workloads=())
    one = Shown(4)
    one.show(waits)
    one.now = LATE
    one.show(waits)
    assert one.wanted == ("fit", 2)
    one.show(replace(seen(4, room=2), active=0, ready=0))
    assert one.wanted is None


def test_the_size_to_begin_with_is_an_order() -> None:
    one = Shown(4, most=1)
    assert one.wanted is None
    assert one.machine.state.outcome == "accepted"
    one.plan(1)
    assert one.wanted == ("shrink", 1)


def test_an_object_that_was_just_suspended_is_not_at_rest() -> None:
    assert at_rest(seen(2))
    assert not at_rest(replace(seen(2), suspended=True)), "its pods are ready until the Job controller ends them"


def test_an_object_grows_no_further_than_its_completions_have_work() -> None:
    rest = replace(seen(4, room=4), due=3, active=3, ready=3, most=3)
    assert at_rest(rest)
    one = Shown(2)
    one.show(replace(seen(2, room=4), most=3))
    assert one.wanted == ("grow", 3)
    one = Shown(2)
    one.show(replace(seen(2, room=4), most=2))
    assert one.wanted is None


def test_a_number_that_no_decision_has_is_not_counted_on_from() -> None:
    one = Shown(2)
    one.show(seen(2, room=4, decision=NUMBERS_END))
    assert one.write is not None
    assert one.write.number == 1


def gated(count: int, room: int) -> ObjectObserved:
    waits = (WorkloadSeen(name="w", count=count, state="pending"),)
    return replace(seen(count, room), active=0, ready=0, suspended=True, gated=True, fixed=True, workloads=waits)


@pytest.mark.parametrize(
    ("one", "most", "size"),
    [
        (gated(4, room=3), 6, 3),
        (gated(4, room=8), 6, 6),
        (gated(4, room=4), 6, 4),
        (gated(4, room=0), 6, 4),
        (gated(4, room=0), 2, 2),
        (replace(gated(4, room=8), others_wait=True), 6, 4),
        (replace(gated(4, room=8), most=5), 6, 5),
    ],
)
def test_an_object_whose_gate_is_closed_gets_its_size_and_its_gate_opens(
    one: ObjectObserved, most: int, size: int
) -> None:
    shown = Shown(4, most=most)
    shown.show(one)
    assert shown.wanted == ("fit", size)
    shown.show(replace(one, count=size, decision=1))
    assert shown.wanted == ("fit", size), "the gate is still closed"
    shown.show(replace(one, count=size, decision=1, gated=False))
    assert (shown.wanted, shown.machine.state.outcome) == (None, "accepted")


def test_an_object_that_is_not_elastic_keeps_the_size_that_it_was_admitted_with() -> None:
    shown = Shown(2)
    shown.show(replace(seen(2, room=4), fixed=True))
    assert shown.wanted is None
    shown.plan(1)
    shown.show(replace(seen(2, room=4), fixed=True))
    assert shown.wanted is None
    assert "would stop them all" in shown.machine.state.outcome_reason


def test_time_behind_a_closed_gate_is_no_wait_for_quota() -> None:
    shown = Shown(4)
    shown.show(gated(4, room=0))
    shown.show(replace(gated(4, room=0), decision=1, gated=False))
    shown.now = LATE
    shown.show(replace(gated(4, room=2), decision=1, gated=False))
    assert shown.wanted == ("fit", 2)
    shown = Shown(4)
    shown.show(gated(4, room=0))
    shown.now = LATE - 1
    shown.show(replace(gated(4, room=0), decision=1, gated=False))
    shown.now = LATE
    shown.show(replace(gated(4, room=2), decision=1, gated=False))
    assert shown.wanted is None
