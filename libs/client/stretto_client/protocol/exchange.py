"""One request and its answer: repetitions, and problems as errors."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ..errors import ClientError, Finding, NotRunning, Refused, Unreachable, Unusable
from .connection import Answer, GatewayConnection, GatewayRequest, TransportFault

PATIENCE_S = 60.0
"""Time for which a request that came too early is repeated."""
RETRY_S = 1.0
"""Pause before such a repetition if the answer states none."""
NOT_MODIFIED = 304
BAD_REQUEST = 400
CONFLICT = 409
TOO_MANY = 429
_SHOWN = 300
"""Characters that an error shows of an answer that no gateway gave."""


async def exchange(connection: GatewayConnection, request: GatewayRequest) -> Answer:
    """Send a request; return its answer below 400.

    1. A GET whose connection breaks is sent once again: it changes nothing.
    2. A request that is answered 429 (too many requests), or with the problem ``busy`` (another checkpoint is being
       taken), is repeated after the time that the answer states, for ``PATIENCE_S`` in all.

    Raises ClientError.
    """
    try:
        return accepted(await answered(connection, request))
    except TransportFault as fault:
        raise error_of(fault) from fault


async def answered(connection: GatewayConnection, request: GatewayRequest, until_s: float = math.inf) -> Answer:
    """Return the answer to a request, whatever it says, with the repetitions of ``exchange``, none after ``until_s``.

    Raises TransportFault.
    """
    repetitions = Repetitions(connection, until_s)
    while True:
        answer = await _sent(connection, request)
        if not await repetitions.awaited(answer):
            return answer


@asynccontextmanager
async def opened(
    connection: GatewayConnection, request: GatewayRequest
) -> AsyncGenerator[tuple[Answer, AsyncIterator[bytes]]]:
    """Open the answer to a request, whatever it says, and the parts of its body. A request that came too early is
    repeated; a connection that breaks is not. Raises TransportFault."""
    repetitions = Repetitions(connection)
    while True:
        async with connection.stream(request) as (answer, parts):
            if not await repetitions.awaited(answer):
                yield answer, parts
                return


class Repetitions:
    """The repetitions of a request that comes too early: for ``PATIENCE_S`` in all, and none after ``until_s``."""

    def __init__(self, connection: GatewayConnection, until_s: float = math.inf) -> None:
        self._connection, self._until_s = connection, until_s
        self._deadline_s = connection.now() + PATIENCE_S

    async def awaited(self, answer: Answer) -> bool:
        """Return whether to send the request again, after the pause that the answer states; else the answer counts."""
        if not _comes_too_early(answer):
            return False
        now_s, pause_s = self._connection.now(), _retry_after_s(answer)
        if now_s + pause_s > self._until_s:
            await self._connection.pause(max(self._until_s - now_s, 0.0))
            return False
        if now_s + pause_s > self._deadline_s:
            return False
        await self._connection.pause(pause_s)
        return True


def accepted(answer: Answer) -> Answer:
    """Return an answer below 400 that leads nowhere else. Raises Refused."""
    if answer.status >= 400:
        raise problem(answer)
    if answer.status >= 300 and answer.status != NOT_MODIFIED:  # a token must not be taken to another host
        to = answer.headers.get("location", "another address")
        text = f"{answer.url} leads on to {to}: give the client the address of the gateway itself"
        raise Refused(answer.status, "foreign", text)
    return answer


async def document(connection: GatewayConnection, request: GatewayRequest) -> Any:
    """Send a request; return the JSON document of its answer. Raises ClientError."""
    return document_of(await exchange(connection, request))


def document_of(answer: Answer) -> Any:
    """Return the JSON document of an answer. Raises Unusable."""
    try:
        return json.loads(answer.content)
    except ValueError as error:
        shown = answer.content[:_SHOWN].decode(errors="replace")
        raise Unusable(f"the answer is no JSON ({error}): {shown}") from None


async def _sent(connection: GatewayConnection, request: GatewayRequest) -> Answer:
    try:
        return await connection.send(request)
    except TransportFault as fault:
        if request.method != "GET" or fault.kind in ("nobody", "certificate"):
            raise
    return await connection.send(request)


def error_of(fault: TransportFault) -> ClientError:
    """Return the error for people."""
    if fault.kind == "certificate":
        remedy = "name a file with the certificate of its issuer, as `ca` or in STRETTO_CLI_CA"
        return Unreachable(f"the certificate of the gateway is not trusted ({fault.text}): {remedy}")
    if fault.kind == "nobody":
        return NotRunning(f"no gateway answers ({fault.text}): start it with `stretto up`")
    return Unreachable(f"{fault.text}; see `stretto status`")


def _comes_too_early(answer: Answer) -> bool:
    """Return whether the same request may be accepted in a moment."""
    return answer.status == TOO_MANY or (answer.status == CONFLICT and problem(answer).kind == "busy")


def _retry_after_s(answer: Answer) -> float:
    stated = answer.headers.get("retry-after", "")
    return float(stated) if stated.isdigit() else RETRY_S


def problem(answer: Answer) -> Refused:
    """Return the error of an answer from 400 on, whether or not a gateway gave it."""
    from stretto_wire.rest.problems import URN  # loaded with the first problem: the wire takes its time

    try:
        body: dict[str, Any] = json.loads(answer.content)
        page = str(body.get("help", ""))
        return Refused(
            answer.status,
            str(body["type"]).removeprefix(URN),
            str(body["detail"]),
            findings=[
                Finding(str(one["field"]), str(one["value"]), str(one["remedy"]), one.get("line"), one.get("column"))
                for one in body["errors"]
            ],
            count=int(body["count"]),
            page=f"{answer.gateway}{page}" if page.startswith("/") else page,
        )
    except (ValueError, KeyError, TypeError, AttributeError):  # the answer is not from our gateway
        text = answer.content[:_SHOWN].decode(errors="replace")
        return Refused(answer.status, "foreign", f"HTTP {answer.status}: {text}")
