"""Quotas of teams bind, idle quota is borrowed and comes back, and shares leave the bound of a round proven."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from arbiter_builders import Told, busy_cluster, event_of, offer
from closed_loop import profile
from hypothesis import given, settings
from hypothesis import strategies as st
from job_builders import candidate, candidates_computed, job_ended
from selection_problems import brute_force
from stretto_core.arbiter.machine import ArbiterMachine
from stretto_core.arbiter.register import kept
from stretto_core.arbiter.selection import Selection, SelectionProblem
from stretto_core.arbiter.selection.hull import hull
from stretto_core.arbiter.state import ArbiterSettings, JobState
from stretto_core.arbiter.teams import ROUNDING
from stretto_core.machine import Tick
from stretto_core.model.teams import TeamQuota, quota_of
from stretto_core.model.types import JobOpened
from stretto_messages.arbiter import PlanDecided, PlanRefused
from stretto_messages.base import GIB
from stretto_messages.values import NO_EXTENDED, NOTHING, Resources, shortage, total

from .test_invariants import CAPACITY

QUOTAS = {
    "ads": TeamQuota(cores=3.0, memory_gib=7.0, weight=2.0),
    "feed": TeamQuota(cores=4.0, memory_gib=8.0),
    "search": TeamQuota(cores=3.0, memory_gib=6.0, borrow=False),
}


class Cluster(Told):
    """An arbiter under quotas, told of jobs in teams; ``problems`` of its rounds, with the answers."""

    def __init__(self, quotas: Mapping[str, TeamQuota], capacity: Resources = CAPACITY, **more: float) -> None:
        self.problems: list[tuple[SelectionProblem, Selection]] = []
        self.quotas, self.capacity = quotas, capacity
        limits = ArbiterSettings(capacity, quotas=quotas, background_algorithm="", **more)  # type: ignore[arg-type]
        super().__init__(ArbiterMachine(None, limits, self._select))

    def _select(self, problem: SelectionProblem) -> Selection:
        self.problems.append((problem, hull(problem)))
        return self.problems[-1][1]

    def start(self, job: str, team: str, workers: int = 1, **spec: Any) -> list[Any]:
        return super().start(job, profile(10**7, **spec), workers, team)

    def held(self, team: str) -> Resources:
        return total(job.held for job in self.machine.state.jobs.values() if job.team == team)

    def borrowed(self, team: str) -> Resources:
        return shortage(self.held(team), quota_of(self.quotas, team).limit(self.capacity))

    def owners(self) -> list[JobState]:
        """Jobs that wait although their least fits the quota of their team."""
        return [
            job
            for job in self.machine.state.jobs.values()
            if job.plan is None and job.proposal is not None
            if job.least(job.proposal).fits(quota_of(self.quotas, job.team).limit(self.capacity) - self.held(job.team))
            if job.least(job.proposal).fits(self.capacity)
        ]


def scripts(cluster: Cluster, seed: int, teams: tuple[str, ...]) -> Iterator[tuple[object, float]]:
    """Likely events of eight jobs, in these teams by turns, and the seconds before each."""
    rng = random.Random(seed)
    names = [f"job-{number}" for number in range(8)]
    for _ in range(150):
        event = Tick() if rng.random() < 0.1 else event_of(cluster.machine, busy_cluster(rng, cluster.machine, names))
        if isinstance(event, JobOpened):
            event = replace(event, team=teams[names.index(event.job) % len(teams)])
        yield event, rng.choice([0.0, 0.5, 2.0, 20.0])


@settings(max_examples=80)
@given(st.integers(0, 2**32), st.booleans())
@pytest.mark.proof
def test_a_team_exceeds_its_quota_only_while_nobody_waits_for_his_own(seed: int, fixed: bool) -> None:
    """Goal: quotas bind; nobody borrows what another team asks for, nor what its jobs cannot give back; the cluster is
    never overdrawn.

    Method: random events of jobs in three teams; after each, holdings against quotas, counted from the state. With
    ``fixed`` each second job is; what a team's jobs keep at their least grows beyond its quota for memory alone.
    """
    cluster = Cluster(QUOTAS, apply_timeout_s=90.0)
    kept_before = dict.fromkeys(QUOTAS, NOTHING)
    for number, (event, wait_s) in enumerate(scripts(cluster, seed, tuple(QUOTAS))):
        if isinstance(event, JobOpened) and fixed and number % 2:
            event = replace(event, profile=replace(event.profile, fixed=True))
        cluster.now += wait_s
        before = {team: cluster.borrowed(team) for team in QUOTAS}
        facts = cluster.tell(event)
        memory = {fact.job for fact in facts if isinstance(fact, PlanDecided) and fact.kind == "memory"}
        assert cluster.machine.state.claimed().fits(CAPACITY)
        assert cluster.borrowed("search") == NOTHING, "it may not borrow"
        for team, quota in QUOTAS.items():
            if not cluster.borrowed(team).fits(before[team]):
                assert not [job.job for job in cluster.owners() if job.team != team]
            running = [job for job in cluster.machine.state.jobs.values() if job.team == team]
            now = total(kept(job, job.plan) for job in running if job.plan is not None)
            if not memory & {job.job for job in running}:
                assert now.fits(quota.limit(CAPACITY) + ROUNDING) or now.fits(kept_before[team] + ROUNDING), team
            kept_before[team] = now


@settings(max_examples=50)
@given(st.integers(0, 2**32))
@pytest.mark.proof
def test_one_team_is_decided_as_without_teams(seed: int) -> None:
    """Goal: with one team nothing changes. Method: the same events without quotas, and in one team with a weight."""
    alone, team = Cluster({}), Cluster({"ads": TeamQuota(weight=3.0), "feed": TeamQuota(cores=1.0)})
    for event, wait_s in scripts(alone, seed, ("ads",)):
        alone.now = team.now = alone.now + wait_s
        assert alone.tell(event) == team.tell(event)


@settings(max_examples=50)
@given(st.integers(0, 2**32))
@pytest.mark.proof
def test_a_round_keeps_quotas_and_its_bound_holds_under_them(seed: int) -> None:
    """Goal: value, bound and gap of a round are those of the weighted and limited problem.

    Method: every round's problem of random events is solved by trying all choices; none exceeds the stated bound. What
    a round gives keeps every team's quota if another team had an option within its own.
    """
    cluster = Cluster(QUOTAS, settle_s=0.0, round_s=0.0)
    for event, wait_s in scripts(cluster, seed, tuple(QUOTAS)):
        cluster.now += wait_s
        before = {team: cluster.borrowed(team) for team in QUOTAS}
        decided = [fact for fact in cluster.tell(event) if isinstance(fact, PlanDecided) and fact.round is not None]
        for problem, selection in cluster.problems:
            best = brute_force(problem)
            assert selection.value <= best * (1 + 1e-9)
            assert best <= selection.bound * (1 + 1e-9)
            assert all(fact.round is not None and fact.round.bound == selection.bound for fact in decided)
        cluster.problems.clear()
        growing = {cluster.machine.state.jobs[fact.job].team for fact in decided}
        borrowing = {team for team in growing if not cluster.borrowed(team).fits(before[team])}
        assert not borrowing or len(growing) == 1, "a team got its own and another one borrowed, in one round"


def test_idle_quota_is_borrowed_and_comes_back_whatever_the_priority() -> None:
    """Goal: an owner gets its quota back from a borrower of a higher priority, by a smaller plan, at the next decision.

    Method: ads fills the cluster, feed submits a job within its quota; then the job of ads is told to be smaller.
    """
    quotas = {"ads": TeamQuota(cores=4.0), "feed": TeamQuota(cores=4.0)}
    cluster = Cluster(quotas, Resources(8.0, 100 * GIB))
    (lent,) = cluster.start("big", "ads", workers=7, weight=5.0)
    assert isinstance(lent, PlanDecided)
    assert lent.plan.resources(NO_EXTENDED).cpu_cores == 8.0
    assert any("team ads borrows 4 cores and 0.00 GiB beyond its quota of 4 cores" in each for each in lent.reasons)
    cluster.applied("big")
    refused, taken = cluster.start("late", "feed", workers=2)
    assert isinstance(refused, PlanRefused)
    assert isinstance(taken, PlanDecided)
    assert (taken.job, taken.kind) == ("big", "rebalance")
    assert cluster.owners()
    granted = cluster.applied("big")
    assert [fact.job for fact in granted if isinstance(fact, PlanDecided)] == ["late"]
    assert cluster.held("ads").cpu_cores >= 4.0, "nobody takes what is within a quota"


def test_jobs_that_cannot_shrink_do_not_borrow_and_an_owner_gets_its_quota() -> None:
    """Goal: a team of fixed jobs cannot hold the idle quota of another. Method: ads submits them until one is refused;
    then feed gets all that is its own at once."""
    quotas = {"ads": TeamQuota(cores=4.0), "feed": TeamQuota(cores=4.0)}
    cluster = Cluster(quotas, Resources(8.0, 100 * GIB))
    for number in range(2):
        assert isinstance(cluster.start(f"fixed-{number}", "ads", fixed=True)[0], PlanDecided)
    (refused,) = cluster.start("fixed-2", "ads", fixed=True)
    assert isinstance(refused, PlanRefused)
    assert any(each.endswith("it borrows only what its jobs can give back") for each in refused.reasons), (
        refused.reasons
    )
    assert cluster.held("ads").cpu_cores == 4.0
    for number in range(2):
        assert isinstance(cluster.start(f"own-{number}", "feed", fixed=True)[0], PlanDecided)


def test_no_reason_that_a_team_reads_names_another_team_or_its_jobs() -> None:
    """Goal: reasons, which a team reads, say nothing of another one. Method: a job of each team takes from the other,
    waits for the other, and grows beside it; names that occur in nothing else are searched in all that is decided."""
    names = {"ads": "zebra-of-ads", "feed": "yak-of-feed", "search": "xerus-of-search"}
    cluster = Cluster({"ads": TeamQuota(cores=4.0), "feed": TeamQuota(cores=4.0)}, Resources(8.0, 100 * GIB))
    facts = cluster.start(names["ads"], "ads", workers=7)
    facts += cluster.applied(names["ads"])
    facts += cluster.start(names["feed"], "feed", workers=2)
    facts += cluster.start(f"{names['ads']}-2", "ads", workers=2)
    facts += cluster.applied(names["ads"])
    facts += cluster.start(names["search"], "search")
    taken = [fact for fact in facts if isinstance(fact, PlanDecided) and fact.kind == "rebalance"]
    assert any("a job of another team waits for" in reason for fact in taken for reason in fact.reasons)
    asked = [fact for fact in facts if isinstance(fact, PlanRefused)]
    assert any("another team asks for its own" in reason for fact in asked for reason in fact.reasons), asked
    for fact in facts:
        assert isinstance(fact, PlanDecided | PlanRefused)
        team = cluster.machine.state.jobs[fact.job].team
        for other in names.keys() - {team}:
            assert not any(names[other] in reason or f"team {other}" in reason for reason in fact.reasons)
            assert not any(f"quota of {other}" in reason for reason in fact.reasons)


@pytest.mark.parametrize(("ceiling", "factor"), [(None, 10.0), (4.0, 2.0), (1.0, 1.0)])
def test_no_deadline_lifts_a_job_above_its_teams_ceiling(ceiling: float | None, factor: float) -> None:
    """Goal: a deadline that cannot be met is no way around priority_max. Method: a job of weight 2, long too late."""
    job = JobState("j", profile(10**7, weight=2.0, deadline_s=1.0), 0, throughput=1.0)
    assert job.urgency(0, 100.0, ceiling) == factor


def test_a_round_weighs_a_late_job_within_its_teams_ceiling() -> None:
    cluster = Cluster({"ads": TeamQuota(priority_max=3.0)}, Resources(11.0, 100 * GIB), settle_s=0.0)
    cluster.start("late", "ads", weight=2.0, deadline_s=1.0)
    cluster.applied("late")
    cluster.now += 100.0
    grown = offer(cluster.machine, "late", cluster.now, (4, 3000.0))
    assert [fact.job for fact in grown] == ["late"]
    (problem, _) = cluster.problems[-1]
    assert problem.contenders[0].weight <= 3.0


def test_a_team_at_its_quota_waits_for_its_own_room_and_blocks_nobody() -> None:
    """Goal: a job beyond a quota that may not borrow waits, says why, and lets other teams grow.

    Method: two jobs of a team with a quota for one, then a candidate of another team's job, in an idle cluster.
    """
    quotas = {"search": TeamQuota(cores=2.0, borrow=False), "feed": TeamQuota(cores=6.0)}
    cluster = Cluster(quotas, Resources(12.0, 100 * GIB), settle_s=0.0)
    assert isinstance(cluster.start("one", "search")[0], PlanDecided)
    (refused,) = cluster.start("two", "search")
    assert isinstance(refused, PlanRefused)
    assert refused.reasons[-1].startswith("team search holds 2 cores and "), "lists show the last reason alone"
    assert refused.reasons[-1].endswith("its quota is 2 cores and any memory; it may not borrow")
    cluster.start("free", "feed")
    cluster.applied("free")
    cluster.now += 100.0
    grown = offer(cluster.machine, "free", cluster.now, (4, 3000.0))
    assert [(fact.job, fact.plan.workers) for fact in grown] == [("free", 4)]
    started = [fact for fact in (*cluster.tell(job_ended("one", "gone")), *cluster.tell(Tick()))]
    assert [fact.job for fact in started if isinstance(fact, PlanDecided)] == ["two"]


def test_a_job_within_its_quota_waits_for_the_cluster_and_says_so() -> None:
    """Goal: the last reason, which lists show, names no quota where none decides. Method: no core is free, and the
    team's quota of memory is below the free memory."""
    quotas = {"search": TeamQuota(cores=2.0, memory_gib=4.0, borrow=False), "feed": TeamQuota(cores=2.0)}
    cluster = Cluster(quotas, Resources(2.0, 100 * GIB))
    assert isinstance(cluster.start("one", "feed")[0], PlanDecided)
    refused = next(fact for fact in cluster.start("two", "search") if isinstance(fact, PlanRefused))
    assert any("its quota is 2 cores and 4 GiB" in each for each in refused.reasons)
    assert refused.reasons[-1].endswith("it waits")


def test_a_round_prefers_the_team_below_its_fair_share_and_says_so() -> None:
    """Goal: of equal jobs the one of the team with the smaller weighted share grows. Method: room for one of two."""

    def grown(quotas: Mapping[str, TeamQuota]) -> tuple[str, tuple[str, ...]]:
        cluster = Cluster(quotas, Resources(11.0, 100 * GIB), settle_s=0.0, round_s=1000.0)
        for job, team, workers in (("a", "ads", 3), ("b", "ads", 1), ("z", "feed", 1)):
            cluster.start(job, team, workers)
            cluster.applied(job)
        for job in ("b", "z"):
            cluster.now += 0.1
            state = cluster.machine.state.jobs[job]
            assert state.plan is not None
            rows = (candidate(replace(state.plan, workers=4), 4000, 3999, 4001, 0.4, 5.0, 3000.0),)
            cluster.tell(candidates_computed(job, state.version, state.plan, 1000.0, rows))
        cluster.now += 1000.0
        facts = [fact for fact in cluster.tell(Tick()) if isinstance(fact, PlanDecided)]
        (fact,) = facts
        return fact.job, fact.reasons

    assert grown({})[0] == "b"
    job, reasons = grown({"ads": TeamQuota(), "feed": TeamQuota()})
    assert job == "z"
    assert any("team feed holds 18% of the cluster, its fair share is 50%" in each for each in reasons), reasons
    assert grown({"ads": TeamQuota(weight=100.0), "feed": TeamQuota()})[0] == "b"
