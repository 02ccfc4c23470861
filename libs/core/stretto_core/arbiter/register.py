"""Index over all jobs for the arbiter's steps, derived from the state alone and never saved.

``touch`` follows every change of one job. A step looks only at the jobs that it concerns. It tries a job that had no
room again only when this job, or the resources that others hold, have changed since: nothing else could change the
result.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from stretto_messages.planner import CandidatesComputed
from stretto_messages.values import NOTHING, Candidate, Extended, Plan, Resources, added

from stretto_core.arbiter.selection import Option
from stretto_core.arbiter.state import ArbiterSettings, ArbiterState, JobState
from stretto_core.arbiter.worth import holdable, required_gain, worthwhile

CORE = 1 << 80
"""Cores are summed as whole numbers of 1/CORE, so that the sum does not depend on the order of additions."""
EARLY_S = 1e-3
"""An alarm goes off this many seconds early, and the step of the cycle then compares the exact time."""


@dataclass(slots=True)
class Sum:
    """An exact sum of amounts."""

    cores: int = 0
    memory_bytes: int = 0
    extended: Extended = ()

    def add(self, amount: Resources, times: int = 1) -> None:
        self.cores += times * int(amount.cpu_cores * CORE)
        self.memory_bytes += times * amount.memory_bytes
        if amount.extended:
            self.extended = added(self.extended, amount.extended, times)

    def add_sum(self, other: Sum) -> None:
        self.cores += other.cores
        self.memory_bytes += other.memory_bytes
        self.extended = added(self.extended, other.extended)

    @property
    def total(self) -> Resources:
        return Resources(self.cores / CORE, self.memory_bytes, self.extended)


class Prospect(NamedTuple):
    """A job's candidates that are worth a change, as options, and the inputs that they depend on.

    ``applied_plans`` counts those of the job.
    ``unreachable``: the best candidate that would need more memory per PS than the job's limits allow.
    """

    computed: CandidatesComputed
    plan: Plan
    applied_plans: int
    options: list[Option]
    unreachable: Candidate | None


class Share(NamedTuple):
    """One job's part in the sums over all jobs: resources held, held without room, and at most returnable (``spare``);
    ``changing``: a change is being applied; ``kept``: of the plan all but ``spare``."""

    held: Resources
    without_room: Resources
    spare: Resources
    changing: bool
    leaving: bool
    weight: float
    team: str
    kept: Resources


@dataclass(slots=True)
class WaitingJobs:
    """The jobs of one step that wait for room.

    All were last tried at ``version`` of the register; ``touched`` are the jobs that have changed since.
    """

    jobs: set[str] = field(default_factory=set[str])
    touched: set[str] = field(default_factory=set[str])
    version: int = -1


class DataWorkerShare(NamedTuple):
    """Data workers of one job beyond its plan: how many it has, and gets if there is room; their resources.

    ``told``: the number that its pods were decided by, or that it has if they are stopped anyway.
    """

    has: int
    most: int
    told: int
    held: Resources
    held_at_most: Resources


class DataWorkerIndex:
    """Index of data workers beyond plans.

    ``jobs``: those that have or want any; ``unequal``: those of them that have, or were told, another number than they
    get if there is room. ``changes`` grows with every change of these numbers.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, DataWorkerShare] = {}
        self.unequal: set[str] = set()
        self.changes = 0
        self.shared: tuple[int, int] | None = None
        """``version`` of the register and ``changes`` at which data workers were last shared out"""
        self._held, self._held_at_most = Sum(), Sum()

    @property
    def held(self) -> Resources:
        """Resources of all of them."""
        return self._held.total

    @property
    def held_at_most(self) -> Resources:
        """Resources of all of them if there were room for all that jobs have use for."""
        return self._held_at_most.total

    def update(self, name: str, job: JobState | None) -> None:
        """Bring the index up to date, if the data workers that the job has or wants have changed."""
        old, new = self.jobs.get(name), None
        if job is not None and (job.data or job.data_wanted or job.data_told):
            each, told = job.profile.data, job.data_told if job.leaving_s is None else job.data
            new = DataWorkerShare(job.data, job.data_most, told, each.of(job.data), each.of(job.data_most))
        if new == old:
            return
        self.changes += 1
        self.unequal.discard(name)
        if old is not None:
            del self.jobs[name]
            self._held.add(old.held, -1)
            self._held_at_most.add(old.held_at_most, -1)
        if new is not None:
            self.jobs[name] = new
            self._held.add(new.held)
            self._held_at_most.add(new.held_at_most)
            if not new.has == new.most == new.told:
                self.unequal.add(name)


class Register:
    """Index of one state. ``changed`` names the jobs changed since the last snapshot."""

    def __init__(self, state: ArbiterState, settings: ArbiterSettings) -> None:
        self.changed: set[str] = set()
        self.version = 0
        """Grows with every change of resources that another job could get."""
        self.short_of_memory, self.waiting = WaitingJobs(), WaitingJobs()
        self.measuring: set[str] = set()
        self.shrinking: set[str] = set()
        self.offering: dict[str, Prospect] = {}
        self.unreachable: set[str] = set()
        """Jobs with an unreachable candidate, which the next round refuses."""
        self.blocking: set[str] = set()
        """Jobs that wait to start, were refused, and could start in an empty cluster."""
        self.data_workers = DataWorkerIndex()
        self.in_change = 0
        """Number of jobs whose change is being applied."""
        self._state, self._settings = state, settings
        self._held, self._without_room = Sum(), Sum()
        self._spare: dict[float, Sum] = {}
        self._held_by_team: dict[str, Sum] = {}
        self._kept_by_team: dict[str, Sum] = {}
        self._shares: dict[str, tuple[object, Share]] = {}
        self._prospects: dict[str, Prospect] = {}
        self._alarms: list[tuple[float, str]] = []
        self._due_s: dict[str, float] = {}
        for name in state.jobs:
            self._index(name)
        # the event before this state shared data workers out: another round, by newer ranks, would decide otherwise
        self.data_workers.shared = self.version, self.data_workers.changes

    # queries ---------------------------------------------------------------------------------------------------

    @property
    def held(self) -> Resources:
        """Resources that all jobs hold."""
        return self._held.total

    def held_of(self, team: str) -> Resources:
        """Return the resources that the jobs of a team hold."""
        return self._held_by_team[team].total if team in self._held_by_team else NOTHING

    @property
    def teams(self) -> Collection[str]:
        """Teams that hold anything."""
        return self._held_by_team.keys()

    @property
    def without_room(self) -> Resources:
        """Resources requested by pods that no node can place; subtracted from the configured capacity."""
        return self._without_room.total

    def ordered(self, names: Iterable[str]) -> list[JobState]:
        """Return the jobs by weight, the highest first, then in the order of submission."""
        jobs = [self._state.jobs[name] for name in names]
        return sorted(jobs, key=lambda job: (-job.profile.weight, job.order))

    def to_try(self, step: WaitingJobs) -> list[JobState]:
        """Return the step's jobs whose result may differ from that of their last trial."""
        names = step.jobs if step.version != self.version else step.jobs & step.touched
        step.version, step.touched = self.version, set()
        return self.ordered(names) if names else []

    def prospect(self, name: str) -> Prospect | None:
        """Return the prospect of a job that may get a decision, else None."""
        return self._prospects.get(name)

    def kept_of(self, team: str) -> Resources:
        """Return what the team's jobs hold and could not give back to others."""
        return self._kept_by_team[team].total if team in self._kept_by_team else NOTHING

    def could_give(self, weight: float) -> Resources:
        """Return an upper bound of the resources that all jobs of at most this weight could give back together."""
        most = Sum()
        for other_weight, spare in self._spare.items():
            if other_weight <= weight:
                most.add_sum(spare)
        return most.total

    def due(self, now: float) -> list[JobState]:
        """Return the jobs whose alarm goes off, and clear these alarms; ``touch`` and ``reindex`` set them again."""
        names: set[str] = set()
        while self._alarms and self._alarms[0][0] <= now:
            due_s, name = heapq.heappop(self._alarms)
            if self._due_s.get(name) == due_s:
                del self._due_s[name]
            names.add(name)
        return self.ordered(names & self._state.jobs.keys()) if names else []

    def set_alarm(self, name: str, due_s: float) -> None:
        """Let the job be ``due`` from ``due_s`` on; an earlier alarm stays."""
        due_s -= EARLY_S
        if due_s < self._due_s.get(name, math.inf):
            self._due_s[name] = due_s
            heapq.heappush(self._alarms, (due_s, name))

    # updates ---------------------------------------------------------------------------------------------------

    def touch(self, name: str) -> None:
        """Index a job that has changed, come or gone."""
        self.changed.add(name)
        self._index(name)

    def reindex(self, name: str) -> None:
        """Index a job again because of the time alone: its state has not changed."""
        self._index(name)

    def _index(self, name: str) -> None:
        waited = name in self.waiting.jobs
        self._index_job(name)
        if self._settings.quotas and (waited or name in self.waiting.jobs):
            self.version += 1  # a waiting job may keep other teams from borrowing

    def _index_job(self, name: str) -> None:
        job = self._state.jobs.get(name)
        self._update_share(name, job)
        self.data_workers.update(name, job)
        for step in (self.short_of_memory, self.waiting):
            step.jobs.discard(name)
            step.touched.add(name)
        for names in (self.measuring, self.shrinking, self.unreachable, self.blocking):
            names.discard(name)
        self.offering.pop(name, None)
        if job is None:
            self._prospects.pop(name, None)
            return
        decidable = job.leaving_s is None and not job.changing
        if job.plan is None:
            self._index_waiting(job)
        elif job.may_get_memory and job.ps_memory_bytes > job.plan.ps_memory_bytes:
            self.short_of_memory.jobs.add(name)
        if job.plan is not None and decidable:
            if job.proposal is not None:
                self.measuring.add(name)
            if job.shrink_to_bytes:
                self.shrinking.add(name)
            self._index_prospect(job, job.plan)
        self._set_alarms(job)

    def _index_waiting(self, job: JobState) -> None:
        """Index a job without a plan."""
        if job.proposal is None:
            return
        if job.leaving_s is None and not job.changing:
            self.waiting.jobs.add(job.job)
        if job.refused is not None and job.least(job.proposal).fits(self._settings.capacity):
            self.blocking.add(job.job)

    def _update_share(self, name: str, job: JobState | None) -> None:
        """Bring the sums over all jobs up to date, if the job's part in them has changed."""
        old = self._shares.get(name)
        inputs = (
            None
            if job is None or job.plan is None
            else (job.plan, job.before, job.applying, job.leaving_s is None, job.replacing, job.without_room)
        )
        if inputs == (old[0] if old else None):
            return
        self.version += 1
        if old is not None:
            del self._shares[name]
            self._count(old[1], -1)
        if job is not None and job.plan is not None:
            leaving, weight = job.leaving_s is not None, job.profile.weight
            returned = spare(job, job.plan)
            bound = (
                job.profile.resources(job.plan) - returned
            )  # also of an ended job: a late report may show that it goes on
            share = Share(job.held, job.without_room, returned, job.changing, leaving, weight, job.team, bound)
            self._shares[name] = inputs, share
            self._count(share, 1)

    def _count(self, share: Share, times: int) -> None:
        self._held.add(share.held, times)
        held = self._held_by_team.setdefault(share.team, Sum())
        held.add(share.held, times)
        if held == Sum():
            del self._held_by_team[share.team]
        bound = self._kept_by_team.setdefault(share.team, Sum())
        bound.add(share.kept, times)
        if bound == Sum():
            del self._kept_by_team[share.team]
        self._without_room.add(share.without_room, times)
        if not share.leaving:
            self.in_change += times * share.changing
            total = self._spare.setdefault(share.weight, Sum())
            total.add(share.spare, times)
            if total == Sum():  # weights are any numbers: keeping those of all past jobs would leak memory
                del self._spare[share.weight]

    def _index_prospect(self, job: JobState, plan: Plan) -> None:
        """Compute the job's prospect, unless its candidates, its plan and its earlier plans are still the same."""
        computed = job.candidates
        if computed is None:
            self._prospects.pop(job.job, None)
            return
        found = self._prospects.get(job.job)
        if (
            found is None
            or found.computed is not computed
            or found.plan != plan
            or found.applied_plans != len(job.applied_plans)
        ):
            minimum, objective = self._settings.gain_fraction_min, self._settings.objective
            options = [] if job.profile.fixed else worthwhile(computed, plan, job.profile, minimum, objective)
            found = Prospect(
                computed, plan, len(job.applied_plans), options, unreachable_candidate(job, computed, plan, minimum)
            )
            self._prospects[job.job] = found
        if found.options:
            self.offering[job.job] = found
        if found.unreachable is not None:
            self.unreachable.add(job.job)

    def _set_alarms(self, job: JobState) -> None:
        """Bound the waits for a silent actuator, for room that was missing, and for the pods of an ended job."""
        settings = self._settings
        for waiting in job.unplaced.values():
            self.set_alarm(job.job, waiting.since_s + settings.no_room_s)
        if job.data_limit is not None:
            self.set_alarm(job.job, job.data_limited_s + settings.no_room_s)
        if job.leaving_s is not None:
            self.set_alarm(job.job, job.leaving_s + holds_s(job, settings))
        if job.applying:
            self.set_alarm(job.job, job.changed_s + settings.apply_timeout_s)


def holds_s(job: JobState, settings: ArbiterSettings) -> float:
    """Return the longest time for which the pods of an ended job are counted."""
    return settings.leave_timeout_s if job.completed else settings.stop_grace_s


def spare(job: JobState, plan: Plan) -> Resources:
    """Return the most resources that the job could give back to others (``worth.give_back``)."""
    if job.profile.fixed:
        return NOTHING
    low = job.profile.limits.low
    least = replace(
        plan.fewer_workers(low.workers),
        worker_cpu_cores=max(plan.worker_cpu_cores / 2, low.worker_cpu_cores),
        ps_cpu_cores=max(plan.ps_cpu_cores / 2, low.ps_cpu_cores),
    )
    return job.profile.resources(plan) - job.profile.resources(least)


def kept(job: JobState, plan: Plan) -> Resources:
    """Return what the job holds under ``plan`` and could not give back to others."""
    return job.profile.resources(plan) - spare(job, plan)


def unreachable_candidate(
    job: JobState, computed: CandidatesComputed, plan: Plan, gain_fraction_min: float
) -> Candidate | None:
    """Return the best plan that the job had before, is worth a change, and needs more memory per PS than its limits
    allow."""
    better = [
        candidate
        for candidate in computed.candidates
        if not holdable(candidate.plan, job.profile.limits, plan)
        and job.had_before(candidate.plan)
        and candidate.gain / computed.throughput >= required_gain(candidate, gain_fraction_min)
    ]
    return max(better, key=lambda candidate: candidate.gain, default=None)
