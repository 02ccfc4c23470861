"""Questions of users about the cluster, and about a job's future, trace, journal, logs and books."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol, cast, get_args

import stretto_wire as wire
import structlog
from stretto_bus.reading.damage import Damage
from stretto_core.model.teams import Quotas
from stretto_messages.actuator import GetPodLog, GetPodLogReply
from stretto_messages.arbiter import GetClusterReply
from stretto_messages.values import Resources
from stretto_runtime.restorations import Restoration
from stretto_runtime.streams import Streams
from stretto_wire.contract.excerpts import Excerpt
from stretto_wire.contract.registry import CHANNELS
from stretto_wire.rest.answers import (
    Alerts,
    ClusterView,
    JobTrace,
    Prediction,
    Preview,
    ServiceView,
    SpanView,
    TraceEvent,
)
from stretto_wire.rest.views import OVER

from ..problems import Problem
from ..read_model import alerts
from ..read_model.follower import Follower
from ..read_model.job_views import NO_TEAM, JobViews
from ..read_model.projection import Reads
from ..settings import GatewaySettings
from ..streams.stored_events import EventSource, Selection
from ..traces.collector import Collector, CollectorFault
from ..traces.spans import SPANS_MAX, spans_of
from . import checks, cluster, job_audit, journal, predictions
from .bus_roles import PodAsker
from .cluster import Room
from .submissions import Submissions

_BULK = frozenset({"shard-leased", "shard-completed", "job-progressed", "profile-measured"})
WATERFALL = tuple(channel.name for channel in CHANNELS if channel.kind == "evt" and channel.name not in _BULK)
"""Names of the events in a trace. Events of shards, progress and windows are left out: a job has thousands of them."""
WATERFALL_EVENTS = 500
log = structlog.get_logger("stretto.gateway")


class Informant(PodAsker, EventSource, Protocol):
    """A bus that answers questions: by services, pods, stored events and entries."""

    refuses: str
    """The reason why the bus stores nothing; empty: it does."""

    @property
    def streams(self) -> Streams:
        """Return the streams of the bus, for reading."""
        ...

    async def services(self) -> list[ServiceView]:
        """Return replicas and partitions of each service."""
        ...

    async def newest_audited(self, limit: int, before: int | None) -> tuple[list[bytes], int | None]:
        """Return the newest entries of the audit log below the sequence ``before``, and the sequence of older ones."""
        ...

    async def restorations(self) -> list[Restoration]:
        """Return the restorations from backups that this installation remembers."""
        ...


class Inquiries:
    """Answers to users' questions, from the projection, services, pods and stored events.

    ``shares``: used shares of the streams, by name; ``damages``: of those with messages that cannot be read.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        follower: Follower,
        views: JobViews,
        submissions: Submissions,
        shares: Mapping[str, float],
        damages: Mapping[str, Damage],
        bus: Informant,
        clock: Callable[[], float],
    ) -> None:
        self._settings, self._timeout_s = settings, settings.call_timeout_s
        self._follower, self._projection, self._views = follower, follower.projection, views
        self._submissions, self._shares, self._bus, self._clock = submissions, shares, bus, clock
        self._damages = damages
        self._arbiter = cluster.Arbiter(bus, settings.call_timeout_s, clock)
        self._services = cluster.Shared(lambda _: bus.services(), clock)
        self._collector = Collector.at(settings.traces_url, settings.traces_headers)

    async def preview(self, spec: wire.JobSpec, by: str, team: str) -> Preview:
        """Return the outcome that a submission would have now: all reasons against it, its costs, its first plan."""
        message = wire.JobSubmitted(job=spec.name, spec=spec, submitted_by=by, team=team)
        refusals = [*self._submissions.refusals(message)]
        plan, found = await asyncio.gather(
            predictions.first_plan(self._bus, self._timeout_s, spec, team), self._arbiter.cluster_if_answered()
        )
        return predictions.preview(spec, refusals, plan, self._room(found, team))

    def _room(self, found: GetClusterReply | None, team: str, job: str = "") -> Callable[[Resources], Room]:
        quotas: Quotas = {} if self._settings.teams_quota_holder == "kueue" else self._settings.quotas
        return lambda wanted: cluster.room_for(found, quotas, team, wanted, job)

    async def cluster(self, reads: Reads, team: str, after: str) -> ClusterView:
        """Return the cluster as arbiter and services say. Raises Fault if the arbiter does not answer."""
        found, settings = await self._arbiter.cluster(), self._settings
        more = {
            "services": await self._services.answer(),
            "devices": cluster.device_views(settings.device_types),
            "teams": cluster.team_views(found, self._projection.jobs.values(), settings.quotas, team, reads),
            "quota_holder": settings.teams_quota_holder,
        }
        return cluster.cluster_view(found, reads, after).model_copy(update=more)

    async def alerts(self, reads: Reads) -> Alerts:
        """Return the alerts that hold now, about services, streams and the jobs that may be read. Raises Fault."""
        services = await self._services.answer()
        firing = [
            *alerts.of_bus(self._bus.refuses),
            *alerts.of_services(services),
            *alerts.of_streams(self._shares),
            *alerts.of_damages(self._damages, reads(NO_TEAM)),
            *alerts.of_jobs(self._projection.readable(reads), self._clock()),
        ]
        if not self._follower.ready:
            firing.append(
                alerts.AlertView(alert="StrettoGatewayNotReady", subject="gateway", detail=self._follower.lacks)
            )
        return Alerts(firing=firing, judged=list(get_args(alerts.AlertName)))

    async def newest_changes(self, limit: int, before: int | None) -> tuple[list[bytes], int | None]:
        """Return the newest entries of the audit log below the sequence ``before`` as JSON, and the sequence below
        which older entries lie (None: there are none). Raises Fault."""
        return await self._bus.newest_audited(limit, before)

    async def what_if(self, job: str, changes: dict[str, float]) -> Prediction:
        """Return how a job would go on under its plan with some changes.

        Raises Problem 409 without a plan or a model, and Fault if the planner does not answer.
        """
        view = self._views.present(job)
        if view.plan is None or view.status in OVER:
            text = f"{job} {checks.STATES[view.status]}: there is no plan to vary"
            raise checks.conflict(view, "no-plan", text, "ask about a job that has been started and has not ended")
        rest = {name: value for name, value in changes.items() if name != "workers"}
        plan = checks.with_workers(view.plan, int(changes.get("workers", view.plan.workers)))
        plan = replace(plan, **cast("Any", rest))
        room = self._room(await self._arbiter.cluster_if_answered(), view.team, job)
        return await predictions.what_if(self._bus, self._timeout_s, view, plan, room, self._clock())

    async def trace(self, job: str) -> JobTrace:
        """Return the trace of a job. Raises Fault."""
        trace_id = self._views.view(job).trace_id
        if trace_id is None:
            return JobTrace(job=job, trace_id=None, events=[], spans=[])
        spans, missing = await asyncio.to_thread(spans_of, self._settings.state_folder, job, trace_id), None
        if self._collector is not None:
            try:
                spans += await self._collector.spans(job, trace_id)
            except CollectorFault as fault:
                missing = "the spans of the collector; the gateway's log says why"
                log.warning("no spans from the collector", url=self._settings.traces_url, fault=str(fault))
        by_id: dict[str, SpanView] = {}
        for span in spans:  # spans of files come first: only the installation wrote them
            by_id.setdefault(span["span_id"], SpanView(**span))
        return JobTrace(
            job=job,
            trace_id=trace_id,
            events=await self._waterfall(job, trace_id),
            spans=list(islice(by_id.values(), SPANS_MAX)),
            missing=missing,
        )

    async def _waterfall(self, job: str, trace_id: str) -> list[TraceEvent]:
        """Return the latest events of a job that are in its trace, oldest first."""
        found = await self._bus.newest(Selection(job, WATERFALL), WATERFALL_EVENTS, None, None)
        return [
            TraceEvent(seq=event.seq, time_s=event.time_s, service=event.service, event=event.name)
            for event in reversed(found.events)
            if event.trace_id == trace_id
        ]

    def journal(self, job: str, excerpt: Excerpt) -> AsyncGenerator[bytes]:
        """Return stored messages that a replay of a job reads, as lines of JSON. Raises Problem 400, 404, and Fault."""
        self._views.view(job)
        journal.check(job, excerpt)
        damage = self._damages.get(excerpt.stream)
        return journal.lines(self._bus.streams, excerpt, str(damage) if damage is not None else "")

    async def pod_log(self, job: str, pod: str, lines: int) -> tuple[str, bool]:
        """Return the last lines of the log of a pod, which may have ended.

        The second value tells whether the text is only the short end that the actuator remembers of a failed pod.
        Raises Problem 404 if no log is kept.
        """
        self._views.view(job)
        parts: list[str] = []
        count = skip = 0
        short_end = ""
        while True:
            request = GetPodLog(job=job, pod=pod, whole=True, skip=skip)
            reply = await self._bus.call(request, self._timeout_s)
            assert isinstance(reply, GetPodLogReply)
            part, short_end = reply.part, reply.text
            parts.insert(0, part)
            skip += len(part)
            count += part.count("\n")
            if not reply.more or not part or count >= lines:  # enough lines, though the first may be cut
                break
        whole = "".join(parts)
        if text := whole or short_end:
            return "\n".join(text.splitlines()[-lines:]), not whole
        remedy = "name a pod that has run (`stretto watch JOB` lists them); logs are kept from its end in the store"
        raise Problem(404, "no-log", f"no log of {pod} of {job} is kept", field="pod", value=pod, remedy=remedy)

    async def audit(self, job: str) -> job_audit.JobAudit:
        """Audit the books of a job. Raises Problem 409 without books: before the job trains, or after it failed."""
        view = self._views.view(job)
        completed, ended = self._projection.last_facts(job)
        returns = job_audit.returns(self._projection.returns(job), await self._bus.restorations(), view.submitted_at_s)
        if completed is not None and ended is not None:
            found = job_audit.finished(completed, ended, view.status, view.spec.program is not None)
            return replace(found, returns=returns)
        if view.spec.program is not None and (view.status in OVER or view.started_at_s is None):
            raise checks.conflict(
                view, "no-books", checks.program_books(view), "`stretto logs` has a program's last words"
            )
        if view.status in OVER or view.started_at_s is None:
            text = f"{job} {checks.STATES[view.status]}: its parameter servers do not run, so nobody can be asked"
            raise checks.conflict(view, "no-books", text, "audit a job that trains or has finished")
        number = int(self._clock() * 1000)
        runs_program = view.spec.program is not None
        found = await job_audit.running(self._bus, job, view.status, self._timeout_s, number, runs_program)
        return replace(found, returns=returns)
