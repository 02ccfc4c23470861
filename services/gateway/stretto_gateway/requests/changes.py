"""Changes of a live job: other numbers of pods, more data, a checkpoint, its end."""

from __future__ import annotations

from typing import Literal

import stretto_wire as wire
from stretto_messages.base import Message
from stretto_messages.checkpoints import SaveCheckpoint, SaveCheckpointReply
from stretto_messages.gateway import DataWorkersRequested, JobCancelled, PlanRequested
from stretto_messages.values import Plan
from stretto_wire.rest.views import OVER, JobView

from ..problems import Problem
from ..read_model.follower import Follower
from ..read_model.job_views import JobViews
from . import checks
from .arrivals import DataStatement, arrival
from .bus_roles import Asker, Publisher
from .team_bytes import TeamBytes

ATTEMPTS = 5
"""Attempts to store a statement about data, which is judged again whenever another statement was stored first."""


class Changes:
    """Changes of jobs: judged by the view of the job, published, and waited for until the view shows them."""

    def __init__(
        self,
        follower: Follower,
        views: JobViews,
        team_bytes: TeamBytes,
        publisher: Publisher,
        asker: Asker,
        timeout_s: float,
    ) -> None:
        self._follower, self._views, self._team_bytes = follower, views, team_bytes
        self._publisher, self._asker, self._timeout_s = publisher, asker, timeout_s

    async def cancel(self, job: str, reason: str, by: str) -> JobView:
        """Cancel a job; may be repeated. Raises Problem 409 for a job that has ended by itself."""
        view = self._views.view(job)
        if view.status == "cancelled":
            return view
        if view.status in OVER:
            raise checks.conflict(view, "over", f"{job} has {view.status} already", "nothing is left to cancel")
        message = JobCancelled(job=job, by=by, reason=reason)
        # of several replicas that publish at the same time, the server takes the first
        await self._publisher.publish(message, f"gateway:{job}:cancelled", 0, self._follower.traceparent(job))
        await self._follower.until_shown(lambda: view.status in OVER)
        return view

    async def scale(
        self, job: str, workers: int | None, ps: int | None, data: int | Literal["auto"] | None, by: str
    ) -> Plan:
        """Request another number of pods; returns the whole requested plan. ``data``: number of data workers.

        Nothing is requested if a part of the request is refused. Raises Problem: 409 for a job without a plan, for an
        ended job, or if the team has used its bytes; 422 beyond the limits of the specification.
        """
        view = self._views.view(job)
        plan = checks.changed_plan(view, workers, ps)
        requests: list[tuple[str, Message]] = []
        if data is not None:
            count = None if data == "auto" else data
            checks.check_data_workers(view, count)
            requests.append(("data-workers", DataWorkersRequested(job=job, count=count, by=by)))
        if data is None or workers is not None or ps is not None:
            requests.append(("requested", PlanRequested(job=job, plan=plan, by=by)))
        self._team_bytes.check(sum(len(wire.encode(message)) for _, message in requests), view.team)
        for name, message in requests:
            msg_id = f"gateway:{job}:{name}"
            await self._publisher.publish(message, msg_id, trace=self._follower.traceparent(job))
        return plan

    async def add_data(self, job: str, statement: DataStatement) -> JobView:
        """State the data of a growing job; may be repeated.

        Concurrent statements are stored one after the other, and each is checked against the one before. Raises
        Problem: 409 for an impossible statement, or if the team has used its bytes; 503 if others state data all the
        time.
        """
        aged_out = False
        for _ in range(ATTEMPTS):
            view = self._views.view(job)
            message = arrival(view, statement)
            if message is None:
                return view
            self._team_bytes.check(len(wire.encode(message)), view.team)
            known = view.data.last_seq  # read before publishing: any later change ends the wait below
            last = 0 if aged_out else known
            trace = self._follower.traceparent(job)
            seq = await self._publisher.publish(message, f"gateway:{job}:data", last, trace)
            await self._follower.until_shown(lambda known=known: self._views.view(job).data.last_seq > known)
            if seq is not None:
                return self._views.view(job)
            # the server refused, but no statement is newer: the last one may have aged out of the stream
            aged_out = self._views.view(job).data.last_seq == known
        raise Problem(
            503,
            "contended",
            f"others change the data of {job} at the same time",
            field="job",
            value=job,
            remedy="send it again",
            headers={"Retry-After": "1"},
        )

    async def take_checkpoint(self, job: str) -> str | None:
        """Request a checkpoint; returns its id.

        Raises Problem 409 during another checkpoint, after the job's end, and for a program, whose parameters Stretto
        does not know.
        """
        view = self._views.view(job)
        if view.status in OVER:
            remedy = "only a running job has parameters to save"
            raise checks.conflict(view, "over", f"{job} has {view.status}", remedy)
        checks.check_has_parameters(view)
        request = SaveCheckpoint(job=job, request_id=f"gateway.{view.last_seq}")
        reply = await self._asker.call(request, self._timeout_s)
        assert isinstance(reply, SaveCheckpointReply)
        if reply.answer == "begun":
            return reply.id
        remedy = "wait for checkpoint-saved" if reply.answer == "busy" else "try again once it trains"
        raise checks.conflict(view, reply.answer, f"no checkpoint of {job} was started: {reply.answer}", remedy)
