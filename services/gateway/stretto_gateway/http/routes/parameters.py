"""Parameters and answers that several routes share."""

from __future__ import annotations

import difflib
from collections import Counter
from typing import Annotated, Any, get_origin

from fastapi import Header, Path, Query, Request, Response
from pydantic import BaseModel
from stretto_messages.base import JOB_PATTERN, PodId
from stretto_runtime.process.connections import network_of
from stretto_wire.codec import adapter_of
from stretto_wire.contract.excerpts import SEQ_MAX as SEQ_MAX
from stretto_wire.findings import MOST, Finding, finding
from stretto_wire.rest.problems import MEDIA_TYPE

from ...access.callers import ANYBODY
from ...problems import Problem
from ...read_model.parts import matches
from .. import components

JobName = Annotated[str, Path(pattern=JOB_PATTERN, description="name of the job")]
PodName = Annotated[PodId, Path(description="name of the pod, such as worker-3")]
Lines = Annotated[int, Query(ge=1, le=100_000, description="number of last lines")]
LINES = 1000
Last = Annotated[
    int | None, Query(ge=1, le=500, description="of lists of happenings, such as decisions, only so many latest")
]
IfNoneMatch = Annotated[
    str | None,
    Header(max_length=1000, description="the ETag of the answer that the client holds; 304 if it is still so"),
]

_PROBLEM = components.content(MEDIA_TYPE, components.PROBLEM)
Responses = dict[int | str, dict[str, Any]]
ERRORS: Responses = {
    "4XX": {"description": "refused; the problem names field, value and remedy", **_PROBLEM},
    "5XX": {"description": "the gateway or the bus has a problem", **_PROBLEM},
}
_TAG = {"ETag": {"schema": {"type": "string"}, "description": "of this answer, for If-None-Match"}}
TAGGED: Responses = {
    200: {"headers": _TAG, "description": "as it is now"},
    304: {"headers": _TAG, "description": "the client holds it already"},
}
"""Responses of a route whose answer has an ETag."""


def json(kind: Any, value: Any) -> Response:
    """Answer with a view. Pydantic serialises the values of messages once; FastAPI would validate them again."""
    return Response(adapter_of(kind).dump_json(value), media_type="application/json")


def unchanged(held: str | None, tag: str) -> Response | None:
    """Return the answer 304 if the client holds the answer with this ETag, else None."""
    return Response(status_code=304, headers={"ETag": tag}) if matches(held, tag) else None


def check_query(request: Request) -> None:
    """Refuse what a route would pass over: a misspelt query parameter, and one given twice. Raises Problem 422."""
    known = {each.alias: each.field_info.annotation for each in request.scope["route"].dependant.query_params}
    if any(isinstance(each, type) and issubclass(each, BaseModel) for each in known.values()):
        return  # a model of all parameters, which refuses others itself
    found: list[Finding] = []
    for name, count in Counter(name for name, _ in request.query_params.multi_items()).items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"known are {', '.join(known) or 'none'}"
            found.append(finding((name,), request.query_params[name], f"no such parameter here; {remedy}"))
        elif count > 1 and get_origin(known[name]) is not list:
            found.append(finding((name,), f"{count} times", "given once"))
    if found:
        raise Problem.of_findings(422, "bad-request", str(found[0]), found[:MOST], len(found))


def name_of(request: Request) -> str:
    """Return the name by which streams and searches of a caller are counted: its own, or its network if nobody has to
    log in."""
    caller = request.state.caller
    return caller.name if caller is not ANYBODY or request.client is None else network_of(request.client.host)
