"""Index over all jobs for the arbiter's steps, derived from the state alone and never saved.

``touch`` follows every change of one job. A step looks at the jobs that it concerns, and tries again what had no room
only when the job, or what anybody else holds, has changed since: nothing else could make it come out otherwise.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from stretto_messages.planner import CandidatesComputed
from stretto_messages.values import NOTHING, Candidate, Plan, Resources

from stretto_core.arbiter.selection import Option
from stretto_core.arbiter.state import ArbiterSettings, ArbiterState, JobState
from stretto_core.arbiter.worth import holdable, required_gain, worthwhile

CORE = 1 << 80
"""Cores are summed as whole numbers of this part of one: the sum is the same in whatever order they came and went."""
EARLY_S = 1e-3
"""An alarm rings so much before its time, whose exact moment is for the step to judge."""


@dataclass(slots=True)
class Sum:
    """An exact sum of amounts."""

    cores: int = 0
    memory_bytes: int = 0

    def add(self, amount: Resources, times: int = 1) -> None:
        self.cores += times * int(amount.cpu_cores * CORE)
        self.memory_bytes += times * amount.memory_bytes

    @property
    def total(self) -> Resources:
        return Resources(self.cores / CORE, self.memory_bytes)


class Prospect(NamedTuple):
    """A job's candidates that are worth a change, and the best of those that it can no longer hold."""

    computed: CandidatesComputed
    plan: Plan
    had: int
    options: list[Option]
    beyond: Candidate | None


class Share(NamedTuple):
    """One job's part in the sums over all jobs: resources held, held without room, at most returnable, and whether a
    change is being applied."""

    held: Resources
    without_room: Resources
    spare: Resources
    changing: bool
    leaving: bool
    weight: float


@dataclass(slots=True)
class Tried:
    """The jobs of one step that wait for room; ``at`` which version of the others all of them were last tried."""

    jobs: set[str] = field(default_factory=set[str])
    fresh: set[str] = field(default_factory=set[str])
    at: int = -1


class Register:
    """Index of one state. ``changed`` names the jobs changed since the last snapshot."""

    def __init__(self, state: ArbiterState, settings: ArbiterSettings) -> None:
        self.changed: set[str] = set()
        self.version = 0
        """grows with every change that another job could notice"""
        self.needy, self.waiting = Tried(), Tried()
        self.measuring: set[str] = set()
        self.shrinking: set[str] = set()
        self.offering: dict[str, Prospect] = {}
        self.untold: set[str] = set()
        """whose best candidate is out of reach, which the next round says"""
        self.blocking: set[str] = set()
        """wait to start, were told so, and could in an empty cluster"""
        self.in_change = 0
        self._state, self._settings = state, settings
        self._held, self._without_room = Sum(), Sum()
        self._spare: dict[float, Sum] = {}
        self._shares: dict[str, tuple[object, Share]] = {}
        self._prospects: dict[str, Prospect] = {}
        self._alarms: list[tuple[float, str]] = []
        self._due_s: dict[str, float] = {}
        for name in state.jobs:
            self._file(name)

    # what is asked ---------------------------------------------------------------------------------------------

    @property
    def held(self) -> Resources:
        """Resources that all jobs hold."""
        return self._held.total

    @property
    def without_room(self) -> Resources:
        """Resources requested by pods that no node can place; subtracted from the configured capacity."""
        return self._without_room.total

    def ordered(self, names: Iterable[str]) -> list[JobState]:
        """The weightiest first, then who came first."""
        jobs = [self._state.jobs[name] for name in names]
        return sorted(jobs, key=lambda job: (-job.profile.weight, job.order))

    def to_try(self, step: Tried) -> list[JobState]:
        """Those of the step for which anything may come out otherwise than when they were tried last."""
        names = step.jobs if step.at != self.version else step.jobs & step.fresh
        step.at, step.fresh = self.version, set()
        return self.ordered(names) if names else []

    def prospect(self, name: str) -> Prospect | None:
        """Return the prospect of a job that may get a decision, else None."""
        return self._prospects.get(name)

    def could_give(self, weight: float) -> Resources:
        """No less than what all jobs of at most this weight could give back together."""
        most = Sum()
        for other, spare in self._spare.items():
            if other <= weight:
                most.cores += spare.cores
                most.memory_bytes += spare.memory_bytes
        return most.total

    def ripe(self, now: float) -> list[JobState]:
        """The jobs whose time has come, or is about to. Whoever looks at them files them, or wakes them, again."""
        names: set[str] = set()
        while self._alarms and self._alarms[0][0] <= now:
            due_s, name = heapq.heappop(self._alarms)
            if self._due_s.get(name) == due_s:
                del self._due_s[name]
            names.add(name)
        return self.ordered(names & self._state.jobs.keys()) if names else []

    def wake(self, name: str, due_s: float) -> None:
        """Have the job among the ``ripe`` ones from ``due_s`` on, if not sooner."""
        due_s -= EARLY_S
        if due_s < self._due_s.get(name, math.inf):
            self._due_s[name] = due_s
            heapq.heappush(self._alarms, (due_s, name))

    # what changes ----------------------------------------------------------------------------------------------

    def touch(self, name: str) -> None:
        """The job has changed, or has come or gone."""
        self.changed.add(name)
        self._file(name)

    def look_again(self, name: str) -> None:
        """Nothing has changed but the time."""
        self._file(name)

    def _file(self, name: str) -> None:
        job = self._state.jobs.get(name)
        self._share(name, job)
        for step in (self.needy, self.waiting):
            step.jobs.discard(name)
            step.fresh.add(name)
        for names in (self.measuring, self.shrinking, self.untold, self.blocking):
            names.discard(name)
        self.offering.pop(name, None)
        if job is None:
            self._prospects.pop(name, None)
            return
        open_to_all = job.leaving_s is None and not job.changing
        if job.plan is None:
            self._starting(job)
        elif job.may_get_memory and job.ps_memory_bytes > job.plan.ps_memory_bytes:
            self.needy.jobs.add(name)
        if job.plan is not None and open_to_all:
            if job.proposal is not None:
                self.measuring.add(name)
            if job.shrink_to_bytes:
                self.shrinking.add(name)
            self._look_ahead(job, job.plan)
        self._set_alarm(job)

    def _starting(self, job: JobState) -> None:
        if job.proposal is None:
            return
        if job.leaving_s is None and not job.changing:
            self.waiting.jobs.add(job.job)
        if job.refused is not None and job.least(job.proposal).fits(self._settings.capacity):
            self.blocking.add(job.job)

    def _share(self, name: str, job: JobState | None) -> None:
        """Return the job's part in the sums over all jobs."""
        old = self._shares.get(name)
        seen = (
            None
            if job is None or job.plan is None
            else (job.plan, job.before, job.applying, job.leaving_s is None, job.replacing, job.without_room)
        )
        if seen == (old[0] if old else None):
            return
        self.version += 1
        if old is not None:
            del self._shares[name]
            self._count(old[1], -1)
        if job is not None and job.plan is not None:
            leaving, weight = job.leaving_s is not None, job.profile.weight
            share = Share(job.held, job.without_room, spare(job, job.plan), job.changing, leaving, weight)
            self._shares[name] = seen, share
            self._count(share, 1)

    def _count(self, share: Share, times: int) -> None:
        self._held.add(share.held, times)
        self._without_room.add(share.without_room, times)
        if not share.leaving:
            self.in_change += times * share.changing
            total = self._spare.setdefault(share.weight, Sum())
            total.add(share.spare, times)
            if total == Sum():  # a weight is any number: those of all jobs that ever were would be too many
                del self._spare[share.weight]

    def _look_ahead(self, job: JobState, plan: Plan) -> None:
        """Compute the job's prospect once; it depends only on its candidates, its plan and its earlier plans."""
        computed = job.candidates
        if computed is None:
            self._prospects.pop(job.job, None)
            return
        found = self._prospects.get(job.job)
        if found is None or found.computed is not computed or found.plan != plan or found.had != len(job.had):
            minimum = self._settings.gain_fraction_min
            options = [] if job.profile.fixed else worthwhile(computed, plan, job.profile, minimum)
            found = Prospect(computed, plan, len(job.had), options, out_of_reach(job, computed, plan, minimum))
            self._prospects[job.job] = found
        if found.options:
            self.offering[job.job] = found
        if found.beyond is not None:
            self.untold.add(job.job)

    def _set_alarm(self, job: JobState) -> None:
        """Nobody waits for ever for an actuator that says nothing, nor for room that was missing once."""
        settings = self._settings
        for waiting in job.unplaced.values():
            self.wake(job.job, waiting.since_s + settings.no_room_s)
        if job.leaving_s is not None:
            self.wake(job.job, job.leaving_s + holds_s(job, settings))
        if job.applying:
            self.wake(job.job, job.changed_s + settings.apply_timeout_s)


def holds_s(job: JobState, settings: ArbiterSettings) -> float:
    """How long the pods of a job that has ended are counted, at most."""
    return settings.leave_timeout_s if job.completed else settings.stop_grace_s


def spare(job: JobState, plan: Plan) -> Resources:
    """Most resources that the job could return to others (``worth.give_back``)."""
    if job.profile.fixed:
        return NOTHING
    low = job.profile.limits.low
    least = replace(
        plan,
        workers=min(plan.workers, low.workers),
        worker_cpu_cores=max(plan.worker_cpu_cores / 2, low.worker_cpu_cores),
        ps_cpu_cores=max(plan.ps_cpu_cores / 2, low.ps_cpu_cores),
    )
    return plan.resources - least.resources


def out_of_reach(job: JobState, computed: CandidatesComputed, plan: Plan, gain_fraction_min: float) -> Candidate | None:
    """The best plan that was measured to be better and is not gone back to: its PSes would need too much memory."""
    better = [
        candidate
        for candidate in computed.candidates
        if not holdable(candidate.plan, job.profile.limits, plan)
        and job.had_before(candidate.plan)
        and candidate.gain / computed.throughput >= required_gain(candidate, gain_fraction_min)
    ]
    return max(better, key=lambda candidate: candidate.gain, default=None)
