"""Middleware around every request: bounds on the body, security headers, the audit log of changes, and HEAD."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from stretto_runtime.process.connections import ADDRESS_MOST

from ..problems import Problem
from .audit_log import AuditLog, RequestedChange
from .callers import Caller

CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of answers, none of which is a page, may be framed, or may be cached by a proxy."""
OVER_TLS = {"Strict-Transport-Security": "max-age=31536000"}


class Heads:
    """Application that answers HEAD as GET, without the body; a stream of events ends before its first event."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("method") != "HEAD":
            await self._app(scope, receive, send)
            return
        answering, is_answered = asyncio.timeout(None), False

        async def sending(message: Message) -> None:
            nonlocal is_answered
            if message["type"] != "http.response.body":
                await send(message)
            elif not is_answered:
                is_answered = True
                await send({"type": message["type"], "body": b""})
                if message.get("more_body", False):
                    answering.reschedule(asyncio.get_running_loop().time())  # cancels the rest of the stream

        try:
            async with answering:
                await self._app({**scope, "method": "GET"}, receive, sending)
        except TimeoutError:
            if not answering.expired():
                raise


class Edge:
    """Application with bounds on request bodies (``body_bytes``, ``body_s``), security headers, and the audit log."""

    def __init__(
        self, app: ASGIApp, audit_log: AuditLog, body_bytes: int, body_s: float, headers: dict[str, str]
    ) -> None:
        self._app = app
        self._audit_log = audit_log
        self._body_bytes = body_bytes
        self._body_s = body_s
        self._headers = [(name.lower().encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                if (change := _change(scope, message["status"])) is not None:
                    await self._audit_log.note(change)
                known = {name for name, _ in message["headers"]}
                added = [(name, value) for name, value in self._headers if name not in known]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        try:
            async with asyncio.timeout(self._body_s):
                body = await _body(Request(scope, receive), self._body_bytes)
        except ClientDisconnect:
            return  # nobody waits for an answer
        except (Problem, TimeoutError) as error:
            problem = error if isinstance(error, Problem) else _slow(self._body_s)
            answer = sending if isinstance(error, TimeoutError) else _heard(scope, receive, sending, self._body_s)
            await problem.response(scope["path"])(scope, receive, answer)
            return
        whole: Message | None = {"type": "http.request", "body": body, "more_body": False}

        async def read() -> Message:
            nonlocal whole
            message, whole = whole, None
            return message or await receive()

        await self._app(scope, read, sending)


def _heard(scope: Scope, receive: Receive, send: Send, limit_s: float) -> Send:
    """Return how an answer is sent while a body is on its way: the rest of the body is taken, and thrown away.

    A connection that is closed before its bytes are read is reset, and the client might never see the answer. Who
    waits for leave to send a body (`Expect`) sends none.
    """

    async def sending(message: Message) -> None:
        is_end = message["type"] == "http.response.body" and not message.get("more_body", False)
        if not is_end or "expect" in Headers(scope=scope):
            await send(message)
            return
        await send({**message, "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while (await receive()).get("more_body", False):
                    pass
        await send({"type": "http.response.body", "body": b""})

    return sending


async def _body(request: Request, limit_bytes: int) -> bytes:
    """Read the whole body, but no further than the limit. Raises Problem 413."""
    declared = request.headers.get("content-length", "")
    too_large = Problem(
        413,
        "too-large",
        f"the body is larger than {limit_bytes} bytes",
        field="(body)",
        value=declared and f"{declared} bytes",
        remedy=f"at most {limit_bytes} bytes",
    )
    if declared.isdigit() and int(declared[:18]) > limit_bytes:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit_bytes:
            raise too_large
    return bytes(body)


def _slow(body_s: float) -> Problem:
    return Problem(
        408,
        "too-slow",
        f"the body did not arrive within {body_s:g} s",
        field="(body)",
        remedy="send it faster",
        headers={"Connection": "close"},
    )


def _change(scope: Scope, status: int) -> RequestedChange | None:
    """Return the change that a request asked for; None if the request changed nothing or its address is unknown.

    A repeated request counts as no change, or repetitions could fill the audit log.
    """
    route, state = scope.get("route"), scope["state"]
    if scope["method"] not in CHANGING or route is None or state.get("unchanged", False):
        return None
    caller: Caller | None = state.get("caller")
    return RequestedChange(
        job=scope.get("path_params", {}).get("job", state.get("job", "")),
        action=route.name,
        status=status,
        problem=state.get("problem", ""),
        actor=caller.name if caller else "",
        role=caller.role if caller else "",
        address=scope["client"][0][:ADDRESS_MOST] if scope.get("client") else "",
    )
