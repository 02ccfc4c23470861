"""Step 6 of the cycle: data workers, of the resources that plans leave (GoldMiner §3.4.2).

Plans come first: they are decided as if there were no data workers, so a job that waits to start, and memory that a
server needs, take the room back in the same cycle. One data worker after the other then goes to the job of the smallest
rank that has use for one and room (``model.sharing``). Ranks grow with every further one of a job, so the result does
not depend on what was given before.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection

from stretto_messages.arbiter import DataWorkersDecided
from stretto_messages.gateway import DataWorkersRequested
from stretto_messages.planner import DataWorkersProposed
from stretto_messages.values import NOTHING, Resources, larger, total

from stretto_core.arbiter.context import StepContext
from stretto_core.arbiter.state import JobState
from stretto_core.arbiter.worth import in_words
from stretto_core.model.sharing import Sharer

FIRST = -math.inf
"""Rank of data workers that a user asks for: his wish needs no gain."""


def note(job: JobState, event: DataWorkersProposed | DataWorkersRequested) -> None:
    """Take note of the number that the queue, or a user, asks for."""
    if isinstance(event, DataWorkersProposed):
        job.data_proposal = event
    else:
        job.data_pinned, job.data_limit = event.count, None


def share(context: StepContext) -> list[DataWorkersDecided]:
    """Give each job its data workers; nothing unless room or a job's use for them has changed.

    With room for all of them, only jobs that have another number are looked at: most events are then cheap, however
    many jobs have data workers.
    """
    register, index = context.register, context.register.data_workers
    if not index.jobs or index.shared == (register.version, index.changes):
        return []
    free = larger(context.free(), NOTHING)
    if context.teams.limited or not index.held_at_most.fits(free):
        round_ = _Round(context, index.jobs, free)
    else:
        others = index.held_at_most - total(index.jobs[name].held_at_most for name in index.unequal)
        round_ = _Round(context, index.unequal, free - others)
    given = round_.hand_out()
    facts: list[DataWorkersDecided] = []
    for job in round_.jobs:
        count = given[job.job]
        is_first = not job.data_version and job.data_wanted > 0  # none for a first wish has its reason, too
        is_news = (count != job.data_told or is_first) and job.leaving_s is None  # an ended job's pods stop anyway
        if count == job.data and not is_news:
            continue
        why = round_.why_not_more(job, count)
        job.data = count
        if is_news:
            job.data_told, job.data_version = count, job.data_version + 1
            facts.append(_decided(job, context.ranking_name, why))
        register.touch(job.job)
    index.shared = register.version, index.changes
    return facts


def _decided(job: JobState, policy: str, why_not_more: list[str]) -> DataWorkersDecided:
    each, proposal = job.profile.data.each, job.data_proposal
    asked = proposal.reasons if proposal else ("the data queue has asked for none yet",)
    wish = asked if job.data_pinned is None else (f"a user asks for {job.data_pinned}",)
    return DataWorkersDecided(
        job=job.job,
        version=job.data_version,
        count=job.data,
        cpu_cores=each.cpu_cores,
        memory_bytes=each.memory_bytes,
        wanted=job.data_wanted,
        policy=policy,
        reasons=(*wish, *why_not_more),
    )


class _Round:
    """One distribution of free resources over some jobs."""

    def __init__(self, context: StepContext, names: Collection[str], free: Resources) -> None:
        self._context = context
        self._free = free
        self._free_to_team: dict[str, Resources] = {}
        self.jobs = [job for job in context.register.ordered(names) if job.plan is not None]
        self._sharers = {job.job: sharer for job in self.jobs if (sharer := self._sharer(job))}

    def _sharer(self, job: JobState) -> Sharer | None:
        """Return the job as the ranking sees it; None if no queue has told its rates."""
        proposal, cores = job.data_proposal, job.profile.data.each.cpu_cores
        if proposal is None or job.plan is None or not proposal.worker_per_s or not proposal.dequeued_per_s:
            return None
        left = max(job.profile.samples - self._context.state.samples_done.get(job.job, 0), 0)
        per_cpu = proposal.worker_per_s / cores
        return Sharer(job.plan.workers, left / job.profile.batch_size, proposal.dequeued_per_s, per_cpu)

    def hand_out(self) -> dict[str, int]:
        """Return the number of data workers of each job."""
        given = {job.job: 0 for job in self.jobs}
        next_ones = [(self._rank(job, 1), order) for order, job in enumerate(self.jobs) if job.data_most]
        heapq.heapify(next_ones)
        while next_ones:
            _, order = heapq.heappop(next_ones)
            job = self.jobs[order]
            if not self._take(job):
                continue
            given[job.job] += 1
            if given[job.job] < job.data_most:
                heapq.heappush(next_ones, (self._rank(job, given[job.job] + 1), order))
        return given

    def _rank(self, job: JobState, count: int) -> float:
        sharer, cores = self._sharers.get(job.job), job.profile.data.each.cpu_cores
        if sharer is None or job.data_pinned is not None:
            return FIRST
        return self._context.ranking(sharer, (count - 1) * cores, count * cores)

    def _take(self, job: JobState) -> bool:
        """Take the resources of one more data worker; False without room for it."""
        each = job.profile.data.each
        if job.team not in self._free_to_team:
            self._free_to_team[job.team] = self._context.teams.room(job, self._free)
        if not (each.fits(self._free) and each.fits(self._free_to_team[job.team])):
            return False
        self._free -= each
        self._free_to_team[job.team] -= each
        return True

    def why_not_more(self, job: JobState, count: int) -> list[str]:
        """Return the reason if the job gets fewer than it has use for."""
        if count >= job.data_wanted or job.leaving_s is not None:
            return []
        each = in_words(job.profile.data.each)
        if job.data_limit is not None and count == job.data_limit:
            return [f"{count} of {job.data_wanted}: no node has room for one more of {each}"]
        left = in_words(larger(self._free, NOTHING))
        why = f"{count} of {job.data_wanted}: one more needs {each}; plans and other jobs' data workers leave {left}"
        return [why, *self._context.teams.limit_in_words(job, larger(self._context.free(), NOTHING))]
