"""The jobs as callers may see them: now, and at moments of the past."""

from __future__ import annotations

import difflib
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from stretto_bus.reading.damage import Damage
from stretto_wire.contract.registry import STREAM
from stretto_wire.rest.parts import Part
from stretto_wire.rest.summaries import JobSummary
from stretto_wire.rest.views import JobView, Status

from ..problems import Problem
from ..streams.stored_events import EventSource, ReadableEvents, StoredEvent
from . import paging
from .alerts import of_jobs
from .follower import Follower
from .past import Past
from .projection import Reads
from .summaries import as_of, checkpoint_is_late, has_stopped, rounded_rows, summary

COMPARED_MAX = 500
"""Number of names, the latest, with which an unknown name is compared: some 10 ms, in which nobody else is served."""


NO_TEAM = ""
"""No team has this name, so that those alone may read its jobs who may read all teams'."""


class JobViews:
    """Views of the jobs of one projection, for those who may read them.

    ``damages``: of streams with messages that cannot be read, by name.
    """

    def __init__(
        self,
        follower: Follower,
        events: EventSource,
        past: Past,
        clock: Callable[[], float],
        damages: Mapping[str, Damage],
    ) -> None:
        self._follower, self._projection = follower, follower.projection
        self._events, self._past, self._clock, self._damages = events, past, clock, damages
        self._boot = secrets.token_hex(4)
        """Mark of this process in its ETags: every process counts telemetry for itself."""

    @property
    def source(self) -> EventSource:
        """Return the source of event streams. Raises Problem 503 before the bus is reached."""
        if not self._follower.has_bus:
            raise not_ready("", self._follower.lacks)
        return self._events

    @property
    def ready(self) -> bool:
        """Return whether the projection has read the stream up to its end, so that every job has its view."""
        return self._follower.ready

    def find(self, job: str) -> JobView | None:
        """Return the view of a job as it is now; None for an unknown job."""
        view = self._projection.jobs.get(job)
        return None if view is None else as_of(view, self._clock())

    def view(self, job: str) -> JobView:
        """Return the view of a job. Raises Problem 404 for an unknown job, 503 while the stream is still being read."""
        view = self._projection.jobs.get(job)
        if view is None and not self._follower.ready:
            raise not_ready(job, self._follower.lacks)
        if view is None:
            raise no_such_job(job, self._projection.jobs)
        return view

    def present(self, job: str) -> JobView:
        """Return the view of a job as it is now. Raises as ``view`` does."""
        return self._now(self.view(job))

    def _now(self, view: JobView) -> JobView:
        """Return a view as it is now, with the number of the job's stored events that cannot be read."""
        damage = self._damages.get(STREAM)
        lost = damage.of_job(view.name) if damage is not None else 0
        now = as_of(view, self._clock())
        return replace(now, unreadable=lost) if lost else now

    def check_readable(self, job: str, reads: Reads) -> None:
        """Check that a job may be read. Raises Problem 404, which is the same for an unknown job and a job of another
        team."""
        view = self._projection.jobs.get(job)
        if self._follower.ready and view is None and reads(NO_TEAM) and self._follower.retention.is_spent(job):
            raise forgotten(job)
        if self._follower.ready and (view is None or not reads(view.team)):
            raise no_such_job(job, [each.name for each in self._projection.readable(reads)])
        if view is not None and not reads(view.team):
            raise not_ready(job, self._follower.lacks)

    def events(self, reads: Reads) -> EventSource:
        """Return the source of the events of the teams that may be read. Raises Problem 503 as ``source`` does."""

        async def readable(event: StoredEvent) -> bool:
            await self._follower.until_known(event)  # only the projection knows the job's team
            view = self._projection.jobs.get(event.job)
            return view is not None and reads(view.team)

        return ReadableEvents(self.source, readable)

    def page(self, reads: Reads, query: paging.JobQuery, cursor: str | None) -> tuple[list[JobSummary], paging.Page]:
        """Return a page of the jobs that may be read, as they are now. Raises Problem 400 for a wrong cursor."""
        now_s = self._clock()
        found = paging.page(self._projection.readable(reads), query, cursor)
        return [summary(self._now(view), now_s) for view in found.views], found

    def summary(self, job: str) -> JobSummary:
        """Return the summary of a job as it is now. Raises as ``view`` does."""
        return summary(self.present(job), self._clock())

    def status(self, job: str) -> Status:
        """Return the state of a job; ``submitted`` while the projection lags behind its submission."""
        view = self._projection.jobs.get(job)
        return view.status if view is not None else "submitted"

    def tag(self, job: str, parts: Collection[Part]) -> str:
        """Return the ETag of some parts of a job as it is now. Raises as ``view`` does."""
        view, now = self.view(job), self.present(job)
        as_now = "" if now is view else f"-{now.progress.stalled_since_s}-{now.unreadable}"
        return self._projection.revisions(job).tag(parts, self._boot, as_now)

    async def past_view(self, job: str, at: int, caller: str) -> JobView:
        """Return the view of a job as it was after the event ``at``. Raises Problem, and BusFault."""
        has_at = any(decision.seq == at for decision in self.view(job).decisions)
        return await self._past.view(job, at, caller, has_at=has_at)

    def past_tag(self, at: int) -> str:
        """Return the ETag of a view as it was after the event ``at``, as this process folds it."""
        return f'"at-{at}-{self._boot}"'

    def late_checkpoints(self) -> int:
        """Return the number of jobs that train without a checkpoint for too long, or whose final one fails."""
        now_s = self._clock()
        return sum(checkpoint_is_late(view, now_s) for view in self._projection.jobs.values())

    def spilling_servers(self) -> tuple[int, int]:
        """Return how many servers have rows on their disks for lack of memory, and rows that find no room."""
        fired = Counter(alert.alert for alert in of_jobs(self._projection.jobs.values(), self._clock()))
        return fired["StrettoServerSpilling"], fired["StrettoSpillFault"]

    def rounded_rows(self) -> int:
        """Return the number of rows that running servers of all jobs keep rounded for lack of memory."""
        return sum(map(rounded_rows, self._projection.jobs.values()))

    def stopped_jobs(self) -> int:
        """Return the number of training jobs whose workers have all stood still for too long."""
        now_s = self._clock()
        return sum(has_stopped(view, now_s) for view in self._projection.jobs.values())


def not_ready(job: str, lacks: str) -> Problem:
    """Refuse a request about ``job`` because of what the gateway still lacks."""
    return Problem(
        503,
        "catching-up",
        f"the gateway is not ready: {lacks}",
        field="job",
        value=job,
        remedy="try again in a second",
        headers={"Retry-After": "1"},
    )


def forgotten(job: str) -> Problem:
    """Refuse a request about a job whose name alone is left."""
    return Problem(
        404,
        "no-such-job",
        f"nothing but its name is known of the job {job}: it ended long ago, or the store that knew it was given up",
        field="job",
        value=job,
        remedy="its checkpoints may still lie in their store, and its logs with them",
    )


def no_such_job(job: str, known: Iterable[str]) -> Problem:
    """Refuse a request about an unknown job."""
    near = difflib.get_close_matches(job, [*known][-COMPARED_MAX:], n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    remedy = f"{meant}`stretto jobs` or GET /api/v1/jobs lists them"
    return Problem(404, "no-such-job", f"there is no job {job}", field="job", value=job, remedy=remedy)
