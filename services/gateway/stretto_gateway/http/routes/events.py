"""Routes of events: streams, and pages of the newest events."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import StringConstraints
from stretto_bus.reading.lost_end import LogPlace
from stretto_messages.base import JOB_PATTERN

from ...access.turns import Turns
from ...read_model.job_views import JobViews
from ...settings import GatewaySettings
from ...streams.stored_events import EventSource, Selection
from .. import components, event_stream
from .parameters import SEQ_MAX, JobName, Responses, name_of

JobNameFilter = Annotated[str | None, Query(pattern=JOB_PATTERN, description="only events of this job")]
After = Annotated[int | None, Query(ge=0, le=SEQ_MAX, description="send only events after this sequence")]
Follow = Annotated[bool, Query(description="false: end after the last event stored now")]
EventName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,58}[a-z0-9])?$")]
Names = Annotated[list[EventName], Query(max_length=50, description="only events of these names, e.g. plan-decided")]
LastEventId = Annotated[
    str | None,
    Header(
        alias="Last-Event-ID",
        max_length=100,
        description="id of the last event received; if @ and its time_s follow, a loss of that event is always told",
    ),
]
Limit = Annotated[int, Query(ge=1, le=200, description="number of events")]
Before = Annotated[int | None, Query(ge=0, le=SEQ_MAX, description="only events below this sequence; none: the newest")]
Since = Annotated[
    float | None,
    Query(ge=0, le=1e11, description="only events stored at this time or later, in seconds since 1970-01-01 UTC"),
]
TOO_MANY = "close one, or read all jobs with GET /events and filter"
FRAMES: Responses = {200: components.content("text/event-stream", components.EVENT)}
PAGE: Responses = {200: components.content("application/json", components.EVENT_PAGE)}


def routes(views: JobViews, settings: GatewaySettings) -> APIRouter:
    """Make the routes."""
    router = APIRouter(tags=["events"])
    readers = event_stream.Readers(settings.streams, "event streams", TOO_MANY)
    turns = Turns()

    def source_of(request: Request) -> EventSource:
        caller = request.state.caller
        return views.source if caller.reads_all else views.events(caller.reads)

    def answer(request: Request, after: LogPlace, selection: Selection, follow: bool) -> StreamingResponse:
        who = name_of(request)
        readers.check(who)
        keepalive_s, allowed = settings.keepalive_s, request.state.allowed
        frames = event_stream.stream(source_of(request), after, selection, follow, keepalive_s, allowed)
        return StreamingResponse(
            readers.counted(who, frames),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    @router.get("/events", operation_id="streamEvents", response_class=StreamingResponse, responses=FRAMES)
    async def events(
        request: Request,
        job: JobNameFilter = None,
        after: After = None,
        follow: Follow = True,
        event: Names = [],  # noqa: B006 - FastAPI copies defaults
        last_event_id: LastEventId = None,
    ) -> StreamingResponse:
        """Stream events of readable jobs as server-sent events. The id is the sequence; Last-Event-ID resumes."""
        return answer(request, event_stream.place_of(last_event_id, after), Selection(job, tuple(event)), follow)

    @router.get("/events/newest", operation_id="listNewestEvents", responses=PAGE)
    async def newest(
        request: Request,
        job: JobNameFilter = None,
        limit: Limit = 50,
        before: Before = None,
        since: Since = None,
        event: Names = [],  # noqa: B006 - FastAPI copies defaults
    ) -> Response:
        """List the newest events of readable jobs, newest first. `before` of the answer leads to older ones."""
        if job is not None:
            views.check_readable(job, request.state.caller.reads)
        async with turns.turn(name_of(request)):
            found = await source_of(request).newest(Selection(job, tuple(event)), limit, before, since)
        listed = ",".join(map(event_stream.document, found.events))
        body = f'{{"events":[{listed}],"before":{json.dumps(found.before)}}}'
        return Response(body.encode(), media_type="application/json")

    @router.get(
        "/jobs/{job}/events",
        operation_id="streamJobEvents",
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
        views.view(job)
        return answer(request, event_stream.place_of(last_event_id, after), Selection(job, tuple(event)), follow)

    return router
