"""Teams in the arbiter: what each may take, from whom a waiting job gets its team's quota back, and fair shares.

1 A team takes free resources up to its quota. Beyond it the team borrows, while no other team asks for its own quota.
  It borrows only what its jobs can give back: all that they must keep (parameter servers, the least of the rest, the
  whole plan of a fixed job) fits the quota. Memory without which servers would die is the exception.
2 A job that waits although its least fits its team's quota blocks all borrowing. It takes back from borrowers, whatever
  their priority, but never more than they borrow. Within one team priorities decide, as without quotas.
3 In a round, the quotas of teams that may not borrow are resources of the selection problem, beside the cluster's. So
  the bound and the gap hold for the problem with quotas and shares.
4 The weight of a team's jobs in a round counts (fair share / held share) times: ``factors``.

Without quotas nothing of this has any effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from stretto_messages.values import NOTHING, Plan, Resources, lesser, shortage

from stretto_core.arbiter.register import Register, kept
from stretto_core.arbiter.selection import Option
from stretto_core.arbiter.state import ArbiterSettings, ArbiterState, JobState
from stretto_core.arbiter.worth import by_resource, in_words
from stretto_core.model.teams import OTHERS, UNLIMITED, quota_of

ROUNDING = Resources(1e-6, 0)
"""Tolerance for sums of fractions of cores."""
FACTOR_MAX = 8.0
"""Bound of a share's effect on a weight, in both directions (taste): less than that of a deadline."""


class Share(NamedTuple):
    """A team's share of the cluster, the largest of all resources, and its fair share by the teams' weights."""

    held: float
    fair: float

    @property
    def factor(self) -> float:
        """Factor on the weight of the team's jobs."""
        return min(max(self.fair / max(self.held, 1e-12), 1 / FACTOR_MAX), FACTOR_MAX)


class TeamShares:
    """Quotas and shares of the teams in the present state."""

    def __init__(self, state: ArbiterState, settings: ArbiterSettings, register: Register) -> None:
        self._state, self._settings, self._register = state, settings, register
        self._owners: tuple[int, frozenset[str]] = (-1, frozenset())
        self._limits = {team: quota.limit(settings.capacity) for team, quota in settings.quotas.items()}
        self.no_limit = UNLIMITED.limit(settings.capacity)
        """More of every resource of the cluster than it has."""

    @property
    def limited(self) -> bool:
        """True if there are quotas."""
        return bool(self._settings.quotas)

    def _limit(self, team: str) -> Resources:
        return self._limits.get(team) or self._limits.get(OTHERS) or self.no_limit

    def headroom(self, team: str) -> Resources:
        """Return the part of the team's quota that it does not hold; negative where it borrows."""
        return self._limit(team) - self._register.held_of(team)

    def borrowed(self, team: str) -> Resources:
        """Return the resources that the team holds beyond its quota."""
        return shortage(NOTHING, self.headroom(team))

    def entitled(self, job: JobState) -> bool:
        """Return True if the least of a waiting job fits its team's quota; without quotas every job's does."""
        return job.proposal is not None and job.least(job.proposal).fits(self.headroom(job.team))

    def owners(self) -> frozenset[str]:
        """Return the teams that wait for their own quota: a job whose least fits it, and fits the empty cluster."""
        if self._owners[0] != self._register.version:
            waiting = (self._state.jobs[name] for name in self._register.waiting.jobs)
            found = {
                job.team
                for job in waiting
                if job.proposal is not None
                and job.least(job.proposal).fits(self._settings.capacity)
                and self.entitled(job)
            }
            self._owners = self._register.version, frozenset(found)
        return self._owners[1]

    def may_borrow(self, team: str) -> bool:
        """Return True if the team may hold more than its quota now."""
        return quota_of(self._settings.quotas, team).borrow and not self.owners() - {team}

    def returnable(self, job: JobState, plan: Plan) -> bool:
        """Return True if under this plan all that the team's jobs could not give back fits the quota, or is no more."""
        if not self.guaranteed(job.team):
            return True
        limit = self._limit(job.team)
        now = self._register.kept_of(job.team)
        had = NOTHING if job.plan is None else kept(job, job.plan)
        return (now - had + kept(job, plan)).fits(limit + ROUNDING) or kept(job, plan).fits(had)

    def borrows_for(self, job: JobState) -> bool:
        """Return True if the team may hold more than its quota for this job: also for one that is to start."""
        if not self.limited:
            return True
        if job.plan is not None or job.proposal is None:
            return self.may_borrow(job.team)
        return self.may_borrow(job.team) and self.returnable(job, job.least_plan(job.proposal))

    def room(self, job: JobState, free: Resources) -> Resources:
        """Return the part of the free resources that the job's team may take."""
        if self.borrows_for(job):
            return free
        return lesser(free, self.headroom(job.team))

    @property
    def blocking(self) -> bool:
        """True while no running job may grow: a job waits that has a right to what is free."""
        return bool(self.owners()) if self.limited else bool(self._register.blocking)

    def blocked(self, team: str) -> bool:
        """Return True if a job of the team waits that its quota could ever start, so that running ones may not grow."""
        if not self.limited:
            return False
        quota = quota_of(self._settings.quotas, team)
        waiting = (self._state.jobs[name] for name in self._register.blocking)
        return any(
            (kept(job, job.least_plan(job.proposal)) if quota.borrow else job.least(job.proposal)).fits(
                self._limit(team)
            )
            for job in waiting
            if job.team == team and job.proposal is not None
        )

    def guaranteed(self, team: str) -> bool:
        """Return True if the team has a quota of resources, which other teams do not take from it."""
        return quota_of(self._settings.quotas, team).limited

    # reasons ---------------------------------------------------------------------------------------------------

    def limit_in_words(self, job: JobState, free: Resources) -> list[str]:
        """Return the reason if the quota leaves the job's team less than what is free. It names no other team."""
        team = job.team
        if self.borrows_for(job) or free.fits(self.headroom(team)):
            return []
        why = "it may not borrow"
        if self.owners() - {team}:
            why = "another team asks for its own"
        elif self.may_borrow(team):
            why = "it borrows only what its jobs can give back"
        return [f"team {team} holds {in_words(self._register.held_of(team))}, its quota is {self._quota(team)}; {why}"]

    def borrowing_in_words(self, team: str) -> list[str]:
        """Return the reason of a decision that lets the team hold more than its quota."""
        borrowed = self.borrowed(team) if self.limited else NOTHING
        if borrowed == NOTHING:
            return []
        return [
            f"team {team} borrows {in_words(borrowed)} beyond its quota of {self._quota(team)} until it is asked for"
        ]

    def _quota(self, team: str) -> str:
        quota = quota_of(self._settings.quotas, team)
        cores = "any cores" if quota.cores is None else f"{quota.cores:g} core{'s' * (quota.cores != 1)}"
        memory = "any memory" if quota.memory_gib is None else f"{quota.memory_gib:g} GiB"
        counts = "".join(f" and {count} {name}" for name, count in sorted(quota.extended.items()))
        return f"{cores} and {memory}{counts}"

    # rounds ----------------------------------------------------------------------------------------------------

    def shares(self) -> dict[str, Share]:
        """Return the share of every team that holds anything; none if there is one such team, or no quotas."""
        teams = self._register.teams
        if not self.limited or len(teams) < 2:
            return {}
        capacity, quotas = self._settings.capacity, self._settings.quotas
        weights = {team: quota_of(quotas, team).weight for team in sorted(teams)}
        total = sum(weights.values())
        held = {team: self._register.held_of(team) for team in weights}
        return {team: Share(_largest_share(held[team], capacity), weight / total) for team, weight in weights.items()}

    def round_limits(self, options: Mapping[str, Sequence[Option]], free: Resources) -> dict[str, Resources]:
        """Return what each team may get in a round at most; a team without an entry may get all that is free.

        ``options``: those of each job. A team borrows only in a round in which no other team has an option within its
        own quota.
        """
        if not self.limited:
            return {}
        by_team: dict[str, list[Option]] = {}
        for name, offered in options.items():
            by_team.setdefault(self._state.jobs[name].team, []).extend(offered)
        left = {team: shortage(self.headroom(team), NOTHING) for team in by_team}
        left |= {team: NOTHING for team in by_team if self.blocked(team)}
        wanting = {team for team, offered in by_team.items() if _any_fits(offered, lesser(free, left[team]))}
        return {
            team: amount
            for team, amount in left.items()
            if wanting - {team} or not self.may_borrow(team) or self.blocked(team)
        }


def _largest_share(held: Resources, capacity: Resources) -> float:
    """Return the share of the cluster that is held of the resource of which most is held (dominant share)."""
    of_devices = (held.count_of(name) / count for name, count in capacity.extended)
    return max([held.cpu_cores / capacity.cpu_cores, held.memory_bytes / capacity.memory_bytes, *of_devices])


def _any_fits(options: Sequence[Option], room: Resources) -> bool:
    free = by_resource(room)
    return any(all(amount <= free.get(name, 0.0) for name, amount in each.amounts.items()) for each in options)


def of_team(option: Option, team: str) -> Option:
    """Return the option with its amounts counted against the team's quota, too."""
    return replace(option, amounts=option.amounts | by_team(option.amounts, team))


def by_team(amounts: Mapping[str, float], team: str) -> dict[str, float]:
    """Return the amounts by the names of a team's resources in a selection problem."""
    return {f"{name} of {team}": amount for name, amount in amounts.items()}


class Reclaim:
    """The resources that a waiting job lacks, and how much of them each running job has to give back."""

    def __init__(self, teams: TeamShares, waiting: JobState, least: Resources, free: Resources) -> None:
        self._teams, self._waiting, self._least, self._free = teams, waiting, least, free
        self._headroom = teams.no_limit if teams.borrows_for(waiting) else teams.headroom(waiting.team)
        self._entitled = teams.limited and teams.entitled(waiting)
        self._borrowed: dict[str, Resources] = {}

    @property
    def complete(self) -> bool:
        """True once the job fits."""
        return self._least.fits(lesser(self._free, self._headroom))

    def ordered(self, jobs: Iterable[JobState]) -> Iterator[JobState]:
        """Return the jobs of borrowers first, otherwise in the given order."""
        return iter(sorted(jobs, key=lambda job: not self._borrows(job)))

    def missing_from(self, job: JobState) -> Resources:
        """Return the resources that the job is to give back, if it can."""
        if self._borrows(job):
            return lesser(shortage(self._least, self._free), self._borrowed[job.team])
        if job.profile.weight > self._waiting.profile.weight or self._protected(job):
            return NOTHING
        own = job.team == self._waiting.team
        return shortage(self._least, lesser(self._free, self._headroom) if own else self._free)

    def take(self, job: JobState, amount: Resources) -> None:
        """Count what a job gives back."""
        self._free = self._free + amount
        if job.team == self._waiting.team:
            self._headroom = self._headroom + amount
        elif job.team in self._borrowed:
            self._borrowed[job.team] = shortage(self._borrowed[job.team], amount)

    def _borrows(self, job: JobState) -> bool:
        """Return True if the job's team borrows what the waiting job's team has a right to."""
        if not self._entitled or job.team == self._waiting.team:
            return False
        if job.team not in self._borrowed:
            self._borrowed[job.team] = self._teams.borrowed(job.team)
        return self._borrowed[job.team] != NOTHING

    def _protected(self, job: JobState) -> bool:
        """Return True if the job holds its team's quota, from which no other team takes."""
        return self._teams.limited and job.team != self._waiting.team and self._teams.guaranteed(job.team)
