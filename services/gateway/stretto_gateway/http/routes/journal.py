"""Route of a job's journal. Only admins may read it, because it tells of other jobs of the partition, too."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import StreamingResponse
from stretto_wire.contract.excerpts import Excerpt

from ...access.callers import require
from ...requests.inquiries import Inquiries
from .. import components, event_stream
from .parameters import JobName, Responses, name_of

READERS_MAX = 4
"""Journals that a caller may read at once. A replay reads two: inputs, and the reports that the inputs refer to."""
LINES: Responses = {200: components.content("application/jsonl", components.JOURNAL_LINE)}


async def _admin(request: Request) -> None:
    require(request.state.caller, "admin")


def routes(inquiries: Inquiries) -> APIRouter:
    """Make the route."""
    router = APIRouter(tags=["jobs"], dependencies=[Depends(_admin)])
    readers = event_stream.Readers(READERS_MAX, "journals", "wait until one of them has ended")

    async def counted(reader: str, job: str, excerpt: Excerpt) -> AsyncGenerator[bytes]:
        with readers.reading(reader):
            async with aclosing(inquiries.journal(job, excerpt)) as parts:
                async for part in parts:
                    yield part

    @router.get("/jobs/{job}/journal", operation_id="readJournal", response_class=StreamingResponse, responses=LINES)
    async def journal(request: Request, job: JobName, excerpt: Annotated[Excerpt, Query()]) -> StreamingResponse:
        """Return stored messages that a replay of the job's decisions reads, as JSON lines: first the stream's facts,
        last their number, without which the answer is incomplete. For admins."""
        parts = counted(name_of(request), job, excerpt)
        first = await anext(parts)  # a fault of the bus before the first line is an answer of its own

        async def body() -> AsyncGenerator[bytes]:
            async with aclosing(parts):
                yield first
                async for part in parts:
                    yield part

        return StreamingResponse(body(), media_type="application/jsonl")

    return router
