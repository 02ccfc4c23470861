"""Every error as ``application/problem+json`` (RFC 9457), naming field, value and remedy."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response
from stretto_runtime import RuntimeFault
from stretto_wire import WireError

MEDIA_TYPE = "application/problem+json"
log = structlog.get_logger("stretto.gateway")


class ProblemBody(BaseModel):
    """What an error answer carries."""

    type: str = Field(examples=["urn:stretto:problem:bad-job"])
    title: str
    status: int
    detail: str
    instance: str
    field: str = Field(description="what was wrong: a field, header or parameter")
    value: str = Field(description="what stood there, shortened")
    remedy: str = Field(description="what would be accepted, or what to do")


class Problem(Exception):
    """An answer other than success. ``kind`` is the last token of the type URN."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        field: str = "",
        value: object = "",
        remedy: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.kind, self.detail = status, kind, detail
        self.field, self.value, self.remedy = field, str(value)[:200], remedy
        self.headers = headers or {}

    @classmethod
    def of_wire(cls, error: WireError, kind: str = "bad-job") -> Problem:
        """A refused document."""
        return cls(422, kind, str(error), field=error.field, value=error.value, remedy=error.remedy)

    def response(self, instance: str) -> Response:
        body: dict[str, Any] = {
            "type": f"urn:stretto:problem:{self.kind}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "instance": instance,
            "field": self.field,
            "value": self.value,
            "remedy": self.remedy,
        }
        # ASCII escapes: what a client sent may hold lone surrogates, which no UTF-8 answer can carry
        return Response(json.dumps(body), self.status, self.headers, MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Turn every exception of ``app`` into a problem."""

    async def problem(request: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        return error.response(request.url.path)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        where, *path = [str(part) for part in first["loc"]]
        field = ".".join(path) or where
        text = f"{field}: {first['msg']}"
        found = Problem(400, "bad-request", text, field=field, value=first.get("input", ""), remedy=first["msg"])
        return found.response(request.url.path)

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        remedy = {
            404: "see /docs for the addresses",
            405: f"allowed: {(error.headers or {}).get('Allow', 'see /docs')}",
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
        return found.response(request.url.path)

    async def fault(request: Request, error: Exception) -> Response:
        log.warning("bus fault", path=request.url.path, fault=str(error))
        found = Problem(
            503,
            "bus",
            str(error),
            field="bus",
            remedy="try again in some seconds; `stretto status` tells what is down",
            headers={"Retry-After": "2"},
        )
        return found.response(request.url.path)

    async def crash(request: Request, error: Exception) -> Response:
        log.error("request failed", path=request.url.path, exc_info=error)
        found = Problem(500, "internal", f"{type(error).__name__}", remedy="this is a defect: its trace is in the log")
        return found.response(request.url.path)

    app.add_exception_handler(Problem, problem)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RuntimeFault, fault)
    app.add_exception_handler(Exception, crash)
