"""The REST interface: routes, their rights, and their answers."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp
from stretto_messages.base import JOB_PATTERN
from stretto_wire.rest.views import Status

from .. import problems
from ..access import edge
from ..access.audit_log import AuditLog
from ..access.callers import Access, require
from ..read_model.summaries import START_BOUNDS_S, start_s
from ..service import Gateway
from ..streams.fullness import warnings
from . import components, console, pages
from .routes import about, changes, events, jobs, journal, parameters
from .routes.about import AuditLines

API = "/api/v1"
COMPRESSED_FROM_BYTES, COMPRESSION = 8 << 10, 4
"""Answers are compressed from this size on, at this level of zlib (taste): the view of a job that has trained for a day
has half a megabyte. Streams of events never are."""
Credentials = Annotated[
    HTTPAuthorizationCredentials | None,
    Depends(HTTPBearer(auto_error=False, description="a token of the gateway, or a JSON Web Token of its issuer")),
]


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
    answering = edge.Heads(GZipMiddleware(edged, COMPRESSED_FROM_BYTES, COMPRESSION))
    if not settings.cors_origins:
        return answering
    return CORSMiddleware(
        answering,
        allow_origins=settings.cors_origins,
        allow_methods=("GET", "HEAD", "POST", "DELETE"),
        allow_headers=("Authorization", "Content-Type", "If-None-Match", "Last-Event-ID", "traceparent"),
        expose_headers=("ETag", "Link", "Location", "Retry-After", "Total-Count"),
    )


def routed(gateway: Gateway, access: Access, lines: AuditLines) -> FastAPI:
    """Make the routes, and the document that describes them."""
    app = _Described(
        title="Stretto",
        version="1",
        summary="Submit, watch, explain and cancel training jobs.",
        openapi_url=None,  # FastAPI would make the document while nobody else is served
        docs_url=None,  # its page would load scripts from an outside host
        redoc_url=None,
    )
    problems.install(app)
    app.include_router(_documents(app))
    app.include_router(pages.routes())
    app.include_router(console.routes())
    app.include_router(_health(gateway))
    app.include_router(about.login_routes(access, gateway.settings), prefix=API, responses=parameters.ERRORS)
    guarded = APIRouter(prefix=API, dependencies=[Depends(_guard(gateway, access))], responses=parameters.ERRORS)
    for module in (jobs, journal, changes, events):
        guarded.include_router(module.routes(gateway))
    guarded.include_router(about.routes(gateway, lines))
    app.include_router(guarded)
    return app


def health_app(gateway: Gateway) -> ASGIApp:
    """Make the application for health and metrics only."""
    app = FastAPI(openapi_url=None)
    app.include_router(_health(gateway))
    return edge.Heads(app)


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


def _health(gateway: Gateway) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get("/healthz")
    async def healthz() -> PlainTextResponse:
        return PlainTextResponse("ok\n")

    @router.get("/readyz")
    async def readyz() -> PlainTextResponse:
        lines = [gateway.lacks or "ready", *warnings(gateway.fullness.shares).values()]
        return PlainTextResponse("\n".join(lines) + "\n", 200 if gateway.ready else 503)

    @router.get("/metrics")
    async def metrics() -> PlainTextResponse:
        return PlainTextResponse(exposition(gateway), media_type="text/plain; version=0.0.4")

    return router


def _documents(app: FastAPI) -> APIRouter:
    """Make the routes of the two documents, each of which takes a second or more to make."""
    router = APIRouter(include_in_schema=False)

    @cache
    def described() -> bytes:
        return json.dumps(app.openapi()).encode()

    @router.get("/openapi.json")
    async def openapi() -> Response:
        return Response(await asyncio.to_thread(described), media_type="application/json")

    @router.get("/asyncapi.yaml")
    async def asyncapi() -> Response:
        from stretto_wire.documents import asyncapi_text  # generators that only this route needs

        return Response(await asyncio.to_thread(asyncapi_text), media_type="application/yaml")

    return router


STARTS = "stretto_gateway_start_seconds"
METRICS: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("stretto_gateway_ready", "gauge", (), "1: the view has read the stream up to its end"),
    ("stretto_gateway_last_seq", "gauge", (), "sequence of the last event in the view"),
    ("stretto_gateway_jobs", "gauge", ("status",), "jobs in the view"),
    ("stretto_gateway_late_checkpoints", "gauge", (), "jobs that train without a checkpoint for too long"),
    ("stretto_gateway_stopped_jobs", "gauge", (), "training jobs whose workers have all stood still for too long"),
    (
        "stretto_stream_fullness",
        "gauge",
        ("service", "stream"),
        "stored bytes over the bound of the bucket, the audit log",
    ),
    (STARTS, "histogram", (), "time from submission to the first step, of the jobs in the view"),
)
"""Name, kind, labels and meaning of every metric of the gateway."""


def exposition(gateway: Gateway) -> str:
    """Return the metrics for Prometheus: progress of the view, jobs in each state, and what the objectives need."""
    projection = gateway.projection
    states = Counter(view.status for view in projection.jobs.values())
    samples: dict[str, Iterable[str]] = {
        "stretto_gateway_ready": [f" {int(gateway.ready)}"],
        "stretto_gateway_last_seq": [f" {projection.last_seq}"],
        "stretto_gateway_jobs": (f'{{status="{status}"}} {states[status]}' for status in get_args(Status)),
        "stretto_gateway_late_checkpoints": [f" {gateway.late_checkpoints()}"],
        "stretto_gateway_stopped_jobs": [f" {gateway.stopped_jobs()}"],
        "stretto_stream_fullness": (
            f'{{service="gateway",stream="{stream}"}} {share:g}' for stream, share in gateway.fullness.shares.items()
        ),
        STARTS: _starts([waited_s for view in projection.jobs.values() if (waited_s := start_s(view)) is not None]),
    }
    lines = (
        line
        for name, kind, _, text in METRICS
        for line in (f"# HELP {name} {text}", f"# TYPE {name} {kind}", *(name + each for each in samples[name]))
    )
    return "\n".join(lines) + "\n"


def _starts(waits_s: Sequence[float]) -> Iterator[str]:
    """Yield the histogram of the time to the first step, of all jobs in the view. Old jobs leave it with the view."""
    for bound_s in START_BOUNDS_S:
        yield f'_bucket{{le="{bound_s:g}"}} {sum(waited_s <= bound_s for waited_s in waits_s)}'
    yield f'_bucket{{le="+Inf"}} {len(waits_s)}'
    yield f"_sum {sum(waits_s)}"
    yield f"_count {len(waits_s)}"
