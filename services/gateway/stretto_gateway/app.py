"""The REST interface: routes, their rights, and their answers."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request, Response
from fastapi import Path as PathParameter
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import TypeAdapter, ValidationError
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp
from stretto_messages.base import JOB_PATTERN, PodId
from stretto_wire.documents import asyncapi_text
from stretto_wire.registry import CHANNELS
from stretto_wire.schemas import Schema, job_schema, message_schema, schema_name

from . import components, documents, edge, learning, pages, problems, sse
from .answers import (
    Arrived,
    CheckpointAnswer,
    DataAnswer,
    GatewayStatus,
    JobTrace,
    PodLog,
    Requested,
    SpanView,
    Submitted,
    Wanted,
)
from .audit_log import AuditLog
from .callers import ANYBODY, Access, Caller, network_of, require, require_own
from .fullness import warnings
from .job_audit import JobAudit
from .problems import Problem
from .service import Gateway
from .spans import spans_of
from .summaries import START_BOUNDS_S, JobSummary, PastJob, start_s, summary
from .views import Decision, JobView, Status

JobName = Annotated[str, PathParameter(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", description="name of the job")]
PodName = Annotated[PodId, Query(description="name of the pod, such as worker-3")]
Lines = Annotated[int, Query(ge=1, le=100_000, description="number of last lines")]
LINES = 1000
JobNameFilter = Annotated[
    str | None, Query(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", description="only events of this job")
]
After = Annotated[int | None, Query(ge=0, le=10**18, description="send only events after this sequence")]
Follow = Annotated[bool, Query(description="false: end after the last event stored now")]
Names = Annotated[list[str], Query(max_length=50, description="only events of these names, e.g. plan-decided")]
Credentials = Annotated[
    HTTPAuthorizationCredentials | None,
    Depends(HTTPBearer(auto_error=False, description="a token of the gateway, or a JSON Web Token of its issuer")),
]
LastEventId = Annotated[str | None, Header(alias="Last-Event-ID", max_length=100)]

_PROBLEM = components.content(problems.MEDIA_TYPE, components.PROBLEM)
ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "refused; the problem names field, value and remedy", **_PROBLEM},
    "5XX": {"description": "the gateway or the bus has a problem", **_PROBLEM},
}
FRAMES: dict[int | str, dict[str, Any]] = {200: components.content("text/event-stream", components.EVENT)}
AUDIT_LINES: dict[int | str, dict[str, Any]] = {200: components.content("application/jsonl", components.AUDIT_LINE)}

# views hold messages' values: pydantic serialises them once, and FastAPI does not validate them again
_VIEW = TypeAdapter(JobView)
_SUMMARIES = TypeAdapter(list[JobSummary])
_DECISIONS = TypeAdapter(list[Decision])
_HISTORY = TypeAdapter(list[PastJob])
_AUDIT = TypeAdapter(JobAudit)


AuditLines = Callable[[], AsyncIterator[bytes]]
"""Reads the entries of the audit log, in their order."""


def _json(adapter: TypeAdapter[Any], value: Any) -> Response:
    return Response(adapter.dump_json(value), media_type="application/json")


class _Described(FastAPI):
    """An application whose document has the components that FastAPI does not know."""

    def openapi(self) -> dict[str, Any]:
        """Return the document; it is made once."""
        if self.openapi_schema is None:
            self.openapi_schema = components.completed(super().openapi())
        return self.openapi_schema


def create_app(gateway: Gateway, access: Access, audit_log: AuditLog, lines: AuditLines) -> ASGIApp:
    """Make the application over a running or starting gateway; ``lines`` reads the audit log."""
    app = routed(gateway, access, lines)
    settings = gateway.settings
    headers = edge.HEADERS | (edge.OVER_TLS if settings.tls_certificate else {})
    edged = edge.Edge(app, audit_log, settings.body_bytes, settings.body_s, headers)
    if not settings.cors_origins:
        return edged
    return CORSMiddleware(
        edged,
        allow_origins=settings.cors_origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("Authorization", "Content-Type", "If-None-Match", "Last-Event-ID", "traceparent"),
        expose_headers=("ETag", "Location", "Retry-After"),
    )


def routed(gateway: Gateway, access: Access, lines: AuditLines) -> FastAPI:
    """Make the routes, and the document that describes them."""
    app = _Described(
        title="Stretto",
        version="1",
        summary="Submit, watch, explain and cancel training jobs.",
        openapi_url="/openapi.json",
        docs_url=None,  # its page would load scripts from an outside host
        redoc_url=None,
    )
    problems.install(app)
    app.include_router(pages.routes())
    app.include_router(_health(gateway))
    app.include_router(_api(gateway, access, lines))
    return app


def health_app(gateway: Gateway) -> ASGIApp:
    """Make the application for health and metrics only."""
    app = FastAPI(openapi_url=None)
    app.include_router(_health(gateway))
    return app


def _guard(gateway: Gateway, access: Access) -> Any:
    """Make the dependency that authenticates: reading needs any role, changing needs at least submitter.

    Every route with a job in its path is closed here to callers who may not read that job.
    """

    async def guard(request: Request, credentials: Credentials) -> None:
        address = request.client.host if request.client else ""
        bearer = credentials.credentials if credentials else None
        caller = await access.admit(bearer, address)
        request.state.caller = caller
        request.state.allowed = lambda: access.holds(bearer)
        if request.method in edge.CHANGING:
            require(caller, "submitter")
        if re.fullmatch(JOB_PATTERN, job := request.path_params.get("job", "")):
            gateway.check_readable(job, caller.reads)

    return guard


def _owner(gateway: Gateway) -> Any:
    """Make the dependency that lets only a job's submitter and admins change it."""

    async def owner(request: Request, job: JobName) -> None:
        require_own(request.state.caller, gateway.view(job))

    return owner


def _health(gateway: Gateway) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get("/healthz")
    async def healthz() -> PlainTextResponse:
        return PlainTextResponse("ok\n")

    @router.get("/readyz")
    async def readyz() -> PlainTextResponse:
        lines = [gateway.lacks or "ready", *warnings(gateway.fullness.shares).values()]
        return PlainTextResponse("\n".join(lines) + "\n", 200 if gateway.ready else 503)

    @router.get("/asyncapi.yaml")
    async def asyncapi() -> PlainTextResponse:
        return PlainTextResponse(await asyncio.to_thread(asyncapi_text), media_type="application/yaml")

    @router.get("/metrics")
    async def metrics() -> PlainTextResponse:
        return PlainTextResponse(exposition(gateway), media_type="text/plain; version=0.0.4")

    return router


def exposition(gateway: Gateway) -> str:
    """Return the metrics for Prometheus: progress of the view, jobs in each state, and what the objectives need."""
    projection = gateway.projection
    states = Counter(view.status for view in projection.jobs.values())
    lines = [
        "# TYPE stretto_gateway_ready gauge",
        f"stretto_gateway_ready {int(gateway.ready)}",
        "# TYPE stretto_gateway_last_seq gauge",
        f"stretto_gateway_last_seq {projection.last_seq}",
        "# TYPE stretto_gateway_jobs gauge",
        *(f'stretto_gateway_jobs{{status="{status}"}} {states[status]}' for status in get_args(Status)),
        "# TYPE stretto_gateway_late_checkpoints gauge",
        f"stretto_gateway_late_checkpoints {gateway.late_checkpoints()}",
        "# TYPE stretto_gateway_stopped_jobs gauge",
        f"stretto_gateway_stopped_jobs {gateway.stopped_jobs()}",
        "# TYPE stretto_stream_fullness gauge",
        *(
            f'stretto_stream_fullness{{service="gateway",stream="{stream}"}} {share:g}'
            for stream, share in gateway.fullness.shares.items()
        ),
        *_starts([waited_s for view in projection.jobs.values() if (waited_s := start_s(view)) is not None]),
    ]
    return "\n".join(lines) + "\n"


def _starts(waits_s: Sequence[float]) -> Iterator[str]:
    """Yield the histogram of the time to the first step, of all jobs in the view. Old jobs leave it with the view."""
    name = "stretto_gateway_start_seconds"
    yield f"# TYPE {name} histogram"
    for bound_s in START_BOUNDS_S:
        yield f'{name}_bucket{{le="{bound_s:g}"}} {sum(waited_s <= bound_s for waited_s in waits_s)}'
    yield f'{name}_bucket{{le="+Inf"}} {len(waits_s)}'
    yield f"{name}_sum {sum(waits_s)}"
    yield f"{name}_count {len(waits_s)}"


def _api(gateway: Gateway, access: Access, lines: AuditLines) -> APIRouter:
    router = APIRouter(prefix="/api/v1", dependencies=[Depends(_guard(gateway, access))], responses=ERRORS)
    _add_jobs(router, gateway)
    router.include_router(_changes(gateway))
    _add_events(router, gateway)

    @router.get("/status", operation_id="getStatus", tags=["about"])
    async def status(request: Request) -> GatewayStatus:
        """Return how far the gateway has read the stream, and the number of jobs that the caller may read."""
        projection = gateway.projection
        return GatewayStatus(
            ready=gateway.ready,
            last_seq=projection.last_seq,
            jobs=len(projection.readable(request.state.caller.reads)),
            strangers=projection.strangers,
        )

    @router.get(
        "/audit-log",
        operation_id="getAuditLog",
        tags=["about"],
        response_class=StreamingResponse,
        responses=AUDIT_LINES,
    )
    async def trail(request: Request) -> StreamingResponse:
        """Return the audit log as JSON lines, oldest first; each has the SHA-256 of the line before. For admins."""
        require(request.state.caller, "admin")
        source = lines()
        first = await anext(source, b"")  # a fault of the bus at the beginning is an answer, not half of one

        async def rest() -> AsyncIterator[bytes]:
            if first:
                yield first + b"\n"
            async for line in source:
                yield line + b"\n"

        return StreamingResponse(rest(), media_type="application/jsonl")

    @router.get("/history", operation_id="listHistory", tags=["about"], response_model=list[PastJob])
    async def history(request: Request) -> Response:
        """List the past jobs that warm start reads."""
        caller, projection = request.state.caller, gateway.projection
        past = list(projection.history.values()) if caller.reads_all else projection.readable_history(caller.reads)
        return _json(_HISTORY, past)

    @router.get("/schema/events/{name}", operation_id="getEventSchema", tags=["about"])
    async def event_schema(
        name: Annotated[str, PathParameter(description="name of an event, e.g. plan-decided")],
    ) -> Schema:
        """Return the JSON Schema of the data of an event."""
        channels = {channel.name: channel for channel in CHANNELS if channel.kind == "evt"}
        if (channel := channels.get(name)) is None:
            text, remedy = f"no event is called {name[:100]}", f"one of {', '.join(channels)}"
            raise Problem(404, "not-found", text, field="name", value=name, remedy=remedy)
        return message_schema(channel.message, schema_name(channel))

    @router.get("/schema/job", operation_id="getJobSchema", tags=["about"])
    async def schema() -> Schema:
        """Return the JSON Schema of a job specification."""
        return job_schema()

    return router


def _add_jobs(router: APIRouter, gateway: Gateway) -> None:
    body = {**components.content("application/json", components.JOB)["content"]}
    body |= components.content("application/yaml", components.JOB)["content"]
    parser = documents.JobParser()

    @router.post(
        "/jobs",
        operation_id="submitJob",
        tags=["jobs"],
        status_code=201,
        openapi_extra={"requestBody": {"required": True, "content": body}},
        responses={200: {"model": Submitted, "description": "this specification was submitted earlier"}},
    )
    async def submit(request: Request, response: Response) -> Submitted:
        """Submit a job. The same specification again answers 200 with the job's state and changes nothing, also
        after the job's end; another specification under the same name answers 409."""
        caller = request.state.caller
        spec = await parser.parse(caller.name, await request.body(), request.headers.get("content-type", ""))
        request.state.job = spec.name
        by = _submitter(caller, request.headers.get("x-stretto-user", ""))
        team = _team(caller, request.headers.get("x-stretto-team", ""))
        created, seq = await gateway.submit(spec, by, request.headers.get("traceparent", ""), team)
        request.state.unchanged = not created
        response.status_code = 201 if created else 200
        response.headers["Location"] = f"/api/v1/jobs/{spec.name}"
        return Submitted(job=spec.name, created=created, seq=seq, status=gateway.status(spec.name))

    @router.get("/jobs", operation_id="listJobs", tags=["jobs"], response_model=list[JobSummary])
    async def jobs(
        request: Request, status: Annotated[Status | None, Query(description="only jobs in this state")] = None
    ) -> Response:
        """List the jobs that the caller may read, oldest first."""
        return _json(_SUMMARIES, gateway.summaries(status, request.state.caller.reads))

    @router.get("/jobs/{job}", operation_id="getJob", tags=["jobs"], response_model=JobView)
    async def job(job: JobName) -> Response:
        """Return everything known about a job."""
        return _json(_VIEW, gateway.shown(job))

    @router.get("/jobs/{job}/decisions", operation_id="listDecisions", tags=["jobs"], response_model=list[Decision])
    async def decisions(job: JobName) -> Response:
        """List the decisions about a job: basis, prediction and outcome."""
        return _json(_DECISIONS, gateway.view(job).decisions)

    @router.get("/jobs/{job}/log", operation_id="getPodLog", tags=["jobs"])
    async def log(job: JobName, pod: PodName, lines: Lines = LINES) -> PodLog:
        """Return the last lines of a pod's log. It runs, or has ended: then the store has its last megabyte."""
        return PodLog(job=job, pod=pod, text=await gateway.pod_log(job, pod, lines))

    @router.get("/jobs/{job}/trace", operation_id="getTrace", tags=["jobs"])
    async def trace(job: JobName) -> JobTrace:
        """Return the spans of a job's trace that this machine keeps; where there is a collector, look there. Its events
        are the waterfall without them: each has a time, a service and the trace."""
        trace_id = gateway.view(job).trace_id
        folder = gateway.settings.state_folder
        spans = await asyncio.to_thread(spans_of, folder, job, trace_id) if trace_id else []
        return JobTrace(job=job, trace_id=trace_id, spans=[SpanView(**each) for each in spans])

    @router.get("/jobs/{job}/audit", operation_id="auditJob", tags=["jobs"], response_model=JobAudit)
    async def audit(job: JobName) -> Response:
        """Audit the books: the ledger against the counts of every column of the parameters."""
        return _json(_AUDIT, await gateway.audit(job))


def _submitter(caller: Caller, on_behalf_of: str) -> str:
    """Return the name of the submitter: an admin may submit on behalf of another user."""
    return (on_behalf_of[:200] if caller.role == "admin" else "") or caller.name


def _team(caller: Caller, on_behalf_of: str) -> str:
    """Return the team of a submission: an admin may submit for another team. Raises Problem 400 for no team's name."""
    if caller.role != "admin" or not on_behalf_of:
        return caller.team
    if not re.fullmatch(JOB_PATTERN, on_behalf_of):
        remedy = "a team: at most 63 lower-case letters, digits or hyphens"
        text = "X-Stretto-Team names no team"
        raise Problem(400, "bad-request", text, field="X-Stretto-Team", value=on_behalf_of[:100], remedy=remedy)
    return on_behalf_of


async def _arrived(request: Request) -> Arrived:
    """Read the body as JSON: the strict dataclasses of messages accept an object from JSON only."""
    try:
        return Arrived.model_validate_json(await request.body())
    except ValidationError as error:
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in error.errors()]) from error


def _changes(gateway: Gateway) -> APIRouter:
    """Make the routes that change a job; only its submitter and admins may use them."""
    router = APIRouter(dependencies=[Depends(_owner(gateway))])

    @router.delete("/jobs/{job}", operation_id="cancelJob", tags=["jobs"], status_code=202, response_model=JobSummary)
    async def cancel(
        request: Request,
        job: JobName,
        reason: Annotated[str, Query(max_length=500, description="stored with the event")] = "",
    ) -> JobSummary:
        """End a job. Its pods are stopped; its last checkpoint keeps what it has trained until then."""
        request.state.unchanged = gateway.view(job).status == "cancelled"
        return summary(await gateway.cancel(job, reason, request.state.caller.name))

    @router.post("/jobs/{job}/plan", operation_id="scaleJob", tags=["jobs"], status_code=202)
    async def scale(request: Request, job: JobName, wanted: Wanted) -> Requested:
        """Request another number of workers, parameter servers or data workers. Training goes on meanwhile."""
        by = request.state.caller.name
        plan = await gateway.request(job, wanted.workers, wanted.ps, wanted.data, by)
        return Requested(job=job, plan=plan)

    @router.post(
        "/jobs/{job}/data",
        operation_id="addData",
        tags=["jobs"],
        openapi_extra={"requestBody": {"required": True, **components.content("application/json", components.ARRIVED)}},
    )
    async def data(request: Request, job: JobName) -> DataAnswer:
        """Give a growing job more data, or close it. Repeatable: it states totals, not additions."""
        arrived = await _arrived(request)
        before = gateway.view(job).data.last_seq
        known = (await gateway.add_data(job, learning.Wanted(arrived.partitions, arrived.close))).data
        request.state.unchanged = known.last_seq == before
        return DataAnswer(job=job, growing=known.growing, samples=known.samples, partitions=len(known.partitions))

    @router.post("/jobs/{job}/checkpoints", operation_id="takeCheckpoint", tags=["jobs"], status_code=202)
    async def checkpoint(job: JobName) -> CheckpointAnswer:
        """Take a checkpoint now."""
        return CheckpointAnswer(job=job, id=await gateway.checkpoint(job))

    return router


def _add_events(router: APIRouter, gateway: Gateway) -> None:
    readers = sse.Readers(gateway.settings.streams)

    def answer(request: Request, start_seq: int, job: str | None, follow: bool, names: list[str]) -> StreamingResponse:
        caller = request.state.caller
        who = caller.name if caller is not ANYBODY or request.client is None else network_of(request.client.host)
        readers.check(who)
        keepalive_s, allowed = gateway.settings.keepalive_s, request.state.allowed
        source = gateway.source if caller.reads_all else gateway.events(caller.reads)
        frames = sse.stream(source, start_seq, job, follow, frozenset(names), keepalive_s, allowed)
        return StreamingResponse(
            readers.counted(who, frames),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    @router.get(
        "/events", operation_id="streamEvents", tags=["events"], response_class=StreamingResponse, responses=FRAMES
    )
    async def events(
        request: Request,
        job: JobNameFilter = None,
        after: After = None,
        follow: Follow = True,
        event: Names = [],  # noqa: B006 - FastAPI copies defaults
        last_event_id: LastEventId = None,
    ) -> StreamingResponse:
        """Stream events of readable jobs as server-sent events. The id is the sequence; Last-Event-ID resumes."""
        return answer(request, sse.start_of(last_event_id, after), job, follow, event)

    @router.get(
        "/jobs/{job}/events",
        operation_id="streamJobEvents",
        tags=["events"],
        response_class=StreamingResponse,
        responses=FRAMES,
    )
    async def job_events(
        request: Request,
        job: JobName,
        after: After = None,
        follow: Follow = True,
        event: Names = [],  # noqa: B006 - FastAPI copies defaults
        last_event_id: LastEventId = None,
    ) -> StreamingResponse:
        """Stream events of one job, from its first one on."""
        gateway.view(job)
        return answer(request, sse.start_of(last_event_id, after), job, follow, event)
