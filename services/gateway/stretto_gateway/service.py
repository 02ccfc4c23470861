"""The gateway: it follows the stream into the read model, and publishes the changes that users request.

It owns no partition: any number of replicas may run, and a restart reads the stream again. It retains only the messages
that define a living job, for when they age out of the stream (:mod:`stretto_gateway.streams.retention`).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from dataclasses import replace
from itertools import islice
from typing import Literal, Protocol, TypeVar, get_args

import stretto_wire as wire
import structlog
from stretto_bus.faults import Fault
from stretto_messages.actuator import GetPodLog, GetPodLogReply
from stretto_messages.base import DEFAULT_TEAM, Message
from stretto_messages.checkpoints import SaveCheckpoint, SaveCheckpointReply
from stretto_messages.gateway import DataWorkersRequested, JobCancelled, PlanRequested
from stretto_messages.planner import HistoryRecorded
from stretto_messages.values import Plan
from stretto_runtime.backup import Restoration
from stretto_runtime.streams import Streams
from stretto_wire.registry import CHANNELS
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
from stretto_wire.rest.journal import Excerpt
from stretto_wire.rest.parts import Part
from stretto_wire.rest.summaries import JobSummary
from stretto_wire.rest.views import OVER, JobView, Status

from .problems import Problem
from .read_model import alerts, paging, past
from .read_model.projection import Projection, Reads
from .read_model.summaries import as_of, checkpoint_is_late, has_stopped, summary
from .requests import checks, inquiries, job_audit, journal
from .requests.arrivals import Wanted, arrival
from .requests.submissions import Submissions
from .settings import GatewaySettings
from .streams.fullness import Fullness
from .streams.retention import Retention
from .streams.spent_names import DamagedNames, Shard, by_shard
from .streams.stored_events import EventSource, ReadableEvents, Selection, StoredEvent, trace_id_of
from .traces.collector import Collector, CollectorFault
from .traces.spans import SPANS_MAX, spans_of

R = TypeVar("R", bound=Message)
NAMING = (wire.JobSubmitted, HistoryRecorded)
"""Events by which the read model learns of a job."""
READ_BACK_S = 5.0
KEEP_EVERY_S = 60.0
_BULK = frozenset({"shard-leased", "shard-completed", "job-progressed", "profile-measured"})
WATERFALL = tuple(channel.name for channel in CHANNELS if channel.kind == "evt" and channel.name not in _BULK)
"""Events of a trace: all but those of shards, progress and windows, of which there are thousands."""
WATERFALL_EVENTS = 500
ATTEMPTS = 5
log = structlog.get_logger("stretto.gateway")


class Bus(EventSource, past.Bus, Protocol):
    """The part of the bus that the gateway needs (:mod:`stretto_gateway.streams.bus`)."""

    events_kept_s: float

    @property
    def there(self) -> bool:
        """Return whether the bus was reached; before, every call raises BusFault."""
        ...

    @property
    def streams(self) -> Streams:
        """Return the streams, to be read."""
        ...

    async def publish(self, message: Message, msg_id: str, last: int | None = None, trace: str = "") -> int | None:
        """Store an event; returns its sequence. With ``last``, None unless that is the subject's last (0: of none)."""
        ...

    async def call(self, request: Message, timeout_s: float) -> Message:
        """Ask the owner of a job."""
        ...

    async def call_pod(self, pod: str, request: Message, timeout_s: float) -> Message:
        """Ask one pod."""
        ...

    async def services(self) -> list[ServiceView]:
        """Return replicas and partitions of each service."""
        ...

    async def newest_audited(self, limit: int, before: int | None) -> tuple[list[bytes], int | None]:
        """Return the newest entries of the audit log below ``before``, and where older ones lie."""
        ...

    async def kept(self) -> tuple[int, dict[str, bytes]]:
        """Return the first sequence of the stream, and the retained entry of each job."""
        ...

    async def keep(self, job: str, entry: bytes) -> None:
        """Store the entry of a job, replacing the one before."""
        ...

    async def spent(self, number: int | None = None) -> dict[int, Shard]:
        """Return the parts of the spent names, or one of them, by number."""
        ...

    async def spend(self, number: int, packed: bytes, last: int) -> Shard | None:
        """Replace a part of the spent names. None: another replica has replaced it since ``last``."""
        ...

    async def restorations(self) -> list[Restoration]:
        """Return the restorations from backups that this installation remembers."""
        ...

    async def drop(self, job: str) -> None:
        """Remove the entry of a job."""
        ...

    async def fullness(self, stream: str) -> float:
        """Return the used share of the stream's bytes; 0 without a bound."""
        ...

    async def fold(
        self,
        apply: Callable[[Message, int, float, str], None],
        report: Callable[[Message, float], None],
        caught_up: Callable[[], None],
        advanced: Callable[[], Awaitable[None]],
    ) -> None:
        """Read everything stored from the start on, for ever; call ``advanced`` after each batch, ``caught_up`` once.

        ``apply`` gets an event, its sequence, its time and its ``traceparent``; ``report`` telemetry and its time.
        """
        ...


class Gateway:
    """The read model, kept up to date, and the changes that users request.

    Larger than 250 lines: every change is judged by the read model, and waits until that shows it.
    """

    def __init__(self, bus: Bus, settings: GatewaySettings, clock: Callable[[], float]) -> None:
        self.projection = Projection()
        self.settings = settings
        self.ready = False
        self._bus = bus
        self._clock = clock
        self._traceparents: dict[str, str] = {}
        """The ``traceparent`` of each job's submission; later requests about the job continue that trace."""
        self._advance = asyncio.Condition()
        self._retention = Retention(settings.ended_bytes)
        self.fullness = Fullness(bus, settings.stream_look_s)
        self._submissions = Submissions(
            settings, self.projection.jobs, self._retention, self.fullness.shares, lambda: self.lacks, clock
        )
        self._admitting = asyncio.Lock()
        self._keep_next_s = 0.0
        self._arbiter = inquiries.Arbiter(bus, settings.call_timeout_s, clock)
        self._services = inquiries.Shared(lambda _: bus.services(), clock)
        self.past = past.Past(bus)
        self._collector = Collector.of(settings)
        self._boot = secrets.token_hex(4)
        """Tells ETags of this process from those of every other one."""

    @property
    def lacks(self) -> str:
        """Return the reason why the gateway is not ready, or an empty text."""
        if self.ready:
            return ""
        return "still reading the stream" if self._bus.there else "the bus is not reached yet; the log says why"

    @property
    def source(self) -> EventSource:
        """Return the source of event streams. Raises Problem 503 before the bus is reached."""
        if not self._bus.there:
            raise checks.not_ready("", self.lacks)
        return self._bus

    async def follow(self) -> None:
        """Keep the read model up to date; never returns."""

        def apply(message: Message, seq: int, time_s: float, traceparent: str) -> None:
            if isinstance(message, NAMING) and self._is_forgotten(message.job):
                self.projection.skip(seq)
                return
            if isinstance(message, wire.JobSubmitted):
                self._traceparents.setdefault(message.job, traceparent)
            self._submissions.charge(message, time_s)
            if self.projection.apply(message, seq, time_s, trace_id_of(traceparent)) is not None:
                self._retention.note(message, seq, time_s, traceparent)

        def caught_up() -> None:
            self.ready = True
            log.info("caught up", seq=self.projection.last_seq, jobs=len(self.projection.jobs))

        async def advanced() -> None:
            async with self._advance:
                self._advance.notify_all()
            if self.ready and self._clock() >= self._keep_next_s:
                self._keep_next_s = self._clock() + KEEP_EVERY_S
                await self._keep()

        first_seq, self._retention.stored = await self._bus.kept()
        self._retention.events_kept_s = self._bus.events_kept_s
        # after the entries: a name is spent before its entry goes, so none can be missing from both
        self._retention.read_spent(await self._bus.spent())
        for kept in self._retention.aged_out(first_seq, self._clock()):
            try:
                apply(wire.parse(kept.subject, kept.data.encode()), kept.seq, kept.time_s, kept.traceparent)
            except Exception as error:  # as in the stream: one unreadable job must not hide all others
                log.error("a retained message is skipped", subject=kept.subject, seq=kept.seq, error=str(error))
        await self._bus.fold(apply, self.projection.report, caught_up, advanced)

    def _is_forgotten(self, job: str) -> bool:
        """Return whether the job has left the read model although its events are still there."""
        return job not in self.projection.jobs and self._retention.is_spent(job)

    async def _keep(self) -> None:
        """Store what has changed; then forget the jobs that are not needed, which makes room if the bucket is full."""
        all_seen = False
        while not all_seen:
            all_seen = not await self._keep_entries()
            await asyncio.sleep(0)  # others are served meanwhile
        try:
            for number, names in by_shard(self._retention.outlived).items():
                await self._spend(number, names)
        except (Fault, DamagedNames) as fault:  # the names stay taken meanwhile
            log.warning("names of past jobs are not stored yet", fault=str(fault))

    async def _keep_entries(self) -> bool:
        """Store the entries of some changed jobs; returns whether to go on with others."""
        due = self._retention.due(self.projection.jobs, self._clock())
        while due:
            job, entry = due.popitem()
            try:
                await self._bus.keep(job, entry)
            except Fault as fault:  # a later attempt will do: events age out after days
                log.warning("not retained yet", job=job, fault=str(fault))
                self._retention.put_back([job, *due])
                return False
            self._retention.stored[job] = entry
        return self._retention.has_more

    async def _spend(self, number: int, names: list[str]) -> None:
        """Forget jobs of long ago: store their names with those that are spent, then remove their entries.

        Raises:
            Fault: not stored in time.
            DamagedNames: the names there cannot be read.
        """
        stored = None
        while stored is None:
            shard = self._retention.spent_shard(number)
            stored = await self._bus.spend(number, shard.joined_by(names), shard.seq)
            if stored is None:
                self._retention.read_spent(await self._bus.spent(number))
        self._retention.read_spent({number: stored})
        for job in names:
            await self._bus.drop(job)
            self._retention.forget(job)
            self.projection.forget(job)
            self._traceparents.pop(job, None)

    def view(self, job: str) -> JobView:
        """Return the view of a job. Raises Problem 404 for an unknown job, 503 while the stream is still being read."""
        view = self.projection.jobs.get(job)
        if view is None and not self.ready:
            raise checks.not_ready(job, self.lacks)
        if view is None:
            raise checks.no_such_job(job, self.projection.jobs)
        return view

    def present(self, job: str) -> JobView:
        """Return the view as it is now. Raises as ``view`` does."""
        return as_of(self.view(job), self._clock())

    def check_readable(self, job: str, reads: Reads) -> None:
        """Check that a job may be read. Raises Problem 404, the same for an unknown job and for one of another team."""
        view = self.projection.jobs.get(job)
        if self.ready and (view is None or not reads(view.team)):
            raise checks.no_such_job(job, [each.name for each in self.projection.readable(reads)])
        if view is not None and not reads(view.team):
            raise checks.not_ready(job, self.lacks)

    def events(self, reads: Reads) -> EventSource:
        """Return the source of the events of the teams that may be read. Raises Problem 503 as ``source`` does."""

        async def readable(event: StoredEvent) -> bool:
            def known() -> bool:
                return event.job in self.projection.jobs or self.projection.last_seq >= event.seq

            async with self._advance:
                await self._advance.wait_for(lambda: self.ready or known())
            if not known():  # the stream of events may be ahead of the read model, which knows the teams
                await self._until_shown(known)
            view = self.projection.jobs.get(event.job)
            return view is not None and reads(view.team)

        return ReadableEvents(self.source, readable)

    def jobs(self, reads: Reads, wanted: paging.Wanted, cursor: str | None) -> tuple[list[JobSummary], paging.Page]:
        """Return a page of the jobs that may be read, as they are now. Raises Problem 400 for a wrong cursor."""
        now_s = self._clock()
        found = paging.page(self.projection.readable(reads), wanted, cursor)
        return [summary(view, now_s) for view in found.views], found

    def summary(self, job: str) -> JobSummary:
        """Return a job in one line, as it is now. Raises as ``view`` does."""
        return summary(self.view(job), self._clock())

    def tag(self, job: str, parts: Collection[Part]) -> str:
        """Return the ETag of some parts of a job as it is now. Raises as ``view`` does."""
        view = self.view(job)
        stalled = "-stalled" if as_of(view, self._clock()) is not view else ""
        return self.projection.revisions(job).tag(parts, self._boot, stalled)

    async def past_view(self, job: str, at: int, caller: str) -> JobView:
        """Return a job as it was after the event ``at``. Raises Problem, and BusFault."""
        has_at = any(decision.seq == at for decision in self.view(job).decisions)
        return await self.past.view(job, at, caller, has_at=has_at)

    def past_tag(self, at: int) -> str:
        """Return the ETag of a job as it was after the event ``at``, as this code folds it."""
        return f'"at-{at}-{self._boot}"'

    def late_checkpoints(self) -> int:
        """Return the number of jobs that train without a checkpoint for too long."""
        now_s = self._clock()
        return sum(checkpoint_is_late(view, now_s) for view in self.projection.jobs.values())

    def stopped_jobs(self) -> int:
        """Return the number of training jobs whose workers have all stood still for too long."""
        now_s = self._clock()
        return sum(has_stopped(view, now_s) for view in self.projection.jobs.values())

    async def submit(self, spec: wire.JobSpec, by: str, trace: str = "", team: str = DEFAULT_TEAM) -> tuple[bool, int]:
        """Submit a job; returns whether it is new, and its sequence. ``trace`` is the caller's ``traceparent``.

        Raises Problem: the first reason against it (:mod:`stretto_gateway.requests.submissions`).
        """
        message = wire.JobSubmitted(job=spec.name, spec=spec, submitted_by=by, team=team)
        self._submissions.check(message)
        if spec.name not in self.projection.jobs and (seq := await self._submit_new(message, trace)) is not None:
            return True, seq
        await self._until_shown(lambda: spec.name in self.projection.jobs)
        self._submissions.check_name(message)  # another replica may have let the name in meanwhile
        return False, self.view(spec.name).last_seq

    async def preview(self, spec: wire.JobSpec, by: str, team: str) -> Preview:
        """Return the outcome that a submission would have now: all reasons against it, its costs, its first plan."""
        message = wire.JobSubmitted(job=spec.name, spec=spec, submitted_by=by, team=team)
        refusals = [*self._submissions.refusals(message)]
        plan, free = await asyncio.gather(
            inquiries.first_plan(self._bus, self.settings.call_timeout_s, spec, team), self._arbiter.free()
        )
        return inquiries.preview(spec, refusals, plan, free)

    async def cluster(self, reads: Reads, team: str, after: str) -> ClusterView:
        """Return the cluster as arbiter and services say. Raises Fault if the arbiter does not answer."""
        found, settings = await self._arbiter.cluster(), self.settings
        more = {
            "services": await self._services.answer(),
            "teams": inquiries.team_views(found, self.projection.jobs.values(), settings.quotas, team, reads),
            "quota_holder": settings.teams_quota_holder,
        }
        return inquiries.cluster_view(found, reads, after).model_copy(update=more)

    async def alerts(self, reads: Reads) -> Alerts:
        """Return the alerts that hold now, about services, streams and the jobs that may be read. Raises Fault."""
        services = await self._services.answer()
        firing = [
            *alerts.of_services(services),
            *alerts.of_streams(self.fullness.shares),
            *alerts.of_jobs(self.projection.readable(reads), self._clock()),
        ]
        if not self.ready:
            firing.append(alerts.AlertView(alert="StrettoGatewayNotReady", subject="gateway", detail=self.lacks))
        return Alerts(firing=firing, judged=list(get_args(alerts.AlertName)))

    async def newest_changes(self, limit: int, before: int | None) -> tuple[list[bytes], int | None]:
        """Return the newest entries of the audit log below ``before`` as JSON, and where older ones lie; None: nowhere.
        Raises Fault."""
        return await self._bus.newest_audited(limit, before)

    async def what_if(self, job: str, changes: dict[str, float]) -> Prediction:
        """Return how a job would go on under its plan with some changes.

        Raises Problem 409 without a plan or a model, and Fault if the planner does not answer.
        """
        view = self.present(job)
        if view.plan is None or view.status in OVER:
            text = f"{job} {checks.STATES[view.status]}: there is no plan to vary"
            raise checks.conflict(view, "no-plan", text, "ask about a job that has been started and has not ended")
        plan = replace(view.plan, **changes)
        return await inquiries.what_if(self._bus, self.settings.call_timeout_s, view, plan, self._clock())

    async def _submit_new(self, message: wire.JobSubmitted, trace: str) -> int | None:
        """Publish a submission and show it; returns its sequence, or None if the name has a job already.

        Where quotas bound live jobs, submissions wait for each other: each is counted before the next is judged. With
        several replicas, every other replica may let one more job in at the same time.
        """
        async with self._admitting if self.settings.quotas else contextlib.nullcontext():
            self._submissions.check_quota(message)
            # the server accepts only the first submission of a name, whichever replica sends it
            seq = await self._bus.publish(message, f"gateway:{message.job}:submitted", 0, trace)
            if seq is not None:
                await self._until_shown(lambda: self.projection.last_seq >= seq)
        return seq

    def status(self, job: str) -> Status:
        """Return the state of a job; ``submitted`` while the view lags behind its submission."""
        view = self.projection.jobs.get(job)
        return view.status if view is not None else "submitted"

    async def cancel(self, job: str, reason: str, by: str) -> JobView:
        """Cancel a job; may be repeated. Raises Problem 409 for a job that has ended by itself."""
        view = self.view(job)
        if view.status == "cancelled":
            return view
        if view.status in OVER:
            raise checks.conflict(view, "over", f"{job} has {view.status} already", "nothing is left to cancel")
        message = JobCancelled(job=job, by=by, reason=reason)
        # the server takes the first only, whoever asks at the same time
        await self._bus.publish(message, f"gateway:{job}:cancelled", 0, self._traceparents.get(job, ""))
        await self._until_shown(lambda: view.status in OVER)
        return view

    async def request(
        self, job: str, workers: int | None, ps: int | None, data: int | Literal["auto"] | None, by: str
    ) -> Plan:
        """Request another number of pods; returns the whole requested plan. ``data``: data workers beyond it.

        Nothing is requested if a part of it is refused. Raises Problem: 409 for a job without a plan or that has ended,
        or if its team has used its bytes; 422 beyond the limits of its specification.
        """
        view = self.view(job)
        plan = checks.changed_plan(view, workers, ps)
        requests: list[tuple[str, Message]] = []
        if data is not None:
            count = None if data == "auto" else data
            checks.check_data_workers(view, count)
            requests.append(("data-workers", DataWorkersRequested(job=job, count=count, by=by)))
        if data is None or workers is not None or ps is not None:
            requests.append(("requested", PlanRequested(job=job, plan=plan, by=by)))
        self._submissions.check_bytes(sum(len(wire.encode(message)) for _, message in requests), view.team)
        for name, message in requests:
            await self._bus.publish(message, f"gateway:{job}:{name}", trace=self._traceparents.get(job, ""))
        return plan

    async def add_data(self, job: str, wanted: Wanted) -> JobView:
        """State the data of a growing job; may be repeated.

        Raises Problem: 409 for an impossible statement, or if the team has used its bytes.

        Concurrent statements are stored one after the other, and each is checked against the one before.
        """
        aged_out = False
        for _ in range(ATTEMPTS):
            view = self.view(job)
            message = arrival(view, wanted)
            if message is None:
                return view
            self._submissions.check_bytes(len(wire.encode(message)), view.team)
            known = view.data.last_seq  # read before publishing: any later change ends the wait below
            last = 0 if aged_out else known
            seq = await self._bus.publish(message, f"gateway:{job}:data", last, self._traceparents.get(job, ""))
            await self._until_shown(lambda known=known: self.view(job).data.last_seq > known)
            if seq is not None:
                return self.view(job)
            # refused although nothing is newer: the last statement may have aged out of the stream
            aged_out = self.view(job).data.last_seq == known
        raise Problem(
            503,
            "contended",
            f"others change the data of {job} at the same time",
            field="job",
            value=job,
            remedy="send it again",
            headers={"Retry-After": "1"},
        )

    async def checkpoint(self, job: str) -> str | None:
        """Request a checkpoint; returns its id. Raises Problem 409 if one is being taken or the job has ended."""
        view = self.view(job)
        if view.status in OVER:
            remedy = "only a running job has parameters to save"
            raise checks.conflict(view, "over", f"{job} has {view.status}", remedy)
        request = SaveCheckpoint(job=job, request_id=f"gateway.{view.last_seq}")
        reply = await self._bus.call(request, self.settings.call_timeout_s)
        assert isinstance(reply, SaveCheckpointReply)
        if reply.answer == "begun":
            return reply.id
        remedy = "wait for checkpoint-saved" if reply.answer == "busy" else "try again once it trains"
        raise checks.conflict(view, reply.answer, f"no checkpoint of {job} was started: {reply.answer}", remedy)

    async def trace(self, job: str) -> JobTrace:
        """Return the trace of a job. Raises Fault."""
        trace_id = self.view(job).trace_id
        if trace_id is None:
            return JobTrace(job=job, trace_id=None, events=[], spans=[])
        spans, missing = await asyncio.to_thread(spans_of, self.settings.state_folder, job, trace_id), None
        if self._collector is not None:
            try:
                spans += await self._collector.spans(job, trace_id)
            except CollectorFault as fault:
                missing = "the spans of the collector; the gateway's log says why"
                log.warning("no spans from the collector", url=self.settings.traces_url, fault=str(fault))
        by_id: dict[str, SpanView] = {}
        for span in spans:  # those of files first: nobody else wrote them
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
        self.view(job)
        journal.check(job, excerpt)
        return journal.lines(self._bus.streams, excerpt)

    async def pod_log(self, job: str, pod: str, lines: int) -> tuple[str, bool]:
        """Return the last lines of a pod, which may run or have ended, and whether they are only the short end that the
        actuator keeps of a failed one. Raises Problem 404 if none are kept."""
        self.view(job)
        parts: list[str] = []
        count = skip = 0
        short_end = ""
        while True:
            request = GetPodLog(job=job, pod=pod, whole=True, skip=skip)
            reply = await self._bus.call(request, self.settings.call_timeout_s)
            assert isinstance(reply, GetPodLogReply)
            part, short_end = reply.part, reply.text
            parts.insert(0, part)
            skip += len(part)
            count += part.count("\n")
            if not reply.more or not part or count >= lines:  # the first line may be cut
                break
        whole = "".join(parts)
        if text := whole or short_end:
            return "\n".join(text.splitlines()[-lines:]), not whole
        remedy = "name a pod that has run (`stretto watch JOB` lists them); logs are kept from its end in the store"
        raise Problem(404, "no-log", f"no log of {pod} of {job} is kept", field="pod", value=pod, remedy=remedy)

    async def audit(self, job: str) -> job_audit.JobAudit:
        """Audit the books of a job. Raises Problem 409 if there are none: before it trains, or after it failed."""
        view = self.view(job)
        completed, ended = self.projection.last_facts(job)
        returns = job_audit.returns(self.projection.returns(job), await self._bus.restorations(), view.submitted_at_s)
        if completed is not None and ended is not None:
            return replace(job_audit.finished(completed, ended, view.status), returns=returns)
        if view.status in OVER or view.started_at_s is None:
            text = f"{job} {checks.STATES[view.status]}: its parameter servers do not run, so nobody can be asked"
            raise checks.conflict(view, "no-books", text, "audit a job that trains or has finished")
        number = int(self._clock() * 1000)
        found = await job_audit.running(self._bus, job, view.status, self.settings.call_timeout_s, number)
        return replace(found, returns=returns)

    async def _until_shown(self, reached: Callable[[], bool]) -> None:
        """Wait until the read model shows a change, so that a client reads its own writes."""
        async with self._advance:
            try:
                async with asyncio.timeout(READ_BACK_S):
                    await self._advance.wait_for(reached)
            except TimeoutError:
                log.warning("the read model lags behind", last_seq=self.projection.last_seq)
