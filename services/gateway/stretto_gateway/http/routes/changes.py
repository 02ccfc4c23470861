"""Routes that change a job."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from stretto_wire.rest.answers import Arrived, CheckpointAnswer, DataAnswer, Requested, Wanted
from stretto_wire.rest.summaries import JobSummary

from ...access.callers import require_own
from ...read_model.job_views import JobViews
from ...requests.arrivals import DataStatement
from ...requests.changes import Changes
from .. import components
from .parameters import JobName


def _owner(views: JobViews) -> Any:
    """Make the dependency that lets only a job's submitter and admins change it."""

    async def owner(request: Request, job: JobName) -> None:
        require_own(request.state.caller, views.view(job))

    return owner


async def _arrived(request: Request) -> Arrived:
    """Read the body as JSON: the strict dataclasses of messages accept an object from JSON only."""
    try:
        return Arrived.model_validate_json(await request.body())
    except ValidationError as error:
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in error.errors()]) from error


def routes(views: JobViews, changes: Changes) -> APIRouter:
    """Make the routes; only the submitter of the job and admins may use them."""
    router = APIRouter(tags=["jobs"], dependencies=[Depends(_owner(views))])

    @router.delete("/jobs/{job}", operation_id="cancelJob", status_code=202, response_model=JobSummary)
    async def cancel(
        request: Request,
        job: JobName,
        reason: Annotated[str, Query(max_length=500, description="stored with the event")] = "",
    ) -> JobSummary:
        """End a job for good. What it trained after its last stored checkpoint is lost."""
        request.state.unchanged = views.view(job).status == "cancelled"
        await changes.cancel(job, reason, request.state.caller.name)
        return views.summary(job)

    @router.post("/jobs/{job}/plan", operation_id="scaleJob", status_code=202)
    async def scale(request: Request, job: JobName, wanted: Wanted) -> Requested:
        """Request another number of workers, parameter servers or data workers. Training goes on meanwhile."""
        by = request.state.caller.name
        plan = await changes.scale(job, wanted.workers, wanted.ps, wanted.data, by)
        return Requested(job=job, plan=plan)

    @router.post(
        "/jobs/{job}/data",
        operation_id="addData",
        openapi_extra={"requestBody": {"required": True, **components.content("application/json", components.ARRIVED)}},
    )
    async def data(request: Request, job: JobName) -> DataAnswer:
        """Give a growing job more data, or close it. Repeatable: it states totals, not additions."""
        arrived = await _arrived(request)
        before = views.view(job).data.last_seq
        known = (await changes.add_data(job, DataStatement(arrived.partitions, arrived.close))).data
        request.state.unchanged = known.last_seq == before
        return DataAnswer(job=job, growing=known.growing, samples=known.samples, partitions=len(known.partitions))

    @router.post("/jobs/{job}/checkpoints", operation_id="takeCheckpoint", status_code=202)
    async def checkpoint(job: JobName) -> CheckpointAnswer:
        """Take a checkpoint now."""
        return CheckpointAnswer(job=job, id=await changes.take_checkpoint(job))

    return router
