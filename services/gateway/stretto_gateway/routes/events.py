"""Event streams."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse
from stretto_messages.base import JOB_PATTERN

from .. import components, sse
from ..callers import ANYBODY, network_of
from ..service import Gateway
from .parameters import JobName, Responses

JobNameFilter = Annotated[str | None, Query(pattern=JOB_PATTERN, description="only events of this job")]
After = Annotated[int | None, Query(ge=0, le=10**18, description="send only events after this sequence")]
Follow = Annotated[bool, Query(description="false: end after the last event stored now")]
Names = Annotated[list[str], Query(max_length=50, description="only events of these names, e.g. plan-decided")]
LastEventId = Annotated[str | None, Header(alias="Last-Event-ID", max_length=100)]
FRAMES: Responses = {200: components.content("text/event-stream", components.EVENT)}


def routes(gateway: Gateway) -> APIRouter:
    """Make the routes."""
    router = APIRouter(tags=["events"])
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
        return answer(request, sse.start_of(last_event_id, after), job, follow, event)

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
        gateway.view(job)
        return answer(request, sse.start_of(last_event_id, after), job, follow, event)

    return router
