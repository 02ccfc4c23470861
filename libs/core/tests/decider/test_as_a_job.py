"""An object of another controller in planner and arbiter: it gets pods by what they cost, and gives back their room."""

from __future__ import annotations

from job_builders import plan_proposed
from stretto_core.arbiter.machine import ArbiterMachine
from stretto_core.arbiter.state import ArbiterSettings
from stretto_core.machine import Action, Emit
from stretto_core.model.types import JobLimits, JobOpened, JobProfile
from stretto_core.planner.machine import PlanMachine
from stretto_core.planner.programs.elsewhere import CANDIDATES_MAX, proportional, sizes
from stretto_messages.arbiter import PlanDecided
from stretto_messages.objects.decider import ObjectReleased, SizeSettled
from stretto_messages.planner import CandidatesComputed, PlanProposed
from stretto_messages.values import Plan, Resources


def plan_of(workers: int) -> Plan:
    return Plan(workers, 1, 1.0, 0.001, 2**30, 2**20)


PROFILE = JobProfile(1, 1, JobLimits(plan_of(1), plan_of(8)), initial=plan_of(2), watched=True, elsewhere=True)
OPENED = JobOpened("a", PROFILE)
ROOM = Resources(6.5, 2**40)


def facts(actions: list[Action]) -> list[object]:
    return [action.fact for action in actions if isinstance(action, Emit)]


def settled(version: int, workers: int) -> SizeSettled:
    told = {"took_s": 1.0, "number": 0, "outcome": "accepted", "reason": "r"}
    return SizeSettled(job="a", version=version, plan=plan_of(workers), count=workers, **told)  # type: ignore[arg-type]


def test_it_starts_with_its_own_size_and_gets_what_the_cluster_has_room_for() -> None:
    planner, arbiter = PlanMachine(), ArbiterMachine(settings=ArbiterSettings(ROOM, settle_s=0.0, round_s=0.0))
    arbiter.handle(OPENED, 0.0)
    [proposed] = facts(planner.handle(OPENED, 0.0))
    assert isinstance(proposed, PlanProposed)
    [first] = facts(arbiter.handle(proposed, 1.0))
    assert isinstance(first, PlanDecided)
    assert first.plan == plan_of(2)
    arbiter.handle(settled(1, 2), 2.0)
    planner.handle(first, 2.0)
    [computed] = facts(planner.handle(settled(1, 2), 2.0))
    assert isinstance(computed, CandidatesComputed)
    [second] = facts(arbiter.handle(computed, 3.0))
    assert isinstance(second, PlanDecided)
    assert second.plan == plan_of(6)
    assert "2 to 6 pods of an object whose speed nobody measures" in second.reasons[0]


def test_its_room_is_free_as_soon_as_it_is_released() -> None:
    arbiter = ArbiterMachine(settings=ArbiterSettings(ROOM))
    for event in (OPENED, plan_proposed("a", "initial", plan_of(2))):
        arbiter.handle(event, 1.0)
    assert arbiter.free() != ROOM
    arbiter.handle(ObjectReleased(job="a", ending="complete", reason="r"), 2.0)
    assert arbiter.free() == ROOM


def test_of_many_sizes_both_ends_and_even_steps_are_offered() -> None:
    assert sizes(1, 8) == [*range(1, 9)]
    assert sizes(3, 3) == [3]
    offered = sizes(1, 1000)
    assert (offered[0], offered[-1]) == (1, 1000)
    assert len(offered) <= CANDIDATES_MAX + 1
    assert plan_of(2) not in [each.plan for each in proportional("a", 1, plan_of(2), PROFILE).candidates]
