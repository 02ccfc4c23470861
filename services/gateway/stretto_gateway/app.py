"""The REST interface: addresses, who may use them, and what they answer. Decisions are elsewhere."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Depends, FastAPI, Header, Path, Query, Request, Response
from fastapi.responses import PlainTextResponse, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, Field, TypeAdapter
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp
from stretto_messages.values import PARTITIONS_MAX, PS_MAX, DataPartition, Plan
from stretto_wire.schemas import job_schema

from . import auditing, documents, edge, learning, problems, sse
from .callers import Access, Caller, require, require_own
from .problems import ProblemBody
from .service import Gateway
from .summaries import JobSummary, PastJob, summary
from .trail import Trail
from .views import Decision, JobView, Status

JobName = Annotated[str, Path(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", description="the job's name")]
JobNameFilter = Annotated[
    str | None, Query(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", description="only events of this job")
]
After = Annotated[int | None, Query(ge=0, le=10**18, description="send what comes after this sequence")]
Follow = Annotated[bool, Query(description="false: end after the last event stored now")]
Names = Annotated[list[str], Query(max_length=50, description="only events of these names, as in plan-decided")]
Credentials = Annotated[
    HTTPAuthorizationCredentials | None,
    Depends(HTTPBearer(auto_error=False, description="a token of the gateway, or a JSON Web Token of its issuer")),
]
LastEventId = Annotated[str | None, Header(alias="Last-Event-ID", max_length=100)]

ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ProblemBody, "description": "refused; the problem names field, value and remedy"},
    "5XX": {"model": ProblemBody, "description": "the gateway or the bus is not well"},
}

# a view holds records of the wire: serialised once by pydantic, not validated again by FastAPI
_VIEW = TypeAdapter(JobView)
_SUMMARIES = TypeAdapter(list[JobSummary])
_DECISIONS = TypeAdapter(list[Decision])
_HISTORY = TypeAdapter(list[PastJob])


class Submitted(BaseModel):
    """A job was taken in, or had been already: then ``status`` is how far it is."""

    job: str
    created: bool
    seq: int
    status: Status


class Wanted(BaseModel, extra="forbid"):
    """How many pods a job is to have; what is not named stays."""

    workers: Annotated[int, Field(ge=0, le=10_000)] | None = None
    ps: Annotated[int, Field(ge=1, le=PS_MAX)] | None = None


class Requested(BaseModel):
    """The plan that was asked for; plan-decided follows, or plan-refused."""

    job: str
    plan: Plan


class Arrived(BaseModel, extra="forbid"):
    """What data a growing job has now: totals of partitions, which only grow, and whether that was all."""

    partitions: Annotated[tuple[DataPartition, ...], Field(max_length=PARTITIONS_MAX)] = ()
    close: bool = Field(False, description="nothing more comes; the job completes when all of it is trained")


class DataAnswer(BaseModel):
    """What the job has been given by now."""

    job: str
    growing: bool
    samples: int
    partitions: int


class CheckpointAnswer(BaseModel):
    """A checkpoint has begun; the event checkpoint-saved follows."""

    job: str
    id: str | None


class GatewayStatus(BaseModel):
    """How far the read model is."""

    ready: bool
    last_seq: int
    jobs: int
    strangers: int


def _json(adapter: TypeAdapter[Any], value: Any) -> Response:
    return Response(adapter.dump_json(value), media_type="application/json")


def create_app(gateway: Gateway, access: Access, trail: Trail) -> ASGIApp:
    """The application over a running or starting gateway."""
    app = FastAPI(
        title="Stretto",
        version="1",
        summary="Submit, watch, explain and cancel training jobs.",
        openapi_url="/openapi.json",
        docs_url=None,  # its page would load scripts from a host outside, which is not always there and learns of users
        redoc_url=None,
    )
    problems.install(app)
    app.include_router(_health(gateway))
    app.include_router(_api(gateway, access))
    settings = gateway.settings
    headers = edge.HEADERS | (edge.OVER_TLS if settings.tls_certificate else {})
    edged = edge.Edge(app, trail, settings.body_bytes, settings.body_s, headers)
    if not settings.cors_origins:
        return edged
    return CORSMiddleware(
        edged,
        allow_origins=settings.cors_origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("Authorization", "Content-Type", "Last-Event-ID", "traceparent"),
        expose_headers=("Location", "Retry-After"),
    )


def health_app(gateway: Gateway) -> ASGIApp:
    """Health and metrics alone."""
    app = FastAPI(openapi_url=None)
    app.include_router(_health(gateway))
    return app


def _guard(access: Access) -> Any:
    """Who may read is let in; who wants to change something has to be more."""

    async def guard(request: Request, credentials: Credentials) -> None:
        address = request.client.host if request.client else ""
        bearer = credentials.credentials if credentials else None
        caller = await access.admit(bearer, address)
        request.state.caller = caller
        request.state.allowed = lambda: access.holds(bearer)
        if request.method in edge.CHANGING:
            require(caller, "submitter")

    return guard


def _owner(gateway: Gateway) -> Any:
    """Only who submitted a job may change it, and admins."""

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
        return PlainTextResponse(f"{gateway.lacks or 'ready'}\n", 200 if gateway.ready else 503)

    @router.get("/metrics")
    async def metrics() -> PlainTextResponse:
        return PlainTextResponse(exposition(gateway), media_type="text/plain; version=0.0.4")

    return router


def exposition(gateway: Gateway) -> str:
    """For Prometheus: how far the view is, and the jobs in each state."""
    projection = gateway.projection
    states = Counter(view.status for view in projection.jobs.values())
    lines = [
        "# TYPE stretto_gateway_ready gauge",
        f"stretto_gateway_ready {int(gateway.ready)}",
        "# TYPE stretto_gateway_last_seq gauge",
        f"stretto_gateway_last_seq {projection.last_seq}",
        "# TYPE stretto_gateway_jobs gauge",
        *(f'stretto_gateway_jobs{{status="{status}"}} {states[status]}' for status in get_args(Status)),
    ]
    return "\n".join(lines) + "\n"


def _api(gateway: Gateway, access: Access) -> APIRouter:
    router = APIRouter(prefix="/api/v1", dependencies=[Depends(_guard(access))], responses=ERRORS)
    _add_jobs(router, gateway)
    router.include_router(_demands(gateway))
    _add_events(router, gateway)

    @router.get("/status", tags=["about"])
    async def status() -> GatewayStatus:
        """How far the gateway has read."""
        projection = gateway.projection
        return GatewayStatus(
            ready=gateway.ready,
            last_seq=projection.last_seq,
            jobs=len(projection.jobs),
            strangers=projection.strangers,
        )

    @router.get("/history", tags=["about"], response_model=list[PastJob])
    async def history() -> Response:
        """The past jobs that warm start reads."""
        return _json(_HISTORY, list(gateway.projection.history.values()))

    @router.get("/schema/job", tags=["about"])
    async def schema() -> dict[str, Any]:
        """JSON Schema of a job specification."""
        return job_schema()

    return router


def _add_jobs(router: APIRouter, gateway: Gateway) -> None:
    body_schema = {"schema": {"type": "object", "description": "see /api/v1/schema/job"}}

    @router.post(
        "/jobs",
        tags=["jobs"],
        status_code=201,
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/json": body_schema, "application/yaml": body_schema},
            }
        },
    )
    async def submit(request: Request, response: Response) -> Submitted:
        """Submit a job. The same specification again is answered with 200 and the job's status, and changes nothing,
        also when that job is over; another one under the same name is 409."""
        spec = documents.parse_job(await request.body(), request.headers.get("content-type", ""))
        request.state.job = spec.name
        by = _submitter(request.state.caller, request.headers.get("x-stretto-user", ""))
        created, seq = await gateway.submit(spec, by, request.headers.get("traceparent", ""))
        response.status_code = 201 if created else 200
        response.headers["Location"] = f"/api/v1/jobs/{spec.name}"
        return Submitted(job=spec.name, created=created, seq=seq, status=gateway.status(spec.name))

    @router.get("/jobs", tags=["jobs"], response_model=list[JobSummary])
    async def jobs(status: Annotated[Status | None, Query(description="only jobs in this state")] = None) -> Response:
        """All jobs, oldest first."""
        return _json(_SUMMARIES, gateway.summaries(status))

    @router.get("/jobs/{job}", tags=["jobs"], response_model=JobView)
    async def job(job: JobName) -> Response:
        """Everything known of a job."""
        return _json(_VIEW, gateway.shown(job))

    @router.get("/jobs/{job}/decisions", tags=["jobs"], response_model=list[Decision])
    async def decisions(job: JobName) -> Response:
        """Every decision: what it rests on, what it was predicted to bring, and what it brought."""
        return _json(_DECISIONS, gateway.view(job).decisions)

    @router.get("/jobs/{job}/audit", tags=["jobs"])
    async def audit(job: JobName) -> dict[str, Any]:
        """Prove the books: what the ledger holds for done beside what every column of the parameters counted."""
        return auditing.document(await gateway.audit(job))


def _submitter(caller: Caller, told: str) -> str:
    """An admin may submit for another."""
    return (told[:200] if caller.role == "admin" else "") or caller.name


def _demands(gateway: Gateway) -> APIRouter:
    """What is asked of a job by whom it belongs to: to end, to change."""
    router = APIRouter(dependencies=[Depends(_owner(gateway))])

    @router.delete("/jobs/{job}", tags=["jobs"], status_code=202, response_model=JobSummary)
    async def cancel(
        request: Request,
        job: JobName,
        reason: Annotated[str, Query(max_length=500, description="kept with the event")] = "",
    ) -> JobSummary:
        """End a job. Its pods are stopped; what it has trained stays in its last checkpoint."""
        return summary(await gateway.cancel(job, reason, request.state.caller.name))

    @router.post("/jobs/{job}/plan", tags=["jobs"], status_code=202)
    async def scale(request: Request, job: JobName, wanted: Wanted) -> Requested:
        """Ask for another number of workers or parameter servers. Training goes on meanwhile; parameters move live."""
        by = request.state.caller.name
        return Requested(job=job, plan=await gateway.request(job, wanted.workers, wanted.ps, by))

    @router.post("/jobs/{job}/data", tags=["jobs"])
    async def data(job: JobName, arrived: Arrived) -> DataAnswer:
        """Give a growing job more data, or close it. Repeatable: it states totals, not what to add."""
        known = (await gateway.add_data(job, learning.Wanted(arrived.partitions, arrived.close))).data
        return DataAnswer(job=job, growing=known.growing, samples=known.samples, partitions=len(known.partitions))

    @router.post("/jobs/{job}/checkpoints", tags=["jobs"], status_code=202)
    async def checkpoint(job: JobName) -> CheckpointAnswer:
        """Take a checkpoint now."""
        return CheckpointAnswer(job=job, id=await gateway.checkpoint(job))

    return router


def _add_events(router: APIRouter, gateway: Gateway) -> None:
    def answer(request: Request, start_seq: int, job: str | None, follow: bool, names: list[str]) -> StreamingResponse:
        keepalive_s, allowed = gateway.settings.keepalive_s, request.state.allowed
        frames = sse.stream(gateway.source, start_seq, job, follow, frozenset(names), keepalive_s, allowed)
        return StreamingResponse(
            frames, media_type="text/event-stream", headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )

    @router.get("/events", tags=["events"], response_class=StreamingResponse)
    async def events(
        request: Request,
        job: JobNameFilter = None,
        after: After = None,
        follow: Follow = True,
        event: Names = [],  # noqa: B006 - FastAPI copies defaults
        last_event_id: LastEventId = None,
    ) -> StreamingResponse:
        """Events of all jobs as server-sent events; the id is the stream sequence, Last-Event-ID resumes."""
        return answer(request, sse.start_of(last_event_id, after), job, follow, event)

    @router.get("/jobs/{job}/events", tags=["events"], response_class=StreamingResponse)
    async def job_events(
        request: Request,
        job: JobName,
        after: After = None,
        follow: Follow = True,
        event: Names = [],  # noqa: B006 - FastAPI copies defaults
        last_event_id: LastEventId = None,
    ) -> StreamingResponse:
        """Events of one job, from its first one on."""
        gateway.view(job)
        return answer(request, sse.start_of(last_event_id, after), job, follow, event)
