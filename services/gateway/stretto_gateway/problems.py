"""Problems: every error is answered as ``application/problem+json`` (RFC 9457), with field, value and remedy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, get_args

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from stretto_bus.faults import Fault
from stretto_wire import WireError
from stretto_wire.findings import MOST, Finding, findings_of
from stretto_wire.rest.problems import MEDIA_TYPE, URN, Kind

PROBLEMS_AT = "/problems"
"""Address of the page about each kind."""

log = structlog.get_logger("stretto.gateway")


def kind_of(code: str) -> Kind:
    """Return the kind of a service's refusal; ``failed`` for a code without a page, which a newer service may send."""
    return next((kind for kind in get_args(Kind) if kind == code), "failed")


class Problem(Exception):
    """An error answer. ``kind`` is the last token of the type URN."""

    def __init__(
        self,
        status: int,
        kind: Kind,
        detail: str,
        *,
        field: str = "",
        value: object = "",
        remedy: str = "",
        headers: dict[str, str] | None = None,
        errors: Sequence[Finding] = (),
        count: int = 1,
    ) -> None:
        super().__init__(detail)
        self.status, self.kind, self.detail = status, kind, detail
        self.field, self.remedy = field, remedy
        self.value = str(value) if errors else str(value)[:200]  # a finding's value is short already
        self.headers = headers or {}
        self.errors = errors or (Finding(self.field, self.value, self.remedy),)
        self.count = count

    @classmethod
    def of_wire(cls, error: WireError, kind: Kind = "bad-job") -> Problem:
        """Make the problem of a refused document, with all findings."""
        return cls.of_findings(422, kind, str(error), error.findings, error.count)

    @classmethod
    def of_findings(cls, status: int, kind: Kind, detail: str, found: Sequence[Finding], count: int) -> Problem:
        """Make a problem of one or more findings. ``count``: the number of all findings, of which ``found`` may be the
        first."""
        first = found[0]
        return cls(
            status, kind, detail, field=first.field, value=first.value, remedy=first.remedy, errors=found, count=count
        )

    def response(self, instance: str) -> Response:
        body: dict[str, Any] = {
            "type": f"{URN}{self.kind}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "instance": instance,
            "help": f"{PROBLEMS_AT}/{self.kind}",
            "field": self.field,
            "value": self.value,
            "remedy": self.remedy,
            "errors": [asdict(finding) for finding in self.errors],
            "count": self.count,
        }
        # ASCII escapes: a client's text may hold lone surrogates, which UTF-8 cannot encode
        return Response(json.dumps(body), self.status, self.headers, MEDIA_TYPE)


def _location(found: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """Return the location of a finding without where it stands (query, path, header, body).

    The location of a repeated parameter loses its number, too.
    """
    place, *rest = found
    return (*(rest[:1] if place in ("query", "path", "header") else rest),) or found


def install(app: FastAPI) -> None:
    """Turn every exception of ``app`` into a problem."""

    def answer(request: Request, found: Problem) -> Response:
        request.state.problem = found.kind
        return found.response(request.url.path)

    async def problem(request: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        return answer(request, error)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        found = findings_of([{**one, "loc": _location(one["loc"])} for one in error.errors()])
        status = 422 if all(one["loc"][0] == "query" for one in error.errors()) else 400
        return answer(request, Problem.of_findings(status, "bad-request", str(found[0]), found[:MOST], len(found)))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        remedy = {
            404: "see /openapi.json for the addresses",
            405: f"allowed: {(error.headers or {}).get('Allow', 'see /openapi.json')}",
        }.get(error.status_code, "")
        found = Problem(
            error.status_code,
            "not-found" if error.status_code == 404 else "refused",
            str(error.detail),
            field="path" if error.status_code == 404 else "method",
            value=request.url.path if error.status_code == 404 else request.method,
            remedy=remedy,
            headers=dict(error.headers or {}),
        )
        return answer(request, found)

    async def fault(request: Request, error: Exception) -> Response:
        log.warning("bus fault", path=request.url.path, fault=str(error))
        found = Problem(
            503,
            "bus",
            str(error),
            field="bus",
            remedy="try again in some seconds; `stretto status` shows what is down",
            headers={"Retry-After": "2"},
        )
        return answer(request, found)

    async def crash(request: Request, error: Exception) -> Response:
        log.error("request failed", path=request.url.path, exc_info=error)
        time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        remedy = f"this is a defect of Stretto: please report it with the gateway's log at {time}"
        found = Problem(500, "internal", f"internal error ({type(error).__name__})", remedy=remedy)
        return answer(request, found)

    app.add_exception_handler(Problem, problem)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Fault, fault)
    app.add_exception_handler(Exception, crash)
