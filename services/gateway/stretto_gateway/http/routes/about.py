"""Routes about the gateway: its state, the caller, the audit log, past jobs, and schemas."""

from __future__ import annotations

import json as text_json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from importlib.metadata import version
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi import Path as PathParameter
from fastapi.responses import StreamingResponse
from stretto_wire.contract.registry import CHANNELS
from stretto_wire.contract.schemas import message_schema, schema_name
from stretto_wire.jobspec.schema import Schema, job_schema
from stretto_wire.rest.answers import Alerts, ClusterView, GatewayStatus, Login, Me, SignOn
from stretto_wire.rest.parts import Part
from stretto_wire.rest.summaries import PastJob

from ...access.callers import Access, require
from ...problems import Problem
from ...read_model.follower import Follower
from ...read_model.parts import PARTS_OF
from ...requests.inquiries import Inquiries
from ...settings import GatewaySettings
from .. import components
from .parameters import SEQ_MAX, Responses, json

AuditLines = Callable[[], AsyncIterator[bytes]]
"""Reader of the entries of the audit log, in their order."""
AUDIT_LINES: Responses = {200: components.content("application/jsonl", components.AUDIT_LINE)}
AUDIT_PAGE: Responses = {200: components.content("application/json", components.AUDIT_PAGE)}
PAST_JOBS = 1000


def routes(follower: Follower, inquiries: Inquiries, installation: str, lines: AuditLines) -> APIRouter:
    """Make the routes. ``installation``: the installation's name; ``lines`` reads the audit log."""
    router = APIRouter(tags=["about"])

    @router.get("/status", operation_id="getStatus")
    async def status(request: Request) -> GatewayStatus:
        """Return how far the gateway has read the stream, and the number of jobs that the caller may read."""
        projection = follower.projection
        views = projection.readable(request.state.caller.reads)
        return GatewayStatus(
            ready=follower.ready,
            last_seq=projection.last_seq,
            jobs=len(views),
            jobs_by_status=dict(Counter(view.status for view in views)),
            strangers=projection.strangers,
        )

    @router.get("/cluster", operation_id="getCluster")
    async def cluster(
        request: Request,
        after: Annotated[str, Query(max_length=63, description="holders after this job, of the answer before")] = "",
    ) -> ClusterView:
        """Return capacity, holders and queue as the arbiter sees them, and the services. Of teams that the caller may
        not read it has amounts and no names."""
        caller = request.state.caller
        return await inquiries.cluster(caller.reads, caller.team, after)

    @router.get("/alerts", operation_id="listAlerts")
    async def alerts(request: Request) -> Alerts:
        """List the alerts that hold now, as far as the gateway can judge them, about services, streams and the jobs
        that the caller may read. `/console/alerts` has the runbook."""
        return await inquiries.alerts(request.state.caller.reads)

    @router.get("/me", operation_id="getMe")
    async def me(request: Request) -> Me:
        """Return the caller, as its token says, and the gateway that it has reached."""
        caller = request.state.caller
        return Me(
            name=caller.name,
            role=caller.role,
            team=caller.team,
            reads_all_teams=caller.reads_all,
            expires_at_s=caller.expires_at_s,
            installation=installation,
            version=version("stretto-gateway"),
        )

    @router.get("/history", operation_id="listHistory", response_model=list[PastJob])
    async def history(
        request: Request, limit: Annotated[int, Query(ge=1, le=PAST_JOBS, description="so many latest")] = PAST_JOBS
    ) -> Response:
        """List the past jobs that warm start reads, oldest first."""
        caller, projection = request.state.caller, follower.projection
        past = list(projection.history.values()) if caller.reads_all else projection.readable_history(caller.reads)
        return json(list[PastJob], past[-limit:])

    _add_audit_log(router, inquiries, lines)
    router.include_router(_schemas())
    return router


def _add_audit_log(router: APIRouter, inquiries: Inquiries, lines: AuditLines) -> None:
    @router.get("/audit-log", operation_id="getAuditLog", response_class=StreamingResponse, responses=AUDIT_LINES)
    async def trail(request: Request) -> StreamingResponse:
        """Return the audit log as JSON lines, oldest first; each has the SHA-256 of the line before. For admins."""
        require(request.state.caller, "admin")
        source = lines()
        first = await anext(source, b"")  # a fault of the bus before the first line is an answer of its own

        async def rest() -> AsyncIterator[bytes]:
            if first:
                yield first + b"\n"
            async for line in source:
                yield line + b"\n"

        return StreamingResponse(rest(), media_type="application/jsonl")

    @router.get("/audit-log/newest", operation_id="listNewestChanges", responses=AUDIT_PAGE)
    async def newest(
        request: Request,
        limit: Annotated[int, Query(ge=1, le=200, description="number of entries")] = 50,
        before: Annotated[
            int | None, Query(ge=0, le=SEQ_MAX, description="only entries below this sequence; none: the newest")
        ] = None,
    ) -> Response:
        """List the newest entries of the audit log, newest first. `before` of the answer leads to older ones. For
        admins."""
        require(request.state.caller, "admin")
        entries, older = await inquiries.newest_changes(limit, before)
        body = b'{"entries":[' + b",".join(entries) + b'],"before":' + text_json.dumps(older).encode() + b"}"
        return Response(body, media_type="application/json")


def _schemas() -> APIRouter:
    router = APIRouter()

    @router.get("/schema/job", operation_id="getJobSchema")
    async def schema() -> Schema:
        """Return the JSON Schema of a job specification."""
        return job_schema()

    @router.get("/schema/parts", operation_id="getPartsByEvent")
    async def parts() -> dict[str, list[Part]]:
        """Return which parts of a job each event may change: a client that holds them reads these again."""
        return {event: list(changed) for event, changed in PARTS_OF.items()}

    @router.get("/schema/events/{name}", operation_id="getEventSchema")
    async def event_schema(
        name: Annotated[str, PathParameter(description="name of an event, e.g. plan-decided")],
    ) -> Schema:
        """Return the JSON Schema of the data of an event."""
        channels = {channel.name: channel for channel in CHANNELS if channel.kind == "evt"}
        if (channel := channels.get(name)) is None:
            text, remedy = f"no event is called {name[:100]}", f"one of {', '.join(channels)}"
            raise Problem(404, "not-found", text, field="name", value=name, remedy=remedy)
        return message_schema(channel.message, schema_name(channel))

    return router


def login_routes(access: Access, settings: GatewaySettings) -> APIRouter:
    """Make the route that tells how to log in, to callers without a token, too."""
    router = APIRouter(tags=["about"])

    @router.get("/login", operation_id="getLogin")
    async def login() -> Login:
        """Return how to become a caller. It needs no token."""
        if access.is_open:
            return Login(ways=["none"], oidc=None)
        if settings.oidc_issuer is None:
            return Login(ways=["token"], oidc=None)
        found = SignOn(
            issuer=settings.oidc_issuer,
            audience=settings.oidc_audience,
            client_id=settings.oidc_client_id or None,
            scopes=settings.oidc_scopes,
        )
        return Login(ways=["token", "oidc"], oidc=found)

    return router
