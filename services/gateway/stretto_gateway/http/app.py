"""The application of the REST interface: its routes, who may use them, and its documents."""

from __future__ import annotations

import asyncio
import json
import re
import warnings
from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic.warnings import UnsupportedFieldAttributeWarning
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp
from stretto_messages.base import JOB_PATTERN
from stretto_runtime.process.connections import ACCEPTED

from .. import problems
from ..access import edge
from ..access.audit_log import AuditLog
from ..access.callers import Access, require
from ..read_model.job_views import JobViews
from ..service import Gateway
from . import components, console, health, pages
from .routes import about, changes, events, jobs, journal, parameters
from .routes.about import AuditLines

API = "/api/v1"
COMPRESSED_FROM_BYTES, COMPRESSION = 8 << 10, 4
"""Answers are compressed from this size on, at this level of zlib (taste): the view of a job that has trained for a day
has half a megabyte. Streams of events are never compressed."""
Credentials = Annotated[
    HTTPAuthorizationCredentials | None,
    Depends(HTTPBearer(auto_error=False, description="a token of the gateway, or a JSON Web Token of its issuer")),
]


class _Described(FastAPI):
    """An application whose document has the components that FastAPI does not know."""

    def openapi(self) -> dict[str, Any]:
        """Return the document, which is made once."""
        if self.openapi_schema is None:
            with warnings.catch_warnings():  # FastAPI does so itself for the classes of bodies that are not built late
                warnings.simplefilter("ignore", UnsupportedFieldAttributeWarning)
                document = super().openapi()
            self.openapi_schema = components.completed(document)
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
        openapi_url=None,  # FastAPI would make the document in the event loop, and serve nobody meanwhile
        docs_url=None,  # FastAPI's page would load scripts from an outside host
        redoc_url=None,
    )
    problems.install(app)
    app.include_router(_documents(app))
    app.include_router(pages.routes())
    app.include_router(console.routes())
    app.include_router(health.routes(gateway))
    app.include_router(about.login_routes(access, gateway.settings), prefix=API, responses=parameters.ERRORS)
    guarded = APIRouter(prefix=API, dependencies=[Depends(_guard(gateway.views, access))], responses=parameters.ERRORS)
    guarded.include_router(jobs.routes(gateway.views, gateway.submissions, gateway.inquiries))
    guarded.include_router(journal.routes(gateway.inquiries))
    guarded.include_router(changes.routes(gateway.views, gateway.changes))
    guarded.include_router(events.routes(gateway.views, gateway.settings))
    guarded.include_router(about.routes(gateway.follower, gateway.inquiries, gateway.settings.installation, lines))
    app.include_router(guarded)
    return app


def health_app(gateway: Gateway) -> ASGIApp:
    """Make the application for health and metrics only."""
    app = FastAPI(openapi_url=None)
    app.include_router(health.routes(gateway))
    return edge.Heads(app)


def _guard(views: JobViews, access: Access) -> Any:
    """Make the dependency that authenticates: reading needs any role, changing needs at least submitter.

    Every route with a job in its path is closed here to callers who may not read that job.
    """

    async def guard(request: Request, credentials: Credentials) -> None:
        address = request.client.host if request.client else ""
        bearer = credentials.credentials if credentials else None
        caller = await access.admit(bearer, address)
        if bearer and not access.is_open and (accepted := getattr(request.state, ACCEPTED, None)):
            accepted(caller.name)
        request.state.caller = caller
        request.state.allowed = lambda: access.holds(bearer)
        if request.method in edge.CHANGING:
            require(caller, "submitter")
        parameters.check_query(request)
        if re.fullmatch(JOB_PATTERN, job := request.path_params.get("job", "")):
            views.check_readable(job, caller.reads)

    return guard


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
        from stretto_protodocs.documents import asyncapi_text  # generators that only this route needs

        return Response(await asyncio.to_thread(asyncapi_text), media_type="application/yaml")

    return router
