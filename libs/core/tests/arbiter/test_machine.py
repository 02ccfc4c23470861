"""The arbiter alone: hysteresis, waiting jobs, memory, and what it refuses in words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from arbiter_builders import candidate
from closed_loop import LIMITS, MIB, plan, profile
from job_builders import (
    candidates_computed,
    job_ended,
    job_progressed,
    oom_forecast,
    plan_applied,
    plan_proposed,
    replacement_asked,
    replacement_ended,
)
from stretto_core.arbiter.machine import ArbiterMachine
from stretto_core.arbiter.state import ArbiterSettings
from stretto_core.machine import Emit, Tick
from stretto_core.model.types import JobLimits, JobOpened
from stretto_messages.arbiter import PlanDecided, PlanRefused
from stretto_messages.base import GIB
from stretto_messages.planner import CandidatesComputed
from stretto_messages.values import NO_EXTENDED, Resources

BIG = Resources(64, 256 * GIB)


def arbiter(capacity: Resources = BIG, **settings: float) -> ArbiterMachine:
    return ArbiterMachine(None, ArbiterSettings(capacity, **settings))


def facts(machine: ArbiterMachine, event: object, now: float) -> list[PlanDecided | PlanRefused]:
    return [action.fact for action in machine.handle(event, now) if isinstance(action, Emit)]


def started(machine: ArbiterMachine, job: str = "a", now: float = 0.0, p=None, **spec) -> None:
    machine.handle(JobOpened(job, profile(**spec)), now)
    (fact,) = facts(machine, plan_proposed(job, "warm-start", p or plan(), 0.1, ("r",)), now)
    machine.handle(plan_applied(job, fact.version, fact.plan, 1.0), now)


def front(job: str, version: int, speed_now: float, *rows: tuple[int, float, float]) -> CandidatesComputed:
    """Candidates as (workers, throughput, relative standard deviation)."""
    found = tuple(replace(candidate(w, 1, rate, sd), gain=rate - speed_now) for w, rate, sd in rows)
    return candidates_computed(job, version, plan(), speed_now, found)


@pytest.mark.parametrize(
    ("rate", "sd", "accepted"),
    [(1090.0, 0.0, False), (1120.0, 0.0, True), (1250.0, 0.2, False), (1350.0, 0.2, True), (9000.0, 0.5, False)],
)
def test_a_gain_must_exceed_the_hysteresis_and_the_error(rate: float, sd: float, accepted: bool) -> None:
    machine = arbiter()
    started(machine)
    assert bool(facts(machine, front("a", 1, 1000.0, (2, rate, sd)), 100.0)) is accepted


def test_nothing_is_decided_while_a_plan_is_applied_or_has_not_settled() -> None:
    machine = arbiter()
    started(machine)
    assert facts(machine, front("a", 1, 1000.0, (2, 2000.0, 0.0)), 5.0) == [], "20 s have not passed"
    (fact,) = facts(machine, Tick(), 30.0)
    assert fact.plan.workers == 2
    assert facts(machine, front("a", 2, 2000.0, (4, 9000.0, 0.0)), 90.0) == [], "version 2 is not applied yet"
    machine.handle(plan_applied("a", 2, fact.plan, 1.0), 95.0)
    assert facts(machine, Tick(), 100.0) == []
    assert len(facts(machine, Tick(), 120.0)) == 1


def test_candidates_of_an_earlier_plan_are_ignored() -> None:
    machine = arbiter()
    started(machine)
    assert facts(machine, front("a", 0, 1000.0, (2, 5000.0, 0.0)), 100.0) == []


def test_a_job_that_does_not_fit_waits_and_starts_when_room_comes_free() -> None:
    machine = arbiter(Resources(2, 4 * GIB))
    started(machine, "a", p=plan(1, 1, 1.0, 1.0), fixed=True)
    machine.handle(JobOpened("b", profile()), 10.0)
    (refused,) = facts(machine, plan_proposed("b", "warm-start", plan(2, 1), 0.1, ("r",)), 10.0)
    assert isinstance(refused, PlanRefused)
    assert any("waits" in reason for reason in refused.reasons)
    assert facts(machine, Tick(), 11.0) == [], "it is said once"
    assert facts(machine, job_ended("a", "completed"), 12.0) == [], "its pods are still there"
    (fact,) = facts(machine, job_ended("a", "gone"), 13.0)
    assert (fact.job, fact.kind) == ("b", "fit-capacity")
    assert fact.plan.resources(NO_EXTENDED).fits(Resources(2, 4 * GIB))


def test_a_measurement_without_room_is_refused_with_figures() -> None:
    machine = arbiter(Resources(2, 4 * GIB))
    started(machine)
    (fact,) = facts(machine, plan_proposed("a", "measure", plan(3), 0.1, ("r",)), 50.0)
    assert isinstance(fact, PlanRefused)
    assert "2 cores" in fact.reasons[0]


def test_memory_goes_before_everything_and_waits_only_for_a_change_of_the_servers() -> None:
    machine = arbiter()
    started(machine)
    machine.handle(plan_proposed("a", "measure", plan(ps=2, memory=GIB), 0.1, ("r",)), 1.0)
    assert facts(machine, oom_forecast("a", "grow", 5 * GIB, "said of one server"), 2.0) == []
    assert facts(machine, plan_applied("a", 2, plan(ps=2, memory=GIB), 1.0), 3.0) == []
    (fact,) = facts(machine, oom_forecast("a", "grow", 3 * GIB, "grows"), 4.0)
    assert (fact.kind, fact.plan.ps_memory_bytes) == ("memory", 3 * GIB)


def test_beyond_one_server_s_limit_the_buckets_move_to_more_servers() -> None:
    machine = arbiter()
    limits = JobLimits(LIMITS.low, replace(LIMITS.high, ps_memory_bytes=2 * GIB))
    started(machine, limits=limits)
    (fact,) = facts(machine, oom_forecast("a", "grow", 5 * GIB, "grows"), 1.0)
    assert fact.plan.ps == 3
    assert fact.plan.ps_memory_bytes == 2 * GIB


def test_memory_beyond_all_limits_is_refused_once_with_the_limits_to_raise() -> None:
    machine = arbiter()
    limits = JobLimits(LIMITS.low, replace(LIMITS.high, ps=1, ps_memory_bytes=GIB))
    started(machine, p=plan(ps=1, memory=GIB), limits=limits)
    (fact,) = facts(machine, oom_forecast("a", "grow", 5 * GIB, "grows"), 1.0)
    assert isinstance(fact, PlanRefused)
    assert fact.reasons[-1] == "the job's limits end at 1 PSes of 1.00 GiB: raise them"
    assert facts(machine, Tick(), 30.0) == []


def test_memory_that_is_not_there_is_refused_once_and_given_later() -> None:
    machine = arbiter(Resources(8, 5 * GIB))
    started(machine, "a")
    started(machine, "b")
    (fact,) = facts(machine, oom_forecast("a", "grow", 4 * GIB, "grows"), 1.0)
    assert isinstance(fact, PlanRefused)
    assert facts(machine, Tick(), 2.0) == []
    machine.handle(job_ended("b", "cancelled"), 3.0)
    assert machine.state.jobs["a"].plan.ps_memory_bytes == GIB  # b's pods are still there
    machine.handle(Tick(), 24.0)
    assert machine.state.jobs["a"].plan.ps_memory_bytes == 4 * GIB


def test_a_server_that_is_killed_before_its_plan_is_applied_gets_more() -> None:
    """Killed in its first seconds, again and again, it let no plan be applied, and none was decided for that reason."""
    machine = arbiter()
    started(machine, p=plan(memory=GIB))
    (first,) = facts(machine, oom_forecast("a", "grow", 2 * GIB, "killed"), 1.0)
    (second,) = facts(machine, oom_forecast("a", "grow", 3 * GIB, "killed again"), 2.0)
    assert (second.version, second.plan.ps_memory_bytes) == (first.version + 1, 3 * GIB)
    job = machine.state.jobs["a"]
    assert job.before.ps_memory_bytes == GIB
    machine.handle(plan_applied("a", first.version, first.plan, 1.0), 3.0)
    assert job.applying, "that was overtaken"
    machine.handle(plan_applied("a", second.version, second.plan, 1.0), 4.0)
    assert not job.applying


@pytest.mark.parametrize(("needed", "servers"), [(2 * GIB, 1), (20 * GIB, 2)])
def test_a_user_s_wish_outlives_a_decision_on_memory(needed: int, servers: int) -> None:
    """Decided while the wish waited for a change to be applied, it took its place: the user never got an answer."""
    machine = arbiter()
    started(machine, p=plan(memory=GIB))
    (first,) = facts(machine, plan_proposed("a", "measure", plan(2, memory=GIB), 0.1, ("r",)), 1.0)
    assert facts(machine, plan_proposed("a", "requested", plan(3, memory=GIB), 0.0, ("r",)), 2.0) == []
    (second,) = facts(machine, oom_forecast("a", "grow", needed, "grows"), 3.0)
    assert (first.kind, second.kind, second.plan.ps) == ("measure", "memory", servers)
    (third,) = facts(machine, plan_applied("a", second.version, second.plan, 1.0), 4.0)
    assert (third.kind, third.plan) == ("requested", replace(second.plan, workers=3))
    assert facts(machine, plan_applied("a", third.version, third.plan, 1.0), 5.0) == []


def test_memory_is_given_back_only_after_a_while_and_only_if_it_is_worth_it() -> None:
    machine = arbiter()
    started(machine, p=plan(memory=8 * GIB))
    assert facts(machine, oom_forecast("a", "shrink", 2 * GIB, "less"), 10.0) == []
    (fact,) = facts(machine, Tick(), 70.0)
    assert fact.plan.ps_memory_bytes == 2 * GIB
    machine.handle(plan_applied("a", 2, fact.plan, 1.0), 71.0)
    assert facts(machine, oom_forecast("a", "shrink", int(1.9 * GIB), "less"), 500.0) == []


def test_an_actuator_that_says_nothing_does_not_block_for_ever() -> None:
    machine = arbiter(apply_timeout_s=50.0)
    machine.handle(JobOpened("a", profile()), 0.0)
    machine.handle(plan_proposed("a", "warm-start", plan(), 0.1, ("r",)), 0.0)
    machine.handle(front("a", 1, 1000.0, (2, 2000.0, 0.0)), 10.0)
    machine.handle(Tick(), 60.0)
    assert len(facts(machine, Tick(), 100.0)) == 1


def test_the_higher_weight_starts_first() -> None:
    machine = arbiter(Resources(2, 8 * GIB))
    started(machine, "running")
    for job, weight in (("low", 1.0), ("high", 5.0)):
        machine.handle(JobOpened(job, profile(weight=weight)), 1.0)
        machine.handle(plan_proposed(job, "warm-start", plan(), 0.1, ("r",)), 2.0)
    (fact,) = facts(machine, job_ended("running", "gone"), 3.0)
    assert fact.job == "high"


def test_a_waiting_job_gets_its_least_from_one_that_holds_more() -> None:
    machine = arbiter(Resources(6, 16 * GIB))
    started(machine, "large", p=plan(5, 1))
    machine.handle(JobOpened("small", profile()), 10.0)
    said = facts(machine, plan_proposed("small", "warm-start", plan(2, 1), 0.1, ("r",)), 10.0)
    assert [type(fact) for fact in said] == [PlanRefused, PlanDecided]
    given = said[1]
    assert (given.job, given.kind, given.plan.workers, given.plan.ps) == ("large", "rebalance", 4, 1)
    assert facts(machine, Tick(), 11.0) == [], "the room is not free yet"
    (fact,) = facts(machine, plan_applied("large", 2, given.plan, 1.0), 12.0)
    assert (fact.job, fact.kind) == ("small", "fit-capacity")
    assert machine.state.claimed().fits(Resources(6, 16 * GIB))


def test_a_more_important_job_gives_nothing_back_and_nobody_grows_before_the_waiting_one() -> None:
    machine = arbiter(Resources(6.5, 16 * GIB))
    started(machine, "large", p=plan(5, 1), weight=9.0)
    machine.handle(JobOpened("small", profile()), 10.0)
    said = facts(machine, plan_proposed("small", "warm-start", plan(2, 1), 0.1, ("r",)), 10.0)
    assert [type(fact) for fact in said] == [PlanRefused]
    (refused,) = facts(machine, plan_proposed("large", "measure", plan(5, 1, 1.1), 0.1, ("r",)), 50.0)
    assert isinstance(refused, PlanRefused)


def test_a_job_larger_than_the_cluster_stops_nobody() -> None:
    machine = arbiter(Resources(6, 16 * GIB))
    started(machine, "running", p=plan(2, 1))
    machine.handle(JobOpened("huge", profile(initial=plan(16, 1), fixed=True)), 10.0)
    (refused,) = facts(machine, plan_proposed("huge", "initial", plan(16, 1), 0.1, ("r",)), 10.0)
    assert any("whole cluster" in reason for reason in refused.reasons)
    (fact,) = facts(machine, plan_proposed("running", "measure", plan(3, 1), 0.1, ("r",)), 50.0)
    assert isinstance(fact, PlanDecided)


def test_what_one_job_gives_back_is_not_handed_out_before_it_is_there() -> None:
    machine = arbiter(Resources(10, 40 * GIB), objective="gain", round_s=1000.0)
    started(machine, "giver", p=plan(5))
    started(machine, "taker", p=plan(2))
    machine.handle(front("giver", 1, 1000.0, (2, 1500.0, 0.0)), 100.0)
    machine.handle(front("taker", 1, 1000.0, (4, 9000.0, 0.0)), 100.0)
    machine.state.last_round_s = 0.0
    first = facts(machine, Tick(), 1100.0)
    assert machine.state.claimed().fits(Resources(10, 40 * GIB))
    assert "giver" in {fact.job for fact in first}


def test_a_plug_in_that_overdraws_is_not_followed() -> None:
    from stretto_core.arbiter.selection import Selection

    def greedy_fool(problem: object) -> Selection:
        return Selection({"a": "0"}, 1.0, 1.0)

    machine = ArbiterMachine(None, ArbiterSettings(Resources(3, 8 * GIB)), greedy_fool, "fool")
    started(machine)
    assert facts(machine, front("a", 1, 1000.0, (8, 9000.0, 0.0)), 100.0) == []


def test_a_maximum_that_is_no_whole_number_of_steps_moves_no_buckets() -> None:
    machine = arbiter()
    high = 2 * GIB + 10 * MIB
    started(machine, limits=JobLimits(LIMITS.low, replace(LIMITS.high, ps_memory_bytes=high)))
    (fact,) = facts(machine, oom_forecast("a", "grow", 2 * GIB + MIB, "grows"), 1.0)
    assert (fact.plan.ps, fact.plan.ps_memory_bytes) == (1, high)


@pytest.mark.parametrize(("base", "ps"), [(0, 2), (3 * GIB // 2, 4), (2 * GIB, 2), (GIB // 100, 2)])
def test_each_further_server_takes_its_base_before_it_takes_rows(base: int, ps: int) -> None:
    """Rows of 2 GiB beside a base of 1.5 need four servers of 2 GiB; a base that leaves no room tells nothing."""
    machine = arbiter()
    limits = JobLimits(LIMITS.low, replace(LIMITS.high, ps_memory_bytes=2 * GIB))
    started(machine, p=plan(memory=2 * GIB), limits=limits)
    (fact,) = facts(machine, oom_forecast("a", "grow", 7 * GIB // 2, "grows", base_bytes=base), 1.0)
    assert (fact.plan.ps, fact.plan.ps_memory_bytes) == (ps, 2 * GIB)


def test_servers_at_their_maximum_get_others_beside_them_once() -> None:
    """A forecast that was on its way while the buckets moved is of the servers before: it adds none."""
    machine = arbiter()
    limits = JobLimits(LIMITS.low, replace(LIMITS.high, ps_memory_bytes=2 * GIB))
    started(machine, p=plan(memory=2 * GIB), limits=limits)
    (fact,) = facts(machine, oom_forecast("a", "grow", 3 * GIB, "grows"), 1.0)
    assert (fact.plan.ps, fact.plan.ps_memory_bytes) == (2, 2 * GIB)
    machine.handle(oom_forecast("a", "grow", 3 * GIB, "grows"), 2.0)
    assert facts(machine, plan_applied("a", fact.version, fact.plan, 1.0), 3.0) == []


@pytest.mark.parametrize(("outcome", "held_s"), [("completed", 900.0), ("cancelled", 20.0), ("failed", 20.0)])
def test_an_ended_job_holds_its_capacity_until_its_pods_are_gone(outcome: str, held_s: float) -> None:
    for gone in (False, True):
        machine = arbiter()
        started(machine, now=10.0)
        machine.handle(job_ended("a", outcome), 20.0)
        machine.handle(Tick(), 20.0 + held_s - 1)
        assert machine.state.claimed() == plan().resources(NO_EXTENDED)
        if gone:
            machine.handle(job_ended("a", "gone"), 20.0 + held_s - 1)
        else:
            machine.handle(Tick(), 20.0 + held_s + 1)
        assert not machine.state.jobs


def test_a_completed_job_that_a_restore_takes_back_is_decided_on_again() -> None:
    machine = arbiter()
    started(machine)
    machine.handle(job_progressed("a", 5_000_000, 5_000_000, 1000.0), 100.0)
    machine.handle(job_ended("a", "completed"), 100.0)
    machine.handle(job_progressed("a", 1_000_000, 5_000_000, 1000.0), 110.0)
    assert machine.state.samples_done == {"a": 1_000_000}
    (fact,) = facts(machine, front("a", 1, 1000.0, (2, 2000.0, 0.0)), 2000.0)
    assert fact.kind == "improve"


def test_a_job_that_would_miss_its_deadline_goes_before_a_like_one() -> None:
    """Room for one of them. 5 M samples at 1000 a second take 5000 s; the deadline is in 2500 s."""
    for deadline_s, first in ((None, "a"), (100_000.0, "a"), (2500.0, "b")):
        machine = arbiter(Resources(5, 5 * GIB))
        started(machine, "a")
        started(machine, "b", deadline_s=deadline_s)
        machine.state.last_round_s = 100.0
        machine.handle(front("a", 1, 1000.0, (2, 2000.0, 0.0)), 100.0)
        machine.handle(front("b", 1, 1000.0, (2, 2000.0, 0.0)), 100.0)
        (fact,) = facts(machine, Tick(), 103.0)
        assert fact.job == first
        assert any("after its deadline: its weight counts 2.1 times" in reason for reason in fact.reasons) == (
            first == "b"
        )


def test_a_wish_for_the_plan_that_runs_is_answered() -> None:
    """Nothing was said: whoever had asked waited for a decision that never came."""
    machine = arbiter()
    started(machine)
    for now in (1.0, 2.0):
        (fact,) = facts(machine, plan_proposed("a", "requested", plan(), 0.0, ("r",)), now)
        assert isinstance(fact, PlanRefused)
        assert "already" in fact.reasons[0]
    assert facts(machine, plan_proposed("a", "measure", plan(), 0.0, ("r",)), 3.0) == []


def test_a_server_beyond_the_plan_has_room_of_its_own_or_is_not_started() -> None:
    machine = arbiter(Resources(5, 8 * GIB))
    started(machine)
    (given,) = facts(machine, replacement_asked("a", "ps-0"), 1.0)
    assert given.granted
    assert machine.free() == Resources(2, 5 * GIB)
    (again,) = facts(machine, replacement_asked("a", "ps-0"), 2.0)
    assert again.granted
    assert machine.free() == Resources(2, 5 * GIB), "it is counted once"
    assert facts(machine, plan_proposed("a", "measure", plan(2), 0.1, ("r",)), 3.0) == [], "its pods are changing"
    (grown,) = facts(machine, oom_forecast("a", "grow", 2 * GIB, "grows"), 4.0)
    assert grown.plan.ps_memory_bytes == 2 * GIB
    assert machine.free() == Resources(2, 3 * GIB), "both servers grow"
    machine.handle(plan_applied("a", grown.version, grown.plan, 1.0), 5.0)
    assert facts(machine, replacement_ended("a", "ps-0"), 6.0) == []
    assert machine.free() == Resources(3, 5 * GIB)


@pytest.mark.parametrize("why", ["no room", "another waits", "changing", "leaving"])
def test_no_server_is_started_beyond_the_plan_when(why: str) -> None:
    machine = arbiter(Resources(2.4 if why in ("no room", "another waits") else 64, 256 * GIB))
    started(machine, fixed=True)
    if why == "another waits":
        machine.handle(JobOpened("b", profile()), 1.0)
        machine.handle(plan_proposed("b", "initial", plan(), 0.1, ("r",)), 1.0)
    elif why == "changing":
        machine.handle(plan_proposed("a", "requested", plan(2), 0.1, ("r",)), 1.0)
    elif why == "leaving":
        machine.handle(job_ended("a", "cancelled"), 1.0)
    (fact,) = facts(machine, replacement_asked("a", "ps-0"), 2.0)
    assert not fact.granted
    assert fact.reasons
    assert machine.state.jobs["a"].replacing == ""


def test_a_round_decides_on_the_best_hundred_and_the_next_on_the_others() -> None:
    """A decision with its reasons takes a while: a thousand at once held up whatever happened meanwhile."""
    machine = arbiter(Resources(1e5, 2**50), round_s=50.0)
    names = [f"job-{number}" for number in range(130)]
    for name in names:
        started(machine, name)
        machine.handle(front(name, 1, 1000.0, (2, 2000.0, 0.0), (3, 1500.0 + len(name), 0.0)), 10.0)
    machine.state.last_round_s = 20.0
    first = facts(machine, Tick(), 70.0)
    assert len(first) == 100
    assert [fact.job for fact in facts(machine, Tick(), 120.0)] == [n for n in names if n not in {f.job for f in first}]
