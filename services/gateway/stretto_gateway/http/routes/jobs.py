"""Routes that read jobs, submit a job, or preview a submission."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from stretto_messages.base import JOB_PATTERN
from stretto_messages.values import PS_MAX, WORKERS_MAX
from stretto_wire.rest.answers import JobTrace, PodLog, Prediction, Preview, Submitted
from stretto_wire.rest.audits import JobAudit
from stretto_wire.rest.parts import PARTS, Part
from stretto_wire.rest.summaries import JobSummary
from stretto_wire.rest.views import Decision, JobView, Status

from ...access.callers import Caller
from ...problems import Problem
from ...read_model import paging
from ...read_model.job_views import JobViews
from ...read_model.parts import dumped
from ...read_model.past import PAST_PARTS, check_past
from ...requests.inquiries import Inquiries
from ...requests.submissions import Submissions
from .. import components, documents
from .parameters import LINES, SEQ_MAX, TAGGED, IfNoneMatch, JobName, Last, Lines, PodName, Responses, json, unchanged

LISTED: Responses = {
    200: {
        "description": "a page of the list",
        "headers": {
            "Link": {"schema": {"type": "string"}, "description": 'the next page, as rel="next"; absent on the last'},
            "Total-Count": {"schema": {"type": "integer"}, "description": "number of jobs on all pages"},
        },
    }
}
PARTIAL: Responses = {
    **TAGGED,
    200: {**TAGGED[200], **components.content("application/json", components.PARTS)},
}
Statuses = Annotated[list[Status], Query(max_length=8, description="only jobs in one of these states")]
Order = Annotated[
    paging.Order,
    Query(
        description="by the time of submission, name, state, share done, speed, cost or loss; with a minus backwards. "
        "By all but the first two, a job that moves between two pages may be on both, or on neither"
    ),
]
At = Annotated[
    int | None,
    Query(ge=1, le=SEQ_MAX, description="as it was after the event with this sequence; none: as it is now"),
]
Parts = Annotated[list[Part], Query(max_length=len(PARTS), description="parts to return; none: all")]


def routes(views: JobViews, submissions: Submissions, inquiries: Inquiries) -> APIRouter:
    """Make the routes."""
    router = APIRouter(tags=["jobs"])
    _add_submission(router, views, submissions, inquiries)
    _add_lists(router, views)
    _add_details(router, inquiries)

    @router.get("/jobs/{job}", operation_id="getJob", response_model=JobView, responses=TAGGED)
    async def job(job: JobName, if_none_match: IfNoneMatch = None) -> Response:
        """Return everything known about a job."""
        return _parts(views, job, PARTS, None, if_none_match)

    @router.get("/jobs/{job}/parts", operation_id="getJobParts", responses=PARTIAL)
    async def parts(
        request: Request,
        job: JobName,
        part: Parts = [],  # noqa: B006 - FastAPI copies defaults
        last: Last = None,
        at: At = None,
        if_none_match: IfNoneMatch = None,
    ) -> Response:
        """Return some parts of what is known about a job. `/schema/parts` says which events change which parts.

        With `at` the parts are as they were after that event, folded again from the stored events: without counts of
        shards, and without what pods reported between events.
        """
        if at is not None and at <= views.view(job).last_seq:
            parts = part or sorted(PAST_PARTS)
            check_past(parts)
            tag = views.past_tag(at)
            if (same := unchanged(if_none_match, tag)) is not None:
                return same
            view = await views.past_view(job, at, request.state.caller.name)
            return Response(dumped(view, parts, last), media_type="application/json", headers={"ETag": tag})
        return _parts(views, job, part or PARTS, last, if_none_match)

    return router


def _parts(
    views: JobViews, job: str, parts: list[Part] | tuple[Part, ...], last: int | None, held: str | None
) -> Response:
    tag = views.tag(job, parts)
    if (same := unchanged(held, tag)) is not None:
        return same
    return Response(dumped(views.present(job), parts, last), media_type="application/json", headers={"ETag": tag})


def _add_submission(router: APIRouter, views: JobViews, submissions: Submissions, inquiries: Inquiries) -> None:
    parser = documents.JobParser()
    kinds = ("application/json", "application/yaml")
    body = {kind: components.content(kind, components.JOB)["content"][kind] for kind in kinds}

    @router.post(
        "/jobs",
        operation_id="submitJob",
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
        created, seq = await submissions.submit(spec, by, request.headers.get("traceparent", ""), team)
        request.state.unchanged = not created
        response.status_code = 201 if created else 200
        response.headers["Location"] = f"/api/v1/jobs/{spec.name}"
        return Submitted(job=spec.name, created=created, seq=seq, status=views.status(spec.name))

    @router.post(
        "/jobs/preview", operation_id="previewJob", openapi_extra={"requestBody": {"required": True, "content": body}}
    )
    async def preview(request: Request) -> Preview:
        """Return the outcome that a submission would have: every reason against it, the specification with its
        defaults, its costs, and the plan that it would start with. Nothing is submitted."""
        caller = request.state.caller
        request.state.unchanged = True
        spec = await parser.parse(caller.name, await request.body(), request.headers.get("content-type", ""))
        by = _submitter(caller, request.headers.get("x-stretto-user", ""))
        return await inquiries.preview(spec, by, _team(caller, request.headers.get("x-stretto-team", "")))


def _submitter(caller: Caller, on_behalf_of: str) -> str:
    """Return the name of the submitter: an admin may submit on behalf of another user."""
    return (on_behalf_of[:200] if caller.role == "admin" else "") or caller.name


def _team(caller: Caller, on_behalf_of: str) -> str:
    """Return the team of a submission: an admin may submit for another team. Raises Problem 400 for an invalid name."""
    if caller.role != "admin" or not on_behalf_of:
        return caller.team
    if not re.fullmatch(JOB_PATTERN, on_behalf_of):
        remedy = "a team: at most 63 lower-case letters, digits or hyphens"
        text = "X-Stretto-Team names no team"
        raise Problem(400, "bad-request", text, field="X-Stretto-Team", value=on_behalf_of[:100], remedy=remedy)
    return on_behalf_of


def _add_lists(router: APIRouter, views: JobViews) -> None:
    @router.get("/jobs", operation_id="listJobs", response_model=list[JobSummary], responses=LISTED)
    async def jobs(
        request: Request,
        status: Statuses = [],  # noqa: B006 - FastAPI copies defaults
        owner: Annotated[str, Query(max_length=200, description="only jobs that this name submitted")] = "",
        q: Annotated[str, Query(max_length=200, description="only jobs with this text in their name or owner")] = "",
        order: Order = "submitted",
        limit: Annotated[int, Query(ge=1, le=paging.LIMIT_MAX, description="jobs of a page")] = paging.LIMIT_MAX,
        cursor: Annotated[str, Query(max_length=500, description="of the `next` address; empty: first page")] = "",
    ) -> Response:
        """List a page of the jobs that the caller may read, oldest first. The header Link leads to the next page, which
        begins behind this one's last job, whatever came or went in between."""
        query = paging.JobQuery(frozenset(status), owner, q, order, limit)
        found, page = views.page(request.state.caller.reads, query, cursor or None)
        answer = json(list[JobSummary], found)
        answer.headers["Total-Count"] = str(page.total)
        if page.cursor is not None:
            asked = [pair for pair in request.query_params.multi_items() if pair[0] != "cursor"]
            answer.headers["Link"] = f'</api/v1/jobs?{urlencode([*asked, ("cursor", page.cursor)])}>; rel="next"'
        return answer

    @router.get("/jobs/{job}/decisions", operation_id="listDecisions", response_model=list[Decision])
    async def decisions(job: JobName, last: Last = None) -> Response:
        """List the decisions about a job: basis, prediction and outcome."""
        return json(list[Decision], views.view(job).decisions[-(last or 0) :])


def _add_details(router: APIRouter, inquiries: Inquiries) -> None:
    @router.get("/jobs/{job}/pods/{pod}/log", operation_id="getPodLog", response_model=PodLog, responses=TAGGED)
    async def log(job: JobName, pod: PodName, lines: Lines = LINES, if_none_match: IfNoneMatch = None) -> Response:
        """Return the last lines of a pod's log. It runs, or has ended: then the store has its last megabyte. To follow
        it, ask again with the ETag."""
        text, is_short_end = await inquiries.pod_log(job, pod, lines)
        tag = f'"{hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]}{"s" if is_short_end else ""}"'
        if (same := unchanged(if_none_match, tag)) is not None:
            return same
        answer = json(PodLog, PodLog(job=job, pod=pod, text=text, is_short_end=is_short_end))
        answer.headers["ETag"] = tag
        return answer

    @router.get("/jobs/{job}/trace", operation_id="getTrace")
    async def trace(job: JobName) -> JobTrace:
        """Return the trace of a job: its events as a waterfall, and the spans that this machine keeps and, where the
        gateway is told of one, the collector."""
        return await inquiries.trace(job)

    @router.get("/jobs/{job}/whatif", operation_id="whatIfJob")
    async def what_if(
        job: JobName,
        workers: Annotated[int | None, Query(ge=1, le=WORKERS_MAX)] = None,
        ps: Annotated[int | None, Query(ge=1, le=PS_MAX)] = None,
        worker_cpu_cores: Annotated[float | None, Query(gt=0, le=1000)] = None,
        ps_cpu_cores: Annotated[float | None, Query(gt=0, le=1000)] = None,
        worker_memory_bytes: Annotated[int | None, Query(ge=1, le=2**53)] = None,
        ps_memory_bytes: Annotated[int | None, Query(ge=1, le=2**53)] = None,
    ) -> Prediction:
        """Predict how a live job would go on under another plan, by its own fitted model. What is not given stays as it
        is in its plan. Nothing is requested."""
        wanted = {
            "workers": workers,
            "ps": ps,
            "worker_cpu_cores": worker_cpu_cores,
            "ps_cpu_cores": ps_cpu_cores,
            "worker_memory_bytes": worker_memory_bytes,
            "ps_memory_bytes": ps_memory_bytes,
        }
        return await inquiries.what_if(job, {name: value for name, value in wanted.items() if value is not None})

    @router.get("/jobs/{job}/audit", operation_id="auditJob", response_model=JobAudit)
    async def audit(job: JobName) -> Response:
        """Audit the books: the ledger against the counts of every column of the parameters."""
        return json(JobAudit, await inquiries.audit(job))
